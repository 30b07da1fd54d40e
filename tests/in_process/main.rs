//! The tests that need no server: they take seconds.
//!
//! ```text
//! cargo test --lib --test in_process --features body,test-util           with the unit tests, in less than a minute
//! cargo test --test in_process --features body,test-util extract::       the tests of one room
//! ```

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "tests report what they measured, and their numbers are small"
)]

mod acquire;
mod algorithm;
mod builder;
mod call;
#[cfg(feature = "client")]
mod client;
mod clock;
#[cfg(feature = "rules")]
mod config;
mod diagnosis;
mod extract;
mod headers;
mod limiter;
mod matching;
mod memory;
mod middleware;
mod overload;
mod rejection;
#[cfg(feature = "redis")]
mod resilience;
mod rules;
#[cfg_attr(
    not(feature = "reload"),
    allow(
        dead_code,
        unused_imports,
        reason = "only the tests of rules in files use it"
    )
)]
#[path = "../support/in_process/mod.rs"]
mod support;
mod telemetry;
mod testing;
mod tiers;
#[cfg(feature = "top-keys")]
mod top_keys;
mod whole;
