//! Rate limit headers.

mod families;
mod reason;
mod writer;
