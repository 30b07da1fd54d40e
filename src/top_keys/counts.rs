//! Counts of denied requests by policy, shard and half of a window.
//!
//! ```text
//! policy       place by the hash of its name, allocated at its first denied request
//!   shard      by thread: its own counts, and a lock that is almost never contended
//!     halves   the current and the previous half of the window
//!       summary
//! ```
//!
//! Any thread may record in any shard, since a snapshot adds all shards of a policy. A thread that finds its shard locked
//! therefore takes the next one, and waits only if all are locked.

use std::{
    ops::RangeInclusive,
    sync::{
        MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use siphasher::sip128::SipHasher13;

use crate::{
    clock::{Clock, Timestamp, micros},
    decision::PolicyName,
    key::Key,
    policy::{NameHash, Policy},
    task::{
        Mutex,
        lane::{lanes, thread_number},
    },
};

use super::{
    builder::TopKeysBuilder,
    halves::Halves,
    merged_list::MergedList,
    shown_keys::ShownKeys,
    snapshot::{PolicyTopKeys, Snapshot},
    summary::KeyCounter,
};

/// The counts of all clones of a recorder.
#[derive(Debug)]
pub(super) struct SharedCounts {
    pub clock: Clock,
    /// In microseconds.
    pub half: u64,
    capacity: usize,
    pub shown_keys: ShownKeys,
    started: Timestamp,
    policies: Box<[OnceLock<PolicyShards>]>,
    shards: usize,
    pub unrecorded: AtomicU64,
}

impl SharedCounts {
    /// Returns no counts, in a window of two of these halves.
    pub fn new(settings: &TopKeysBuilder, half: Duration) -> Self {
        let policies = (0..settings.max_policies).map(|_| OnceLock::new());
        Self {
            half: micros(half),
            capacity: settings.capacity,
            shown_keys: settings.shown_keys,
            started: settings.clock.now(),
            clock: settings.clock.clone(),
            policies: policies.collect(),
            shards: lanes(MAX_SHARDS),
            unrecorded: AtomicU64::new(0),
        }
    }

    /// Adds `units` to the count of a key.
    pub fn record(&self, policy: &Policy, key: &Key, units: u32, now: Timestamp) {
        let name_hash = policy.name_hash();
        let Some(shards) = self.shards_of(policy.name(), name_hash) else {
            self.unrecorded.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let hash = SipHasher13::new_with_keys(name_hash.low, name_hash.high);
        let hash = hash.hash(key.as_bytes()).h1;
        let number = self.half_at(now);
        let mut halves = shards.lock();
        let halves = halves.get_or_insert_with(|| Box::new(Halves::new(self.capacity, number)));
        halves.record(number, hash, key, units.into());
    }

    /// Returns the most frequent keys of one half, until now or its end.
    pub fn snapshot_of(&self, half: u64, now: Timestamp) -> Snapshot {
        let end = Timestamp::from_micros((half + 1).saturating_mul(self.half));
        self.snapshot(half..=half, now.min(end))
    }

    /// Returns the number of the half window that contains this time.
    pub fn half_at(&self, now: Timestamp) -> u64 {
        now.as_micros() / self.half
    }

    /// Returns the shards of a policy, or adds it while there is a place.
    fn shards_of(&self, name: &PolicyName, hash: NameHash) -> Option<&PolicyShards> {
        let places = self.policies.len();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any place can be the first"
        )]
        let first = hash.high as usize % places;
        let mut places = (first..places).chain(0..first);
        places.find_map(|place| {
            let create = || PolicyShards::new(*name, hash, self.shards);
            let shards = self.policies[place].get_or_init(create);
            (shards.hash == hash).then_some(shards)
        })
    }

    /// Returns the most frequent keys of these halves.
    pub fn snapshot(&self, halves: RangeInclusive<u64>, until: Timestamp) -> Snapshot {
        let start = Timestamp::from_micros(halves.start().saturating_mul(self.half));
        let policies = self.policies.iter().filter_map(OnceLock::get);
        let policies = policies.filter_map(|shards| self.list(shards, halves.clone()));
        let mut policies: Vec<PolicyTopKeys> = policies.collect();
        policies.sort_unstable_by(|left, right| {
            let [left, right] = [left, right].map(|list| list.policy.as_str());
            left.cmp(right)
        });
        Snapshot {
            since: self.clock.wall_time(start.max(self.started).min(until)),
            until: self.clock.wall_time(until),
            capacity: self.capacity,
            shown_by: self.shown_keys.tag(),
            unread: 0,
            policies,
        }
    }

    /// Adds up the shards of a policy; `None` if it recorded nothing in these halves.
    fn list(&self, shards: &PolicyShards, halves: RangeInclusive<u64>) -> Option<PolicyTopKeys> {
        let copies: Vec<Copied> = shards.copy(halves);
        let mut list = MergedList::default();
        for copied in &copies {
            let counters = copied.counters.iter();
            let keys = counters.map(|counter| (counter.key.as_str(), counter.count, counter.error));
            list.add(copied.total, copied.unlisted, keys);
        }
        let shown = |key: &str| self.shown_keys.show(key);
        (list.total() > 0).then(|| PolicyTopKeys::of(shards.name, &list, self.capacity, shown))
    }
}

// === PolicyShards ===

/// The counts of one policy.
#[derive(Debug)]
struct PolicyShards {
    name: PolicyName,
    hash: NameHash,
    /// A power of two.
    shards: Box<[CountShard]>,
}

/// A part of the counts, alone on its cache line. Empty until it is first used.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CountShard(Mutex<Option<Box<Halves>>>);

/// A copy of a summary.
struct Copied {
    total: u64,
    unlisted: u64,
    counters: Vec<KeyCounter>,
}

impl PolicyShards {
    fn new(name: PolicyName, hash: NameHash, shards: usize) -> Self {
        let shards = (0..shards).map(|_| CountShard::default());
        Self {
            name,
            hash,
            shards: shards.collect(),
        }
    }

    /// Locks the shard of this thread, or another one that is free.
    fn lock(&self) -> MutexGuard<'_, Option<Box<Halves>>> {
        let own = thread_number() & (self.shards.len() - 1);
        let shards = self.shards[own..].iter().chain(&self.shards[..own]);
        let mut free = shards.filter_map(|shard| shard.0.try_lock());
        free.next().unwrap_or_else(|| self.shards[own].0.lock())
    }

    fn copy(&self, numbers: RangeInclusive<u64>) -> Vec<Copied> {
        let mut copies = Vec::with_capacity(2 * self.shards.len());
        for shard in &self.shards {
            if let Some(halves) = shard.0.lock().as_deref() {
                let summaries = numbers.clone().filter_map(|number| halves.of(number));
                copies.extend(summaries.map(|summary| Copied {
                    total: summary.total(),
                    unlisted: summary.unlisted(),
                    counters: summary.counters().to_vec(),
                }));
            }
        }
        copies
    }
}

/// Bounds the memory of a policy. More threads than this share shards.
const MAX_SHARDS: usize = 8;
