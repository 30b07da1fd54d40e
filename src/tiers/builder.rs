//! The builder of a tier cache.

use std::time::Duration;

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
};

use super::{
    cache::{Settings, TierCache},
    resolver::TierResolver,
};

/// Builds a [`TierCache`].
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct TierCacheBuilder {
    settings: Settings,
}

impl TierCache {
    /// Returns a builder with default settings for a cache of what this resolver returns.
    pub fn builder(resolver: impl TierResolver) -> TierCacheBuilder {
        let settings = Settings {
            resolver: Box::new(resolver),
            max_keys: 10_000,
            max_lookups: 256,
            ttl: Duration::from_secs(60),
            negative_ttl: Duration::from_secs(10),
            retry_failed_after: Duration::from_secs(1),
            serve_stale: Duration::from_secs(60),
            serve_last_known: Duration::from_secs(3_600),
            deadline: Duration::from_secs(5),
            clock: Clock::system(),
        };
        TierCacheBuilder { settings }
    }
}

impl TierCacheBuilder {
    /// Sets the maximum number of cached keys. When the cache is full, a new key evicts one that was not used recently.
    ///
    /// Default: 10,000, about 2.5 MB when full.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.settings.max_keys = keys;
        self
    }

    /// Sets the maximum number of concurrent lookups. A key beyond it gets its last known tier.
    ///
    /// Default: 256, which protects the database behind the resolver from a flood of invented keys. Such a flood can still
    /// delay the lookups of other keys; a limit by address on an outer layer prevents that.
    pub fn max_lookups(mut self, lookups: usize) -> Self {
        self.settings.max_lookups = lookups;
        self
    }

    /// Sets how long a tier is used before it is looked up again.
    ///
    /// Default: 60 seconds. A change takes effect after this time, and at most [`serve_stale`](Self::serve_stale) later, unless
    /// the key is removed by [`forget`](TierCache::forget).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Sets how long a key without a tier is not looked up again.
    ///
    /// Default: 10 seconds.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.settings.negative_ttl = ttl;
        self
    }

    /// Sets how long after its time to live a tier is still used while it is looked up again. After that, requests wait for
    /// the lookup.
    ///
    /// Default: 60 seconds, so requests of a key that is used at least every two minutes never wait again. With zero, requests
    /// wait for every lookup. Also applies to keys without a tier.
    pub fn serve_stale(mut self, span: Duration) -> Self {
        self.settings.serve_stale = span;
        self
    }

    /// Sets how long a key is not looked up again after a failed lookup.
    ///
    /// Default: 1 second.
    pub fn retry_failed_after(mut self, pause: Duration) -> Self {
        self.settings.retry_failed_after = pause;
        self
    }

    /// Sets how long after its time to live the last known tier applies if a lookup fails or is late. After that, and for
    /// keys that were never looked up, the policy's own quota applies.
    ///
    /// Default: 1 hour, so customers keep their quota while the database is down. Minimum:
    /// [`serve_stale`](Self::serve_stale); shorter values count as that.
    pub fn serve_last_known(mut self, span: Duration) -> Self {
        self.settings.serve_last_known = span;
        self
    }

    /// Sets the time after which a lookup is aborted and counts as failed.
    ///
    /// Default: 5 seconds. Requests do not wait that long: the layer's
    /// [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout) ends the wait of a request, and the lookup
    /// goes on for later requests.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Sets the clock by which tiers expire.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Builds the cache.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if a bound or a time is zero, except `serve_stale` and `serve_last_known`.
    pub fn build(self) -> Result<TierCache, Error> {
        let settings = &self.settings;
        let bounds = [
            ("max_keys", settings.max_keys == 0),
            ("max_lookups", settings.max_lookups == 0),
            ("ttl", settings.ttl.is_zero()),
            ("negative_ttl", settings.negative_ttl.is_zero()),
            ("retry_failed_after", settings.retry_failed_after.is_zero()),
            ("deadline", settings.deadline.is_zero()),
        ];
        if let Some((name, _)) = bounds.iter().find(|(_, is_zero)| *is_zero) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("{name} of a tier cache is zero: no tier could be cached or looked up"),
            ));
        }
        Ok(TierCache::new(self.settings))
    }
}
