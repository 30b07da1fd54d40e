//! What the comparisons share: allocations, arguments, interleaved rounds, a server, tables.

pub mod allocations;
pub mod arguments;
pub mod keys;
pub mod rounds;
pub mod server;
pub mod table;
