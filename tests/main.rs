//! The tests that need servers or other programs, in one binary: it links once. `in_process/` has the tests that need none.
//!
//! A room has the name of the folder of `src/`, `lua/` or `examples/` that it tests. Rooms of their own: `conformance` (each
//! behaviour by each algorithm on each store), `fleet` (several instances or processes), and `whole` (the whole crate).

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "tests report what they measured, and their numbers are small"
)]

mod block;
mod call;
mod clock;
mod config;
mod conformance;
mod dashboard;
mod diagnosis;
mod examples;
mod explain;
mod extract;
mod fleet;
mod hold;
mod limiter;
mod lua;
mod matching;
mod memory;
mod middleware;
mod policy;
mod remote;
mod resilience;
mod rules;
mod support;
mod telemetry;
mod tiers;
mod top_keys;
mod whole;
