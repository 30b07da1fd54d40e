//! Overload: when requests are shed, and whose.

mod limit;
mod places;
mod simulation;
