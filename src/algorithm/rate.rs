//! A rate as whole units per whole microseconds, and the lattice of the times at which its units come back.
//!
//! A TAT of the [token bucket](super::TokenBucket) advances from one point of the lattice to another, so that no fraction
//! is lost.

use crate::quota::Quota;

/// Units that come back in each `micros`, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) units: u64,
    pub(super) micros: u64,
}

impl Rate {
    /// Returns the rate of a quota between the slowest and the fastest.
    pub(super) fn of(quota: Quota) -> Self {
        let (units, micros) = rate(quota);
        Self { units, micros }
    }

    /// Returns whether a unit takes a whole number of microseconds.
    #[inline]
    pub(super) fn is_whole(self) -> bool {
        self.units == 1
    }

    /// Returns the TAT `cost` units later.
    #[inline]
    pub(super) fn advance(self, tat: u64, cost: u64) -> u64 {
        if self.units == 1 {
            return tat + cost * self.micros;
        }
        let point = self.point(tat % self.micros);
        tat + self.at(point + cost) - self.at(point)
    }

    /// Returns by how many microseconds a charge of `units` advanced the TAT to `tat`.
    pub(super) fn rewind(self, tat: u64, units: u64) -> u64 {
        // Counted from earlier periods, so that the point before the charge is not negative.
        let ahead = units.div_ceil(self.units) * self.units;
        let point = self.point(tat % self.micros) + ahead;
        self.at(point) - self.at(point - units)
    }

    /// Returns the most units that advance the TAT by at most `room`.
    #[inline]
    pub(super) fn fitting(self, tat: u64, room: u64) -> u64 {
        if self.units == 1 {
            return room / self.micros;
        }
        let point = self.point(tat % self.micros);
        self.point(self.at(point) + room) - point
    }

    /// Returns the last lattice point at or before `micros` after point 0: `floor(micros * rate)`.
    #[inline]
    fn point(self, micros: u64) -> u64 {
        let (periods, rest) = (micros / self.micros, micros % self.micros);
        periods * self.units + rest * self.units / self.micros
    }

    /// Returns the time of lattice point `point`: `ceil(point / rate)` after point 0.
    #[inline]
    fn at(self, point: u64) -> u64 {
        let (periods, rest) = (point / self.units, point % self.units);
        periods * self.micros + (rest * self.micros).div_ceil(self.units)
    }

    /// As [`at`](Self::at); `None` for a point beyond `u64`.
    pub(super) fn at_checked(self, point: u64) -> Option<u64> {
        let (periods, rest) = (point / self.units, point % self.units);
        let whole = periods.checked_mul(self.micros)?;
        whole.checked_add((rest * self.micros).div_ceil(self.units))
    }

    /// Returns the time in which this number of units comes back, rounded up, at most `u64::MAX`.
    pub(super) fn up(self, units: u64) -> u64 {
        let rest = (units % self.units * self.micros).div_ceil(self.units);
        self.whole(units).saturating_add(rest)
    }

    /// Returns the time in which this number of units comes back, rounded down, at most `u64::MAX`.
    pub(super) fn down(self, units: u64) -> u64 {
        let rest = units % self.units * self.micros / self.units;
        self.whole(units).saturating_add(rest)
    }

    fn whole(self, units: u64) -> u64 {
        (units / self.units).saturating_mul(self.micros)
    }
}

/// Returns the rate of a quota in lowest terms: units and microseconds.
fn rate(quota: Quota) -> (u64, u64) {
    // Nanoseconds make periods such as 1.5 us exact; both factors fit in 128 bits.
    let units = u128::from(quota.count()) * 1_000;
    let micros = quota.period().as_nanos();
    let divisor = greatest_common_divisor(units, micros);
    let (units, micros) = (units / divisor, micros / divisor);
    let is_exact = units
        .checked_mul(micros)
        .is_some_and(|product| product < EXACT);
    if is_exact {
        return (narrow(units), narrow(micros));
    }
    // Too large for exact doubles: take as many units as keep the product below 2^52, and round their time up, so that
    // the rate is never above the quota's.
    let fewer = (EXACT * units / micros).isqrt().saturating_sub(1).max(1);
    let longer = (fewer * (micros / units)) + (fewer * (micros % units)).div_ceil(units);
    let divisor = greatest_common_divisor(fewer, longer);
    (narrow(fewer / divisor), narrow(longer / divisor))
}

/// Returns a term of a rate as `u64`. Both are below 2^52, since their product is and neither is 0.
fn narrow(term: u128) -> u64 {
    u64::try_from(term).expect("a term below 2^52")
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Products below this leave room for one more addition in a double's 53 bits.
const EXACT: u128 = 1 << 52;
