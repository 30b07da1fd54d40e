//! A shared store with a breaker before it and a local one behind.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    charge::{Charge, OwnedCharge},
    clock::Clock,
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
    state::CountedBy,
    store::{Fallback, Health, Receipt, Store, StoreFuture},
};

use super::shared::{Asked, Shared};

/// A store that never leaves a request without a decision. Clones share the breaker.
///
/// See the [module docs](super) for when it gives the shared store up and what it does then. It needs a Tokio runtime, which
/// may be one without timers.
#[derive(Clone, Debug)]
pub struct ResilientStore {
    shared: Arc<Shared>,
}

impl ResilientStore {
    /// Puts a breaker before `primary`, and `local` behind it for the time that `primary` is away.
    ///
    /// The deadline set here cuts `primary` off, whatever deadline it has itself. `local` must answer at once, as
    /// [`MemoryStore`](crate::memory::MemoryStore) does.
    pub fn builder(primary: impl Store, local: impl Store) -> ResilientStoreBuilder {
        ResilientStoreBuilder {
            primary: Arc::new(primary),
            local: Arc::new(local),
            deadline: Duration::from_millis(50),
            primary_keeps_deadline: false,
            clock: Clock::system(),
        }
    }
}

impl Store for ResilientStore {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let shared = &self.shared;
        if charges.is_empty() {
            return StoreFuture::ready(Ok(Decision::new(
                CountedBy::Shared,
                shared.clock.now(),
                [],
            )));
        }
        if shared.breaker.is_open() {
            shared.see_to_prober();
            return StoreFuture::ready(Ok(shared.decide_in_outage(charges)));
        }
        shared.prober.remember_runtime();
        let fallback: Arc<Shared> = Arc::clone(shared);
        // Neither a deadline nor a judgement is to be added: one future for the whole decision.
        if shared.primary_keeps_deadline && shared.reports_calls {
            return shared.primary.decide_with_fallback(charges, fallback);
        }
        let mut answer = shared.primary.decide(charges);
        if let Some(result) = answer.take_ready() {
            Asked::new(shared).ended(&result);
            return StoreFuture::ready(fallback.complete(result, &mut charges.iter().copied()));
        }
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        StoreFuture::boxed(async move {
            let asked = Asked::new(&fallback);
            let result = fallback.bounded(answer).await;
            asked.ended(&result);
            fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
        })
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let shared = Arc::clone(&self.shared);
        if receipt.counted_by() == CountedBy::Fallback {
            return shared.local.settle(receipt);
        }
        if shared.breaker.is_open() {
            return StoreFuture::ready(Err(Error::new(
                ErrorKind::Unavailable,
                "the shared store is away",
            )));
        }
        let answer = shared.primary.settle(receipt);
        StoreFuture::boxed(async move { shared.bounded(answer).await })
    }

    fn hold(&self, receipt: &Receipt) {
        match receipt.counted_by() {
            CountedBy::Fallback => self.shared.local.hold(receipt),
            _ => self.shared.primary.hold(receipt),
        }
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        if self.shared.breaker.is_open() {
            return StoreFuture::ready(Err(Error::new(
                ErrorKind::Unavailable,
                "the shared store is away: leases run on",
            )));
        }
        let answer = self.shared.primary.renew(charges);
        let shared = Arc::clone(&self.shared);
        StoreFuture::boxed(async move { shared.bounded(answer).await })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let local = self.shared.local.reset(policy, key);
        if self.shared.breaker.is_open() {
            return StoreFuture::ready(Err(Error::new(
                ErrorKind::Unavailable,
                "the shared store is away: only this process' own count was reset",
            )));
        }
        let primary = self.shared.primary.reset(policy, key);
        let shared = Arc::clone(&self.shared);
        StoreFuture::boxed(async move {
            local.await?;
            shared.bounded(primary).await
        })
    }

    fn probe(&self) -> StoreFuture<()> {
        self.shared.primary.probe()
    }

    fn warnings(&self) -> Vec<Warning> {
        self.shared.primary.warnings()
    }

    fn health(&self) -> Health {
        self.shared.health()
    }
}

// === ResilientStoreBuilder ===

/// Settings of a [`ResilientStore`].
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ResilientStoreBuilder {
    primary: Arc<dyn Store>,
    local: Arc<dyn Store>,
    deadline: Duration,
    primary_keeps_deadline: bool,
    clock: Clock,
}

impl ResilientStoreBuilder {
    /// Sets how long one decision may take in all; calls that take more than half of it count as slow.
    ///
    /// Default: 50 ms. At most an hour.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Trusts the primary to answer within the deadline on its own.
    pub(crate) fn primary_keeps_deadline(mut self) -> Self {
        self.primary_keeps_deadline = true;
        self
    }

    /// Sets the clock by which outages are timed, and answers of a store that does not report its calls.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a deadline of zero or above an hour.
    pub fn build(self) -> Result<ResilientStore, Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.deadline.is_zero() {
            return refuse(
                "deadline of zero: no decision could be made in time; the default is 50 ms",
            );
        }
        if self.deadline > LONGEST_DEADLINE {
            return refuse("deadline above an hour: nobody waits that long; the default is 50 ms");
        }
        Ok(ResilientStore {
            shared: Shared::new(
                self.primary,
                self.local,
                self.deadline,
                self.primary_keeps_deadline,
                self.clock,
            ),
        })
    }
}

const LONGEST_DEADLINE: Duration = Duration::from_secs(3_600);
