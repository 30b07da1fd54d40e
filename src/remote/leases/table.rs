//! The leased units of this instance, by key.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::BuildHasherDefault,
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{self, AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot::Receiver;

use crate::{
    charge::{Charge, OwnedCharge},
    clock::Timestamp,
    decision::{CountedBy, PolicyState, Retry, Usage},
    remote::protocol::{KeyState, LeaseReply, LeaseReport, can_lease},
    store::{KeyLease, waited},
    task::{Mutex, SingleTask},
    telemetry::LeaseMetrics,
};

use super::{
    key::{HashedAlready, LeaseKey, Warmth},
    lease::{Lease, Taken, total_in},
    waiters::{Answer, Waiters},
};

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
    /// How long a request waits for a report at most: a charge in Redis needs half of the deadline afterwards.
    pub longest_wait: Duration,
    pub sweep: SingleTask,
    pub metrics: LeaseMetrics,
}

/// Allocated with the first leased key.
#[derive(Debug)]
struct Parts {
    shards: Box<[Mutex<Shard>]>,
    warmth: Warmth,
}

#[derive(Debug, Default)]
struct Shard {
    keys: HashMap<LeaseKey, Box<LeasedKey>, BuildHasherDefault<HashedAlready>>,
    /// Requests that were admitted by leased units since [`Leases::take_decided`].
    decided: u64,
}

#[derive(Debug)]
struct LeasedKey {
    lease: Lease,
    waiters: Waiters,
    charge: OwnedCharge,
    /// Whether it is among the keys that are due.
    is_due: bool,
}

/// The result of taking units.
#[derive(Debug)]
pub(in crate::remote) enum Attempt {
    Taken(TakenUnits),
    /// Others have taken the units, and many more requests come: they wait for a report together.
    Waits(Receiver<Answer>),
    /// The key has a lease of too few units: Redis is to be asked.
    Missing,
    /// The key has no lease: Redis is to be asked.
    Unleased,
}

/// Units that were taken.
#[derive(Debug)]
pub(in crate::remote) struct TakenUnits {
    pub state: PolicyState,
    /// The time of the server.
    pub decided_at: Timestamp,
    pub held: HeldUnits,
}

/// Units that a decision under way holds.
#[derive(Clone, Copy, Debug)]
pub(in crate::remote) struct HeldUnits {
    key: LeaseKey,
    units: u64,
    generation: u64,
}

impl Leases {
    /// Returns the leases of an instance, which has none yet, or may have none. The deadline is that of a decision.
    pub fn new(is_on: bool, deadline: Duration) -> Self {
        Self {
            parts: is_on.then(OnceLock::new),
            ids: Arc::default(),
            keys: AtomicUsize::new(0),
            due: Mutex::default(),
            has_due: AtomicBool::new(false),
            is_reporting: AtomicBool::new(false),
            longest_wait: deadline / 4,
            sweep: SingleTask::default(),
            metrics: LeaseMetrics::of_instance(),
        }
    }

    /// Takes the units of a charge, if this instance has enough of them. If not, the charge may wait for a report, should `may_wait`
    /// agree.
    pub fn take(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        may_wait: impl FnOnce() -> bool,
    ) -> Attempt {
        self.take_or_wait(charge, false, now, may_wait)
    }

    /// Takes the units of a charge for a decision under way. It does not wait.
    pub fn hold(&self, charge: &Charge<'_>, now: Timestamp) -> Attempt {
        self.take_or_wait(charge, true, now, || false)
    }

