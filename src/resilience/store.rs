//! A store that decides even while the shared store cannot.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::sync::watch;

use crate::{
    block::{BlockChange, BlockList},
    charge::{Charge, Charges, Merge, OwnedCharge, Receipt},
    clock::Clock,
    decision::{CountedBy, Decision},
    diagnosis::{SilencedCodes, Warning},
    error::{Error, ErrorKind},
    key::Key,
    memory::MemoryStore,
    policy::{BanState, Policy},
    store::{Fallback, Fleet, Health, Mode, Stats, Store, StoreFuture, waited},
    task::timer::timeout,
};

#[cfg(feature = "reload")]
use crate::store::RuleStore;
#[cfg(feature = "top-keys")]
use crate::top_keys::Snapshot;

use super::{
    all_servers::AllServers,
    call_guard::CallGuard,
    fallback::LocalFallback,
    local::LocalCounts,
    merging::{BegunMerge, Due, TakenShares},
    mirror::Fingerprint,
    monitor::PrimaryMonitor,
    prober::Prober,
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
    /// The deadline set on the builder cuts `primary` off, unless its [own](Store::deadline) is as early.
    pub fn builder(primary: impl Store, local: MemoryStore) -> ResilientStoreBuilder {
        Self::builder_over(Arc::new(primary), local)
    }

    /// As [`builder`](Self::builder), for a store of any type.
    pub(crate) fn builder_over(
        primary: Arc<dyn Store>,
        local: MemoryStore,
    ) -> ResilientStoreBuilder {
        ResilientStoreBuilder {
            primary,
            local,
            deadline: Duration::from_millis(50),
            clock: Clock::system(),
            server_clock: None,
            instances: None,
            warm_keys: WARM_KEYS,
            silenced: SilencedCodes::default(),
        }
    }

    /// Returns a store with a breaker of its own in front of another node, and the same local counts and settings.
    pub(crate) fn for_node(&self, node: Arc<dyn Store>) -> Self {
        let monitor = self.monitor.for_node(node);
        Self {
            fallback: Arc::new(self.fallback.for_node(Arc::clone(&monitor))),
            monitor,
        }
    }

    /// Returns an error without asking the primary, if the breaker is open.
    fn check_breaker(&self, message: &'static str) -> Result<(), Error> {
        if self.monitor.breaker.is_open() {
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Decides in the primary after these merges, all within the deadline.
    ///
    /// Without the merges, the decision would not count what was admitted here. If one of them fails, the decision fails
    /// with its error.
    #[cold]
    fn decide_after(
        &self,
        merges: Vec<BegunMerge>,
        mut taken: TakenShares,
        charges: &[Charge<'_>],
    ) -> StoreFuture<Decision> {
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let (monitor, fallback) = (Arc::clone(&self.monitor), Arc::clone(&self.fallback));
        let waited = waited::so_far();
        StoreFuture::boxed(async move {
            let deciding = async {
                fallback.merger.make(merges).await?;
                taken.note_sent();
                let call = CallGuard::new(&monitor);
                let result = {
                    let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                    waited::after(waited, || monitor.primary.decide(&charges))
                };
                let result = monitor.bounded(result).await;
                call.end(&result);
                result
            };
            let left = monitor.breaker.deadline().saturating_sub(waited);
            let result = timeout(left, deciding).await;
            let result = result.unwrap_or_else(|| Err(monitor.late()));
            taken.end(&result);
            fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
        })
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
        if let Some(decision) = self.fallback.decide_stuck(charges) {
            return StoreFuture::ready(Ok(decision));
        }
        monitor.prober.task.remember_runtime();
        let fallback = Arc::clone(&self.fallback);
        if waited::is_too_long(monitor.breaker.deadline()) {
            let late = Err(monitor.late().into_not_executed());
            return StoreFuture::ready(fallback.complete(late, &mut charges.iter().copied()));
        }
        let has_merges = !fallback.local.journal.is_empty();
        if has_merges {
            fallback.merger.start();
            if fallback.merger.history.is_grace() {
                return match fallback.merger.due(charges) {
                    Due::Local => StoreFuture::ready(Ok(fallback.decide_by_share(charges))),
                    Due::Merges(merges, taken) => self.decide_after(merges, taken, charges),
                };
            }
        }
        // More calls would prolong an overload.
        if has_merges && !fallback.is_shedding() || fallback.merger.history.has_doubts() {
            let merges = fallback.merger.begin_all(charges);
            if !merges.is_empty() {
                let taken = TakenShares::none(&fallback.merger);
                return self.decide_after(merges, taken, charges);
            }
        }
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
        let waited = waited::so_far();
        StoreFuture::boxed(async move {
            let call = CallGuard::new(&monitor);
            let result = if waited.is_zero() {
                monitor.bounded(decision).await
            } else {
                let left = monitor.breaker.deadline().saturating_sub(waited);
                let decided = timeout(left, decision).await;
                decided.unwrap_or_else(|| Err(monitor.late()))
            };
            call.end(&result);
            fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
        })
    }

    fn blocks(&self) -> Option<Arc<BlockList>> {
        self.monitor.primary.blocks()
    }

    fn change_block(&self, change: BlockChange) -> StoreFuture<()> {
        match self.check_breaker("the shared store is unavailable: no block was changed") {
            Ok(()) => self.bounded(self.monitor.primary.change_block(change)),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn refresh_blocks(&self) -> StoreFuture<()> {
        match self.check_breaker("the shared store is unavailable: blocks are not refreshed") {
            Ok(()) => self.bounded(self.monitor.primary.refresh_blocks()),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Settles in the store that counted the charges, also after an outage has begun or ended.
    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        if receipt.counted_by() == CountedBy::Fallback {
            return self.fallback.local.settle(receipt);
        }
        if let Err(error) = self.check_breaker("the shared store is unavailable") {
            return StoreFuture::ready(Err(error));
        }
        let (monitor, fallback) = (Arc::clone(&self.monitor), Arc::clone(&self.fallback));
        let corrections = fallback.local.corrections_in(&receipt);
        let settled = monitor.primary.settle(receipt);
        StoreFuture::boxed(async move {
            monitor.bounded(settled).await?;
            fallback.local.note_corrections(&corrections);
            Ok(())
        })
    }

    fn hold(&self, receipt: &Receipt) {
        match receipt.counted_by() {
            CountedBy::Fallback => self.fallback.local.store.hold(receipt),
            _ => self.monitor.primary.hold(receipt),
        }
    }

    fn merge(&self, merge: &Merge) -> StoreFuture<()> {
        match self.check_breaker("the shared store is unavailable: nothing is merged") {
            Ok(()) => self.bounded(self.monitor.primary.merge(merge)),
            Err(error) => StoreFuture::ready(Err(error)),
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
        let (fallback, fingerprint) = (Arc::clone(&self.fallback), Fingerprint::of(policy, key));
        StoreFuture::boxed(async move {
            local.await?;
            let result = primary.await;
            // Replies that came meanwhile may be those of decisions before the reset.
            let local = &fallback.local;
            local.mirror.take(fingerprint, local.clock.now());
            result
        })
    }

    /// Reads from where the next request would be decided.
    fn ban_state(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanState>> {
        let local = self.fallback.local.store.ban_state(policy, key);
        if self.monitor.breaker.is_open() {
            return local;
        }
        let primary = self.monitor.primary.ban_state(policy, key);
        let monitor = Arc::clone(&self.monitor);
        StoreFuture::boxed(async move {
            match monitor.bounded(primary).await {
                Err(error) if error.kind() != ErrorKind::ForeignValue => local.await,
                result => result,
            }
        })
    }

    fn probe(&self) -> StoreFuture<()> {
        self.monitor.primary.probe()
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.monitor.breaker.deadline())
    }

    fn server(&self) -> Option<String> {
        self.monitor.primary.server()
    }

    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.monitor.primary.warnings();
        warnings.extend(self.monitor.all.warnings.warnings());
        warnings
    }

    #[cfg(feature = "top-keys")]
    fn shared_top_keys(&self) -> StoreFuture<Vec<Snapshot>> {
        match self.check_breaker("the shared store is unavailable: only this instance is known") {
            Ok(()) => self.monitor.primary.shared_top_keys(),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn stats(&self) -> Stats {
        self.monitor.metrics.show();
        let is_open = self.monitor.breaker.is_open();
        let stats = self.monitor.primary.stats();
        stats.behind_breaker(is_open, self.server(), &self.fallback.local.store.stats())
    }

    fn health(&self) -> Health {
        self.fallback.health()
    }

    fn mode_changes(&self) -> watch::Receiver<Mode> {
        self.monitor.all.modes.changes()
    }

    #[cfg(feature = "reload")]
    fn rule_store(&self) -> Option<Arc<dyn RuleStore>> {
        self.monitor.primary.rule_store()
    }
}

// === ResilientStoreBuilder ===

/// Settings of a [`ResilientStore`].
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ResilientStoreBuilder {
    primary: Arc<dyn Store>,
    local: MemoryStore,
    deadline: Duration,
    clock: Clock,
    server_clock: Option<Clock>,
    instances: Option<u64>,
    warm_keys: usize,
    silenced: SilencedCodes,
}

impl ResilientStoreBuilder {
    /// Sets how long one decision may take, waits included. Calls that take more than half of it count as slow.
    ///
    /// Default: 50 ms. Maximum: 1 hour.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the clock that times outages, and the calls of a primary that does not report them.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the number of instances that share the primary, each of which grants its share of a quota during an outage.
    ///
    /// Default: learned from the primary, if it [reports](Store::fleet) its instances. With a fixed number `n`, shares are
    /// rounded up: a limit of `q` becomes at most `q + n - 1` over the fleet.
    pub fn instances(mut self, count: u64) -> Self {
        self.instances = Some(count);
        self
    }

    /// Sets the number of keys whose last state in the primary is kept, so that local counting continues from it.
    ///
    /// Default: 100,000, which takes 2.6 MB (26 bytes for each key). With 0, a key starts an outage with its full share.
    pub fn warm_keys(mut self, count: usize) -> Self {
        self.warm_keys = count;
        self
    }

    /// Sets the codes of warnings that are not reported.
    pub(crate) fn silence(mut self, silenced: SilencedCodes) -> Self {
        self.silenced = silenced;
        self
    }

    /// Sets the clock of `local`, which then follows the primary's.
    pub(crate) fn server_clock(mut self, clock: Clock) -> Self {
        self.server_clock = Some(clock);
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a deadline of zero or above 1 hour, and for 0 instances.
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
        let fleet = match self.instances.map(NonZeroU64::new) {
            Some(None) => {
                return refuse("0 instances: count this one too, or leave the number out");
            }
            Some(Some(count)) => Some(Arc::new(Fleet::fixed(count))),
            None => self.primary.fleet(),
        };
        let server_clock = self.server_clock.unwrap_or_else(|| self.clock.clone());
        let all = Arc::new(AllServers::new(self.clock.clone(), self.silenced));
        let monitor = PrimaryMonitor::new(
            self.primary,
            self.deadline,
            (self.clock, server_clock.clone()),
            all,
            Prober::default(),
        );
        let local = Arc::new(LocalCounts::new(
            self.local,
            fleet,
            server_clock,
            self.warm_keys,
        ));
        let fallback = LocalFallback::new(local, Arc::clone(&monitor));
        Ok(ResilientStore {
            monitor,
            fallback: Arc::new(fallback),
        })
    }
}

/// The default of [`ResilientStoreBuilder::warm_keys`].
const WARM_KEYS: usize = 100_000;
const LONGEST_DEADLINE: Duration = Duration::from_secs(3_600);
