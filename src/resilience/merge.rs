//! Charges to Redis what was admitted locally, once Redis decides again.
//!
//! ```text
//! a decision on a key with local charges   merge, then decide, within one deadline; not while decisions are shed
//! all other keys                           in the background: after up to 0.5 s, 64 keys at a time, with 20 ms in between
//! ```
//!
//! # The first seconds
//!
//! The instances of a fleet notice the recovery within 2 s of each other. The first one finds Redis without the charges
//! of the others, and would admit them once more. So for 2.5 s, keys that were decided locally stay within the share:
//!
//! ```text
//! share used up?  -- yes --> denied here
//!                 -- no ---> merge, then Redis decides; an admitted charge also counts against the share
//! ```
//!
//! The charge is taken from the share first, and given back if Redis denies it or fails. Then the fallback takes it.
//!
//! A merge that fails is made later. One without a reply may have been made, so it is sent again with the same id.
//!
//! # A server that may have lost its states
//!
//! After a restart of the server, or a failover, the first decision on each key that is in the mirror is made in the same
//! way: a merge without units restores the usage that the server had returned, if it has less now.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{
    charge::{Charge, Merge},
    decision::Decision,
    error::Error,
    key::Key,
    policy::OnOutage,
    task::{Running, backoff::random, timer::sleep},
};

use super::{
    attempts::Restored,
    guard::Guard,
    local::{TakenShare, UsedUp},
    mirror::KeyHash,
};

/// The needs of a decision in the first seconds after an outage.
#[expect(
    clippy::large_enum_variant,
    reason = "each is made once and taken apart at once: a box would be one more allocation"
)]
#[derive(Debug)]
pub(super) enum Due {
    /// The share of a key is used up: the decision is made locally.
    Local,
    /// These merges come first. The charges were taken from the shares.
    Merges(Vec<BegunMerge>, TakenShares),
}

impl Guard {
    /// Starts to merge in the background, unless there is nothing to merge.
    pub fn start_merging(self: &Arc<Self>) {
        if self.local.journal.is_empty() {
            return;
        }
        self.merge_task
            .start(|running| merge_until_done(Arc::downgrade(self), running));
    }

    /// Takes the charges from the shares of their keys, and begins the merges of the keys, unless a share is used up.
    pub(super) fn due(self: &Arc<Self>, charges: &[Charge<'_>]) -> Due {
        let enforced = || locally_counted(charges).filter(|charge| !charge.is_shadow());
        let mut taken = TakenShares::none(self);
        let fit = enforced().all(|charge| self.local.has_share(charge))
            && enforced().all(|charge| taken.take(charge).is_ok());
        if !fit {
            return Due::Local;
        }
        Due::Merges(self.begin_all(charges), taken)
    }

    /// Begins the merges of the charges' keys: of those that were decided locally, and of those whose states the primary may
    /// lack.
    ///
    /// A merge that is under way was sent before this decision is.
    #[cold]
    pub(super) fn begin_all(self: &Arc<Self>, charges: &[Charge<'_>]) -> Vec<BegunMerge> {
        let begun = locally_counted(charges).filter_map(|charge| {
            let fingerprint = KeyHash::of(charge.policy(), charge.key());
            BegunMerge::begin(self, fingerprint).or_else(|| BegunMerge::restore(self, charge))
        });
        begun.collect()
    }

    /// Makes these merges in this run of the primary, and waits for all of them.
    ///
    /// # Errors
    ///
    /// That of one of the merges.
    pub(super) async fn make_merges(
        &self,
        merges: impl IntoIterator<Item = BegunMerge>,
        run_number: u64,
    ) -> Result<(), Error> {
        let made = merges.into_iter().map(|begun| async {
            let merging = Arc::clone(&self.primary).merge(&begun.merge, run_number);
            let result = self.bounded(merging).await;
            begun.end(result.clone());
            result
        });
        join_all(made).await.into_iter().collect()
    }

    /// Merges all keys of the primary once. Returns `false` if it fails meanwhile.
    async fn merge_all(self: &Arc<Self>) -> bool {
        let journal = &self.local.journal;
        let is_stuck = |key: &Key| self.all.stuck_slots.contains(key.slot());
        let keys = journal.keys_where(|key| self.primary.serves(key) && !is_stuck(key));
        for keys in keys.chunks(BATCH) {
            if self.breaker.is_open() {
                return false;
            }
            // Before the merges are begun: those of an earlier run would not restore what the server has lost since.
            let run_number = self.primary.run_number();
            let begun = keys.iter().filter_map(|key| BegunMerge::begin(self, *key));
            let begun: Vec<BegunMerge> = begun.collect();
            // A failed merge stays in the journal, for the next round.
            let _ = self.make_merges(begun, run_number).await;
            sleep(PAUSE).await;
        }
        true
    }
}

/// Returns the charges that are counted locally during an outage.
fn locally_counted<'a, 'b>(charges: &'a [Charge<'b>]) -> impl Iterator<Item = &'a Charge<'b>> {
    let charges = charges.iter();
    charges.filter(|charge| charge.policy().outage_choice() == OnOutage::Local)
}

// === TakenShares ===

/// The charges of a decision that were taken from the shares of their keys. Dropped before the decision is sent, they are
/// given back.
#[derive(Debug)]
pub(super) struct TakenShares {
    guard: Arc<Guard>,
    taken: SmallVec<[TakenShare; 1]>,
    /// Whether the primary may have made the charges.
    is_sent: bool,
}

impl TakenShares {
    /// Returns those of a decision that takes from no share.
    pub fn none(guard: &Arc<Guard>) -> Self {
        Self {
            guard: Arc::clone(guard),
            taken: SmallVec::new(),
            is_sent: false,
        }
    }

