//! The in-process store.

use std::{
    fmt,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;

use crate::{
    charge::Charge,
    clock::{Clock, Reading, Timestamp},
    decision::Decision,
    error::Error,
    key::Key,
    log,
    policy::Policy,
    state::CountedBy,
    store::{Correction, Receipt, Settlement, Store, StoreFuture},
    sync::Mutex,
};

use super::{
    builder::MemoryStoreBuilder,
    capacity::{Capacity, shards_for},
    fingerprint::{Fingerprint, Fingerprinter},
    shard::Shard,
    shelf::{Asked, Kept},
    steps::{self, Look},
};

/// Keeps counts in this process. Clones share them.
///
/// See the [module docs](super) for its memory, its accuracy, and what it does when it is full.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    shards: Box<[Padded]>,
    fingerprinter: Fingerprinter,
    clock: Clock,
    overflowed: AtomicU64,
    /// Whether it was reported that newcomers share a bucket.
    has_overflowed: AtomicBool,
    /// Whether it was reported that a request was denied for want of memory.
    has_denied: AtomicBool,
    /// When all shards are searched for ended leases again, in microseconds.
    reclaim_at: AtomicU64,
}

/// A shard on cache lines of its own: two cores at work on neighbours do not slow each other down.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

impl MemoryStore {
    /// A store with the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::with(&MemoryStoreBuilder::default())
    }

    /// Settings to start from.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }

    /// Keys that are told apart now, those that owe nothing any more among them.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shared
            .shards
            .iter()
            .map(|shard| shard.0.lock().keys())
            .sum()
    }

    /// Bytes that everything takes now that grows with the keys.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared
            .shards
            .iter()
            .map(|shard| shard.0.lock().bytes())
            .sum()
    }

    /// Number of charges that were counted in a bucket shared by newcomers, because all slots held keys in debt, and of
    /// requests that were denied because there was no memory for another one in flight.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.shared.overflowed.load(Ordering::Relaxed)
    }

    pub(super) fn with(settings: &MemoryStoreBuilder) -> Self {
        let shards = shards_for(settings.max_keys);
        let capacity = Capacity::of(settings.max_keys, shards);
        let shards = (0..shards).map(|_| Padded(Mutex::new(Shard::new(&capacity))));
        Self {
            shared: Arc::new(Shared {
                shards: shards.collect(),
                fingerprinter: Fingerprinter::random(),
                clock: settings.clock.clone(),
                overflowed: AtomicU64::new(0),
                has_overflowed: AtomicBool::new(false),
                has_denied: AtomicBool::new(false),
                reclaim_at: AtomicU64::new(0),
            }),
        }
    }

    #[inline]
    fn asked<'a>(&'a self, charge: &'a Charge<'_>) -> Asked<impl Fn() -> u64 + 'a> {
        let fingerprinter = &self.shared.fingerprinter;
        let name = charge.policy().name();
        Asked {
            fingerprint: fingerprinter.of(name, charge.key()),
            ticket: charge.ticket(),
            policy: move || fingerprinter.of_policy(name),
            adds: charge.units() > 0,
        }
    }

    #[inline]
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shared.shards[shard].0.lock()
    }

    #[inline]
    fn shard_of(&self, fingerprint: Fingerprint) -> usize {
        fingerprint.shard(self.shared.shards.len())
    }

    #[inline]
    fn decide_one(&self, charge: &Charge<'_>) -> Decision {
        let asked = self.asked(charge);
        // Before the lock, which is held shorter so; a late comer's older time can only deny more.
        let read = self.shared.clock.read();
        let mut shard = self.lock(self.shard_of(asked.fingerprint));
        let now = shard.now(read, &self.shared.clock);
        let (told, kept) = steps::take(charge, &mut shard, &asked, now);
        drop(shard);
        if kept != Kept::ToldApart {
            self.note(Crowding::default().and(kept), read);
        }
        Decision::of_one(CountedBy::InProcess, now, told.of(charge))
    }

    fn decide_all(&self, charges: &[Charge<'_>]) -> Decision {
        let mut asked: SmallVec<[_; 4]> = charges.iter().map(|charge| self.asked(charge)).collect();
        let read = self.shared.clock.read();
        let mut shards = self.lock_all(asked.iter().map(|asked| asked.fingerprint));
        let now = shards.now(read, &self.shared.clock);
        let mut looks: SmallVec<[Look<'_>; 4]> = SmallVec::new();
        for (charge, asked) in charges.iter().zip(&mut asked) {
            let index = self.shard_of(asked.fingerprint);
            let shard = (index, shards.of(index));
            let look = steps::look(charge, shard, asked, &looks, now);
            looks.push(look);
        }
        let all = looks.iter().all(|look| look.has_room);
        let mut crowding = Crowding::default();
        let concluded = charges.iter().zip(&mut asked).zip(&looks);
        let states = concluded.map(|((charge, asked), look)| {
            let shard = shards.of(self.shard_of(asked.fingerprint));
            let (told, kept) = steps::conclude(charge, shard, asked, (all, look), now);
            crowding = crowding.and(kept);
            told.of(charge)
        });
        let decision = Decision::new(CountedBy::InProcess, now, states);
        drop(shards);
        if crowding != Crowding::default() {
            self.note(crowding, read);
        }
        decision
    }

    /// Locks the shards of all that is asked, each once, in one order for everybody.
    fn lock_all(&self, asked: impl Iterator<Item = Fingerprint>) -> Locked<'_> {
        let mut shards: SmallVec<[usize; 4]> = asked
            .map(|fingerprint| self.shard_of(fingerprint))
            .collect();
        shards.sort_unstable();
        shards.dedup();
        Locked {
            guards: shards
                .into_iter()
                .map(|shard| (shard, self.lock(shard)))
                .collect(),
        }
    }

    /// Counts and reports charges without a place of their own. Called without any lock, since the log writer may use this
    /// store.
    #[cold]
    fn note(&self, Crowding { pooled, denied }: Crowding, read: Reading) {
        let shared = &self.shared;
        shared
            .overflowed
            .fetch_add(pooled + denied, Ordering::Relaxed);
        if pooled > 0 && !shared.has_overflowed.swap(true, Ordering::Relaxed) {
            log::event!(
                WARN,
                "the in-process store is full of keys in debt: new keys share one count per policy; raise max_keys"
            );
        }
        if denied > 0 {
            self.reclaim(read);
            if !shared.has_denied.swap(true, Ordering::Relaxed) {
                log::event!(
                    WARN,
                    "the in-process store has no memory for more requests in flight: they are denied; raise max_keys"
                );
            }
        }
    }

    /// Takes back the slots in all shards whose lease has ended: they share the memory. Once a second at most.
    fn reclaim(&self, read: Reading) {
        let (now, reclaim_at) = (read.now.as_micros(), &self.shared.reclaim_at);
        let (at, next) = (reclaim_at.load(Ordering::Relaxed), now + SECOND);
        let is_due = at <= now || at > next;
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if !is_due || reclaim_at.compare_exchange(at, next, set, fetch).is_err() {
            return;
        }
        for shard in &self.shared.shards {
            let mut shard = shard.0.lock();
            let now = shard.now(read, &self.shared.clock);
            shard.in_flight.reclaim(now);
        }
    }
}

