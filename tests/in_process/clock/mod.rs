//! Clocks that are set while a process runs, and the clock of a Tokio runtime.

mod runtime;
mod steps;