    /// Takes another charge.
    fn take(&mut self, charge: &Charge<'_>) -> Result<(), UsedUp> {
        let recovery = self.guard.history.recovery();
        let taken = self.guard.local.take_share(charge, recovery)?;
        self.taken.extend(taken);
        Ok(())
    }

    /// Notes that the decision is sent.
    pub fn note_sent(&mut self) {
        self.is_sent = true;
    }

    /// Gives back what the primary did not charge. After an error the fallback takes it again, as any charge.
    pub fn end(mut self, decided: &Result<Decision, Error>) {
        match decided {
            Ok(decision) if decision.is_allowed() => self.taken.clear(),
            Ok(_) => self.taken.retain(|taken| !taken.counts_denied()),
            Err(_) => {}
        }
        self.is_sent = false;
    }
}

impl Drop for TakenShares {
    fn drop(&mut self) {
        if self.is_sent {
            return;
        }
        let recovery = self.guard.history.recovery();
        for taken in self.taken.drain(..) {
            self.guard.local.give_back(taken, recovery);
        }
    }
}

// === BegunMerge ===

/// A merge. Nobody else charges the same units. Dropped before its [end](Self::end), it may have been made.
#[derive(Debug)]
pub(super) struct BegunMerge {
    guard: Arc<Guard>,
    fingerprint: KeyHash,
    merge: Box<Merge>,
    purpose: Purpose,
    is_ended: bool,
}

/// The reason for a merge.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// To charge what was admitted locally.
    Charge,
    /// To restore this state.
    Restore(Restored),
}

impl BegunMerge {
    /// Begins to merge the local charges of a key, if it has any and nobody else does.
    fn begin(guard: &Arc<Guard>, fingerprint: KeyHash) -> Option<Self> {
        let merge = guard.local.begin_merge(fingerprint, &guard.history)?;
        Some(Self {
            guard: Arc::clone(guard),
            fingerprint,
            merge,
            purpose: Purpose::Charge,
            is_ended: false,
        })
    }

    /// Begins to restore the state of a charge's key, if the primary may lack it.
    fn restore(guard: &Arc<Guard>, charge: &Charge<'_>) -> Option<Self> {
        let (state, merge) = guard.local.begin_restore(charge, &guard.history)?;
        Some(Self {
            guard: Arc::clone(guard),
            fingerprint: KeyHash::of(charge.policy(), charge.key()),
            merge,
            purpose: Purpose::Restore(state),
            is_ended: false,
        })
    }

    /// Notes the result.
    fn end(mut self, result: Result<(), Error>) {
        self.is_ended = true;
        self.note(Some(result));
    }

    fn note(&self, result: Option<Result<(), Error>>) {
        let Guard { local, history, .. } = &*self.guard;
        match self.purpose {
            Purpose::Charge => local.end_merge(self.fingerprint, result, history),
            Purpose::Restore(Restored { mirrored, epoch }) => {
                if result.is_some_and(|result| result.is_ok()) {
                    local
                        .mirror
                        .confirm(self.fingerprint, mirrored, epoch, &history.doubts);
                }
            }
        }
    }
}

impl Drop for BegunMerge {
    fn drop(&mut self) {
        if !self.is_ended {
            self.note(None);
        }
    }
}

/// The task that merges until nothing is left, or every clone of the store is dropped.
async fn merge_until_done(guard: Weak<Guard>, _running: Running) {
    // The instances of a fleet do not merge all at once.
    let mut wait = Duration::from_micros(random() % 500_000);
    loop {
        sleep(wait).await;
        let Some(guard) = guard.upgrade() else {
            return;
        };
        if !guard.merge_all().await || guard.local.journal.is_empty() {
            return;
        }
        wait = RETRY;
    }
}

/// Keys that are merged together, and the wait after them: at most 3,200 keys a second.
const BATCH: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);
/// The wait before keys are tried again whose merges failed.
const RETRY: Duration = Duration::from_secs(1);
