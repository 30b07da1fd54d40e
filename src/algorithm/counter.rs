//! A quota made ready for counting.

use crate::{error::Error, quota::Quota, state::PolicyState};

use super::{
    choice::Algorithm, concurrency::Concurrency, fixed_window::FixedWindow,
    sliding_log::SlidingLog, sliding_window::SlidingWindow, token_bucket::TokenBucket,
};

/// A quota made ready for counting by its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counter {
    /// Token bucket and leaky bucket: they differ in how much may come at once when the quota does not say.
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
    /// Makes a quota ready.
    ///
    /// # Errors
    ///
    /// [`InvalidQuota`](crate::ErrorKind::InvalidQuota) when the algorithm cannot count it, with what to do.
    pub fn new(quota: Quota, algorithm: Algorithm) -> Result<Self, Error> {
        Ok(match algorithm {
            Algorithm::Concurrency { lease } => Self::Concurrency(Concurrency::new(quota, lease)?),
            Algorithm::FixedWindow(opening) => Self::FixedWindow(FixedWindow::new(quota, opening)?),
            Algorithm::LeakyBucket => Self::Bucket(TokenBucket::leaky(quota)?),
            Algorithm::LeakyQueue(queue) => Self::Bucket(TokenBucket::queue(quota, queue)?),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::new(quota)?),
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(quota)?),
            Algorithm::TokenBucket => Self::Bucket(TokenBucket::new(quota)?),
        })
    }

    /// The most that can be taken at once.
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

    /// Adds to a state what its numbers do not show of the way it was counted.
    #[inline]
    pub(crate) fn describe(&self, state: PolicyState) -> PolicyState {
        match self {
            Self::Bucket(bucket) => state.rounded(bucket.slack()),
            Self::SlidingLog(log) => state.rounded(log.lateness()),
            Self::Concurrency(_) => state.in_flight(),
            Self::FixedWindow(_) | Self::SlidingWindow(_) => state,
        }
    }

    /// Admits nothing. An unusable quota is counted like this until `build()` reports it.
    pub(crate) const CLOSED: Self = Self::Bucket(TokenBucket::closed());
}
