//! A store that decides even while the custom store behind it cannot.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::sync::watch;

use crate::{
    block::BlockChange,
    charge::{Charge, Merge, OwnedCharge, Receipt},
    clock::{Clock, Timestamp},
    decision::Decision,
    diagnosis::Warning,
    error::Error,
    key::Key,
    memory::MemoryStore,
    policy::{BanRecord, Policy},
    store::{Health, Mode, Stats, Store, StoreFuture, waited},
    task::timer::timeout,
};

use super::{
    call_guard::CallGuard, calls::Calls, deciding::Before, guard::Guard, primary::Primary,
    settings::GuardSettings,
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
    primary: Arc<dyn Store>,
    guard: Arc<Guard>,
}

impl ResilientStore {
    /// Returns a builder that puts a breaker in front of `primary`, and uses `local` while `primary` is unavailable.
    ///
    /// The deadline set on the builder cuts `primary` off, unless its [own](Store::deadline) is as early.
    pub fn builder(primary: impl Store, local: MemoryStore) -> ResilientStoreBuilder {
        let settings = GuardSettings {
            takes_merges: false,
            ..GuardSettings::new(local)
        };
        ResilientStoreBuilder {
            primary: Arc::new(primary),
            #[cfg(feature = "test-util")]
            server: None,
            calls: None,
            settings,
        }
    }

    /// Returns what stands in front of the primary.
    #[cfg(feature = "test-util")]
    pub(crate) fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }
}

impl Store for ResilientStore {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let guard = &self.guard;
        if let Before::Decided(decision) = guard.before(charges, guard.primary.run_number()) {
            return decision;
        }
        let mut decision = self.primary.decide(charges);
        if let Some(result) = decision.take_ready() {
            CallGuard::new(guard).end(&result);
            let decision = guard.conclude(result, &mut charges.iter().copied());
            return StoreFuture::ready(Ok(decision));
        }
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let guard = Arc::clone(guard);
        let waited = waited::so_far();
        StoreFuture::boxed(async move {
            let call = CallGuard::new(&guard);
            let result = if waited.is_zero() {
                guard.bounded(decision).await
            } else {
                let left = guard.breaker.deadline().saturating_sub(waited);
                let decided = timeout(left, decision).await;
                decided.unwrap_or_else(|| Err(guard.late()))
            };
            call.end(&result);
            Ok(guard.conclude(result, &mut charges.iter().map(OwnedCharge::borrow)))
        })
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.primary)
    }

    fn change_block(&self, change: BlockChange) -> StoreFuture<()> {
        let message = "the shared store is unavailable: no block was changed";
        self.guard
            .call(message, || self.primary.change_block(change))
    }

    fn refresh_blocks(&self) -> StoreFuture<()> {
        let message = "the shared store is unavailable: blocks are not refreshed";
        self.guard.call(message, || self.primary.refresh_blocks())
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        self.guard
            .settle(receipt, |receipt| self.primary.settle(receipt))
    }

    fn hold(&self, receipt: &Receipt) {
        if !self.guard.hold(receipt) {
            self.primary.hold(receipt);
        }
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let message = "the shared store is unavailable: leases are not renewed";
        self.guard.call(message, || self.primary.renew(charges))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.guard
            .reset(policy, key, || self.primary.reset(policy, key))
    }

    fn ban_record(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanRecord>> {
        self.guard
            .ban_record(policy, key, || self.primary.ban_record(policy, key))
    }

    fn paused_until(&self, charge: &Charge<'_>) -> StoreFuture<Option<Timestamp>> {
        self.guard
            .paused_until(|| self.primary.paused_until(charge))
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.guard.breaker.deadline())
    }

    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.primary.warnings();
        self.guard.add_warnings(&mut warnings);
        warnings
    }

    fn stats(&self) -> Stats {
        self.guard.add_stats(self.primary.stats())
    }

    fn health(&self) -> Health {
        self.guard.health()
    }

    fn mode_changes(&self) -> watch::Receiver<Mode> {
        self.guard.mode_changes()
    }
}

/// A custom store as the server behind a guard. It keeps nothing that was admitted without it.
#[derive(Debug)]
struct Custom(Arc<dyn Store>);

impl Primary for Custom {
    fn run_number(&self) -> u64 {
        0
    }

    fn decide(self: Arc<Self>, charges: &[Charge<'_>], _: u64) -> StoreFuture<Decision> {
        self.0.decide(charges)
    }

    fn merge(self: Arc<Self>, _: &Merge, _: u64) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    fn probe(self: Arc<Self>) -> StoreFuture<()> {
        self.0.probe()
    }

    fn serves(&self, _: &Key) -> bool {
        true
    }

    fn deadline(&self) -> Option<Duration> {
        self.0.deadline()
    }

    fn server(&self) -> Option<String> {
        None
    }

    fn warnings(&self) -> Vec<Warning> {
        self.0.warnings()
    }
}

// === ResilientStoreBuilder ===

/// Settings of a [`ResilientStore`].
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ResilientStoreBuilder {
    primary: Arc<dyn Store>,
    /// The primary, if it can be charged for what was admitted without it.
    #[cfg(feature = "test-util")]
    server: Option<Arc<dyn Primary>>,
    calls: Option<Calls>,
    settings: GuardSettings,
}

impl ResilientStoreBuilder {
    /// Sets how long one decision may take, waits included. Calls that take more than half of it count as slow.
    ///
    /// Default: 50 ms. Maximum: 1 hour.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Sets the clock that times outages, and the calls of a primary that does not report them.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Sets the number of instances that share the primary, each of which grants its share of a quota during an outage.
    ///
    /// Default: 1. With `n`, shares are rounded up: a limit of `q` becomes at most `q + n - 1` over the fleet.
    pub fn instances(mut self, count: u64) -> Self {
        self.settings.instances = Some(count);
        self
    }

    /// Sets the number of keys whose last state in the primary is kept, so that local counting continues from it.
    ///
    /// Default: 100,000, which takes 2.6 MB (26 bytes for each key). With 0, a key starts an outage with its full share.
    pub fn warm_keys(mut self, count: usize) -> Self {
        self.settings.warm_keys = count;
        self
    }

    /// Sets the reports by which the breaker judges the primary, which must report every call.
    ///
    /// Default: none, so that each decision counts as a call.
    pub fn calls(mut self, calls: Calls) -> Self {
        self.calls = Some(calls);
        self
    }

    /// Charges the primary for what was admitted without it. `server` is the primary.
    #[cfg(feature = "test-util")]
    pub(crate) fn merging(mut self, server: Arc<dyn Primary>) -> Self {
        self.settings.takes_merges = true;
        self.server = Some(server);
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a deadline of zero or above 1 hour, and for 0 instances.
    pub fn build(self) -> Result<ResilientStore, Error> {
        let guards = self.settings.build(|| None)?;
        let server: Arc<dyn Primary> = Arc::new(Custom(Arc::clone(&self.primary)));
        #[cfg(feature = "test-util")]
        let server = self.server.unwrap_or(server);
        Ok(ResilientStore {
            guard: guards.guard(server, self.calls.as_ref()),
            primary: self.primary,
        })
    }
}
