//! Clocks that are set while a process runs.

mod steps;
