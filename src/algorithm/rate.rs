//! A rate as whole units per whole microseconds, and the lattice of times that its units lie on.
//!
//! The [token bucket](super::TokenBucket) says why: a TAT moves from point to point, so that no fraction is lost.

use crate::quota::Quota;

/// Units that come back in each `micros`, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) units: u64,
    pub(super) micros: u64,
}

impl Rate {
    /// The rate of a quota between the slowest and the fastest.
    pub(super) fn of(quota: Quota) -> Self {
        let (units, micros) = rate(quota);
        Self { units, micros }
    }

    /// Whether a unit takes a whole number of microseconds.
    #[inline]
    pub(super) fn is_whole(self) -> bool {
        self.units == 1
    }

    /// The TAT `cost` units on.
    #[inline]
    pub(super) fn moved(self, tat: u64, cost: u64) -> u64 {
        if self.units == 1 {
            return tat + cost * self.micros;
        }
        let point = self.point(tat % self.micros);
        tat + self.at(point + cost) - self.at(point)
    }

    /// How far back the TAT was before it was moved here by so many units.
    pub(super) fn back(self, tat: u64, units: u64) -> u64 {
        // Whole periods ahead, so that there are so many points to go back.
        let ahead = units.div_ceil(self.units) * self.units;
        let point = self.point(tat % self.micros) + ahead;
        self.at(point) - self.at(point - units)
    }

    /// The most units that move the TAT by at most `room`.
    #[inline]
    pub(super) fn fitting(self, tat: u64, room: u64) -> u64 {
        if self.units == 1 {
            return room / self.micros;
        }
        let point = self.point(tat % self.micros);
        self.point(self.at(point) + room) - point
    }

    /// The last lattice point at or before `micros` after point 0: `floor(micros * rate)`.
    #[inline]
    fn point(self, micros: u64) -> u64 {
        let (periods, rest) = (micros / self.micros, micros % self.micros);
        periods * self.units + rest * self.units / self.micros
    }

    /// Where lattice point `point` lies: `ceil(point / rate)` after point 0.
    #[inline]
    fn at(self, point: u64) -> u64 {
        let (periods, rest) = (point / self.units, point % self.units);
        periods * self.micros + (rest * self.micros).div_ceil(self.units)
    }

    /// As [`at`](Self::at), for a point that may be too far.
    pub(super) fn at_checked(self, point: u64) -> Option<u64> {
        let (periods, rest) = (point / self.units, point % self.units);
        let whole = periods.checked_mul(self.micros)?;
        whole.checked_add((rest * self.micros).div_ceil(self.units))
    }

    /// The time in which so many units come back, rounded up, at most `u64::MAX`.
    pub(super) fn up(self, units: u64) -> u64 {
        let rest = (units % self.units * self.micros).div_ceil(self.units);
        self.whole(units).saturating_add(rest)
    }

    /// The time in which so many units come back, rounded down, at most `u64::MAX`.
    pub(super) fn down(self, units: u64) -> u64 {
        let rest = units % self.units * self.micros / self.units;
        self.whole(units).saturating_add(rest)
    }

    fn whole(self, units: u64) -> u64 {
        (units / self.units).saturating_mul(self.micros)
    }
}

/// The quota's rate as units per microseconds in lowest terms, for a quota between the slowest and the fastest.
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
    // Too long for exact doubles: as many units as keep the product below 2^52, their time rounded up, so that the
    // rate is never above the one asked for.
    let fewer = (EXACT * units / micros).isqrt().saturating_sub(1).max(1);
    let longer = (fewer * (micros / units)) + (fewer * (micros % units)).div_ceil(units);
    let divisor = greatest_common_divisor(fewer, longer);
    (narrow(fewer / divisor), narrow(longer / divisor))
}

/// Both terms of a rate are below 2^52: their product is, and neither is 0.
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
