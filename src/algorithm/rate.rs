//! The refill rate of a bucket, exact in whole numbers.
//!
//! # Why a lattice instead of floats?
//!
//! At 3 a second, the interval between two units is not a whole number of microseconds. A rounded interval gives a wrong rate: by
//! 30 % or more near the highest rates, where 1.4 us would become 1 us or 2 us. With floats, errors add up, and Lua and Rust
//! would have to round alike. So the rate is a ratio in lowest terms, `units` per `micros`. The TAT moves along the points
//! `ceil(k * micros / units)`, the lattice. Its position there follows from the TAT, so the fraction needs no state, and after
//! every `units` steps the TAT is exact. A rate with a whole interval, such as 100 a minute, needs no lattice: a charge is one
//! addition and one comparison.
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
    /// `None` if a unit takes a whole number of microseconds.
    lattice: Option<Lattice>,
}

impl Rate {
    /// Returns the rate of a quota that is within the documented limits.
    pub fn of(quota: Quota) -> Self {
        // Nanoseconds make periods such as 1.5 us exact; both factors fit in 128 bits.
        Self::reduced(u128::from(quota.count()) * 1_000, quota.period().as_nanos())
    }

    /// Returns `part` of `whole` of the rate.
    pub fn part(&self, part: u64, whole: u64) -> Self {
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
        let (units, micros) = (narrow(units), narrow(micros));
        Self {
            lattice: (units > 1).then(|| Lattice::new(units, micros)),
            ..Self::whole(units, micros)
        }
    }

    /// Returns a rate whose units take a whole number of microseconds each.
    pub const fn whole(units: u64, micros: u64) -> Self {
        Self {
            units,
            micros,
            lattice: None,
        }
    }

    /// Returns the microseconds by which a span exceeds its capacity's time: 1 if the interval is fractional.
    ///
    /// A TAT between lattice points can lose a microsecond against them while the burst is taken unit by unit.
    #[inline]
    pub fn slack(&self) -> u16 {
        self.lattice.is_some().into()
    }

    /// Returns the TAT when `cost` units are charged on top of it.
    #[inline]
    pub fn advance(&self, tat: u64, cost: u64) -> u64 {
        match &self.lattice {
            None => tat + cost * self.micros,
            Some(lattice) => lattice.advance(tat, cost),
        }
    }

    /// Returns the distance to the TAT from which `units` moved it here.
    pub fn rewind(&self, tat: u64, units: u64) -> u64 {
        // Start whole periods later, so that there are enough points to go back.
        let ahead = units.div_ceil(self.units) * self.units;
        let point = self.point(tat % self.micros) + ahead;
        self.at(point) - self.at(point - units)
    }

    /// Returns the largest number of units that move the TAT by at most `room` microseconds.
    #[inline]
    pub fn fitting(&self, tat: u64, room: u64) -> u64 {
        match &self.lattice {
            None => room / self.micros,
            Some(lattice) => lattice.fitting(tat, room),
        }
    }

    /// Returns the last lattice point at or before `micros` after point 0: `floor(micros * rate)`.
    fn point(&self, micros: u64) -> u64 {
        let (periods, rest) = (micros / self.micros, micros % self.micros);
        periods * self.units + rest * self.units / self.micros
    }

    /// Returns the time of a lattice point: `ceil(point / rate)` after point 0.
    pub fn at(&self, point: u64) -> u64 {
        let (periods, rest) = (point / self.units, point % self.units);
        periods * self.micros + (rest * self.micros).div_ceil(self.units)
    }

    /// As [`at`](Self::at), or `None` when the time exceeds 64 bits.
    pub fn at_checked(&self, point: u64) -> Option<u64> {
        let (periods, rest) = (point / self.units, point % self.units);
        let whole = periods.checked_mul(self.micros)?;
        whole.checked_add((rest * self.micros).div_ceil(self.units))
    }

    /// Returns the time in which `units` come back, rounded up, at most `u64::MAX`.
    pub fn up(&self, units: u64) -> u64 {
        let rest = (units % self.units * self.micros).div_ceil(self.units);
        self.whole_periods(units).saturating_add(rest)
    }

    /// Returns the time in which `units` come back, rounded down, at most `u64::MAX`.
    pub fn down(&self, units: u64) -> u64 {
        let rest = units % self.units * self.micros / self.units;
        self.whole_periods(units).saturating_add(rest)
    }

    fn whole_periods(&self, units: u64) -> u64 {
        (units / self.units).saturating_mul(self.micros)
    }
}

// === Lattice ===

