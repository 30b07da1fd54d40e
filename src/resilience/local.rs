//! Counts of this process while the shared store is unavailable: its share of each quota.
//!
//! ```text
//! reply of Redis ──> Mirror: ada has 4 of 10 units left
//!                       |
//!                       v  first local decision on ada, on one of two instances
//! charge ──> Fleet::share ──> SharePolicies ──> local store: 2 of 5 left ──> state, under the whole limit
//!            one of two       a policy of 5       ^                          limit 10, 1 left
//!                                                 '── Journal: the state that ada started from
//! ```
//!
//! # Why are local decisions made in the time of Redis?
//!
//! Windows by the clock must end at the same moment on every instance, or each clock that is ahead starts another window early.
//! The states from before the outage are in the time of Redis as well. Each reply contains that time, and bounds the offset
//! between the clocks to the duration of the call. So the offset costs no call.

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    algorithm::{Admitted, Counter},
    charge::{Charge, Correction, Receipt, Settlement},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Decision, Outcome, PolicyState, Ticket, Usage},
    key::Key,
    memory::MemoryStore,
    policy::Policy,
    store::{Health, MergeCounts, Store, StoreFuture},
};

use super::{
    admitted::{Recovery, Start, still_used},
    fleet::{Fleet, Share},
    journal::{Deciding, Journal, LocalCharges, Stage},
    mirror::{Doubts, KeyHash, Mirror, Mirrored},
    shares::{SharePolicies, SharePolicy},
};

/// Everything about local decisions that does not depend on which server failed.
#[derive(Debug)]
pub(super) struct LocalCounts {
    pub store: MemoryStore,
    /// `None` if the instances are unknown: then this one grants the whole quota.
    fleet: Option<Arc<Fleet>>,
    policies: SharePolicies,
    pub mirror: Mirror,
    pub journal: Journal,
    /// Whether the primary can be charged for what was admitted here. A custom store has no method for that.
    pub takes_merges: bool,
    /// Number of merges that were made, and of those without a confirmation.
    pub merges: AtomicU64,
    pub unconfirmed_merges: AtomicU64,
    /// Shows the time of the shared store, as far as it is known.
    pub clock: Clock,
}

/// Per settled charge the key, the correction, and for a bucket the microseconds of its TAT.
pub(super) type Corrections = SmallVec<[(KeyHash, Correction, u64); 2]>;

impl LocalCounts {
    /// Returns counts in a local store with this clock, and a mirror of `warm_keys` keys.
    pub fn new(
        store: MemoryStore,
        fleet: Option<Arc<Fleet>>,
        clock: Clock,
        warm_keys: usize,
    ) -> Self {
        Self {
            store,
            fleet,
            policies: SharePolicies::default(),
            mirror: Mirror::new(warm_keys),
            journal: Journal::default(),
            takes_merges: true,
            merges: AtomicU64::new(0),
            unconfirmed_merges: AtomicU64::new(0),
            clock,
        }
    }

    /// Returns whether [`note`](Self::note) needs the decisions of the shared store.
    #[inline]
    pub fn takes_notes(&self) -> bool {
        self.mirror.is_on()
    }

    /// Keeps the state of a charge's key in a decision of the shared store.
    #[inline]
    pub fn note(&self, charge: &Charge<'_>, state: &PolicyState, now: Timestamp, doubts: &Doubts) {
        let Some(usage) = state.usage() else { return };
        if let Some(until) = state.banned_until() {
            // The usage is that of the ban, and not of the quota.
            self.store.seed_ban(charge, until);
            return;
        }
        // A peek does not see bans.
        let is_charged = charge.units() > 0 && state.outcome() == Outcome::Allowed;
        if is_charged && charge.policy().ban_penalty().is_some() {
            // Another instance may have reset the key.
            self.store.end_ban(charge, now);
        }
        let fingerprint = KeyHash::of(charge.policy(), charge.key());
        let mut mirrored = Mirrored::of(usage, now);
        if let Some(slots) = charge.policy().counter().concurrency() {
            // Slots come back when requests end; the mirror keeps them for a lease.
            let is_free = usage.remaining >= usage.limit;
            mirrored.reset_at = if is_free { now } else { now + slots.lease() };
            if charge.loan().is_some() && usage.remaining == 0 {
                // It does not show how many of the slots are used that are not lent.
                let known = self.mirror.get(fingerprint, now);
                mirrored.used = mirrored.used.max(known.map_or(0, |known| known.used));
            }
        }
        self.mirror.put(fingerprint, mirrored, doubts);
    }

