//! Every integration test, in one binary: it links once.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "tests report what they measured, and their numbers are small"
)]

mod architecture;
mod bad_input;
mod calls;
mod concurrency;
mod conformance;
mod counting;
mod differential;
mod examples;
mod extractors;
mod fixed_window;
mod hammer;
mod hammer_mixed;
mod holding;
mod lanes;
mod limit_changes;
mod memory;
mod memory_algorithms;
mod memory_logs;
mod middleware;
mod outage;
mod queueing;
mod scripts;
mod settling;
mod sliding_log;
mod sliding_window;
mod sockets;
mod stacks;
mod support;
mod support_tests;
mod token_bucket;
mod warnings;
mod witness;
