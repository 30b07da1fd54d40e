//! Taking and releasing slots under one key.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{
    Decision, Hold, Key, Policy, RateLimiter,
    algorithm::Algorithm,
    charge::Receipt,
    remote::{RedisStore, RedisStoreBuilder},
};

/// A concurrency policy and its limiter.
#[derive(Clone)]
pub(crate) struct Slots {
    limiter: RateLimiter,
    policy: Policy,
}

impl Slots {
    /// Uses a bare store with a deadline of five seconds.
    pub(crate) fn patient(url: &str, policy: Policy) -> Self {
        let store = RedisStore::builder(url).deadline(Duration::from_secs(5));
        let store = store.build().expect("a usable store");
        let limiter = RateLimiter::new(store, [policy.clone()]);
        Self {
            limiter: limiter.expect("a usable limiter"),
            policy,
        }
    }

    /// Uses a limiter with default settings.
    pub(crate) fn usual(url: &str, policy: Policy) -> Self {
        let server = RedisStoreBuilder::from(url);
        let limiter = RateLimiter::builder().redis(server).policy(policy.clone());
        Self {
            limiter: limiter.build().expect("a usable limiter"),
            policy,
        }
    }

    /// Returns a policy with this limit and lease.
    pub(crate) fn policy(name: &str, limit: u64, lease: Duration) -> Policy {
        Policy::concurrency(name, limit).algorithm(Algorithm::Concurrency { lease })
    }

    /// Takes a slot without holding it, so that it is not renewed. Returns `None` if none is free.
    pub(crate) async fn take(&self) -> Option<Receipt> {
        let charges = [self.policy.charge(Key::GLOBAL)];
        let decision = self.limiter.check(&charges).await.expect("a decision");
        Receipt::of(&charges, &decision)
    }

    /// Takes `count` slots, `at_once` concurrently.
    pub(crate) async fn take_many(&self, count: usize, at_once: usize) -> Vec<Receipt> {
        self.each(vec![(); count], at_once, |slots, ()| async move {
            slots.take().await.expect("a slot is free")
        })
        .await
    }

    /// Asks for so many slots when none is free.
    /// Asks for `count` slots when none should be free. Returns the slots that were granted nevertheless.
    pub(crate) async fn ask_in_vain(&self, count: usize, at_once: usize) -> Vec<Receipt> {
        let taken = self.each(vec![(); count], at_once, |slots, ()| async move {
            slots.take().await
        });
        taken.await.into_iter().flatten().collect()
    }

    pub(crate) async fn release_many(&self, receipts: Vec<Receipt>, at_once: usize) {
        self.each(receipts, at_once, |slots, receipt| async move {
            let settled = slots.limiter.settle(receipt).await;
            settled.expect("the slot is released");
        })
        .await;
    }

    pub(crate) fn hold(&self, receipts: Vec<Receipt>) -> Vec<Hold> {
        let receipts = receipts.into_iter();
        receipts.map(|receipt| self.limiter.hold(receipt)).collect()
    }

    /// Returns the number of slots in use, or `None` if Redis did not answer.
    pub(crate) async fn used(&self) -> Option<u64> {
        let peek = self.limiter.peek(&[self.policy.charge(Key::GLOBAL)]);
        let decision: Decision = peek.await.ok()?;
        let usage = decision.states().first()?.usage()?;
        Some(usage.limit - usage.remaining)
    }

    /// Runs the action on each item, in `at_once` tasks.
    async fn each<I, O, F>(
        &self,
        items: Vec<I>,
        at_once: usize,
        action: impl Fn(Self, I) -> F + Copy + Send + 'static,
    ) -> Vec<O>
    where
        I: Send + 'static,
        O: Send + 'static,
        F: Future<Output = O> + Send,
    {
        let mut shares: Vec<Vec<I>> = (0..at_once).map(|_| Vec::new()).collect();
        for (index, item) in items.into_iter().enumerate() {
            shares[index % at_once].push(item);
        }
        let mut tasks = JoinSet::new();
        for share in shares {
            let slots = self.clone();
            tasks.spawn(async move {
                let mut done = Vec::with_capacity(share.len());
                for item in share {
                    done.push(action(slots.clone(), item).await);
                }
                done
            });
        }
        tasks.join_all().await.into_iter().flatten().collect()
    }
}
