//! A charge of a token bucket as the Lua twin takes it.

/// The numbers that the Lua twin needs for one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// The interval is no whole number of microseconds: walk the lattice.
    Lattice {
        /// Units to take; `None` when they can never fit.
        cost: Option<u64>,
        /// Units that come back in each `micros`.
        units: u64,
        /// Length of the lattice's period.
        micros: u64,
    },
    /// The interval is whole microseconds: one addition and one comparison.
    Whole {
        /// How far the charge moves the TAT; `None` when it can never fit.
        increment: Option<u64>,
    },
}