    /// Takes the units of a charge. If Redis is to be asked for more, the key is due.
    fn take_or_wait(
        &self,
        charge: &Charge<'_>,
        holds: bool,
        now: Timestamp,
        may_wait: impl FnOnce() -> bool,
    ) -> Attempt {
        let Some(parts) = self.parts.as_ref().filter(|_| may_lease(charge)) else {
            return Attempt::Unleased;
        };
        let parts = parts.get_or_init(Parts::new);
        let key = LeaseKey::of(charge);
        let mut is_new = false;
        let mut shard = parts.shard(key).lock();
        let Shard { keys, decided } = &mut *shard;
        let leased = match keys.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                if !parts.warmth.is_warm(key, now) || !self.add_key() {
                    return Attempt::Unleased;
                }
                is_new = true;
                entry.insert(Box::new(LeasedKey {
                    lease: Lease::new(Arc::clone(&self.ids)),
                    waiters: Waiters::default(),
                    charge: charge.to_owned(),
                    is_due: false,
                }))
            }
        };
        let lease = &mut leased.lease;
        lease.note_request(charge.units(), now);
        let taken = lease.take(charge.units(), holds, now);
        *decided += u64::from(taken.is_some() && !holds);
        let is_known = lease.is_known();
        let longest = self.longest_wait.saturating_sub(waited::so_far());
        let limit = charge.policy().counter().limit();
        let waits = taken.is_none()
            && lease.is_worth_waiting(charge.units(), limit, longest, now)
            && may_wait();
        let receiver = if waits {
            leased.waiters.join(charge.units())
        } else {
            None
        };
        // A new one too, so that somebody looks after it.
        let is_due = !leased.is_due && (is_new || leased.needs_report(now));
        leased.is_due |= is_due;
        drop(shard);
        if is_due {
            self.add_due(key);
        }
        match (taken, receiver) {
            (Some(taken), _) => Attempt::Taken(TakenUnits::new(charge, key, &taken, now)),
            (None, Some(receiver)) => Attempt::Waits(receiver),
            (None, None) if is_known => Attempt::Missing,
            (None, None) => Attempt::Unleased,
        }
    }

    fn add_due(&self, key: LeaseKey) {
        self.due.lock().push(key);
        self.has_due.store(true, Ordering::Release);
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

    /// Notes that a request has waited for a report of its key for too long.
    pub fn note_vain_wait(&self, charge: &Charge<'_>, now: Timestamp) {
        self.with(LeaseKey::of(charge), |leased| {
            leased.lease.note_vain_wait(now);
        });
    }

    /// Makes all units void: Redis may have lost what it knew of them.
    pub fn void_all(&self) {
        for shard in self.shards() {
            for leased in shard.lock().keys.values_mut() {
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
            let answers = self.with(key, |leased| {
                leased.is_due = false;
                leased.waiters.give_up()
            });
            answers.unwrap_or_default().send();
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
            leased.needs_report(now).then(|| {
                let needed = leased.waiters.begin_report();
                let report = leased.lease.begin_report(false, needed, instances, now);
                (leased.charge.clone(), report)
            })
        })?
    }

    /// Ends a report with its reply. Requests that still wait need another one.
    pub fn end_report(&self, key: LeaseKey, reply: &LeaseReply, now: Timestamp) {
        let ended = self.with(key, |leased| {
            let charge = leased.charge.borrow();
            let counter = charge.policy().counter();
            let leased_units = leased.lease.end_report(reply, counter, now);
            let answers = leased_units.map(|units| {
                let state = reply
                    .state
                    .after(units.cast_signed(), counter, reply.decided_at);
                // A charge may be ahead of the limit while any units are leased.
                let ahead = match units {
                    0 => 0,
                    _ => counter.limit() * u64::from(charge.policy().overshoot()) / 1_000,
                };
                let (decided, counter) = ((reply.decided_at, state), (counter, ahead));
                leased
                    .waiters
                    .end_report(&mut leased.lease, decided, counter, now)
            });
            let is_due = !leased.is_due && !leased.waiters.is_empty();
            leased.is_due |= is_due;
            (answers.unwrap_or_default(), is_due)
        });
        let (answers, is_due) = ended.unwrap_or_default();
        if is_due {
            self.add_due(key);
        }
        answers.send();
    }

    /// Ends a report without a reply. It may have reached Redis, unless it was not sent.
    pub fn fail_report(&self, key: LeaseKey, was_sent: bool, now: Timestamp) {
        let answers = self.with(key, |leased| {
            if was_sent {
                leased.lease.lose_report(now);
            } else {
                leased.lease.cancel_report(now);
            }
            leased.waiters.give_up()
        });
        answers.unwrap_or_default().send();
    }

    /// Forgets idle keys, or all of them. Returns those whose units are to be given back, and the reports that do so.
    pub fn give_back(
        &self,
        is_all: bool,
        now: Timestamp,
    ) -> Vec<(LeaseKey, OwnedCharge, LeaseReport)> {
        let mut reports = Vec::new();
        for shard in self.shards() {
            shard.lock().keys.retain(|key, leased| {
                let lease = &mut leased.lease;
                let is_at_rest = lease.is_at_rest(now) && leased.waiters.is_empty();
                if !is_all && !lease.is_idle(now) || !is_at_rest {
                    return true;
                }
                let is_returned = lease.is_worth_returning(now);
                if is_returned {
                    let report = lease.begin_report(true, 0, 1, now);
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
            for leased in shard.lock().keys.values() {
                units += leased.lease.units(now);
            }
        }
        Some((self.keys.load(Ordering::Relaxed), units))
    }

    /// Returns what is known of the lease of a key; `None` if there is none.
    pub fn view(&self, charge: &Charge<'_>, now: Timestamp) -> Option<KeyLease> {
        self.with(LeaseKey::of(charge), |leased| leased.lease.view(now))?
    }

    /// Returns the number of requests that were admitted by leased units since this was last called.
    pub fn take_decided(&self) -> u64 {
        let decided = |shard: &Mutex<Shard>| mem::take(&mut shard.lock().decided);
        self.shards().map(decided).sum()
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
        let mut shard = parts.shard(key).lock();
        shard.keys.get_mut(&key).map(|leased| f(leased))
    }
}

impl LeasedKey {
    fn needs_report(&self, now: Timestamp) -> bool {
        let is_awaited = !self.waiters.is_empty() && !self.lease.has_report();
        is_awaited || self.lease.needs_report(now)
    }
}

impl TakenUnits {
    fn new(charge: &Charge<'_>, key: LeaseKey, taken: &Taken, now: Timestamp) -> Self {
        let decided_at = taken.known.server_time(now);
        Self {
            state: state(charge, taken, decided_at),
            decided_at,
            held: HeldUnits {
                key,
                units: charge.units(),
                generation: taken.generation,
            },
        }
    }
}

impl Parts {
    fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            warmth: Warmth::new(),
        }
    }

    fn shard(&self, key: LeaseKey) -> &Mutex<Shard> {
        &self.shards[key.fingerprint.shard(SHARDS)]
    }
}

/// Returns whether units of this charge's key can be leased, and be enough for it.
fn may_lease(charge: &Charge<'_>) -> bool {
    let counter = charge.policy().counter();
    !charge.is_away() && can_lease(counter) && charge.units() <= counter.limit()
}

/// Returns the state of a policy whose units were taken here.
///
/// It is that of the last reply, with what this instance has spent since. Units that other instances hold are not left, and are not
/// counted as spent: so the time when all units are back is not later than that of this charge, which a refund relies on. In place
/// of the total of refunds it has a token, see [`Leases::refund`].
pub(super) fn state(charge: &Charge<'_>, taken: &Taken, now: Timestamp) -> PolicyState {
    let counter = charge.policy().counter();
    let unreported = taken.unreported.cast_signed();
    let key_state = taken.known.state.after(unreported, counter, now);
    let (usage, _) = key_state.usage_and_retry(counter, 0, now);
    let remaining = usage.remaining.saturating_sub(taken.known.leased_elsewhere);
    let usage = Usage::new(usage.limit, remaining, usage.reset_at);
    let state = PolicyState::counted(*charge.policy().name(), usage, Retry::Now);
    counter
        .annotate(state.with_start(now).with_refunded_before(taken.token()))
        .with_counted_by(CountedBy::Lease)
}

/// Returns the state of a policy that denies a charge whose key has this state.
pub(super) fn denied(charge: &Charge<'_>, decided_at: Timestamp, state: KeyState) -> PolicyState {
    let counter = charge.policy().counter();
    let (usage, retry) = state.usage_and_retry(counter, charge.units(), decided_at);
    counter.annotate(PolicyState::counted(*charge.policy().name(), usage, retry))
}

const SHARDS: usize = 64;
/// The most keys that have leases.
const MAX_KEYS: usize = 65_536;
