//! Wall clocks that are wrong when a process starts.

#[cfg(target_os = "linux")]
mod wall_clock;
