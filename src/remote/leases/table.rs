//! The leased units of this instance, by key.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hash, Hasher},
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{self, AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::{
    algorithm::{Counter, Counting},
    charge::{Charge, Fingerprint, OwnedCharge},
    clock::Timestamp,
    decision::{CountedBy, PolicyState, Retry, Usage},
    remote::protocol::{LeaseReply, LeaseReport, can_lease},
    task::{Mutex, SingleTask},
};

use super::lease::{Lease, Taken, total_in};

/// The leases of one instance.
#[derive(Debug)]
pub(in crate::remote) struct Leases {
    /// `None` if nothing is leased.
    parts: Option<OnceLock<Parts>>,
    /// Numbers that no two leases share.
    ids: Arc<AtomicU64>,
    /// The number of keys in the table.
    keys: AtomicUsize,
    /// Keys whose units are to be reported.
    due: Mutex<Vec<LeaseKey>>,
    /// Whether there are any.
    has_due: AtomicBool,
    /// Whether a task was started that takes them.
    is_reporting: AtomicBool,
    pub sweep: SingleTask,
}

/// Allocated with the first leased key.
#[derive(Debug)]
struct Parts {
    shards: Box<[Mutex<Shard>]>,
    /// Keys that were asked for lately: half of a hash, the time, and how often within a second.
    warmth: Box<[AtomicU64]>,
}

type Shard = HashMap<LeaseKey, Box<LeasedKey>, BuildHasherDefault<HashedAlready>>;

/// Identifies a key under a policy with this quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct LeaseKey {
    fingerprint: Fingerprint,
    quota: u64,
}

#[derive(Debug)]
struct LeasedKey {
    lease: Lease,
    charge: OwnedCharge,
    /// Whether it is among the keys that are due.
    is_due: bool,
}

/// The result of taking units.
#[derive(Debug)]
pub(in crate::remote) struct Attempt {
    /// The state of the key if units were taken.
    pub state: Option<PolicyState>,
    /// The time of the server.
    pub decided_at: Timestamp,
    /// Identifies held units.
    generation: u64,
}

/// Units that a decision under way holds.
#[derive(Clone, Copy, Debug)]
pub(in crate::remote) struct HeldUnits {
    key: LeaseKey,
    units: u64,
    generation: u64,
}

impl Leases {
    /// Returns the leases of an instance, which has none yet, or may have none.
    pub fn new(is_on: bool) -> Self {
        Self {
            parts: is_on.then(OnceLock::new),
            ids: Arc::default(),
            keys: AtomicUsize::new(0),
            due: Mutex::default(),
            has_due: AtomicBool::new(false),
            is_reporting: AtomicBool::new(false),
            sweep: SingleTask::default(),
        }
    }

