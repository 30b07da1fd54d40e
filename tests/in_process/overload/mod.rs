//! Overload: when requests are shed, and whose.

mod layer;
mod limit;
mod places;
mod simulation;
