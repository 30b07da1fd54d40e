//! Settings of a limiter.

use std::sync::Arc;

#[cfg(feature = "redis")]
use std::time::Duration;

use crate::{
    charge::Charge, clock::Clock, decision::Decision, error::Error, limiter::RateLimiter,
    policy::Policy, store::Store, telemetry::Recorders,
};

#[cfg(feature = "redis")]
use crate::remote::{RedisStoreBuilder, Regions};

#[cfg(feature = "top-keys")]
use crate::top_keys::TopKeys;

use super::backend::{Backend, Choice};

impl RateLimiter {
    /// Returns the default settings: in process, without policies.
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
    recorders: Recorders,
    /// For how many pairs of policy and key the last denial is kept.
    #[cfg(feature = "explain")]
    last_denials: Option<usize>,
    #[cfg(all(feature = "redis", feature = "top-keys"))]
    shares_top_keys: bool,
}

impl RateLimiterBuilder {
    /// Adds a policy, so that `build()` checks it.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Counts in Redis, with a breaker, and with each policy's [`OnOutage`](crate::OnOutage) choice if Redis fails.
    ///
    /// Default: in process. Takes a URL, or a [`RedisStoreBuilder`] with settings. Build one limiter for each process, and clone
    /// it: a second one counts as another [instance](Self::instances), and halves the share of both in an outage.
    #[cfg(feature = "redis")]
    pub fn redis(mut self, server: impl Into<RedisStoreBuilder>) -> Self {
        self.backend.choose(Choice::Redis(server.into()));
        self
    }

    /// Counts in Redis, in several regions that share each limit.
    ///
    /// Default: one region. Replaces [`redis`](Self::redis). See [`Regions`].
    #[cfg(feature = "redis")]
    pub fn regions(mut self, regions: Regions) -> Self {
        self.backend.choose(Choice::Regions(regions));
        self
    }

    /// Counts in a custom store, without a breaker or fallback.
    ///
    /// Default: in process. Wrap a remote store in a `resilience::ResilientStore` to add a breaker and a fallback. A custom
    /// store has its own deadline, clock and `max_keys`: [`build`](Self::build) fails if one is set here too.
    pub fn store(mut self, store: impl Store) -> Self {
        self.backend.choose(Choice::Custom(Arc::new(store)));
        self
    }

