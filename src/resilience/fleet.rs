//! The instances that share a store, and the part of a quota that each one grants without it.
//!
//! ```text
//! a limit of 10 over 4 instances: two units each, and one more for the two that rank first for the key
//!
//! key     rank 0    rank 1    rank 2    rank 3
//! ada     C: 3      A: 3      D: 2      B: 2       = 10
//! bob     B: 3      C: 3      A: 2      D: 2       = 10
//! ```
//!
//! The rank of an instance is its place in an order that all instances compute alike, by rendezvous hashing of the
//! policy, the key and the id of each instance. So the parts of all instances sum to the limit, also if the limit is
//! smaller than the fleet: then as many instances as it has units grant one each.

use std::{num::NonZeroU64, sync::Arc};

use siphasher::sip::SipHasher13;

use crate::{
    clock::Timestamp,
    decision::PolicyName,
    key::Key,
    task::{Mutex, backoff::random},
};

/// The live instances that share a store, as far as this instance knows them.
///
/// A store keeps its fleet [up to date](Self::learn) while it decides.
/// During an outage the last known instances count.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// The id of this instance.
    this: u64,
    /// The number of instances by configuration, which are not learned then.
    fixed: Option<NonZeroU64>,
    members: Mutex<Members>,
}

/// The instances that are known.
#[derive(Debug)]
struct Members {
    /// The ids of all instances that count, with this one.
    counted: Arc<[u64]>,
    /// Whether the store has ever reported its instances.
    is_learned: bool,
    /// Instances that the store no longer reports, and how long each one counts nevertheless.
    leaving: Vec<(u64, Timestamp)>,
}

impl Fleet {
    /// Returns the fleet of an instance with a random id, which knows no other instance yet.
    pub fn new() -> Self {
        Self::with(None)
    }

    /// Returns a fleet of a fixed number of instances. Parts of a quota are rounded up then.
    pub fn fixed(instances: NonZeroU64) -> Self {
        Self::with(Some(instances))
    }

    fn with(fixed: Option<NonZeroU64>) -> Self {
        let this = random();
        Self {
            this,
            fixed,
            members: Mutex::new(Members {
                counted: Arc::new([this]),
                is_learned: false,
                leaving: Vec::new(),
            }),
        }
    }

    /// Returns the random id of this instance.
    pub fn instance(&self) -> u64 {
        self.this
    }

    /// Replaces the known instances by those that the store reports. This instance always counts.
    ///
    /// An instance counts for 10 s more after the last report. So the number does not drop when a store loses its
    /// data and the instances register again one after the other.
    pub fn learn(&self, instances: &[u64], now: Timestamp) {
        let mut members = self.members.lock();
        let gone: Vec<u64> = members
            .counted
            .iter()
            .copied()
            .filter(|id| !instances.contains(id) && *id != self.this)
            .collect();
        for id in gone {
            if !members.leaving.iter().any(|(other, _)| *other == id) {
                members.leaving.push((id, now + LEAVING));
            }
        }
        members
            .leaving
            .retain(|(id, until)| *until > now && !instances.contains(id));
        let leaving = members.leaving.iter().map(|(id, _)| *id);
        let mut counted: Vec<u64> = instances.iter().copied().chain(leaving).collect();
        counted.push(self.this);
        counted.sort_unstable();
        counted.dedup();
        members.is_learned = true;
        if *members.counted != counted[..] {
            members.counted = counted.into();
        }
    }

    /// Drops instances that have left, if the store reports no change.
    pub fn confirm(&self, now: Timestamp) {
        let mut members = self.members.lock();
        let has_left = |(_, until): &(u64, Timestamp)| *until <= now;
        if !members.leaving.iter().any(has_left) {
            return;
        }
        let left: Vec<u64> = members
            .leaving
            .extract_if(.., |one| has_left(one))
            .map(|(id, _)| id)
            .collect();
        let staying = members.counted.iter().copied();
        members.counted = staying.filter(|id| !left.contains(id)).collect();
    }

    /// Returns the number of live instances, with this one; `None` before the store has reported any.
    pub fn instances(&self) -> Option<u64> {
        if let Some(fixed) = self.fixed {
            return Some(fixed.get());
        }
        let members = self.members.lock();
        members.is_learned.then_some(members.counted.len() as u64)
    }

    /// Returns the part of a policy's quota that this instance grants to a key.
    pub fn share(&self, policy: &PolicyName, key: &Key) -> Share {
        if let Some(fixed) = self.fixed {
            // All instances have the first rank: nobody knows the others.
            return Share {
                instances: fixed.get(),
                rank: 0,
            };
        }
        let counted = Arc::clone(&self.members.lock().counted);
        let hash = hash(policy, key);
        let own = weight(hash, self.this);
        let before = counted.iter().filter(|id| {
            // Ids break ties, so that no two instances have the same rank.
            (weight(hash, **id), **id) > (own, self.this)
        });
        Share {
            instances: counted.len() as u64,
            rank: before.count() as u64,
        }
    }
}

