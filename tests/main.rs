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
mod conformance;
mod differential;
mod extractors;
mod hammer;
mod lanes;
mod memory;
mod middleware;
mod outage;
mod queueing;
mod scripts;
mod settling;
mod sockets;
mod support;
mod support_tests;
mod token_bucket;
mod witness;
