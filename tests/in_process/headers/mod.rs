//! Rate limit headers.

mod families;
mod reason;
mod shown_limit;
mod writer;