    /// Returns what a receipt corrects, for [`note_corrections`](Self::note_corrections).
    pub fn corrections_in(&self, receipt: &Receipt) -> Corrections {
        let now = self.clock.now();
        let settlements = receipt.settlements().iter();
        let settlements = settlements.filter(|_| self.takes_notes());
        let corrections = settlements.filter_map(|settlement| {
            let (charge, correction) = (settlement.charge(), settlement.correction());
            let counter = charge.policy().counter();
            // Units that have come back since are not refunded.
            let left = settlement.mark().reset_at.since(now).as_micros();
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            let micros = match (counter, correction) {
                (_, Correction::Keep | Correction::Release) => return None,
                (_, Correction::Refund(_)) if left == 0 => return None,
                // A turn that is given up does not move the end of the queue, unless it is the last one.
                (_, Correction::Refund(_)) if counter.is_queue() => return None,
                (Counter::Bucket(bucket), Correction::Refund(units)) => {
                    bucket.micros_up(units).min(left)
                }
                (Counter::Bucket(bucket), Correction::Charge(units)) => bucket.micros_up(units),
                _ => 0,
            };
            let fingerprint = KeyHash::of(charge.policy(), charge.key());
            Some((fingerprint, correction, micros))
        });
        corrections.collect()
    }

    /// Corrects the states in the mirror as the shared store has corrected its own.
    pub fn note_corrections(&self, corrections: &Corrections) {
        let now = self.clock.now();
        for (fingerprint, correction, micros) in corrections {
            match correction {
                Correction::Charge(units) => {
                    self.mirror.raise(*fingerprint, *units, *micros, now);
                }
                Correction::Refund(units) => self.mirror.lower(*fingerprint, *units, *micros),
                Correction::Keep | Correction::Release => {}
            }
        }
    }

    /// Adds the number of live instances, and the numbers of merges.
    pub fn add_to(&self, health: Health) -> Health {
        let instances = self.fleet.as_ref().and_then(|fleet| fleet.instances());
        let merges = MergeCounts {
            pending: if self.takes_merges {
                self.journal.len() as u64
            } else {
                0
            },
            made: self.merges.load(Ordering::Relaxed),
            given_up: self.unconfirmed_merges.load(Ordering::Relaxed),
        };
        health.with_local_counts(instances, merges)
    }

