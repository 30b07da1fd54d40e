//! The in-process store.

use std::{
    fmt,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread::available_parallelism,
};

use smallvec::SmallVec;

use crate::{
    clock::Clock,
    decision::Decision,
    error::Error,
    key::Key,
    policy::{Charge, Policy},
    state::CountedBy,
    store::{Answer, Correction, Receipt, Settlement, Store},
    sync::Mutex,
    telemetry,
};

use super::{
    budget::Budget,
    builder::MemoryStoreBuilder,
    fingerprint::{Fingerprint, Fingerprinter},
    shard::Shard,
    shelf::{Asked, Kept},
    steps::{self, Look},
    table::slots_for,
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
    crowded: AtomicU64,
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

    /// Bytes that the tables take now, and the entries of logs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared
            .shards
            .iter()
            .map(|shard| shard.0.lock().bytes())
            .sum()
    }

    /// How many charges were counted in a bucket shared by newcomers, because all slots held keys in debt.
    #[must_use]
    pub fn crowded(&self) -> u64 {
        self.shared.crowded.load(Ordering::Relaxed)
    }

    pub(super) fn with(settings: &MemoryStoreBuilder) -> Self {
        let wanted = available_parallelism().map_or(16, |cores| cores.get() * 16);
        // A shard of few slots would be crowded by chance, so a small store has few shards.
        let shards = wanted
            .next_power_of_two()
            .min((settings.max_keys / 1_024).max(1).next_power_of_two());
        let slots = slots_for(settings.max_keys).div_ceil(shards);
        let budget = Budget::new(settings.max_keys.saturating_mul(ENTRIES));
        let shards = (0..shards).map(|_| Padded(Mutex::new(Shard::new(slots, &budget))));
        Self {
            shared: Arc::new(Shared {
                shards: shards.collect(),
                fingerprinter: Fingerprinter::random(),
                clock: settings.clock.clone(),
                crowded: AtomicU64::new(0),
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
        let now = self.shared.clock.now();
        let mut shard = self.lock(self.shard_of(asked.fingerprint));
        let (told, kept) = steps::take(charge, &mut shard, &asked, now);
        drop(shard);
        self.note_crowding(kept);
        Decision::of_one(CountedBy::Memory, now, told.of(charge))
    }

    fn decide_all(&self, charges: &[Charge<'_>]) -> Decision {
        let asked: SmallVec<[_; 4]> = charges.iter().map(|charge| self.asked(charge)).collect();
        let now = self.shared.clock.now();
        let mut shards = self.lock_all(asked.iter().map(|asked| asked.fingerprint));
        let mut looks: SmallVec<[Look<'_>; 4]> = SmallVec::new();
        for (charge, asked) in charges.iter().zip(&asked) {
            let index = self.shard_of(asked.fingerprint);
            let shard = (index, shards.of(index));
            let look = steps::look(charge, shard, asked, &looks, now);
            looks.push(look);
        }
        let all = looks.iter().all(|look| look.has_room);
        let concluded = charges.iter().zip(&asked).zip(&looks);
        let states = concluded.map(|((charge, asked), look)| {
            let shard = shards.of(self.shard_of(asked.fingerprint));
            let (told, kept) = steps::conclude(charge, shard, asked, (all, look.has_room), now);
            self.note_crowding(kept);
            told.of(charge)
        });
        Decision::new(CountedBy::Memory, now, states)
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

    #[inline]
    fn note_crowding(&self, kept: Kept) {
        if kept == Kept::Pooled && self.shared.crowded.fetch_add(1, Ordering::Relaxed) == 0 {
            telemetry::warn(format_args!(
                "the in-process store is full of keys in debt, newcomers are counted together; raise max_keys"
            ));
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
    fn decide(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        let decision = match charges {
            [charge] => self.decide_one(charge),
            charges => self.decide_all(charges),
        };
        Answer::ready(Ok(decision))
    }

    fn settle(&self, receipt: Receipt) -> Answer<()> {
        let now = self.shared.clock.now();
        let is_wrong = |one: &&Settlement| one.correction() != Correction::Keep;
        for settlement in receipt.settlements().iter().filter(is_wrong) {
            let charge = settlement.charge();
            let asked = self.asked(&charge);
            let mut shard = self.lock(self.shard_of(asked.fingerprint));
            steps::settle(settlement, &mut shard, &asked, now);
        }
        Answer::ready(Ok(()))
    }

    fn hold(&self, receipt: &Receipt) {
        for settlement in receipt.settlements() {
            let charge = settlement.charge();
            if charge.ticket() != 0 {
                let asked = self.asked(&charge);
                let mut shard = self.lock(self.shard_of(asked.fingerprint));
                let flights = &mut shard.flights;
                flights.hold(asked.fingerprint, asked.ticket, charge.units());
            }
        }
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let fingerprint = self.shared.fingerprinter.of(policy.name(), key);
        let mut shard = self.lock(self.shard_of(fingerprint));
        shard.reset(fingerprint);
        Answer::ready(Ok::<(), Error>(()))
    }
}

// === Locked ===

/// The shards of one decision, held together.
struct Locked<'a> {
    guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl Locked<'_> {
    fn of(&mut self, shard: usize) -> &mut Shard {
        let held = self.guards.iter_mut().find(|(held, _)| *held == shard);
        &mut held.expect("every shard asked for was locked").1
    }
}

/// Entries that all logs share, for each key that may be told apart.
const ENTRIES: usize = 4;
