//! The settings of a cache of tiers.

use std::{fmt, time::Duration};

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
};

use super::{cache::TierCache, resolver::TierResolver};

/// Settings of a [`TierCache`].
#[must_use = "a builder does nothing until build() is called"]
pub struct TierCacheBuilder {
    pub(super) resolver: Box<dyn TierResolver>,
    pub(super) max_keys: usize,
    pub(super) max_lookups: usize,
    pub(super) ttl: Duration,
    pub(super) negative_ttl: Duration,
    pub(super) retry: Duration,
    pub(super) stale: Duration,
    pub(super) last_known: Duration,
    pub(super) deadline: Duration,
    pub(super) clock: Clock,
}

impl TierCacheBuilder {
    pub(super) fn new(resolver: impl TierResolver) -> Self {
        Self {
            resolver: Box::new(resolver),
            max_keys: 10_000,
            max_lookups: 256,
            ttl: Duration::from_secs(60),
            negative_ttl: Duration::from_secs(10),
            retry: Duration::from_secs(1),
            stale: Duration::from_secs(60),
            last_known: Duration::from_secs(3_600),
            deadline: Duration::from_secs(5),
            clock: Clock::system(),
        }
    }

    /// Sets how many keys are remembered. When there is no room, one goes that was not asked for lately.
    ///
    /// Default: 10,000, which is about 2.5 MB when full.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets how many keys are looked up at the same time. One that comes when there are so many has its last known tier.
    ///
    /// Default: 256, which keeps a flood of made-up keys from the database behind the resolver. Put a limit by address on
    /// an outer layer where such a flood must not keep others' tiers from being looked up either.
    pub fn max_lookups(mut self, lookups: usize) -> Self {
        self.max_lookups = lookups;
        self
    }

    /// Sets how long a tier that was found holds before it is looked up again.
    ///
    /// Default: 60 seconds. A change takes effect after this time, and at most
    /// [`stale_for`](Self::stale_for) later, unless the key is [forgotten](TierCache::forget).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how long it holds that a key has no tier.
    ///
    /// Default: 10 seconds.
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.negative_ttl = ttl;
        self
    }

    /// Sets for how long beyond its time a tier is served while it is looked up again. After that, requests wait for the
    /// lookup.
    ///
    /// Default: 60 seconds, so no request waits for the tier of a key that is asked for every two minutes. Zero: each
    /// lookup is waited for. It also holds for keys that have no tier.
    pub fn stale_for(mut self, span: Duration) -> Self {
        self.stale = span;
        self
    }

    /// Sets for how long a key is not looked up again after that failed.
    ///
    /// Default: 1 second.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry = pause;
        self
    }

    /// Sets for how long beyond its time the last known tier stands in when a look-up fails or is late; after that, and
    /// for keys that were never looked up, the policy's own quota holds.
    ///
    /// Default: an hour: customers keep what they pay for while the database is down. Zero, or anything shorter than
    /// [`stale_for`](Self::stale_for): as long as that.
    pub fn last_known_for(mut self, span: Duration) -> Self {
        self.last_known = span;
        self
    }

    /// Sets after which time a look-up is given up.
    ///
    /// Default: 5 seconds. No request waits that long: the layer's
    /// [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout) ends the request's wait, while the look-up
    /// goes on for those that come later.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the clock by which answers expire.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the cache.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when a bound or a time other than `stale_for` and `last_known_for` is zero.
    pub fn build(self) -> Result<TierCache, Error> {
        let settings = [
            ("max_keys", self.max_keys == 0),
            ("max_lookups", self.max_lookups == 0),
            ("ttl", self.ttl.is_zero()),
            ("negative_ttl", self.negative_ttl.is_zero()),
            ("retry_after", self.retry.is_zero()),
            ("deadline", self.deadline.is_zero()),
        ];
        if let Some((name, _)) = settings.iter().find(|(_, is_zero)| *is_zero) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("{name} of a tier cache is zero: no tier could be kept or looked up"),
            ));
        }
        Ok(TierCache::with(self))
    }
}

impl fmt::Debug for TierCacheBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierCacheBuilder")
            .field("max_keys", &self.max_keys)
            .field("max_lookups", &self.max_lookups)
            .field("ttl", &self.ttl)
            .field("negative_ttl", &self.negative_ttl)
            .field("retry_after", &self.retry)
            .field("stale_for", &self.stale)
            .field("last_known_for", &self.last_known)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