    /// Decides the charges together, each within this instance's share. `None` if the store does not decide at once.
    pub fn decide(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        // Until the store has decided: a merge that ends before would remove the keys, and nobody would merge this decision.
        let deciding: SmallVec<[Deciding; 4]> =
            charges.iter().map(|charge| self.begin(charge)).collect();
        let unpunished = self.unpunished(charges, &deciding);
        let policies = deciding.iter().enumerate().map(|(index, deciding)| {
            let mut unpunished = unpunished.iter();
            let found = unpunished.find(|(number, _)| *number == index);
            found.map_or(&deciding.policies.part, |(_, policy)| policy)
        });
        let local = charges.iter().zip(policies);
        let local: SmallVec<[Charge<'_>; 4]> =
            local.map(|(charge, policy)| charge.under(policy)).collect();
        let decision = self.store.decide(&local).take_ready()?.ok()?;
        if decision.states().len() != charges.len() {
            return None;
        }
        let now = decision.decided_at();
        let states = charges.iter().zip(decision.states());
        let states = states.map(|(charge, state)| under_whole_limit(charge, state, now));
        Some(Decision::new(CountedBy::Fallback, now, states).timed_as(&decision))
    }

    /// Returns the policies of charges that no share admits, with their numbers and without their penalties: such a client has
    /// not used up its quota. A ban that has begun holds for it all the same, and counts no denials.
    fn unpunished(&self, charges: &[Charge<'_>], deciding: &[Deciding]) -> Vec<(usize, Policy)> {
        let charges = charges.iter().zip(deciding).enumerate();
        let beyond = charges.filter(|(_, (charge, deciding))| {
            let SharePolicy { whole, part } = &*deciding.policies;
            let shares = part.counter().limit() + 1..=whole.counter().limit();
            let is_beyond = part.ban_penalty().is_some() && shares.contains(&charge.units());
            is_beyond && !self.is_banned(charge)
        });
        let beyond = beyond.map(|(index, (_, deciding))| {
            let unpunished = deciding.policies.part.clone().penalty(None);
            (index, unpunished)
        });
        beyond.collect()
    }

    /// Returns whether the key of a charge is banned here.
    fn is_banned(&self, charge: &Charge<'_>) -> bool {
        let Some(penalty) = charge.policy().ban_penalty() else {
            return false;
        };
        let mut state = self.store.ban_record(charge.policy(), charge.key());
        match state.take_ready() {
            Some(Ok(Some(state))) => penalty.banned_until(&state, self.clock.now()).is_some(),
            _ => false,
        }
    }

    /// Settles charges that were decided here.
    pub fn settle(&self, mut receipt: Receipt) -> StoreFuture<()> {
        receipt.replace_policies(|charge| self.policies_of(charge).part.clone());
        self.store.settle(receipt)
    }

    /// Resets a key here.
    pub fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let fingerprint = KeyHash::of(policy, key);
        self.mirror.take(fingerprint, self.clock.now());
        self.journal.change(fingerprint, |_| ((), false));
        self.store.reset(policy, key)
    }

    /// Begins a local decision on a charge. The first time, local counting starts from the mirror.
    pub(super) fn begin(&self, charge: &Charge<'_>) -> Deciding {
        let fingerprint = KeyHash::of(charge.policy(), charge.key());
        let start = |is_kept| self.start(fingerprint, charge, is_kept);
        let mut deciding = self.journal.begin(fingerprint, start);
        if !deciding.policies.is_of(charge.policy()) {
            // The limit was changed since.
            deciding.policies = self.new_policies_of(charge, self.share_of(charge));
        }
        deciding
    }

    /// Starts local counting on a key from the state in the mirror, or from the one that is left of an earlier outage.
    ///
    /// The state stays in the mirror, from which a server that lost it gets it back. But an entry that is not kept would
    /// start from it again.
    fn start(&self, fingerprint: KeyHash, charge: &Charge<'_>, is_kept: bool) -> LocalCharges {
        let (share, now) = (self.share_of(charge), self.clock.now());
        let policies = self.new_policies_of(charge, share);
        let local = charge.under(&policies.part).owning().cost(0);
        let mirrored = if is_kept {
            self.mirror.get(fingerprint, now)
        } else {
            self.mirror.take(fingerprint, now)
        };
        let mirrored = mirrored.filter(|mirrored| mirrored.reset_at > now);
        let limit = charge.policy().counter().limit();
        if let Some(mirrored) = mirrored {
            let remaining = share.of(limit - still_used_of(charge, mirrored, now));
            let usage = Usage::new(share.of(limit), remaining, mirrored.reset_at);
            if !self.has_used(&local, usage) {
                // The slots of others must not have the ticket of this charge.
                let local = local.with_ticket(Ticket::random());
                self.store.seed(&local, usage);
            }
        }
        let start = self.usage_of(&local).map(|usage| Start { at: now, usage });
        LocalCharges::new(policies, *charge.key(), start)
    }

    /// Returns whether the local key has used as much. Then decisions were made here so shortly before that they count still,
    /// while the mirror may not show what others have admitted since.
    fn has_used(&self, local: &Charge<'_>, usage: Usage) -> bool {
        let rank = |usage: Usage| (Reverse(usage.remaining), usage.reset_at);
        let own = self.usage_of(local);
        !local.policy().is_concurrency() && own.is_some_and(|own| rank(own) >= rank(usage))
    }

    /// Returns the usage of a local key.
    fn usage_of(&self, local: &Charge<'_>) -> Option<Usage> {
        let peeked = self.store.decide(&[local.cost(0)]).take_ready()?.ok()?;
        peeked.states().first()?.usage()
    }

    /// Returns whether a charge seems to fit into the share of a key that was decided here.
    ///
    /// For all charges of a request, before any is [taken](Self::take_share): otherwise each request that one policy
    /// denies would take from the shares of the others.
    pub fn has_share(&self, charge: &Charge<'_>) -> bool {
        let counter = charge.policy().counter();
        if counter.is_queue() || charge.policy().is_concurrency() {
            return true;
        }
        let fingerprint = KeyHash::of(charge.policy(), charge.key());
        let Some(policies) = self.journal.get(fingerprint) else {
            return true;
        };
        let usage = self.usage_of(&charge.under(&policies.part));
        usage.is_none_or(|usage| usage.remaining >= charge.units())
    }

    /// Takes a charge that the shared store is about to decide from the share of a key that was decided here. Returns what must
    /// be [given back](Self::give_back) if the shared store does not make the charge; nothing if the key was not decided here.
    ///
    /// Before the shared store decides, so that of many callers at once only as many are sent as fit.
    ///
    /// # Errors
    ///
    /// [`UsedUp`] if the charge does not fit.
    pub fn take_share(
        &self,
        charge: &Charge<'_>,
        recovery: Recovery,
    ) -> Result<Option<TakenShare>, UsedUp> {
        // Nobody would release slots here.
        if charge.policy().is_concurrency() || charge.units() == 0 {
            return Ok(None);
        }
        let fingerprint = KeyHash::of(charge.policy(), charge.key());
        let taken = self.journal.change(fingerprint, |entry| {
            let policies = Arc::clone(&entry.policies);
            let local = charge.under(&policies.part);
            let decided =
                self.change_share(entry, recovery, || self.store.decide(&[local]).take_ready());
            let taken = match decided {
                Some(Ok(decision)) if !decision.is_allowed() => Err(UsedUp),
                Some(Ok(decision)) => {
                    let state = decision.states().first();
                    let settlement = state.and_then(|state| Settlement::of(&local, state));
                    Ok(settlement.map(|settlement| TakenShare {
                        policies,
                        settlement,
                    }))
                }
                _ => Ok(None),
            };
            (taken, true)
        });
        taken.unwrap_or(Ok(None))
    }

    /// Gives a charge back to the share that it was taken from, since the shared store has not made it.
    pub fn give_back(&self, taken: TakenShare, recovery: Recovery) {
        let TakenShare {
            policies,
            settlement,
        } = taken;
        let fingerprint = KeyHash::of(&policies.whole, settlement.charge().key());
        let refund = || {
            let receipt = Receipt::with(vec![settlement.clone()]).actual_cost(|_, _| 0);
            // It settles at once, as it decides.
            let _ = self.store.settle(receipt).take_ready();
        };
        let refunded = self.journal.change(fingerprint, |entry| {
            let is_of_share = Arc::ptr_eq(&entry.policies, &policies);
            if is_of_share {
                self.change_share(entry, recovery, refund);
            }
            (is_of_share, true)
        });
        // The share of an entry that was merged meanwhile counts on.
        if refunded != Some(true) {
            refund();
        }
    }

    /// Changes the share of a key by a charge that the shared store makes as well, or by its refund. What is to be merged stays
    /// the same.
    fn change_share<R>(
        &self,
        entry: &mut LocalCharges,
        recovery: Recovery,
        change: impl FnOnce() -> R,
    ) -> R {
        let now = self.clock.now();
        let policies = Arc::clone(&entry.policies);
        let local = policies.part.charge(entry.key);
        let before = self.usage_of(&local);
        let result = change();
        let after = self.usage_of(&local);
        if let (Some(before), Some(after)) = (before, after)
            && before != after
        {
            let next = match &mut entry.stage {
                Stage::Pending => None,
                Stage::UnderWay(attempt) | Stage::Unconfirmed(attempt) => Some(&mut attempt.next),
            };
            for start in entry.start.iter_mut().chain(next) {
                start.change_shared(&policies, (before, after), recovery, now);
            }
        }
        result
    }

    /// Returns what was admitted on a key and is not in the shared store, and the usage of the share. `None` if there is
    /// nothing.
    pub fn outstanding(
        &self,
        entry: &LocalCharges,
        recovery: Recovery,
        now: Timestamp,
    ) -> Option<(Admitted, Usage)> {
        let local = entry.policies.part.charge(entry.key);
        let (start, usage) = (entry.start?, self.usage_of(&local)?);
        let admitted = start.admitted(&entry.policies, usage, recovery, now)?;
        Some((admitted, usage))
    }

    /// Returns the policies that a charge was decided under.
    fn policies_of(&self, charge: &Charge<'_>) -> Arc<SharePolicy> {
        let fingerprint = KeyHash::of(charge.policy(), charge.key());
        let known = self.journal.get(fingerprint);
        known
            .filter(|policies| policies.is_of(charge.policy()))
            .unwrap_or_else(|| self.new_policies_of(charge, self.share_of(charge)))
    }

    /// Returns the policies of a share.
    fn new_policies_of(&self, charge: &Charge<'_>, share: Share) -> Arc<SharePolicy> {
        let units = share.of(charge.policy().counter().limit());
        self.policies.part_of(charge.policy(), units)
    }

    /// Returns this instance's share of a charge's quota.
    fn share_of(&self, charge: &Charge<'_>) -> Share {
        let fleet = self.fleet.as_ref();
        fleet.map_or(Share::WHOLE, |fleet| {
            fleet.share(charge.policy().name(), charge.key())
        })
    }
}

/// A charge that was taken from a share.
#[derive(Debug)]
pub(super) struct TakenShare {
    policies: Arc<SharePolicy>,
    /// Under the policy of the share.
    settlement: Settlement,
}

impl TakenShare {
    /// Returns whether its policy also counts requests that are denied.
    pub fn counts_denied(&self) -> bool {
        self.policies.whole.counts_denied()
    }
}

/// A charge does not fit into the share of its key.
#[derive(Debug)]
pub(super) struct UsedUp;

/// Returns how many units of a state in the mirror still count, at most the limit of the charge's policy.
pub(super) fn still_used_of(charge: &Charge<'_>, mirrored: Mirrored, now: Timestamp) -> u64 {
    let (counter, span) = (
        charge.policy().counter(),
        (mirrored.noted_at, mirrored.reset_at),
    );
    still_used(counter, mirrored.used.into(), span, now).min(counter.limit())
}

/// Returns the state of a share as that of the policy: under its whole limit, which clients know.
///
/// A request that costs more than the share is not admitted here, but may be elsewhere or after the outage.
fn under_whole_limit(charge: &Charge<'_>, state: &PolicyState, now: Timestamp) -> PolicyState {
    let limit = charge.counter().limit();
    if charge.units() > limit {
        return *state;
    }
    state.of_part(limit, now + RETRY)
}

/// When to retry a request that costs more than this instance's share.
const RETRY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use crate::{algorithm::Quota, policy::Penalty};

    use super::*;

    // Regression: a client whose requests cost more than a share was banned, for longer with each request after a ban.
    #[test]
    fn request_that_costs_more_than_a_share_does_not_lead_to_a_ban() {
        let eighth = NonZeroU64::new(8).map(Fleet::fixed).map(Arc::new);
        let counts = LocalCounts::new(MemoryStore::new(), eighth, Clock::system(), 100);
        let penalty = Penalty::after(2, Duration::from_secs(60));
        let policy = Policy::new("daily", Quota::per_day(8)).penalty(penalty);
        let charge = policy.charge(Key::GLOBAL);
        let decide = |units| counts.decide(&[charge.cost(units)]).expect("a decision");
        for _ in 0..3 {
            assert_eq!(decide(2).retry_after(), Some(RETRY));
        }
        assert!(decide(1).is_allowed());
        // The share is used up, so these denials count.
        let denied = [1, 1].map(|units| decide(units).states()[0].banned_until());
        assert!(denied[0].is_none() && denied[1].is_some());
    }
}
