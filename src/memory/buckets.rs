//! Several buckets in one decision, when all keys have slots.
//!
//! The usual group: an address, a user and a tenant that have been here before. Each key is searched for once, and its state is
//! copied, taken from, and put back if all charges fit. Any other group takes two passes over the tables, since its charges may
//! need memory, which others of the group may need too: [`Shard::precheck`](super::shard::Shard::precheck).

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Counting},
    charge::Charge,
    clock::Timestamp,
    decision::PolicyState,
};

use super::{keyed::KeyRef, locked_shards::LockedShards, result::ChargeResult};

impl LockedShards<'_> {
    /// Decides the charges of a group of buckets, all or none, and returns their states. `None`, with nothing charged, if a charge
    /// needs more than the state in its slot. `index_of` returns the index of a key's shard.
    #[inline]
    pub fn decide_buckets(
        &mut self,
        charges: &[Charge<'_>],
        keys: &[KeyRef],
        index_of: impl Fn(&KeyRef) -> usize,
        now: Timestamp,
    ) -> Option<SmallVec<[PolicyState; 1]>> {
        if charges.len() > MAX {
            return None;
        }
        let mut taken = [None; MAX];
        let mut admits = true;
        for (index, (charge, key)) in charges.iter().zip(keys).enumerate() {
            let Counter::Bucket(bucket) = charge.policy().counter() else {
                return None;
            };
            let is_twice = || {
                keys[..index]
                    .iter()
                    .any(|other| other.fingerprint == key.fingerprint)
            };
            if charge.is_shadow() || charge.policy().notes_denied() || is_twice() {
                return None;
            }
            let (slot, before) = self.shard(index_of(key)).bucket(key)?;
            if before.quota_tag() != bucket.quota_tag() {
                return None;
            }
            let mut after = before;
            let fits = bucket.take(&mut after, now, charge.units());
            admits &= fits;
            taken[index] = Some((bucket, slot, before, after, fits));
        }
        let mut states = SmallVec::with_capacity(charges.len());
        let taken = taken.iter().flatten();
        for ((charge, key), (bucket, slot, before, after, fits)) in
            charges.iter().zip(keys).zip(taken)
        {
            if admits {
                self.shard(index_of(key)).set_bucket(*slot, *after);
            }
            let state = if admits { after } else { before };
            let result = ChargeResult::of(*bucket, charge, state, *fits, now);
            states.push(result.into_bucket_state(bucket, charge));
        }
        Some(states)
    }
}

/// The charges of most groups.
const MAX: usize = 4;
