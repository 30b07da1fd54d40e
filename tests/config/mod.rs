//! Rules in files and in Redis: what they mean, their faults, and how a running service replaces them.

mod bounds;
mod reloading;
mod rule_files;
mod shared;
mod watch;
