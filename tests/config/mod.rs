//! Rules in Redis that all instances share.

mod shared;
