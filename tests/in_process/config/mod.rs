//! Rules in files: what they mean, their faults, and how a running service replaces them.

mod bounds;
#[cfg(feature = "client")]
mod outgoing;
#[cfg(feature = "reload")]
mod reloading;
mod rule_files;
#[cfg(feature = "reload")]
mod watch;
