//! The programs in `examples/`: each runs, and does what its docs promise.

mod gateway;
mod runs;
