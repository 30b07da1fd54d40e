//! Decisions on several charges together, and for callers that wait.

use smallvec::SmallVec;

use crate::{
    charge::Charge,
    clock::Timestamp,
    decision::{CountedBy, Decision, PolicyState},
    store::StoreFuture,
};

use super::{
    keyed::KeyRef,
    result::{Denials, Precheck},
    store::{MemoryStore, Unplaced},
    verdict::BucketCharge,
};

impl MemoryStore {
    /// Decides several charges together: all are made, or none.
    ///
    /// All shards concerned stay locked from the first check to the last change, so no other decision sees a part of it.
    #[inline(never)]
    pub(super) fn decide_all(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::ready(Ok(self.decide_as(charges, Deciding::Now)))
    }

    /// Decides the charges together.
    fn decide_as(&self, charges: &[Charge<'_>], deciding: Deciding) -> Decision {
        // Loops, because an iterator that is collected moves each element through memory once more.
        let mut keys: SmallVec<[KeyRef; 4]> = SmallVec::new();
        for charge in charges {
            keys.push(KeyRef::of(charge));
        }
        let read = self.shared.clock.read();
        let mut shards = self.lock_all(keys.iter().map(|key| key.fingerprint));
        let now = shards.now(read, &self.shared.clock);
        let now = match deciding {
            Deciding::Now => now,
            Deciding::AsOf(at) | Deciding::Dry(at) => now.max(at),
        };
        let is_dry = matches!(deciding, Deciding::Dry(_));
        if !is_dry
            && let Some(buckets) = buckets_of(charges, &keys)
            && let Some(verdicts) = shards.decide_buckets(&buckets, |key| self.index_of(key), now)
        {
            return self.decision_of(&buckets, &verdicts, 0);
        }
        let mut prechecks: SmallVec<[Precheck<'_>; 4]> = SmallVec::new();
        for (charge, key) in charges.iter().zip(&keys) {
            let index = self.index_of(key.fingerprint);
            let shard = shards.shard(index);
            prechecks.push(shard.precheck(charge, key, (index, &prechecks), now));
        }
        let banned = shards.find_bans(charges, &keys, &mut prechecks, now);
        let denials = Denials::of(charges, &prechecks);
        let mut unplaced = Unplaced::default();
        let mut states: SmallVec<[PolicyState; 1]> = SmallVec::with_capacity(charges.len());
        for (index, (charge, key)) in charges.iter().zip(&keys).enumerate() {
            let precheck = &prechecks[index];
            let is_made = precheck.fits && denials.admit(charges, index) && !is_dry;
            let shard = shards.shard(precheck.shard);
            let (result, placement) = shard.conclude(charge, key, (is_made, precheck), now);
            unplaced = unplaced.and(placement);
            let is_counted_denial = precheck.fits && !is_made && charge.policy().counts_denied();
            states.push(if is_counted_denial {
                result.into_counted_denial(charge)
            } else {
                result.into_state(charge)
            });
        }
        for (index, until) in banned {
            let (key, shard) = (&keys[index], prechecks[index].shard);
            let until = until.or_else(|| match deciding {
                Deciding::Now => shards.count_denial(&charges[index], key, shard, now),
                // Whoever waits commits no offence.
                Deciding::AsOf(_) | Deciding::Dry(_) => None,
            });
            if let Some(until) = until {
                states[index] = states[index].banned(until);
            }
        }
        let decision = Decision::of_states(CountedBy::InProcess, now, states);
        let decision = decision.timed_by(&self.shared.clock);
        drop(shards);
        if unplaced != Unplaced::default() {
            self.note(unplaced, read);
        }
        decision
    }

    /// Decides charges of a caller that waits, as of this time if it is not over. If `is_dry`, charges nothing.
    pub(super) fn decide_waiting(
        &self,
        charges: &[Charge<'_>],
        at: Timestamp,
        is_dry: bool,
    ) -> Decision {
        let deciding = if is_dry {
            Deciding::Dry(at)
        } else {
            Deciding::AsOf(at)
        };
        self.decide_as(charges, deciding)
    }
}

/// Returns the charges, if each is an enforced one of a bucket, and they are few.
#[inline]
fn buckets_of<'a>(
    charges: &[Charge<'a>],
    keys: &[KeyRef],
) -> Option<SmallVec<[BucketCharge<'a>; 4]>> {
    if charges.len() > BucketCharge::MAX {
        return None;
    }
    let mut buckets = SmallVec::new();
    for (charge, key) in charges.iter().zip(keys) {
        if charge.is_shadow() {
            return None;
        }
        buckets.push(BucketCharge::new(charge, key.fingerprint)?);
    }
    Some(buckets)
}

// === Deciding ===

/// When charges are decided, and whether they are made.
#[derive(Clone, Copy, Debug)]
enum Deciding {
    /// As of this time, for a caller that waits.
    AsOf(Timestamp),
    /// As `AsOf`, but nothing is charged.
    Dry(Timestamp),
    /// Now.
    Now,
}