    /// Sets the longest time of one decision in Redis.
    ///
    /// Default: 50 ms, or the deadline of the [`RedisStoreBuilder`].
    #[cfg(feature = "redis")]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.backend.deadline = Some(deadline);
        self
    }

    /// Sets the number of instances that share Redis, each of which grants its share of a quota during an outage.
    ///
    /// Default: learned from Redis, where each instance registers. With a fixed number `n`, shares are rounded up: a limit
    /// of `q` becomes at most `q + n - 1` over the fleet.
    #[cfg(feature = "redis")]
    pub fn instances(mut self, count: u64) -> Self {
        self.backend.instances = Some(count);
        self
    }

    /// Sets the number of keys whose last state in Redis is kept, so that an outage continues from it.
    ///
    /// Default: 100,000, which takes 2.6 MB (26 bytes for each key). With 0, a key starts an outage with its full share.
    #[cfg(feature = "redis")]
    pub fn warm_keys(mut self, count: usize) -> Self {
        self.backend.warm_keys = Some(count);
        self
    }

    /// Sets the number of keys in debt that this process counts separately, in process or during an outage.
    ///
    /// Default: 1,000,000, which takes at most 32 MB for token buckets. [`memory`](crate::memory#memory) lists the caps of
    /// the other algorithms.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.backend.max_keys = Some(keys);
        self
    }

    /// Sets the clock of the in-process store. Redis counts by its own clock.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.backend.clock = Some(clock);
        self
    }

    /// Calls a function with the charges and the result of each decision, once it is made.
    ///
    /// Default: none. Several functions are called in the order in which they were added. They run on the way of the decision:
    /// return soon, and do not block. A decision whose caller leaves before it is made is not shown. [Peeks](crate::charge) are
    /// shown too.
    ///
    /// # Examples
    ///
    /// Send the key of each denied request to another system:
    ///
    /// ```
    /// use std::sync::mpsc;
    ///
    /// use tollgate::{Key, Policy, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let (sender, denied) = mpsc::sync_channel(1_000);
    /// let limiter = RateLimiter::builder()
    ///     .on_decision(move |charges, result| {
    ///         if result.as_ref().is_ok_and(|decision| !decision.is_allowed()) {
    ///             let _ = sender.try_send(*charges[0].key());
    ///         }
    ///     })
    ///     .build()?;
    /// let policy = Policy::new("api", Quota::per_hour(1));
    /// for _ in 0..2 {
    ///     limiter.check(&[policy.charge(Key::new("ada"))]).await?;
    /// }
    /// assert_eq!(denied.try_iter().collect::<Vec<_>>(), [Key::new("ada")]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_decision(
        mut self,
        hook: impl Fn(&[Charge<'_>], &Result<Decision, Error>) + Send + Sync + 'static,
    ) -> Self {
        self.recorders.hook(hook);
        self
    }

    /// Counts in process by this clock, whatever store was chosen.
    #[cfg(feature = "test-util")]
    pub(super) fn in_process_by(mut self, clock: Clock) -> Self {
        self.backend = self.backend.in_process_by(clock);
        #[cfg(all(feature = "redis", feature = "top-keys"))]
        {
            self.shares_top_keys = false;
        }
        self
    }

    /// Keeps the last denial of each key, for this many pairs of policy and key.
    ///
    /// Default: none. From 1 to 1,000,000, in 65 bytes each. [`RateLimiter::explain`] returns them;
    /// [`explain`](crate::explain#last-denials) states the bounds.
    #[cfg(feature = "explain")]
    pub fn record_denials(mut self, pairs: usize) -> Self {
        self.last_denials = Some(pairs);
        self
    }

    /// Records denied requests, to find the keys that are denied most often.
    ///
    /// Default: none are recorded. [`RateLimiter::top_keys`] returns them. Recorders are shared by their clones: give each
    /// limiter its own, unless you want their sums.
    #[cfg(feature = "top-keys")]
    pub fn top_keys(mut self, top_keys: TopKeys) -> Self {
        self.recorders.top_keys = Some(top_keys);
        self
    }

    /// Shares the [top keys](Self::top_keys) with the other instances through Redis, so that
    /// [`RateLimiter::fleet_top_keys`] returns those of all together.
    ///
    /// Default: not shared. `build()` fails without [`redis`](Self::redis), and unless all instances can show keys in the same
    /// form: [`ShownKeys::hashed`](crate::top_keys::ShownKeys::hashed) with the secret of the fleet, or plain text.
    /// [`top_keys`](crate::top_keys#whole-fleet) states the bounds and the cost.
    #[cfg(all(feature = "redis", feature = "top-keys"))]
    pub fn share_top_keys(mut self) -> Self {
        self.shares_top_keys = true;
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// One [`ErrorKind`](crate::ErrorKind) per mistake, with a remedy in the message: a policy or URL that cannot work, two
    /// policies with one name, or a deadline of zero.
    pub fn build(self) -> Result<RateLimiter, Error> {
        let recorders = self.recorders;
        #[cfg(feature = "explain")]
        let recorders = recorders.keeping_denials(self.last_denials)?;
        let backend = self.backend;
        #[cfg(all(feature = "redis", feature = "top-keys"))]
        let backend = if self.shares_top_keys {
            backend.sharing(recorders.top_keys.as_ref())?
        } else {
            backend
        };
        let store = backend.build()?;
        RateLimiter::over(store, self.policies, recorders)
    }
}
