//! A validated quota, ready to be counted by its algorithm.

use std::time::Duration;

use super::quota::Quota;
use crate::{
    clock::Timestamp,
    decision::{PolicyState, Retry, Usage},
    error::Error,
};

use super::{
    choice::Algorithm, concurrency::Concurrency, counting::Counting, fixed_window::FixedWindow,
    sliding_log::SlidingLog, sliding_window::SlidingWindow, token_bucket::TokenBucket,
};

/// A validated quota, ready to be counted by its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counter {
    /// Token bucket, leaky bucket or leaky queue: one arithmetic with different bursts.
    Bucket(TokenBucket),
    /// Fixed window.
    FixedWindow(FixedWindow),
    /// Sliding window log.
    SlidingLog(SlidingLog),
    /// Sliding window counter.
    SlidingWindow(SlidingWindow),
    /// Concurrency.
    Concurrency(Concurrency),
}

impl Counter {
    /// Validates a quota for an algorithm.
    ///
    /// # Errors
    ///
    /// [`InvalidQuota`](crate::ErrorKind::InvalidQuota) if the algorithm cannot count the quota. The message contains
    /// what to change.
    pub fn new(quota: Quota, algorithm: Algorithm) -> Result<Self, Error> {
        Ok(match algorithm {
            Algorithm::Concurrency { lease } => Self::Concurrency(Concurrency::new(quota, lease)?),
            Algorithm::FixedWindow(start) => Self::FixedWindow(FixedWindow::new(quota, start)?),
            Algorithm::LeakyBucket => Self::Bucket(TokenBucket::leaky(quota)?),
            Algorithm::LeakyQueue(limits) => Self::Bucket(TokenBucket::queue(quota, limits)?),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::new(quota)?),
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(quota)?),
            Algorithm::TokenBucket => Self::Bucket(TokenBucket::new(quota)?),
        })
    }

    /// Returns the most units that one request can take.
    #[must_use]
    pub fn limit(&self) -> u64 {
        match self {
            Self::Bucket(bucket) => bucket.capacity(),
            Self::FixedWindow(window) => window.limit(),
            Self::SlidingLog(log) => log.limit(),
            Self::SlidingWindow(window) => window.limit(),
            Self::Concurrency(slots) => slots.limit(),
        }
    }

    /// Returns a hash of the algorithm and the quota, as far as a denial depends on them.
    #[cfg(feature = "redis")]
    pub(crate) fn quota_hash(&self) -> u64 {
        let (kind, length) = match self {
            Self::Bucket(bucket) => (0, bucket.span()),
            Self::FixedWindow(window) => (1, window.millis() << 16 | u64::from(window.quota_tag())),
            Self::SlidingLog(log) => (2, log.millis()),
            Self::SlidingWindow(window) => (3, window.millis()),
            Self::Concurrency(_) => (4, 0),
        };
        let hash = length.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.limit().rotate_left(24);
        hash.wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ kind
    }

    /// Returns the bucket; `None` for other algorithms.
    #[inline]
    pub(crate) fn bucket(&self) -> Option<&TokenBucket> {
        match self {
            Self::Bucket(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// Returns whether early requests wait for their turn.
    pub(crate) fn is_queue(&self) -> bool {
        self.bucket().is_some_and(TokenBucket::is_queue)
    }

    /// Returns the concurrency counter; `None` for algorithms whose units come back with time.
    #[must_use]
    #[inline]
    pub fn concurrency(&self) -> Option<&Concurrency> {
        match self {
            Self::Concurrency(slots) => Some(slots),
            _ => None,
        }
    }

    /// Returns the counter of an instance that grants this many units of the limit, at the same part of the rate.
    ///
    /// Windows and leases stay as long as they are.
    #[must_use]
    pub fn part(&self, units: u64) -> Self {
        let mut part = *self;
        if units == self.limit() {
            return part;
        }
        match &mut part {
            Self::Bucket(bucket) => *bucket = bucket.part(units),
            Self::FixedWindow(FixedWindow { window, .. })
            | Self::SlidingLog(SlidingLog { window, .. })
            | Self::SlidingWindow(SlidingWindow { window, .. }) => window.limit = units,
            Self::Concurrency(slots) => (slots.limit, slots.most) = (units, units),
        }
        part
    }

    /// Returns a counter of the same states that leaves so many units free. A window is returned as it is.
    pub(crate) fn leaving(&self, units: u64) -> Self {
        let mut counter = *self;
        match &mut counter {
            Self::Bucket(bucket) => *bucket = bucket.leaving(units),
            Self::Concurrency(slots) => {
                slots.limit = slots.limit.saturating_sub(units);
                slots.most = slots.limit;
            }
            Self::FixedWindow(_) | Self::SlidingLog(_) | Self::SlidingWindow(_) => {}
        }
        counter
    }

    /// Returns a counter that leaves so many slots free as long as they are needed. A counter of anything else is returned as it is.
    pub(crate) fn keeping(&self, units: u64) -> Self {
        let mut counter = *self;
        if let Self::Concurrency(slots) = &mut counter {
            slots.limit = slots.limit.saturating_sub(units);
        }
        counter
    }

    /// Returns the most units that a charge can ever get.
    pub(crate) fn most(&self) -> u64 {
        match self {
            Self::Concurrency(slots) => slots.most,
            _ => self.limit(),
        }
    }

    /// Returns when a charge can succeed on a key with this usage, if nothing else is charged. Never too early.
    ///
    /// A usage does not show when each unit was used. So the time is exact for buckets and fixed windows, and may be too late for
    /// the others.
    pub(crate) fn retry_under(&self, usage: Usage, cost: u64, now: Timestamp) -> Retry {
        fn retry<C: Counting>(counter: &C, usage: Usage, cost: u64, now: Timestamp) -> Retry {
            counter.retry(&counter.restored(usage, now), now, cost)
        }
        if usage.remaining >= cost {
            return Retry::Now;
        }
        match self {
            Self::Bucket(bucket) => retry(bucket, usage, cost, now),
            Self::FixedWindow(window) => retry(window, usage, cost, now),
            Self::SlidingLog(log) => retry(log, usage, cost, now),
            Self::SlidingWindow(window) => retry(window, usage, cost, now),
            Self::Concurrency(slots) => retry(slots, usage, cost, now),
        }
    }

    /// Returns the longest wait of a denied request of this cost.
    pub(crate) fn longest_wait(&self, cost: u64) -> Duration {
        match self {
            Self::Bucket(bucket) => Duration::from_micros(bucket.micros_up(cost)),
            Self::SlidingWindow(window) => {
                let micros = u128::from(window.millis()) * 1_000;
                let beyond = micros * u128::from(cost) / u128::from(window.limit());
                Duration::from_micros(u64::try_from(micros + beyond).unwrap_or(u64::MAX))
            }
            Self::Concurrency(_) | Self::FixedWindow(_) | Self::SlidingLog(_) => {
                self.longest_recovery()
            }
        }
    }

    /// Returns the shortest wait of a denied request that counts, if it can be known.
    ///
    /// It leaves a bucket without quota, so that the wait is the time of a whole unit at least.
    pub(crate) fn shortest_wait_if_counted(&self) -> Option<Duration> {
        match self {
            Self::Bucket(bucket) => Some(Duration::from_micros(bucket.micros_down(1))),
            _ => None,
        }
    }

    /// Returns the longest time in which everything is back that charges have taken. Settlements may take more.
    pub(crate) fn longest_recovery(&self) -> Duration {
        let micros = match self {
            Self::Bucket(bucket) => bucket.span(),
            Self::FixedWindow(window) => window.longest_millis() * 1_000,
            Self::SlidingLog(log) => log.longest_micros(),
            Self::SlidingWindow(window) => 2 * window.millis() * 1_000,
            Self::Concurrency(_) => 0,
        };
        Duration::from_micros(micros)
    }

    /// Adds to a state the properties of the algorithm that its numbers do not show.
    #[inline]
    pub(crate) fn annotate(&self, state: PolicyState) -> PolicyState {
        match self {
            Self::Bucket(bucket) => bucket.annotate(state),
            Self::SlidingLog(log) => state.with_reset_rounding(log.max_lateness()),
            Self::Concurrency(_) => state.for_concurrency(),
            Self::FixedWindow(_) | Self::SlidingWindow(_) => state,
        }
    }

    /// Admits nothing. Takes the place of an unusable quota until `build()` reports the error.
    pub(crate) const CLOSED: Self = Self::Bucket(TokenBucket::closed());
}
