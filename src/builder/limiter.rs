//! Settings of a limiter.

use std::sync::Arc;

#[cfg(feature = "redis")]
use std::time::Duration;

use crate::{clock::Clock, error::Error, limiter::RateLimiter, policy::Policy, store::Store};

#[cfg(feature = "redis")]
use crate::remote::RedisStoreBuilder;

use super::backend::{Backend, Choice};

impl RateLimiter {
    /// Settings to start from: in process, without policies.
    pub fn builder() -> RateLimiterBuilder {
        RateLimiterBuilder::default()
    }
}

/// Settings of a [`RateLimiter`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RateLimiterBuilder {
    policies: Vec<Policy>,
    pub(super) backend: Backend,
}

impl RateLimiterBuilder {
    /// Adds a policy, so that `build()` checks it.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Counts in Redis, with a breaker before it and each policy's outage choice behind.
    ///
    /// Default: in process. Takes a URL, or a [`RedisStoreBuilder`] with settings.
    #[cfg(feature = "redis")]
    pub fn redis(mut self, server: impl Into<RedisStoreBuilder>) -> Self {
        self.backend.choose(Choice::Redis(server.into()));
        self
    }

    /// Counts in a store of your own, as it is: nothing is put before or behind it.
    ///
    /// Default: in process. To give a remote store a breaker and a fallback, wrap it in a
    /// `resilience::ResilientStore` first. Such a store has its own deadline, clock and bound on keys: setting one
    /// here too fails at [`build`](Self::build).
    pub fn store(mut self, store: impl Store) -> Self {
        self.backend.choose(Choice::Custom(Arc::new(store)));
        self
    }

    /// Sets how long one decision may take in all when it is made in Redis.
    ///
    /// Default: 50 ms, or what the [`RedisStoreBuilder`] says.
    #[cfg(feature = "redis")]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.backend.deadline = Some(deadline);
        self
    }

    /// Sets how many keys in debt this process tells apart: those counted in process, and during an outage.
    ///
    /// Default: 1,000,000, which takes at most 32 MB of buckets; [`memory`](crate::memory#memory) has the caps of all that is
    /// counted.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.backend.max_keys = Some(keys);
        self
    }

    /// Sets the clock that this process counts by. Redis counts by its own.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.backend.clock = Some(clock);
        self
    }

    /// Makes the limiter.
    ///
    /// # Errors
    ///
    /// One [`ErrorKind`](crate::ErrorKind) per mistake, with a sentence that says what to do: unusable or duplicate
    /// policies, an unparsable URL, a deadline of zero, and the like.
    pub fn build(self) -> Result<RateLimiter, Error> {
        let store = self.backend.build()?;
        RateLimiter::with(store, self.policies)
    }
}