// By hand: a derive would show all that is counted, and the key under which keys are hashed.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("shards", &self.shared.shards.len())
            .field("clock", &self.shared.clock)
            .finish_non_exhaustive()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let decision = match charges {
            [charge] => self.decide_one(charge),
            charges => self.decide_all(charges),
        };
        StoreFuture::ready(Ok(decision))
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let read = self.shared.clock.read();
        let is_wrong = |one: &&Settlement| one.correction() != Correction::Keep;
        for settlement in receipt.settlements().iter().filter(is_wrong) {
            let charge = settlement.charge();
            let asked = self.asked(&charge);
            let mut shard = self.lock(self.shard_of(asked.fingerprint));
            let now = shard.now(read, &self.shared.clock);
            steps::settle(settlement, &mut shard, &asked, now);
        }
        StoreFuture::ready(Ok(()))
    }

    fn hold(&self, receipt: &Receipt) {
        for settlement in receipt.settlements() {
            let charge = settlement.charge();
            if let Some(ticket) = charge.ticket() {
                let asked = self.asked(&charge);
                let mut shard = self.lock(self.shard_of(asked.fingerprint));
                let in_flight = &mut shard.in_flight;
                in_flight.hold(asked.fingerprint, ticket, charge.units());
            }
        }
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let fingerprint = self.shared.fingerprinter.of(policy.name(), key);
        let mut shard = self.lock(self.shard_of(fingerprint));
        shard.reset(fingerprint);
        StoreFuture::ready(Ok::<(), Error>(()))
    }
}

// === Crowding ===

/// Number of charges of one decision that got no place of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Crowding {
    /// Counted in a state that newcomers share.
    pooled: u64,
    /// Denied for want of memory.
    denied: u64,
}

impl Crowding {
    #[inline]
    fn and(self, kept: Kept) -> Self {
        Self {
            pooled: self.pooled + u64::from(kept == Kept::Pooled),
            denied: self.denied + u64::from(kept == Kept::TurnedAway),
        }
    }
}

// === Locked ===

/// The shards of one decision, held together.
struct Locked<'a> {
    guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl Locked<'_> {
    /// Returns the time to count by in all of them.
    #[inline]
    fn now(&mut self, read: Reading, clock: &Clock) -> Timestamp {
        let mut shards = self.guards.iter();
        if shards.all(|(_, shard)| shard.has_step(read)) {
            return read.now;
        }
        // One time for all, since their decision is one.
        let read = clock.read();
        for (_, shard) in &mut self.guards {
            shard.step(read);
        }
        read.now
    }

    fn of(&mut self, shard: usize) -> &mut Shard {
        let held = self.guards.iter_mut().find(|(held, _)| *held == shard);
        &mut held.expect("every shard asked for was locked").1
    }
}

const SECOND: u64 = 1_000_000;