    /// Takes the units of a charge, if this instance has enough of them. If Redis is to be asked for more, the key is due.
    pub fn take(&self, charge: &Charge<'_>, holds: bool, now: Timestamp) -> Attempt {
        let none = Attempt {
            state: None,
            decided_at: now,
            generation: 0,
        };
        let Some(parts) = self.parts.as_ref().filter(|_| may_lease(charge)) else {
            return none;
        };
        let parts = parts.get_or_init(Parts::new);
        let key = LeaseKey::of(charge);
        let mut is_new = false;
        let mut shard = parts.shard(key).lock();
        let leased = match shard.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                if !parts.is_warm(key, now) || !self.add_key() {
                    return none;
                }
                is_new = true;
                entry.insert(Box::new(LeasedKey {
                    lease: Lease::new(Arc::clone(&self.ids)),
                    charge: charge.to_owned(),
                    is_due: false,
                }))
            }
        };
        let lease = &mut leased.lease;
        lease.note_request(charge.units(), now);
        let taken = lease.take(charge.units(), holds, now);
        // A new one too, so that somebody looks after it.
        let is_due = !leased.is_due && (is_new || lease.needs_report(now));
        leased.is_due |= is_due;
        drop(shard);
        if is_due {
            self.due.lock().push(key);
            self.has_due.store(true, Ordering::Release);
        }
        match taken {
            None => none,
            Some(taken) => {
                let decided_at = taken.known.server_time(now);
                Attempt {
                    state: Some(state(charge, &taken, decided_at)),
                    decided_at,
                    generation: taken.generation,
                }
            }
        }
    }

    /// Returns whether there is room for one key more, which is then counted.
    fn add_key(&self) -> bool {
        let has_room = self.keys.load(Ordering::Relaxed) < MAX_KEYS;
        if has_room {
            self.keys.fetch_add(1, Ordering::Relaxed);
            atomic::fence(Ordering::SeqCst);
        }
        has_room
    }

    /// Ends a decision that held units.
    pub fn end_hold(&self, held: HeldUnits, is_admitted: bool) {
        self.with(held.key, |leased| {
            leased
                .lease
                .end_hold(held.units, held.generation, is_admitted);
        });
    }

    /// As [`Lease::refund`], for a key that may have no lease any more.
    pub fn refund(&self, charge: &Charge<'_>, units: u64, token: u64) -> Result<(), u64> {
        let refunded = self.with(LeaseKey::of(charge), |leased| {
            leased.lease.refund(units, token)
        });
        refunded.unwrap_or(Err(total_in(token)))
    }

    /// Returns whether a charge with this token is in the report under way.
    pub fn is_reporting(&self, charge: &Charge<'_>, token: u64) -> bool {
        let is_reporting = self.with(LeaseKey::of(charge), |leased| {
            leased.lease.is_reporting(token)
        });
        is_reporting.unwrap_or(false)
    }

    /// Makes all units void: Redis may have lost what it knew of them.
    pub fn void_all(&self) {
        for shard in self.shards() {
            for leased in shard.lock().values_mut() {
                leased.lease.void();
            }
        }
    }

    /// Returns whether any keys are due.
    #[inline]
    pub fn has_due(&self) -> bool {
        self.has_due.load(Ordering::Acquire)
    }

    /// Returns whether a task is to be started that takes the keys that are due. There is at most one that has not taken them.
    pub fn begin_reporting(&self) -> bool {
        self.has_due() && !self.is_reporting.swap(true, Ordering::AcqRel)
    }

    /// Takes the keys that are due.
    pub fn take_due(&self) -> Vec<LeaseKey> {
        let mut due = self.due.lock();
        self.is_reporting.store(false, Ordering::Release);
        self.has_due.store(false, Ordering::Release);
        mem::take(&mut *due)
    }

    /// Forgets the keys that are due: their next requests make them due again.
    pub fn forget_due(&self) {
        for key in self.take_due() {
            self.with(key, |leased| leased.is_due = false);
        }
    }

    /// Begins a report of a key, if it is still needed.
    pub fn begin_report(
        &self,
        key: LeaseKey,
        instances: u32,
        now: Timestamp,
    ) -> Option<(OwnedCharge, LeaseReport)> {
        self.with(key, |leased| {
            leased.is_due = false;
            let is_needed = leased.lease.needs_report(now);
            is_needed.then(|| {
                let report = leased.lease.begin_report(false, instances, now);
                (leased.charge.clone(), report)
            })
        })?
    }

    /// Ends a report with its reply.
    pub fn end_report(&self, key: LeaseKey, reply: &LeaseReply, now: Timestamp) {
        self.with(key, |leased| {
            if let Counter::Bucket(bucket) = leased.charge.borrow().policy().counter() {
                leased.lease.end_report(reply, bucket, now);
            }
        });
    }

    /// Ends a report without a reply. It may have reached Redis, unless it was not sent.
    pub fn fail_report(&self, key: LeaseKey, was_sent: bool, now: Timestamp) {
        self.with(key, |leased| {
            if was_sent {
                leased.lease.lose_report(now);
            } else {
                leased.lease.cancel_report(now);
            }
        });
    }

    /// Forgets idle keys, or all of them. Returns those whose units are to be given back, and the reports that do so.
    pub fn give_back(
        &self,
        is_all: bool,
        now: Timestamp,
    ) -> Vec<(LeaseKey, OwnedCharge, LeaseReport)> {
        let mut reports = Vec::new();
        for shard in self.shards() {
            shard.lock().retain(|key, leased| {
                let lease = &mut leased.lease;
                if !is_all && !lease.is_idle(now) || !lease.is_at_rest(now) {
                    return true;
                }
                let is_returned = lease.is_worth_returning(now);
                if is_returned {
                    let report = lease.begin_report(true, 1, now);
                    reports.push((*key, leased.charge.clone(), report));
                } else {
                    self.keys.fetch_sub(1, Ordering::Relaxed);
                }
                is_returned
            });
        }
        reports
    }

    /// Returns the number of keys, and the units that can be spent; `None` if there was never any.
    pub fn usage(&self, now: Timestamp) -> Option<(usize, u64)> {
        self.parts.as_ref()?.get()?;
        let mut units = 0;
        for shard in self.shards() {
            let shard = shard.lock();
            units += shard
                .values()
                .map(|leased| leased.lease.units(now))
                .sum::<u64>();
        }
        Some((self.keys.load(Ordering::Relaxed), units))
    }

    /// Returns whether any key is in the table.
    pub fn has_keys(&self) -> bool {
        // In one order for the task that looks after the keys and for who adds one.
        atomic::fence(Ordering::SeqCst);
        self.keys.load(Ordering::Relaxed) > 0
    }

    fn shards(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        let parts = self.parts.as_ref().and_then(OnceLock::get);
        parts.into_iter().flat_map(|parts| &parts.shards)
    }

    fn with<T>(&self, key: LeaseKey, f: impl FnOnce(&mut LeasedKey) -> T) -> Option<T> {
        let parts = self.parts.as_ref()?.get()?;
        parts
            .shard(key)
            .lock()
            .get_mut(&key)
            .map(|leased| f(leased))
    }
}

