//! A store that decides even while the shared store cannot.

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

use super::{
    fallback::LocalFallback,
    monitor::{CallGuard, PrimaryMonitor},
};

/// A store with a breaker in front of the primary and a local store behind it. Every request gets a decision.
///
/// ```text
/// decide ─▶ is the breaker open? ── no ──▶ primary ── Ok ──▶ its decision
///                 │ yes                        └── Err ──▶ fallback
///                 └──────────────────────────────────────▶ fallback: each policy's OnOutage setting
/// ```
///
/// The [module docs](super) describe when the breaker opens and closes. The store needs a Tokio runtime, with or
/// without a timer. Clones share the breaker.
#[derive(Clone, Debug)]
pub struct ResilientStore {
    /// The primary and its breaker.
    monitor: Arc<PrimaryMonitor>,
    /// The local store, and the counts of its decisions.
    fallback: Arc<LocalFallback>,
}

impl ResilientStore {
    /// Returns a builder that puts a breaker in front of `primary`, and uses `local` while `primary` is unavailable.
    ///
    /// The deadline set on the builder cuts `primary` off, whatever its own deadline is. `local` must reply at once, as
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

    /// Returns an error without asking the primary, if the breaker is open.
    fn check_breaker(&self, message: &'static str) -> Result<(), Error> {
        if self.monitor.breaker.is_open() {
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Bounds a call of the primary by the deadline.
    fn bounded(&self, call: StoreFuture<()>) -> StoreFuture<()> {
        let monitor = Arc::clone(&self.monitor);
        StoreFuture::boxed(async move { monitor.bounded(call).await })
    }
}

impl Store for ResilientStore {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let monitor = &self.monitor;
        if charges.is_empty() {
            let now = monitor.clock.now();
            return StoreFuture::ready(Ok(Decision::new(CountedBy::Shared, now, [])));
        }
        if monitor.breaker.is_open() {
            monitor.ensure_probing();
            return StoreFuture::ready(Ok(self.fallback.decide(charges)));
        }
        monitor.prober.remember_runtime();
        let fallback = Arc::clone(&self.fallback);
        // No timer and no guard to add: one future serves the whole decision.
        if monitor.primary_keeps_deadline && monitor.reports_calls {
            return monitor.primary.decide_with_fallback(charges, fallback);
        }
        let mut decision = monitor.primary.decide(charges);
        if let Some(result) = decision.take_ready() {
            CallGuard::new(monitor).end(&result);
            return StoreFuture::ready(fallback.complete(result, &mut charges.iter().copied()));
        }
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let monitor = Arc::clone(monitor);
        StoreFuture::boxed(async move {
            let call = CallGuard::new(&monitor);
            let result = monitor.bounded(decision).await;
            call.end(&result);
            fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
        })
    }

    /// Settles in the store that counted the charges, also after an outage has begun or ended.
    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        if receipt.counted_by() == CountedBy::Fallback {
            return self.fallback.local.settle(receipt);
        }
        match self.check_breaker("the shared store is unavailable") {
            Ok(()) => self.bounded(self.monitor.primary.settle(receipt)),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn hold(&self, receipt: &Receipt) {
        match receipt.counted_by() {
            CountedBy::Fallback => self.fallback.local.hold(receipt),
            _ => self.monitor.primary.hold(receipt),
        }
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        match self.check_breaker("the shared store is unavailable: leases are not renewed") {
            Ok(()) => self.bounded(self.monitor.primary.renew(charges)),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Resets the key in both stores, since either may decide next.
    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let local = self.fallback.local.reset(policy, key);
        let message = "the shared store is unavailable: only the count of this process was reset";
        if let Err(error) = self.check_breaker(message) {
            return StoreFuture::ready(Err(error));
        }
        let primary = self.bounded(self.monitor.primary.reset(policy, key));
        StoreFuture::boxed(async move {
            local.await?;
            primary.await
        })
    }

    fn probe(&self) -> StoreFuture<()> {
        self.monitor.primary.probe()
    }

    fn warnings(&self) -> Vec<Warning> {
        self.monitor.primary.warnings()
    }

    fn health(&self) -> Health {
        self.fallback.health()
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
    /// Sets how long one decision may take, waits included. Calls that take more than half of it count as slow.
    ///
    /// Default: 50 ms. Maximum: 1 hour.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Relies on the primary to keep the deadline itself.
    pub(crate) fn primary_keeps_deadline(mut self) -> Self {
        self.primary_keeps_deadline = true;
        self
    }

    /// Sets the clock that times outages, and the calls of a primary that does not report them.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a deadline of zero or above 1 hour.
    pub fn build(self) -> Result<ResilientStore, Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.deadline.is_zero() {
            return refuse(
                "deadline of zero: no decision could be made in time; the default is 50 ms",
            );
        }
        if self.deadline > LONGEST_DEADLINE {
            return refuse(
                "deadline above 1 hour: no client waits that long; the default is 50 ms",
            );
        }
        let monitor = PrimaryMonitor::new(
            self.primary,
            self.deadline,
            self.primary_keeps_deadline,
            self.clock,
        );
        let fallback = LocalFallback::new(self.local, Arc::clone(&monitor));
        Ok(ResilientStore {
            monitor,
            fallback: Arc::new(fallback),
        })
    }
}

const LONGEST_DEADLINE: Duration = Duration::from_secs(3_600);
