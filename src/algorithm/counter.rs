//! A validated quota, ready to be counted by its algorithm.

use crate::{error::Error, quota::Quota, state::PolicyState};

use super::{
    choice::Algorithm, concurrency::Concurrency, fixed_window::FixedWindow,
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

    /// Returns the concurrency counter; `None` for algorithms whose units come back with time.
    #[must_use]
    #[inline]
    pub fn concurrency(&self) -> Option<&Concurrency> {
        match self {
            Self::Concurrency(slots) => Some(slots),
            Self::Bucket(_)
            | Self::FixedWindow(_)
            | Self::SlidingLog(_)
            | Self::SlidingWindow(_) => None,
        }
    }

    /// Returns the counter of an instance that grants this many units of the limit, at the same part of the rate.
    #[must_use]
    pub fn part(&self, units: u64) -> Self {
        if units == self.limit() {
            return *self;
        }
        match self {
            Self::Bucket(bucket) => Self::Bucket(bucket.part(units)),
            Self::FixedWindow(window) => Self::FixedWindow(window.part(units)),
            Self::SlidingLog(log) => Self::SlidingLog(log.part(units)),
            Self::SlidingWindow(window) => Self::SlidingWindow(window.part(units)),
            Self::Concurrency(slots) => Self::Concurrency(slots.part(units)),
        }
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
