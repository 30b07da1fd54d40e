//! Records denied requests, from many threads.
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
        Arc, MutexGuard, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use siphasher::sip128::SipHasher13;

use crate::{
    charge::Charge,
    clock::{Clock, Timestamp, micros},
    decision::{Decision, Outcome, PolicyName},
    error::Error,
    key::Key,
    policy::{NameHash, Policy},
    task::Mutex,
};

use super::{
    builder::TopKeysBuilder,
    halves::Halves,
    merged_list::MergedList,
    shown_keys::ShownKeys,
    snapshot::{PolicyTopKeys, Snapshot},
    summary::KeyCounter,
};

/// Finds the keys that are denied most often, in bounded memory. Clones share the counts.
///
/// See the [module docs](super) for bounds and costs.
#[derive(Clone, Debug)]
pub struct TopKeys {
    shared: Arc<SharedCounts>,
}

impl TopKeys {
    /// Returns a recorder with the default settings.
    #[must_use]
    pub fn new() -> Self {
        TopKeysBuilder::default()
            .build()
            .expect("the defaults are in range")
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> TopKeysBuilder {
        TopKeysBuilder::default()
    }

    /// Records one denied request for each charge whose policy denied it. Policies in shadow mode, and candidates, deny nobody.
    ///
    /// The charges must be those of the decision, in the same order. A request counts as 1 whatever it costs, so a client
    /// cannot push other keys out of the list with a single expensive request. Does nothing for other outcomes than
    /// [`Outcome::Limited`].
    #[inline]
    #[doc(hidden)]
    pub fn record_denied(&self, charges: &[Charge<'_>], decision: &Decision) {
        if decision.outcome() != Outcome::Limited {
            return;
        }
        for (charge, state) in charges.iter().zip(decision.states()) {
            if state.enforced_outcome() == Outcome::Limited {
                self.record(charge.policy(), charge.key(), 1);
            }
        }
    }

    /// Adds `units` to the count of a key under a policy.
    ///
    /// For custom counts: [`record_denied`](Self::record_denied) records denied requests. The first record of a policy in
    /// each shard allocates its counters; later ones allocate nothing. Sums saturate at 2^64 - 1.
    #[doc(hidden)]
    pub fn record(&self, policy: &Policy, key: &Key, units: u32) {
        let shared = &*self.shared;
        let name_hash = policy.name_hash();
        let Some(shards) = shared.shards_of(policy.name(), name_hash) else {
            shared.unrecorded.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let hash = SipHasher13::new_with_keys(name_hash.low, name_hash.high);
        let hash = hash.hash(key.as_bytes()).h1;
        let number = shared.half_at(shared.clock.now());
        let mut halves = shards.lock();
        let halves = halves.get_or_insert_with(|| Box::new(Halves::new(shared.capacity, number)));
        halves.record(number, hash, key, units.into());
    }

    /// Returns the most frequent keys of the last half to whole window.
    ///
    /// Each shard is locked for as long as its counters are copied, about a microsecond.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let now = self.shared.clock.now();
        let number = self.shared.half_at(now);
        self.shared.snapshot(number.saturating_sub(1)..=number, now)
    }

    /// Returns a snapshot of the current half of the window, and one of the previous half, each with its number by the
    /// wall clock, so that all instances agree.
    #[cfg(feature = "redis")]
    pub(crate) fn halves(&self) -> [(u64, Snapshot); 2] {
        let now = self.shared.clock.now();
        let number = self.shared.half_at(now);
        let current = self.current_half();
        [0, 1].map(|age| {
            let half = number.saturating_sub(age);
            let end = Timestamp::from_micros((half + 1).saturating_mul(self.shared.half));
            let snapshot = self.shared.snapshot(half..=half, now.min(end));
            (current.saturating_sub(age), snapshot)
        })
    }

    /// Returns the number of the current half of the window by the wall clock.
    #[cfg(feature = "redis")]
    pub(crate) fn current_half(&self) -> u64 {
        let clock = &self.shared.clock;
        self.shared.half_at(clock.wall_time(clock.now()))
    }

    /// Returns the longest time that a snapshot covers.
    #[cfg(feature = "redis")]
    pub(crate) fn window(&self) -> Duration {
        Duration::from_micros(2 * self.shared.half)
    }

    /// Returns whether other instances can show keys in the same form.
    #[cfg(feature = "redis")]
    pub(crate) fn has_common_form(&self) -> bool {
        self.shared.shown_keys != ShownKeys::default()
    }

    /// Returns a key in the form in which snapshots show it, so that an operator can find it.
    #[must_use]
    pub fn shown(&self, key: &Key) -> String {
        self.shared.shown_keys.show(key.as_str())
    }

    /// Returns the number of records that were not counted, because they came after
    /// [`max_policies`](super::TopKeysBuilder::max_policies) other policies.
    #[must_use]
    pub fn unrecorded(&self) -> u64 {
        self.shared.unrecorded.load(Ordering::Relaxed)
    }
}

impl Default for TopKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl TopKeysBuilder {
    /// Builds the recorder. It allocates nothing for a policy before the policy denies a request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when a setting is outside of its range.
    pub fn build(self) -> Result<TopKeys, Error> {
        self.validate()?;
        let policies = (0..self.max_policies).map(|_| OnceLock::new());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shared = SharedCounts {
            half: micros(self.window) / 2,
            capacity: self.capacity,
            shown_keys: self.shown_keys,
            started: self.clock.now(),
            clock: self.clock,
            policies: policies.collect(),
            shards: threads.next_power_of_two().min(MAX_SHARDS),
            unrecorded: AtomicU64::new(0),
        };
        Ok(TopKeys {
            shared: Arc::new(shared),
        })
    }
}

// === SharedCounts ===

/// The counts of all clones of a recorder.
#[derive(Debug)]
struct SharedCounts {
    clock: Clock,
    /// In microseconds.
    half: u64,
    capacity: usize,
    shown_keys: ShownKeys,
    started: Timestamp,
    policies: Box<[OnceLock<PolicyShards>]>,
    shards: usize,
    unrecorded: AtomicU64,
}

impl SharedCounts {
    /// Returns the number of the half window that contains this time.
    fn half_at(&self, now: Timestamp) -> u64 {
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
    fn snapshot(&self, halves: RangeInclusive<u64>, until: Timestamp) -> Snapshot {
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
        let own = THREAD.with(|number| number & (self.shards.len() - 1));
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

thread_local! {
    /// The number of this thread, in the order in which threads first record.
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Bounds the memory of a policy. More threads than this share shards.
const MAX_SHARDS: usize = 8;