impl Default for Fleet {
    fn default() -> Self {
        Self::new()
    }
}

/// Hashes a policy and a key in the same way on every instance.
fn hash(policy: &PolicyName, key: &Key) -> u64 {
    // Clients may aim at an instance, which gains them nothing: the parts of all instances sum to the limit.
    let hasher = SipHasher13::new_with_keys(0, 0);
    let name = hasher.hash(policy.as_bytes());
    SipHasher13::new_with_keys(name, 1).hash(key.as_bytes())
}

/// Mixes the hash of a key with the id of an instance (the finalizer of SplitMix64).
fn weight(hash: u64, instance: u64) -> u64 {
    let mut mixed = hash ^ instance;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// How long an instance counts that the store no longer reports.
const LEAVING: std::time::Duration = std::time::Duration::from_secs(10);

// === Share ===

/// The part of a quota that one instance grants to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    instances: u64,
    /// Number of instances that rank before this one for the key.
    rank: u64,
}

impl Share {
    /// The whole quota, for an instance that is alone.
    pub const WHOLE: Self = Self {
        instances: 1,
        rank: 0,
    };

    /// Returns this instance's part of `units`.
    ///
    /// The parts of all instances sum to `units`; with a [fixed](Fleet::fixed) number of instances, to less than
    /// `units` plus that number.
    pub fn of(self, units: u64) -> u64 {
        let (part, rest) = (units / self.instances, units % self.instances);
        part + u64::from(self.rank < rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    /// Returns a fleet of instances that all know each other.
    fn fleet(size: usize) -> Vec<Fleet> {
        let fleet: Vec<Fleet> = (0..size).map(|_| Fleet::new()).collect();
        let ids: Vec<u64> = fleet.iter().map(Fleet::instance).collect();
        fleet.iter().for_each(|one| one.learn(&ids, at(0)));
        fleet
    }

    #[test]
    fn parts_of_all_instances_sum_to_the_limit_for_every_key() {
        let policy = PolicyName::new("ip").expect("a valid name");
        for size in [1, 2, 3, 8, 33] {
            let fleet = fleet(size);
            for units in [0, 1, 2, 7, 8, 100, 12_345] {
                for key in 0..20 {
                    let key = Key::new(format!("user{key}"));
                    let parts = fleet.iter().map(|one| one.share(&policy, &key).of(units));
                    assert_eq!(parts.sum::<u64>(), units, "{size} instances");
                }
            }
        }
    }

    #[test]
    fn extra_units_of_different_keys_go_to_different_instances() {
        let policy = PolicyName::new("ip").expect("a valid name");
        let fleet = fleet(8);
        let mut granted = [0_u64; 8];
        for key in 0..800 {
            let key = Key::new(format!("user{key}"));
            for (one, granted) in fleet.iter().zip(&mut granted) {
                *granted += one.share(&policy, &key).of(1);
            }
        }
        assert_eq!(granted.iter().sum::<u64>(), 800);
        assert!(
            granted.iter().all(|one| (50..150).contains(one)),
            "{granted:?}"
        );
    }

    #[test]
    fn part_of_less_is_never_more() {
        let policy = PolicyName::new("ip").expect("a valid name");
        for one in fleet(7) {
            let share = one.share(&policy, &Key::GLOBAL);
            assert!((0..100).all(|units| share.of(units) <= share.of(units + 1)));
        }
    }

    #[test]
    fn instance_that_is_no_longer_reported_counts_for_ten_more_seconds() {
        let fleet = Fleet::new();
        assert_eq!(fleet.instances(), None);
        fleet.learn(&[1, 2, 3], at(0));
        assert_eq!(fleet.instances(), Some(4), "with this one");
        fleet.learn(&[fleet.instance(), 1], at(20));
        assert_eq!(fleet.instances(), Some(4));
        fleet.confirm(at(25));
        assert_eq!(fleet.instances(), Some(4));
        fleet.confirm(at(30));
        assert_eq!(fleet.instances(), Some(2));
        fleet.learn(&[1, 2], at(31));
        assert_eq!(fleet.instances(), Some(3));
    }

    #[test]
    fn fixed_number_of_instances_rounds_parts_up() {
        let fleet = Fleet::fixed(NonZeroU64::new(8).expect("not zero"));
        let share = fleet.share(&PolicyName::new("ip").expect("a valid name"), &Key::GLOBAL);
        assert_eq!(
            [0, 1, 8, 9, 100].map(|units| share.of(units)),
            [0, 1, 1, 2, 13]
        );
        assert_eq!(fleet.instances(), Some(8));
    }
}
