//! Begins and ends merges of what was admitted here, and of states that the shared store may have lost.
//!
//! # Why does a merge leave a mark in Redis?
//!
//! A merge whose reply is lost may have been made. Dropping it would admit a quota twice, and sending it again would charge it
//! twice. So the script charges two keys together, all or nothing: the state, and a mark of one unit whose key contains the
//! random id of the merge. A merge that arrives again is denied.

use std::{mem, sync::atomic::Ordering, time::Duration};

use crate::{
    algorithm::{Admitted, Counter},
    charge::{Charge, Merge},
    clock::Timestamp,
    error::Error,
    task::backoff::random,
};

use super::{
    admitted::Start,
    history::ServerHistory,
    journal::{Attempt, LocalCharges, Stage},
    local::{LocalCounts, still_used_of},
    mirror::{Epoch, KeyHash, Mirrored},
};

/// A state that a merge restores, and the epoch in which it was doubtful.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restored {
    pub mirrored: Mirrored,
    pub epoch: Epoch,
}

impl LocalCounts {
    /// Begins to merge the local charges of a key. `None` if it has none, or somebody else has begun.
    pub fn begin_merge(&self, fingerprint: KeyHash, history: &ServerHistory) -> Option<Box<Merge>> {
        let (now, is_grace) = (self.clock.now(), history.is_grace());
        let begun = self.journal.change(fingerprint, |entry| {
            let stays = is_grace || !entry.is_idle();
            let stage = mem::replace(&mut entry.stage, Stage::Pending);
            match stage {
                Stage::UnderWay(_) => {
                    entry.stage = stage;
                    return (None, true);
                }
                Stage::Unconfirmed(mut attempt)
                    if now.since(attempt.first_tried_at) < MERGE_LIFE =>
                {
                    self.restore_with(&mut attempt, fingerprint, now, history);
                    let merge = Box::new(attempt.merge.clone());
                    entry.stage = Stage::UnderWay(attempt);
                    return (Some(merge), true);
                }
                // ## Unconfirmed => Pending
                Stage::Unconfirmed(attempt) => {
                    self.unconfirmed_merges.fetch_add(1, Ordering::Relaxed);
                    self.put_back_lost(fingerprint, &attempt, now, history);
                    entry.start = Some(attempt.next);
                }
                Stage::Pending => {}
            }
            let Some(attempt) = self.attempt(fingerprint, entry, now, history) else {
                return (None, stays);
            };
            // ## Pending => UnderWay
            let merge = Box::new(attempt.merge.clone());
            entry.stage = Stage::UnderWay(Box::new(attempt));
            (Some(merge), true)
        });
        begun.flatten()
    }

    /// Notes how a merge ended. Without a result, it may have been made.
    pub fn end_merge(
        &self,
        fingerprint: KeyHash,
        result: Option<Result<(), Error>>,
        history: &ServerHistory,
    ) {
        let (now, is_grace) = (self.clock.now(), history.is_grace());
        self.journal.change(fingerprint, |entry| {
            let stays = is_grace || !entry.is_idle();
            let stage = mem::replace(&mut entry.stage, Stage::Pending);
            let Stage::UnderWay(mut attempt) = stage else {
                // The key was reset.
                entry.stage = stage;
                return ((), true);
            };
            match result {
                Some(Ok(())) => {
                    // ## UnderWay => Pending, or no entry
                    self.merges.fetch_add(1, Ordering::Relaxed);
                    self.note_merge(fingerprint, &attempt, now, history);
                    entry.start = Some(attempt.next);
                    let stays = stays || self.outstanding(entry, history.recovery(), now).is_some();
                    ((), stays)
                }
                Some(Err(error)) if error.was_not_executed() && !attempt.is_repeated => {
                    self.put_back_lost(fingerprint, &attempt, now, history);
                    ((), true)
                }
                Some(Err(_)) | None => {
                    // ## UnderWay => Unconfirmed
                    attempt.is_repeated = true;
                    entry.stage = Stage::Unconfirmed(attempt);
                    ((), true)
                }
            }
        });
    }

