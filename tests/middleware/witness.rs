//! A store that tells what was settled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time;
use tollgate::{
    Charge, Decision, Error, ErrorKind, Key, Policy, RateLimitLayer, RateLimiter,
    builder::RateLimitLayerBuilder,
    charge::{Correction, Receipt},
    clock::{Clock, Timestamp},
    decision::Usage,
    memory::MemoryStore,
    remote::RedisStore,
    rules::Rule,
    store::{Store, StoreFuture},
};

use crate::support::Server;

/// What one policy was settled with.
pub(crate) type Settled = (String, Correction);

/// A store to try, with the clock that moves it and what was settled in it.
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) server: Option<Server>,
    pub(crate) store: Witness,
    done: mpsc::UnboundedReceiver<Result<Vec<Settled>, ErrorKind>>,
    changed: mpsc::UnboundedReceiver<String>,
}

impl World {
    pub(crate) fn in_process() -> Self {
        let clock = Clock::manual(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        Self::over(store.expect("a usable store"), clock, None)
    }

    pub(crate) fn on_redis() -> Self {
        let clock = Clock::manual(START);
        let server = Server::start();
        let store = RedisStore::builder(server.url())
            .deadline(PATIENCE)
            .client_time(clock.clone())
            .build();
        Self::over(store.expect("a usable store"), clock, Some(server))
    }

    pub(crate) fn over(store: impl Store, clock: Clock, server: Option<Server>) -> Self {
        let (told, done) = mpsc::unbounded_channel();
        let (changes, changed) = mpsc::unbounded_channel();
        let store = Witness {
            store: Arc::new(store),
            asked: Arc::default(),
            decided: Arc::default(),
            told,
            changes,
        };
        Self {
            clock,
            server,
            store,
            done,
            changed,
        }
    }

    pub(crate) fn layer(&self, rules: impl IntoIterator<Item = Rule>) -> RateLimitLayer {
        let builder = RateLimitLayer::builder().store(self.store.clone());
        let builder = rules
            .into_iter()
            .fold(builder, RateLimitLayerBuilder::policy);
        builder.build().expect("it is well set up")
    }

    /// What was settled next, once that is done.
    pub(crate) async fn settled(&mut self) -> Vec<Settled> {
        let settled = self.settled_or_not().await;
        settled.expect("the store can settle")
    }

    /// The next settlement of each of these policies, in this order, once they are done.
    pub(crate) async fn settled_of(&mut self, policies: &[&str]) -> Vec<Settled> {
        let mut settled = Vec::new();
        while settled.len() < policies.len() {
            settled.extend(self.settled().await);
        }
        let place = |name: &str| policies.iter().position(|policy| *policy == name);
        settled.sort_by_key(|(policy, _)| place(policy));
        settled
    }

    pub(crate) async fn settled_or_not(&mut self) -> Result<Vec<Settled>, ErrorKind> {
        let done = time::timeout(PATIENCE, self.done.recv()).await;
        let done = done.expect("something is settled in time");
        done.expect("the witness lives")
    }

    /// The next key that was reset, or delayed after a failure, by its policy's name.
    pub(crate) async fn changed(&mut self) -> String {
        let changed = time::timeout(PATIENCE, self.changed.recv()).await;
        let changed = changed.expect("a key is changed in time");
        changed.expect("the witness lives")
    }

    /// Whether another key was changed since.
    pub(crate) fn has_changed(&mut self) -> bool {
        self.changed.try_recv().is_ok()
    }

    /// How many charges were asked to be settled so far, done or not.
    pub(crate) fn asked(&self) -> usize {
        *self.store.asked.lock().expect("nobody panics with it")
    }

    /// How many charges each decision was asked about since this was last asked.
    pub(crate) fn decided(&self) -> Vec<usize> {
        std::mem::take(&mut *self.store.decided.lock().expect("nobody panics with it"))
    }

    pub(crate) async fn usage(&self, policy: &Policy, key: Key) -> Usage {
        let limiter = RateLimiter::new(self.store.clone(), [policy.clone()]);
        let limiter = limiter.expect("a usable policy");
        let decision = limiter.peek(&[policy.charge(key)]).await;
        let decision = decision.expect("it answers");
        decision.states()[0].usage().expect("it is counted")
    }

    /// What is left of a policy that counts everybody together.
    pub(crate) async fn remaining(&self, policy: &Policy) -> u64 {
        self.usage(policy, Key::GLOBAL).await.remaining
    }
}

/// Runs each behaviour in process and on Redis.
macro_rules! everywhere {
    ($($behaviour:ident)*) => {
        mod in_process {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::World::in_process()).await;
            })*
        }

        mod on_redis {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::World::on_redis()).await;
            })*
        }
    };
}

pub(crate) use everywhere;

// === Witness ===

/// Passes everything on to a store, and tells when a settlement is done.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    store: Arc<dyn Store>,
    asked: Arc<Mutex<usize>>,
    decided: Arc<Mutex<Vec<usize>>>,
    told: mpsc::UnboundedSender<Result<Vec<Settled>, ErrorKind>>,
    changes: mpsc::UnboundedSender<String>,
}

impl Store for Witness {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let mut decided = self.decided.lock().expect("nobody panics with it");
        decided.push(charges.len());
        self.store.decide(charges)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.store)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let (changes, change) = (self.changes.clone(), format!("{} reset", policy.name()));
        self.store.reset(policy, key).map(move |result| {
            let _ = changes.send(change);
            result
        })
    }

    fn count_failure(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<Timestamp>> {
        let (changes, change) = (self.changes.clone(), format!("{} failed", policy.name()));
        self.store.count_failure(policy, key).map(move |until| {
            let _ = changes.send(change);
            until
        })
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        *self.asked.lock().expect("nobody panics with it") += receipt.settlements().len();
        let settlements = receipt.settlements().iter();
        let settled: Vec<Settled> = settlements
            .map(|one| (one.charge().policy().name().to_string(), one.correction()))
            .collect();
        let told = self.told.clone();
        // nobody listens any more when the test has ended
        let tell = move |result: &Result<(), Error>| {
            let said = result.as_ref().map(|()| settled).map_err(Error::kind);
            let _ = told.send(said);
        };
        self.store.settle(receipt).map(move |result| {
            tell(&result);
            result
        })
    }
}

/// A quarter of a second past a second, so that rounding shows.
const START: Timestamp = Timestamp::from_micros(1_700_000_000_250_000);
/// Longer than anything takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
