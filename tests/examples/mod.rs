//! The programs in `examples/`: each runs, and does what its reader is promised.

mod gateway;
mod runs;