    /// Returns a merge of what was admitted on a key; `None` if nothing is outstanding, or the primary takes no merges.
    fn attempt(
        &self,
        fingerprint: KeyHash,
        entry: &LocalCharges,
        now: Timestamp,
        history: &ServerHistory,
    ) -> Option<Attempt> {
        if !self.takes_merges {
            return None;
        }
        let (admitted, usage) = self.outstanding(entry, history.recovery(), now)?;
        let charge = entry.policies.whole.charge(entry.key);
        let mut attempt = Attempt {
            merge: Merge::new(charge.to_owned(), admitted, random()),
            next: Start { at: now, usage },
            lost: None,
            epoch: history.doubts.since(),
            first_tried_at: now,
            is_repeated: false,
        };
        self.restore_with(&mut attempt, fingerprint, now, history);
        Some(attempt)
    }

    /// Has a merge also restore a state that the server may have lost. The server of an earlier try may have been replaced.
    fn restore_with(
        &self,
        attempt: &mut Attempt,
        fingerprint: KeyHash,
        now: Timestamp,
        history: &ServerHistory,
    ) {
        attempt.epoch = history.doubts.since();
        let Some(lost) = self.mirror.take_doubtful(fingerprint, now, &history.doubts) else {
            return;
        };
        if lost.reset_at > now {
            let charge = attempt.merge.charge();
            let admitted = restoring(attempt.merge.admitted(), &charge, lost, now);
            attempt.merge = Merge::new(charge.to_owned(), admitted, attempt.merge.id());
            attempt.lost = Some(lost);
        }
    }

    /// Begins to restore the state of a charge's key, if the shared store may lack it. The merge has no units, and the
    /// least usage before them.
    ///
    /// The state stays doubtful until one such merge is confirmed: a decision after it may be sent on another connection,
    /// and arrive before it. So each of them restores the state itself. All these merges have one id, so the first counts.
    pub fn begin_restore(
        &self,
        charge: &Charge<'_>,
        history: &ServerHistory,
    ) -> Option<(Restored, Box<Merge>)> {
        let (now, epoch) = (self.clock.now(), history.doubts.since());
        let fingerprint = KeyHash::of(charge.policy(), charge.key());
        let doubtful = self.mirror.doubtful(fingerprint, now, &history.doubts);
        // A merge under way restores it, and a decision on another connection may overtake that merge.
        let under_way = self.journal.change(fingerprint, |entry| {
            let under_way = match &entry.stage {
                Stage::UnderWay(attempt) => {
                    let before = doubtful.or(attempt.lost);
                    before.map(|before| (before, with_merge(Some(before), attempt, now)))
                }
                Stage::Pending | Stage::Unconfirmed(_) => None,
            };
            (under_way, true)
        });
        let under_way = under_way.flatten();
        let (mirrored, least) = under_way.or(doubtful.map(|state| (state, state)))?;
        if mirrored.reset_at <= now || charge.policy().is_concurrency() {
            self.mirror.take_doubtful(fingerprint, now, &history.doubts);
            return None;
        }
        let admitted = restoring(Admitted::new(0, 0, least.reset_at), charge, least, now);
        let id = fingerprint.restore_id(least, epoch);
        let merge = Merge::new(charge.to_owned(), admitted, id);
        Some((Restored { mirrored, epoch }, Box::new(merge)))
    }

    /// Corrects the state in the mirror after a merge.
    fn note_merge(
        &self,
        fingerprint: KeyHash,
        attempt: &Attempt,
        now: Timestamp,
        history: &ServerHistory,
    ) {
        if history.doubts.since() == attempt.epoch {
            let least = self.mirror.take(fingerprint, now).or(attempt.lost);
            if self.mirror.is_on() {
                // Others may have merged more.
                self.mirror.put(
                    fingerprint,
                    with_merge(least, attempt, now),
                    &history.doubts,
                );
            }
            if attempt.is_repeated {
                // If an earlier try was executed, this one restored nothing.
                self.put_back_lost(fingerprint, attempt, now, history);
            }
            return;
        }
        // The server was replaced meanwhile, and lost what this merge charged in the run before.
        let lost = self.mirror.take_doubtful(fingerprint, now, &history.doubts);
        if let Some(lost) = lost.or(attempt.lost) {
            let lost = with_merge(Some(lost), attempt, now);
            self.mirror
                .put_back(fingerprint, lost, now, &history.doubts);
        }
    }

