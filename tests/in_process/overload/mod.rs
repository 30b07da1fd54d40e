//! Overload: when requests are shed, and whose.

#[cfg(feature = "rules")]
#[cfg(feature = "explain")]
mod explanation;
mod files;
mod layer;
mod limit;
mod places;
mod simulation;
