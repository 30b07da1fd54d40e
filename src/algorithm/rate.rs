//! The refill rate of a bucket, exact in whole numbers.
//!
//! # Why a lattice instead of floats?
//!
//! At 3 a second, the interval between two units is not a whole number of microseconds. A rounded interval gives a wrong rate: by
//! 30 % or more near the highest rates, where 1.4 us would become 1 us or 2 us. With floats, errors add up, and Lua and Rust
//! would have to round alike. So the rate is a ratio in lowest terms, `units` per `micros`. The TAT moves along the points
//! `ceil(k * micros / units)`, the lattice. Its position there follows from the TAT modulo `micros`, so the fraction needs no
//! state, and after every `units` steps the TAT is exact. A rate with a whole interval, such as 100 a minute, needs no lattice: a
//! charge is one addition and one comparison.
//!
//! ```rust
//! # fn main() -> Result<(), tollgate::Error> {
//! use tollgate::{Quota, algorithm::{BucketState, Counting, TokenBucket}, clock::Timestamp};
//!
//! let (bucket, now) = (TokenBucket::new(Quota::per_second(3))?, Timestamp::from_micros(1_700_000_000_000_000));
//! let steps = [1, 2, 3].map(|cost| {
//!     let mut state = BucketState::default();
//!     bucket.charge(&mut state, now, cost);
//!     state.tat() - now.as_micros()
//! });
//! assert_eq!(steps, [333_334, 666_667, 1_000_000]);
//! # Ok(())
//! # }
//! ```

use super::quota::Quota;

/// Units that come back in each `micros`, in lowest terms, and the lattice of times on which the units lie.
///
/// The lattice of 3 units per second, in microseconds after point 0:
///
/// ```text
/// point   0        1         2         3 = units     4
/// at      0        333,334   666,667   1,000,000     1,333,334
///                                      = micros
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub units: u64,
    pub micros: u64,
}

impl Rate {
    /// Returns the rate of a quota that is within the documented limits.
    pub fn of(quota: Quota) -> Self {
        // Nanoseconds make periods such as 1.5 us exact; both factors fit in 128 bits.
        Self::reduced(u128::from(quota.count()) * 1_000, quota.period().as_nanos())
    }

    /// Returns `part` of `whole` of the rate.
    pub fn part(self, part: u64, whole: u64) -> Self {
        let units = u128::from(self.units) * u128::from(part);
        Self::reduced(units, u128::from(self.micros) * u128::from(whole))
    }

    /// Returns a rate in lowest terms, or the next lower one whose terms are exact. Neither term is 0.
    fn reduced(units: u128, micros: u128) -> Self {
        let divisor = greatest_common_divisor(units, micros);
        let (units, micros) = (units / divisor, micros / divisor);
        let product = units.checked_mul(micros);
        if product.is_some_and(|product| product < EXACT) {
            return Self::narrow(units, micros);
        }
        // The terms are too long for exact doubles. Take as many units as keep the product below 2^52 and round their
        // time up, so that the rate is never above the quota's.
        let fewer = (EXACT * units / micros).isqrt().saturating_sub(1).max(1);
        let longer = (fewer * (micros / units)) + (fewer * (micros % units)).div_ceil(units);
        let divisor = greatest_common_divisor(fewer, longer);
        Self::narrow(fewer / divisor, longer / divisor)
    }

    /// Invariant: both terms are below 2^52, because their product is and neither is 0.
    fn narrow(units: u128, micros: u128) -> Self {
        let narrow = |term| u64::try_from(term).expect("a term below 2^52");
        Self {
            units: narrow(units),
            micros: narrow(micros),
        }
    }

    /// Returns whether a unit takes a whole number of microseconds.
    #[inline]
    fn is_whole(self) -> bool {
        self.units == 1
    }

    /// Returns the microseconds by which a span exceeds its capacity's time: 1 if the interval is fractional.
    ///
    /// A TAT between lattice points can lose a microsecond against them while the burst is taken unit by unit.
    #[inline]
    pub fn slack(self) -> u16 {
        (!self.is_whole()).into()
    }

    /// Returns the TAT when `cost` units are charged on top of it.
    #[inline]
    pub fn advance(self, tat: u64, cost: u64) -> u64 {
        if self.is_whole() {
            tat + cost * self.micros
        } else {
            self.advance_on_lattice(tat, cost)
        }
    }

    // Not inlined, as below, so that rates of whole microseconds take few instructions.
    #[inline(never)]
    fn advance_on_lattice(self, tat: u64, cost: u64) -> u64 {
        let point = self.point(tat % self.micros);
        tat + self.at(point + cost) - self.at(point)
    }

    /// Returns the distance to the TAT from which `units` moved it here.
    pub fn rewind(self, tat: u64, units: u64) -> u64 {
        // Start whole periods later, so that there are enough points to go back.
        let ahead = units.div_ceil(self.units) * self.units;
        let point = self.point(tat % self.micros) + ahead;
        self.at(point) - self.at(point - units)
    }

    /// Returns the largest number of units that move the TAT by at most `room` microseconds.
    #[inline]
    pub fn fitting(self, tat: u64, room: u64) -> u64 {
        if self.is_whole() {
            room / self.micros
        } else {
            self.fitting_on_lattice(tat, room)
        }
    }

    #[inline(never)]
    fn fitting_on_lattice(self, tat: u64, room: u64) -> u64 {
        let point = self.point(tat % self.micros);
        self.point(self.at(point) + room) - point
    }

    /// Returns the last lattice point at or before `micros` after point 0: `floor(micros * rate)`.
    #[inline]
    fn point(self, micros: u64) -> u64 {
        let (periods, rest) = (micros / self.micros, micros % self.micros);
        periods * self.units + rest * self.units / self.micros
    }

    /// Returns the time of a lattice point: `ceil(point / rate)` after point 0.
    #[inline]
    pub fn at(self, point: u64) -> u64 {
        let (periods, rest) = (point / self.units, point % self.units);
        periods * self.micros + (rest * self.micros).div_ceil(self.units)
    }

    /// As [`at`](Self::at), or `None` when the time exceeds 64 bits.
    pub fn at_checked(self, point: u64) -> Option<u64> {
        let (periods, rest) = (point / self.units, point % self.units);
        let whole = periods.checked_mul(self.micros)?;
        whole.checked_add((rest * self.micros).div_ceil(self.units))
    }

    /// Returns the time in which `units` come back, rounded up, at most `u64::MAX`.
    pub fn up(self, units: u64) -> u64 {
        let rest = (units % self.units * self.micros).div_ceil(self.units);
        self.whole(units).saturating_add(rest)
    }

    /// Returns the time in which `units` come back, rounded down, at most `u64::MAX`.
    pub fn down(self, units: u64) -> u64 {
        let rest = units % self.units * self.micros / self.units;
        self.whole(units).saturating_add(rest)
    }

    fn whole(self, units: u64) -> u64 {
        (units / self.units).saturating_mul(self.micros)
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Products below this leave room for one more addition in a double's 53 bits.
const EXACT: u128 = 1 << 52;