    /// Puts back the state that a merge should have restored.
    fn put_back_lost(
        &self,
        fingerprint: KeyHash,
        attempt: &Attempt,
        now: Timestamp,
        history: &ServerHistory,
    ) {
        if let Some(lost) = attempt.lost {
            self.mirror
                .put_back(fingerprint, lost, now, &history.doubts);
        }
    }
}

/// Returns a state of the server after this merge, from that before it, if that is known.
fn with_merge(before: Option<Mirrored>, attempt: &Attempt, now: Timestamp) -> Mirrored {
    let (charge, admitted) = (attempt.merge.charge(), attempt.merge.admitted());
    let before = before.unwrap_or(Mirrored {
        reset_at: now,
        used: 0,
        noted_at: now,
    });
    let Admitted {
        amount,
        from,
        until,
    } = admitted;
    match charge.policy().counter() {
        Counter::Bucket(_) => {
            let tat = before.reset_at.as_micros().max(from);
            Mirrored {
                reset_at: Timestamp::from_micros(tat.saturating_add(amount)),
                ..before
            }
        }
        Counter::Concurrency(_)
        | Counter::FixedWindow(_)
        | Counter::SlidingLog(_)
        | Counter::SlidingWindow(_) => {
            let used = still_used_of(&charge, before, now).max(from);
            Mirrored {
                reset_at: before.reset_at.max(until),
                used: u32::try_from(used.saturating_add(amount)).unwrap_or(u32::MAX),
                noted_at: now,
            }
        }
    }
}

/// Returns what was admitted on the charge's key, beyond a state that the shared store may have lost.
fn restoring(admitted: Admitted, charge: &Charge<'_>, lost: Mirrored, now: Timestamp) -> Admitted {
    let least = match charge.policy().counter() {
        Counter::Bucket(_) => lost.reset_at.as_micros(),
        Counter::Concurrency(_)
        | Counter::FixedWindow(_)
        | Counter::SlidingLog(_)
        | Counter::SlidingWindow(_) => still_used_of(charge, lost, now),
    };
    let until = admitted.until.max(lost.reset_at);
    Admitted::new(admitted.amount, admitted.from.max(least), until)
}

