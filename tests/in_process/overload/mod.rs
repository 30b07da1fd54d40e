//! Overload: when requests are shed, and whose.

#[cfg(feature = "explain")]
mod explanation;
#[cfg(feature = "rules")]
mod files;
mod layer;
mod limit;
mod log_lines;
mod places;
mod simulation;
mod streams;
