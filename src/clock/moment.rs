//! Points in time by Tokio's clock.
//!
//! Code that waits by Tokio's timers measures by their clock, so that a test that pauses and advances it moves both together.

use std::{ops::Add, pin::Pin, time::Duration};

use tokio::time::{Instant, Sleep};

/// A point in time by Tokio's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Instant);

impl Moment {
    /// Returns the present time.
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// Returns the time from this point to the present.
    #[cfg(feature = "body")]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Sets a timer to this point.
    pub fn set(self, timer: Pin<&mut Sleep>) {
        timer.reset(self.0);
    }

    /// Returns the time from `earlier` to this point, or zero if `earlier` is later.
    #[cfg(feature = "client")]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// The sum is at most 30 years later, so that it can be represented.
    fn add(self, by: Duration) -> Self {
        Self(self.0 + by.min(LONGEST))
    }
}

const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);
