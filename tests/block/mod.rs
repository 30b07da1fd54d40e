//! Keys that an operator denies.

mod blocks;
