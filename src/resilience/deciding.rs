//! What precedes a decision of a server, and the operations on both the server and the counts of this process.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::watch;

use crate::{
    charge::{Charge, Charges, OwnedCharge, Receipt},
    clock::Timestamp,
    decision::{CountedBy, Decision},
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::{BanRecord, Policy},
    store::{Mode, Stats, Store, StoreFuture, waited},
    task::timer::timeout,
};

use super::{
    call_guard::CallGuard,
    guard::Guard,
    merge::{BegunMerge, Due, TakenShares},
    mirror::KeyHash,
};

/// What precedes a decision of the server.
pub(crate) enum Before {
    /// The decision was made here, or is made by the server after merges.
    Decided(StoreFuture<Decision>),
    /// Nothing: the server decides now.
    Nothing,
}

impl Guard {
    /// Decides here if the server cannot, or in this run of it after the merges of what was admitted here.
    ///
    /// `run_number` is to be read before: then the guard knows of each loss up to this run.
    pub fn before(self: &Arc<Self>, charges: &[Charge<'_>], run_number: u64) -> Before {
        let decided = |decision| Before::Decided(StoreFuture::ready(Ok(decision)));
        if charges.is_empty() {
            return decided(Decision::new(CountedBy::Shared, self.clock.now(), []));
        }
        if self.breaker.is_open() {
            self.ensure_probing();
            return decided(self.decide_without(charges));
        }
        if let Some(decision) = self.decide_stuck(charges) {
            return decided(decision);
        }
        if waited::is_too_long(self.breaker.deadline()) {
            let late = Err(self.late().into_not_executed());
            return decided(self.conclude(late, &mut charges.iter().copied()));
        }
        let has_merges = !self.local.journal.is_empty();
        if has_merges {
            self.start_merging();
            if self.history.is_grace() {
                return match self.due(charges) {
                    Due::Local => decided(self.decide_by_share(charges)),
                    Due::Merges(merges, taken) => {
                        Before::Decided(self.decide_after(run_number, merges, taken, charges))
                    }
                };
            }
        }
        // More calls would prolong an overload.
        if has_merges && !self.all.recent.has_shed() || self.history.has_doubts() {
            let merges = self.begin_all(charges);
            if !merges.is_empty() {
                let taken = TakenShares::none(self);
                return Before::Decided(self.decide_after(run_number, merges, taken, charges));
            }
        }
        Before::Nothing
    }

    /// Decides in this run of the primary after these merges, all within the deadline.
    ///
    /// Without the merges, the decision would not count what was admitted here. If one of them fails, the decision fails
    /// with its error.
    #[cold]
    fn decide_after(
        self: &Arc<Self>,
        run_number: u64,
        merges: Vec<BegunMerge>,
        mut taken: TakenShares,
        charges: &[Charge<'_>],
    ) -> StoreFuture<Decision> {
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let guard = Arc::clone(self);
        let waited = waited::so_far();
        StoreFuture::boxed(async move {
            let deciding = async {
                guard.make_merges(merges, run_number).await?;
                taken.note_sent();
                let call = CallGuard::new(&guard);
                let result = {
                    let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                    let primary = Arc::clone(&guard.primary);
                    waited::after(waited, || primary.decide(&charges, run_number))
                };
                let result = guard.bounded(result).await;
                call.end(&result);
                result
            };
            let left = guard.breaker.deadline().saturating_sub(waited);
            let result = timeout(left, deciding).await;
            let result = result.unwrap_or_else(|| Err(guard.late()));
            taken.end(&result);
            Ok(guard.conclude(result, &mut charges.iter().map(OwnedCharge::borrow)))
        })
    }

    /// Returns whether the server may lack a state that is known here.
    pub fn has_doubts(&self) -> bool {
        self.history.has_doubts()
    }

    /// Counts decisions that were made here by what the server has granted or denied before.
    #[inline]
    pub fn note_decided(&self, count: u64) {
        self.all.recent.note_decided(count);
    }

    /// Returns whether the breaker is open.
    pub fn is_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Calls the server, unless the breaker is open. The message describes what was not done.
    pub fn call(
        self: &Arc<Self>,
        message: &'static str,
        call: impl FnOnce() -> StoreFuture<()>,
    ) -> StoreFuture<()> {
        if self.breaker.is_open() {
            return StoreFuture::ready(Err(Error::new(ErrorKind::Unavailable, message)));
        }
        let (guard, call) = (Arc::clone(self), call());
        StoreFuture::boxed(async move { guard.bounded(call).await })
    }

    /// Settles in the store that counted the charges, also after an outage has begun or ended.
    pub fn settle(
        self: &Arc<Self>,
        receipt: Receipt,
        settle: impl FnOnce(Receipt) -> StoreFuture<()>,
    ) -> StoreFuture<()> {
        if receipt.counted_by() == CountedBy::Fallback {
            return self.local.settle(receipt);
        }
        let corrections = self.local.corrections_in(&receipt);
        let guard = Arc::clone(self);
        let settled = self.call("the shared store is unavailable", || settle(receipt));
        settled.map(move |result| {
            result?;
            guard.local.note_corrections(&corrections);
            Ok(())
        })
    }

    /// Holds the slots of a receipt that were taken here. Returns whether they were.
    pub fn hold(&self, receipt: &Receipt) -> bool {
        let is_local = receipt.counted_by() == CountedBy::Fallback;
        if is_local {
            self.local.store.hold(receipt);
        }
        is_local
    }

    /// Resets the key in both stores, since either may decide next.
    pub fn reset(
        self: &Arc<Self>,
        policy: &Policy,
        key: &Key,
        reset: impl FnOnce() -> StoreFuture<()>,
    ) -> StoreFuture<()> {
        let local = self.local.reset(policy, key);
        let message = "the shared store is unavailable: only the count of this process was reset";
        let primary = self.call(message, reset);
        let (guard, fingerprint) = (Arc::clone(self), KeyHash::of(policy, key));
        StoreFuture::boxed(async move {
            local.await?;
            let result = primary.await;
            // Replies that came meanwhile may be those of decisions before the reset.
            guard
                .local
                .mirror
                .take(fingerprint, guard.local.clock.now());
            result
        })
    }

    /// Counts a failure in the store that decides. A delay that the shared store begins also holds here during an outage.
    ///
    /// Where the fate of the call is unknown, the failure is counted here too, since it must not be free.
    pub fn count_failure(
        self: &Arc<Self>,
        policy: &Policy,
        key: &Key,
        count: impl FnOnce() -> StoreFuture<Option<Timestamp>>,
    ) -> StoreFuture<Option<Timestamp>> {
        if self.breaker.is_open() {
            return self.local.store.count_failure(policy, key);
        }
        let (guard, primary) = (Arc::clone(self), count());
        let charge = policy.charge(*key).to_owned();
        StoreFuture::boxed(async move {
            let store = &guard.local.store;
            let charge = charge.borrow();
            match guard.bounded(primary).await {
                Ok(until) => {
                    if let Some(until) = until {
                        store.seed_ban(&charge, until);
                    }
                    Ok(until)
                }
                Err(error) if error.kind() == ErrorKind::ForeignValue => Err(error),
                Err(_) => store.count_failure(charge.policy(), charge.key()).await,
            }
        })
    }

    /// Reads the ban of a key from where the next request would be decided.
    pub fn ban_record(
        self: &Arc<Self>,
        policy: &Policy,
        key: &Key,
        read: impl FnOnce() -> StoreFuture<Option<BanRecord>>,
    ) -> StoreFuture<Option<BanRecord>> {
        let local = self.local.store.ban_record(policy, key);
        if self.breaker.is_open() {
            return local;
        }
        let (guard, primary) = (Arc::clone(self), read());
        StoreFuture::boxed(async move {
            match guard.bounded(primary).await {
                Err(error) if error.kind() != ErrorKind::ForeignValue => local.await,
                result => result,
            }
        })
    }

    /// Reads when the pause of a key ends. `None` if the server cannot be asked: a pause is not heeded then.
    pub fn paused_until(
        self: &Arc<Self>,
        read: impl FnOnce() -> StoreFuture<Option<Timestamp>>,
    ) -> StoreFuture<Option<Timestamp>> {
        if self.breaker.is_open() {
            return StoreFuture::ready(Ok(None));
        }
        let (guard, primary) = (Arc::clone(self), read());
        StoreFuture::boxed(async move {
            match guard.bounded(primary).await {
                Err(error) if error.kind() != ErrorKind::ForeignValue => Ok(None),
                result => result,
            }
        })
    }

    /// Adds the findings that only decisions show.
    pub fn add_warnings(&self, warnings: &mut Vec<Warning>) {
        warnings.extend(self.all.warnings.warnings());
    }

    /// Adds the state of the breaker and the local counts to the stats of the server.
    pub fn add_stats(&self, stats: Stats) -> Stats {
        self.metrics.show();
        let is_open = self.breaker.is_open();
        stats.behind_breaker(is_open, self.primary.server(), &self.local.store.stats())
    }

    /// Returns a channel that holds the present mode, and reports each change.
    pub fn mode_changes(&self) -> watch::Receiver<Mode> {
        self.all.modes.changes()
    }
}
