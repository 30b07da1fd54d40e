//! Several buckets in one decision, when all keys have slots.
//!
//! The usual group: an address, a user and a tenant that have been here before. Each key is searched for once, and its state is
//! copied, taken from, and put back if all charges fit. Any other group takes two passes over the tables, since its charges may
//! need memory, which others of the group may need too: [`Shard::precheck`](super::shard::Shard::precheck).

use smallvec::SmallVec;

use crate::charge::Fingerprint;
use crate::{algorithm::Counting, clock::Timestamp};

use super::{
    locked_shards::LockedShards,
    verdict::{BucketCharge, Verdict},
};

/// The verdicts on a group, in the order of its charges.
pub(crate) type Verdicts = SmallVec<[Verdict; BucketCharge::MAX]>;

impl LockedShards<'_> {
    /// Decides the charges of a group of buckets, all or none. `None`, with nothing charged, if a charge needs more than the state
    /// in its slot. `index_of` returns the index of a key's shard.
    #[inline]
    pub fn decide_buckets(
        &mut self,
        charges: &[BucketCharge<'_>],
        index_of: impl Fn(Fingerprint) -> usize,
        now: Timestamp,
    ) -> Option<Verdicts> {
        let mut taken = [None; BucketCharge::MAX];
        let mut admits = true;
        for (index, charge) in charges.iter().enumerate() {
            let (bucket, key) = (charge.bucket, charge.fingerprint);
            let is_twice = || {
                charges[..index]
                    .iter()
                    .any(|other| other.fingerprint == key)
            };
            if charge.policy.notes_denied() || is_twice() {
                return None;
            }
            let (slot, before) = self.shard(index_of(key)).bucket(key)?;
            if before.quota_tag() != bucket.quota_tag() {
                return None;
            }
            let mut after = before;
            let fits = bucket.take(&mut after, now, charge.units);
            admits &= fits;
            *taken.get_mut(index)? = Some((slot, before, after, fits));
        }
        let mut verdicts = Verdicts::new();
        for (charge, (slot, before, after, fits)) in charges.iter().zip(taken.iter().flatten()) {
            if admits {
                let shard = self.shard(index_of(charge.fingerprint));
                shard.set_bucket(*slot, *after);
            }
            let state = if admits { after } else { before };
            verdicts.push(Verdict::new(charge.bucket, *state, *fits, now));
        }
        Some(verdicts)
    }
}
