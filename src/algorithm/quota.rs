//! A quota: how many units per period.

use std::time::Duration;

/// A number of units per period, with a burst.
///
/// Count and period are the sustained rate. The burst is how many units an idle key can take at once. A unit is one
/// request unless the policy sets a [cost](crate::Policy::cost).
///
/// # Limits
///
/// - The rate is at most 1,000,000 units a second, and at least 1 unit in 366 days.
/// - A burst refills in at most 35 years.
///
/// A quota is a plain value: the policy that uses it is validated at `build()`. `per_minute(0)` compiles and fails
/// there with [`ErrorKind::InvalidQuota`](crate::ErrorKind::InvalidQuota).
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
    /// Returns a quota of `count` requests in flight at once.
    ///
    /// For [`Algorithm::Concurrency`](crate::algorithm::Algorithm::Concurrency) only.
    #[must_use]
    pub const fn in_flight(count: u64) -> Self {
        Self::new(count, Duration::ZERO)
    }

    /// Returns a quota of `count` units per `period`.
    #[must_use]
    pub const fn new(count: u64, period: Duration) -> Self {
        Self {
            count,
            period,
            burst: None,
        }
    }

    /// Returns a quota of `count` units per second.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// Returns a quota of `count` units per minute.
    #[must_use]
    pub const fn per_minute(count: u64) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// Returns a quota of `count` units per hour.
    #[must_use]
    pub const fn per_hour(count: u64) -> Self {
        Self::new(count, Duration::from_secs(3_600))
    }

    /// Returns a quota of `count` units per 24 hours.
    #[must_use]
    pub const fn per_day(count: u64) -> Self {
        Self::new(count, Duration::from_secs(86_400))
    }

    /// Returns a quota of `count` units per 31 days.
    ///
    /// With [`WindowStart::Month`] the period is the calendar month instead.
    ///
    /// [`WindowStart::Month`]: crate::algorithm::WindowStart::Month
    #[must_use]
    pub const fn per_month(count: u64) -> Self {
        Self::new(count, Duration::from_secs(31 * 86_400))
    }

    /// Sets how many units an idle key can take at once.
    ///
    /// Default: the count for a token bucket, 1 for a leaky bucket. Windows, logs and concurrency have no burst: with
    /// them a burst is an error at `build()`.
    #[must_use]
    pub const fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// Returns the units per period.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the period; zero for a quota [in flight](Self::in_flight).
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// Returns the burst if one was set.
    #[must_use]
    pub const fn explicit_burst(&self) -> Option<u64> {
        self.burst
    }

    /// Returns the burst, or the count if no burst was set.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(units) => units,
            None => self.count,
        }
    }
}
