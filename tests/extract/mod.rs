//! Keys that are looked up.

mod lookups;
