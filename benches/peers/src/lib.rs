//! What the comparisons share: allocations, arguments, interleaved rounds, tables.

pub mod allocations;
pub mod arguments;
pub mod keys;
pub mod rounds;
pub mod table;
