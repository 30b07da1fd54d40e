//! Code that the comparison programs share.

pub mod allocations;
pub mod arguments;
pub mod builds;
pub mod child;
pub mod cluster;
pub mod cpu;
pub mod gcra;
pub mod keys;
pub mod rounds;
pub mod server;
pub mod table;
