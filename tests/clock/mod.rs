//! Wall clocks that are wrong, and clocks that are set while a process runs.

mod steps;
#[cfg(target_os = "linux")]
mod wall_clock;
