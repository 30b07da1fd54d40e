//! How much per how long.

use std::time::Duration;

/// A count of requests per span of time, with a burst.
///
/// The count and the span give the sustained rate; the burst is how much may come at once when the caller has
/// been idle. A quota is a plain value: it is judged when the policy that carries it is built, so `per_minute(0)`
/// compiles and fails at `build()` with [`ErrorKind::InvalidQuota`](crate::ErrorKind::InvalidQuota).
///
/// # Limits
///
/// At most 1,000,000 units a second, at least one unit in 366 days, and a burst that takes at most 35 years to
/// refill.
///
/// # Examples
///
/// ```
/// use tollgate::Quota;
///
/// let quota = Quota::per_minute(100).burst(20);
/// assert_eq!((quota.count(), quota.capacity()), (100, 20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    count: u64,
    period: Duration,
    burst: Option<u64>,
}

impl Quota {
    /// `count` requests at once, for [`Algorithm::Concurrency`](crate::algorithm::Algorithm::Concurrency).
    #[must_use]
    pub const fn in_flight(count: u64) -> Self {
        Self::new(count, Duration::ZERO)
    }

    /// `count` units in every `period`.
    #[must_use]
    pub const fn new(count: u64, period: Duration) -> Self {
        Self {
            count,
            period,
            burst: None,
        }
    }

    /// `count` units a second: `per_second(5)` is five a second, not one every five seconds.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// `count` units a minute.
    #[must_use]
    pub const fn per_minute(count: u64) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// `count` units an hour.
    #[must_use]
    pub const fn per_hour(count: u64) -> Self {
        Self::new(count, Duration::from_secs(3_600))
    }

    /// `count` units in 24 hours.
    #[must_use]
    pub const fn per_day(count: u64) -> Self {
        Self::new(count, Duration::from_secs(86_400))
    }

    /// `count` units a month: 31 days, or the calendar's own with [`WindowStart::Month`].
    ///
    /// [`WindowStart::Month`]: crate::algorithm::WindowStart::Month
    #[must_use]
    pub const fn per_month(count: u64) -> Self {
        Self::new(count, Duration::from_secs(31 * 86_400))
    }

    /// Sets how many units may be taken at once after idling.
    ///
    /// Default: the count, so a caller may use a whole period's worth at once; for a leaky bucket 1. Windows and logs
    /// have none.
    #[must_use]
    pub const fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// Units per period.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The span in which [`count`](Self::count) units come back.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// The burst, when one was set.
    #[must_use]
    pub const fn own_burst(&self) -> Option<u64> {
        self.burst
    }

    /// Units that may be taken at once: the burst, or the count when no burst was set.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(units) => units,
            None => self.count,
        }
    }
}
