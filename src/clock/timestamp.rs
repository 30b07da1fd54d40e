//! Points in time.
//!
//! # Why whole microseconds?
//!
//! `TIME` of Redis has this resolution, so a finer time would gain nothing. Lua in Redis computes with doubles: microseconds
//! since the epoch stay below 2^53, and so exact, until the year 2255. Nanoseconds would not. The script passes numbers to
//! commands as they are, because `..` and `tostring` write `1.7e+15`.

use std::{
    ops::{Add, Sub},
    time::{Duration, Instant},
};

/// A point in time, in whole microseconds since the Unix epoch.
///
/// This is the resolution of Redis' `TIME`. Such numbers are exact in a Lua double (2^53) until the year 2255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Returns the point `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the whole seconds since the Unix epoch, rounded up: never before the point itself.
    #[must_use]
    #[doc(hidden)]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns the time from `earlier` to this point, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }
}

/// Returns whole seconds for `Retry-After`: rounded up, so that no client retries too early, and at least 1.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    seconds.max(1)
}

/// Returns the whole microseconds of a duration, rounded down, at most `u64::MAX`.
#[inline]
pub(crate) fn micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(duration.subsec_micros()))
}

/// Returns the time until a point in time, or zero if it is over.
pub(crate) fn time_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