impl Attempt {
    /// Returns the units that a decision under way holds.
    pub fn held(&self, charge: &Charge<'_>) -> HeldUnits {
        HeldUnits {
            key: LeaseKey::of(charge),
            units: charge.units(),
            generation: self.generation,
        }
    }
}

impl Parts {
    fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            warmth: (0..WARM_KEYS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn shard(&self, key: LeaseKey) -> &Mutex<Shard> {
        &self.shards[key.fingerprint.shard(SHARDS)]
    }

    /// Returns whether a key was asked for three times within a second, with this time. Another key in its place is forgotten.
    fn is_warm(&self, key: LeaseKey, now: Timestamp) -> bool {
        let hash = key.hash();
        let place = &self.warmth[crate::charge::place(hash, WARM_KEYS)];
        let (millis, tag) = ((now.as_micros() / 1_000) & MILLIS, hash & TAG);
        let before = place.load(Ordering::Relaxed);
        let is_recent = before & TAG == tag
            && millis.wrapping_sub(before >> COUNT_BITS & MILLIS) & MILLIS < 1_000;
        let count = if is_recent { (before & COUNT) + 1 } else { 1 };
        if count >= WARM_FROM {
            return true;
        }
        // The time of the first of the three. A lost update costs a request more.
        let since = if is_recent {
            before & !COUNT
        } else {
            tag | millis << COUNT_BITS
        };
        place.store(since | count, Ordering::Relaxed);
        false
    }
}

impl LeaseKey {
    #[inline]
    pub fn of(charge: &Charge<'_>) -> Self {
        Self {
            fingerprint: Fingerprint::of(charge.policy(), charge.key()),
            quota: charge.policy().counter().quota_hash(),
        }
    }

    fn hash(self) -> u64 {
        self.fingerprint.low() ^ self.quota
    }
}

impl Hash for LeaseKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(Self::hash(*self));
    }
}

/// Takes the hash of a [`LeaseKey`] as it is.
#[derive(Default)]
struct HashedAlready(u64);

impl Hasher for HashedAlready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key writes one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Returns whether units of this charge's key can be leased, and be enough for it.
fn may_lease(charge: &Charge<'_>) -> bool {
    match charge.policy().counter() {
        Counter::Bucket(bucket) => can_lease(bucket) && charge.units() <= bucket.capacity(),
        Counter::Concurrency(_)
        | Counter::FixedWindow(_)
        | Counter::SlidingLog(_)
        | Counter::SlidingWindow(_) => false,
    }
}

/// Returns the state of a policy whose units were taken here.
///
/// It is that of the last reply, with what this instance has spent since. Units that other instances hold are not left, and are not
/// counted as spent: so the time when all units are back is not later than that of this charge, which a refund relies on. In place
/// of the total of refunds it has a token, see [`Leases::refund`].
pub(super) fn state(charge: &Charge<'_>, taken: &Taken, now: Timestamp) -> PolicyState {
    let Counter::Bucket(bucket) = charge.policy().counter() else {
        unreachable!("only buckets are leased");
    };
    let debt = taken.known.tat.max(now.as_micros()) + bucket.micros_up(taken.unreported);
    let usage = bucket.usage(&bucket.state(debt), now);
    let remaining = usage.remaining.saturating_sub(taken.known.leased_elsewhere);
    let usage = Usage::new(usage.limit, remaining, usage.reset_at);
    let state = PolicyState::counted(*charge.policy().name(), usage, Retry::Now);
    bucket
        .annotate(state.with_start(now).with_refunded_before(taken.token()))
        .with_counted_by(CountedBy::Lease)
}

const SHARDS: usize = 64;
/// The most keys that have leases.
const MAX_KEYS: usize = 65_536;
/// Keys that are watched before they get a lease.
const WARM_KEYS: usize = 16_384;
/// Requests within a second from which on a key gets a lease.
const WARM_FROM: u64 = 3;
/// The count, the time and the tag in a word.
const COUNT_BITS: u32 = 2;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const MILLIS: u64 = (1 << 30) - 1;
const TAG: u64 = !0 << 32;
