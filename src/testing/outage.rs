//! The breaker and the fallback of Redis in front of a scripted store.

use std::{sync::Arc, time::Duration};

use crate::{
    charge::{Charge, Merge},
    decision::Decision,
    diagnosis::Warning,
    key::Key,
    memory::MemoryStore,
    resilience::{Calls, Primary, ResilientStore},
    store::{Store, StoreFuture},
};

use super::{breakers::BreakerSide, scripted::ScriptedStore};

impl ScriptedStore {
    /// Returns this store behind the breaker and the fallback of Redis, for tests of [`OnOutage`](crate::OnOutage).
    ///
    /// While the store fails, hangs or refuses writes, each policy applies its outage choice, as with Redis. Decisions end
    /// within the default deadline of 50 ms by Tokio's clock, which under paused time takes none. What a
    /// [counting](Self::counting) store did not count in an outage is charged to it afterwards.
    ///
    /// The service is the only [instance](crate::resilience::ResilientStoreBuilder::instances), which grants the whole quota.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{ErrorKind, Key, OnOutage, Policy, Quota, RateLimiter, testing::ScriptedStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let redis = ScriptedStore::counting();
    /// let limiter = RateLimiter::new(redis.behind_breaker(), [])?;
    /// let policy = Policy::new("orders", Quota::per_hour(1)).on_outage(OnOutage::Allow);
    /// let charge = policy.charge(Key::new("ada"));
    /// redis.fail(ErrorKind::Connect);
    /// for _ in 0..10 {
    ///     assert!(limiter.check(&[charge]).await?.is_allowed());
    /// }
    /// redis.recover();
    /// assert!(limiter.check(&[charge]).await?.is_allowed());
    /// assert!(!limiter.check(&[charge]).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn behind_breaker(&self) -> ResilientStore {
        let (mut primary, clock) = (self.clone(), &self.shared.clock);
        let calls = Calls::new();
        // The store keeps the deadline itself, by Tokio's clock: that of the breaker takes real time.
        primary.breaker_side = Some(BreakerSide {
            deadline: DEADLINE,
            calls: calls.clone(),
        });
        let local = MemoryStore::builder().clock(clock.clone()).build();
        let local = local.expect("the default settings are valid");
        let mut builder = ResilientStore::builder(primary.clone(), local)
            .clock(clock.clone())
            .deadline(DEADLINE)
            .calls(calls);
        if let Some(counts) = self.shared.counts.clone() {
            builder = builder.merging(Arc::new(Server { primary, counts }));
        }
        let store = builder.build().expect("the default settings are valid");
        self.shared.breakers.add(store.guard());
        store
    }
}

/// The default deadline of decisions in Redis.
const DEADLINE: Duration = Duration::from_millis(50);

// === Server ===

/// A counting store as the server behind a guard.
#[derive(Debug)]
struct Server {
    primary: ScriptedStore,
    counts: MemoryStore,
}

impl Primary for Server {
    fn run_number(&self) -> u64 {
        0
    }

    fn decide(self: Arc<Self>, charges: &[Charge<'_>], _: u64) -> StoreFuture<Decision> {
        self.primary.decide(charges)
    }

    fn merge(self: Arc<Self>, merge: &Merge, _: u64) -> StoreFuture<()> {
        let (counts, merge) = (self.counts.clone(), merge.clone());
        self.primary.run(true, move |_, _| {
            counts.merge(&merge);
            StoreFuture::ready(Ok(()))
        })
    }

    fn probe(self: Arc<Self>) -> StoreFuture<()> {
        self.primary.probe()
    }

    fn serves(&self, _: &Key) -> bool {
        true
    }

    fn deadline(&self) -> Option<Duration> {
        self.primary.deadline()
    }

    fn server(&self) -> Option<String> {
        None
    }

    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }
}