/// The lattice of a rate whose units do not take whole microseconds, without divisions.
///
/// Points and times are counted from the epoch, not from the start of a period: a whole period adds `units` to each point, and
/// `micros` to each time, so differences are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lattice {
    /// Points in a microsecond.
    points: Fraction,
    /// Microseconds of a unit, rounded up.
    interval: u64,
    /// By how much of a microsecond a unit takes less than `interval`.
    early: Fraction,
}

impl Lattice {
    fn new(units: u64, micros: u64) -> Self {
        let interval = micros.div_ceil(units);
        Self {
            points: Fraction::new(units, micros),
            interval,
            early: Fraction::new(interval * units - micros, units),
        }
    }

    // Not inlined, as below, so that rates of whole microseconds take few instructions.
    #[inline(never)]
    fn advance(&self, tat: u64, cost: u64) -> u64 {
        let point = self.points.of(tat);
        tat + (self.at(point + cost) - self.at(point))
    }

    #[inline(never)]
    fn fitting(&self, tat: u64, room: u64) -> u64 {
        let point = self.points.of(tat);
        self.points.of(self.at(point) + room) - point
    }

    /// Returns the time of a lattice point, rounded up.
    #[inline]
    fn at(&self, point: u64) -> u64 {
        point * (self.interval - 1) + (point - self.early.of(point))
    }
}

// === Fraction ===

/// A part of 1, by which numbers are multiplied without a division.
///
/// It is `numerator / denominator`, rounded up to a multiple of 2^-128: `(numerator * 2^128 + e) / (denominator * 2^128)` with
/// `e < denominator`. A product with a number `n` is too large by `n * e / (denominator * 2^128)`, which is less than
/// `1 / denominator`, as `n * e < 2^128`. The exact product is below the next whole number by at least `1 / denominator`, so both
/// have the same whole part (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction {
    high: u64,
    low: u64,
}

impl Fraction {
    /// The numerator must be below the denominator.
    fn new(numerator: u64, denominator: u64) -> Self {
        let divide = |rest: u64| {
            let (shifted, denominator) = (u128::from(rest) << 64, u128::from(denominator));
            (shifted / denominator, shifted % denominator)
        };
        let narrow = |part: u128| {
            u64::try_from(part).expect("below 2^64, as the rest is below the denominator")
        };
        let (high, rest) = divide(numerator);
        let (low, rest) = divide(narrow(rest));
        let rounded = (high << 64 | low) + u128::from(rest > 0);
        Self {
            high: narrow(rounded >> 64),
            low: narrow(rounded & u128::from(u64::MAX)),
        }
    }

    /// Returns the fraction of a number, rounded down.
    #[inline]
    fn of(self, number: u64) -> u64 {
        let product = |part: u64| u128::from(number) * u128::from(part);
        let sum = product(self.high) + (product(self.low) >> 64);
        (sum >> 64) as u64
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Terms of a rate with a lattice.
    fn terms() -> impl Strategy<Value = (u64, u64)> {
        let units = prop_oneof![2_u64..100, 2_u64..1 << 25, Just((1 << 25) + 1)];
        let more = prop_oneof![1_u64..100, 1_u64..1 << 26];
        (units, more)
            .prop_map(|(units, more)| (units, units + more))
            .prop_filter("lowest terms", |(units, micros)| {
                greatest_common_divisor((*units).into(), (*micros).into()) == 1
            })
    }

    proptest! {
        #[test]
        fn fraction_of_a_number_is_the_quotient(
            (numerator, denominator) in (1_u64..1 << 52).prop_flat_map(|d| (0..d, Just(d))),
            number in prop_oneof![any::<u64>(), 0_u64..100],
        ) {
            let fraction = Fraction::new(numerator, denominator);
            let multiple = number / denominator * denominator;
            for number in [number, multiple, multiple.saturating_sub(1), 0, u64::MAX] {
                let exact = u128::from(number) * u128::from(numerator) / u128::from(denominator);
                prop_assert_eq!(u128::from(fraction.of(number)), exact);
            }
        }

        // As it was computed before, within one period.
        #[test]
        fn lattice_is_that_of_divisions(
            (units, micros) in terms(),
            tat in prop_oneof![0_u64..1 << 52, Just(1_700_000_000_000_000)],
            cost in 0_u64..1 << 20,
            room in 0_u64..1 << 50,
        ) {
            let rate = Rate::narrow(units.into(), micros.into());
            let point = rate.point(tat % micros);
            prop_assert_eq!(rate.advance(tat, cost), tat + rate.at(point + cost) - rate.at(point));
            prop_assert_eq!(rate.fitting(tat, room), rate.point(rate.at(point) + room) - point);
        }
    }
}