/// How long a merge without a confirmation is tried again. Redis knows for twice as long that it was made.
const MERGE_LIFE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU64, sync::Arc};

    use crate::{
        algorithm::{Algorithm, Quota, WindowStart},
        clock::Clock,
        decision::Decision,
        key::Key,
        memory::MemoryStore,
        policy::Policy,
        resilience::Fleet,
        resilience::mirror::Doubts,
        store::Store,
    };

    use super::*;

    fn decide(store: &impl Store, charge: Charge<'_>) -> Decision {
        let decision = store.decide(&[charge]).take_ready();
        decision.expect("it decides at once").expect("a decision")
    }

    /// Returns counts that know of 60 of 100 units used in the shared store and admitted 5 more, and the usage of all 65: in
    /// units, or as a TAT in microseconds.
    fn outage(policy: &Policy) -> (LocalCounts, u64) {
        let (charge, clock) = (policy.charge(Key::GLOBAL), Clock::system());
        let (shared, local) = (MemoryStore::new(), MemoryStore::new());
        let counts = LocalCounts::new(local, None, clock.clone(), 100);
        let decision = decide(&shared, charge.cost(60));
        counts.note(
            &charge,
            &decision.states()[0],
            clock.now(),
            &Doubts::default(),
        );
        counts.decide(&[charge.cost(5)]).expect("a decision");
        let usage = decide(&shared, charge.cost(5)).states()[0].usage();
        let usage = usage.expect("it is counted");
        let used = match charge.policy().counter() {
            Counter::Bucket(_) => usage.reset_at.as_micros(),
            _ => usage.limit - usage.remaining,
        };
        (counts, used)
    }

    fn policies() -> impl Iterator<Item = Policy> {
        let algorithms = [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow(WindowStart::FirstHit),
            Algorithm::SlidingLog,
            Algorithm::SlidingWindow,
        ];
        let algorithms = algorithms.into_iter();
        algorithms.map(|algorithm| Policy::new("daily", Quota::per_day(100)).algorithm(algorithm))
    }

    // Regression: what was merged into a server without its data was admitted again, once the usage before it was restored.
    #[test]
    fn state_of_a_server_that_is_replaced_during_a_merge_is_restored_with_the_merged_units() {
        for policy in policies() {
            let history = ServerHistory::new(Clock::system());
            let ((counts, used), charge) = (outage(&policy), policy.charge(Key::GLOBAL));
            let fingerprint = KeyHash::of(&policy, &Key::GLOBAL);
            let merge = counts
                .begin_merge(fingerprint, &history)
                .expect("it is outstanding");
            assert!(merge.admitted().amount > 0);
            counts.mirror.doubt(&history.doubts);
            let (_, restore) = counts
                .begin_restore(&charge, &history)
                .expect("it is doubtful");
            assert_eq!(restore.admitted().from, used, "{policy:?}");
            counts.end_merge(fingerprint, Some(Ok(())), &history);
            let (_, restore) = counts
                .begin_restore(&charge, &history)
                .expect("it is doubtful");
            assert_eq!(restore.admitted().from, used, "{policy:?}");
        }
    }

    // Regression: each merge gave the share back, so that each instance admitted the whole quota while Redis answered too late.
    #[test]
    fn share_is_granted_once_while_local_decisions_and_merges_alternate() {
        let eighth = NonZeroU64::new(8).map(Fleet::fixed).map(Arc::new);
        for policy in policies() {
            let (charge, clock) = (policy.charge(Key::GLOBAL), Clock::system());
            let local = MemoryStore::new();
            let counts = LocalCounts::new(local, eighth.clone(), clock, 100);
            let (fingerprint, history) = (
                KeyHash::of(&policy, &Key::GLOBAL),
                ServerHistory::new(Clock::system()),
            );
            let mut admitted = 0;
            for _ in 0..100 {
                let decision = counts.decide(&[charge]).expect("it decides at once");
                admitted += u64::from(decision.is_allowed());
                counts.begin_merge(fingerprint, &history);
                counts.end_merge(fingerprint, Some(Ok(())), &history);
                assert!(counts.journal.is_empty() || !decision.is_allowed());
            }
            assert_eq!(admitted, 13, "{policy:?}");
        }
    }

    // Regression: a key was forgotten by a merge just before its decision was counted, which nobody merged then.
    #[test]
    fn decision_that_is_counted_after_a_merge_has_looked_is_merged() {
        for policy in policies() {
            let (history, clock) = (ServerHistory::new(Clock::system()), Clock::system());
            let charge = policy.charge(Key::GLOBAL);
            let fingerprint = KeyHash::of(&policy, &Key::GLOBAL);
            let counts = LocalCounts::new(MemoryStore::new(), None, clock, 100);
            let merge = || counts.begin_merge(fingerprint, &history);

            let deciding = counts.begin(&charge);
            assert!(merge().is_none(), "nothing is admitted yet");
            decide(&counts.store, charge.under(&deciding.policies.part));
            drop(deciding);
            assert!(merge().is_some(), "{policy:?}");

            let deciding = counts.begin(&charge);
            counts.end_merge(fingerprint, Some(Ok(())), &history);
            decide(&counts.store, charge.under(&deciding.policies.part));
            drop(deciding);
            assert!(merge().is_some(), "{policy:?}");
            counts.end_merge(fingerprint, Some(Ok(())), &history);
            assert!(counts.journal.is_empty());
        }
    }

    // Regression: decisions on another connection overtook the merge that restored their key.
    #[test]
    fn each_decision_restores_the_state_until_one_merge_is_confirmed_in_the_same_epoch() {
        for policy in policies() {
            let history = ServerHistory::new(Clock::system());
            let ((counts, _), charge) = (outage(&policy), policy.charge(Key::GLOBAL));
            let fingerprint = KeyHash::of(&policy, &Key::GLOBAL);
            let known = counts.mirror.get(fingerprint, counts.clock.now());
            let restore = || counts.begin_restore(&charge, &history);
            let confirm = |restored: Restored| {
                let Restored { mirrored, epoch } = restored;
                counts
                    .mirror
                    .confirm(fingerprint, mirrored, epoch, &history.doubts);
            };
            counts.mirror.doubt(&history.doubts);
            let (earlier, first) = restore().expect("it is doubtful");
            let (_, second) = restore().expect("it is doubtful still");
            assert_eq!(first.id(), second.id(), "so it is counted once");
            counts.mirror.doubt(&history.doubts);
            confirm(earlier);
            let (restored, third) = restore().expect("the server was replaced since");
            assert_ne!(first.id(), third.id());
            counts.mirror.raise(fingerprint, 1, 1, counts.clock.now());
            confirm(restored);
            let (restored, _) = restore().expect("it was corrected since");
            confirm(restored);
            assert!(restore().is_none(), "{policy:?}");
            let after = counts.mirror.get(fingerprint, counts.clock.now());
            let used = |state: Option<Mirrored>| state.expect("it is known").used;
            assert_eq!(used(after), used(known) + 1);
        }
    }

    // Regression: after a merge nothing was known of the key, so a server that lost it afterwards granted it again.
    #[test]
    fn merged_units_are_restored_if_the_server_is_replaced_afterwards() {
        for policy in policies() {
            let history = ServerHistory::new(Clock::system());
            let ((counts, used), charge) = (outage(&policy), policy.charge(Key::GLOBAL));
            let fingerprint = KeyHash::of(&policy, &Key::GLOBAL);
            counts.begin_merge(fingerprint, &history).expect("a merge");
            counts.end_merge(fingerprint, Some(Ok(())), &history);
            counts.mirror.doubt(&history.doubts);
            let restored = counts.begin_restore(&charge, &history);
            let (_, restore) = restored.expect("it is doubtful");
            assert_eq!(restore.admitted().from, used, "{policy:?}");
        }
    }

    // Regression: a decision on another connection overtook the merge that restored its key, and found the quota unused.
    #[test]
    fn decision_restores_what_a_merge_under_way_restores() {
        for policy in policies() {
            let history = ServerHistory::new(Clock::system());
            let ((counts, used), charge) = (outage(&policy), policy.charge(Key::GLOBAL));
            let fingerprint = KeyHash::of(&policy, &Key::GLOBAL);
            counts.mirror.doubt(&history.doubts);
            let merge = counts.begin_merge(fingerprint, &history);
            let Admitted { amount, from, .. } = merge.expect("it is outstanding").admitted();
            assert_eq!(from + amount, used, "{policy:?}");
            let restored = counts.begin_restore(&charge, &history);
            let (_, restore) = restored.expect("the merge may arrive after it");
            assert_eq!(restore.admitted().from, used, "{policy:?}");
            counts.end_merge(fingerprint, Some(Ok(())), &history);
            assert!(counts.begin_restore(&charge, &history).is_none());
        }
    }

    #[test]
    fn repeated_merge_restores_the_state_and_leaves_it_doubtful() {
        for policy in policies() {
            let history = ServerHistory::new(Clock::system());
            let ((counts, used), charge) = (outage(&policy), policy.charge(Key::GLOBAL));
            let fingerprint = KeyHash::of(&policy, &Key::GLOBAL);
            let first = counts
                .begin_merge(fingerprint, &history)
                .expect("it is outstanding");
            counts.end_merge(fingerprint, None, &history);
            counts.mirror.doubt(&history.doubts);
            let second = counts
                .begin_merge(fingerprint, &history)
                .expect("it is repeated");
            assert_eq!(second.id(), first.id());
            let Admitted { amount, from, .. } = second.admitted();
            assert_eq!(from + amount, used, "{policy:?}");
            counts.end_merge(fingerprint, Some(Ok(())), &history);
            let (_, restore) = counts
                .begin_restore(&charge, &history)
                .expect("it is doubtful");
            assert_eq!(restore.admitted().from, from, "{policy:?}");
        }
    }
}
