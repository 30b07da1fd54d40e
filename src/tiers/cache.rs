//! Tiers that were looked up, for as long as they hold.

use std::{
    error, fmt,
    future::Future,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use http::request::Parts;
use tokio::{sync::watch, time::timeout};

use crate::{key::Key, log, spawn, sync::Mutex, tier::Tier};

use super::{
    resolver::{TierLookup, TierResolver},
    settings::TierCacheBuilder,
    shelf::{Cached, Entry, Flight, Known, Landed, Shelf},
};

/// Keeps what a [`TierResolver`] finds, so that a request waits for it only when nothing recent is known.
///
/// Clones share what is known. Each key is looked up once at a time, however many requests ask; those that have no tier to go
/// on with wait for the same answer. A look-up runs in a task of its own, so that it ends and is remembered though the request that started it is gone
/// or has waited long enough; it needs the Tokio runtime of that request.
///
/// # How old a tier may be
///
/// ```text
/// looked up        ttl: 60 s            + stale_for: 60 s             + last_known_for: 1 h
///     |------------------|---------------------|--------------------------------|
///       served as it is    served, while one     requests wait for the lookup;    the policy's own
///                          lookup runs behind    served if it fails or is late    quota holds
/// ```
///
/// Both spans begin when the time to live is over. So a key that is in use waits for its first lookup only, and a change
/// reaches it with the second request after the time to live; one that comes back later than
/// [`stale_for`](TierCacheBuilder::stale_for) waits for the new tier. While the lookup works, no request is served a tier
/// older than both together: two minutes by default, [forgotten](Self::forget) ones apart.
///
/// # When a lookup fails or is late
///
/// The last known tier holds, for [an hour](TierCacheBuilder::last_known_for) beyond its time; without one, the
/// policy's own quota holds. A failed look-up is tried again after [a second](TierCacheBuilder::retry_after) at the
/// earliest, and the first failure is logged.
///
/// # Bounds
///
/// So many [keys](TierCacheBuilder::max_keys), so many [look-ups](TierCacheBuilder::max_lookups) at a time, and each of
/// them [so long](TierCacheBuilder::deadline).
#[derive(Clone)]
pub struct TierCache {
    shared: Arc<Shared>,
}

impl TierCache {
    /// Settings to start from, for what this resolver finds.
    pub fn builder(resolver: impl TierResolver) -> TierCacheBuilder {
        TierCacheBuilder::new(resolver)
    }

    /// Forgets a key's tier, since it has changed: the next request looks it up.
    pub fn forget(&self, key: &Key) {
        self.shared.shelf(key).lock().forget(key);
    }

    /// Forgets all tiers.
    pub fn clear(&self) {
        self.shared
            .shelves
            .iter()
            .for_each(|shelf| shelf.lock().clear());
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared
            .shelves
            .iter()
            .map(|shelf| shelf.lock().len())
            .sum()
    }

    /// Whether no key is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn with(settings: TierCacheBuilder) -> Self {
        // A small cache is one shelf: cut up, a full shelf would forget while others have room.
        let shelves = if settings.max_keys < 64 * SHELVES {
            1
        } else {
            SHELVES
        };
        let shared = Shared {
            shelves: (0..shelves).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            lookups: AtomicUsize::new(0),
            flights: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            settings,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns a caller's tier if it is known without waiting. A stale one is looked up again in the background.
    pub(crate) fn known(&self, parts: &Parts, key: &Key) -> Option<Option<Tier>> {
        self.shared.serve(parts, key).ok()
    }

    /// A caller's tier, or the future that tells.
    pub(crate) fn ask(&self, parts: &Parts, key: &Key) -> Asked {
        let shelf = match self.shared.serve(parts, key) {
            Ok(tier) => return Asked::Known(tier),
            Err(shelf) => shelf,
        };
        match self.shared.look_up(shelf, parts, key) {
            Some(landed) => Asked::Later(wait(landed)),
            None => Asked::Known(self.last_known(key)),
        }
    }

    /// What holds for a caller when the look-up is late.
    pub(crate) fn last_known(&self, key: &Key) -> Option<Tier> {
        let now = self.shared.settings.clock.now();
        self.shared.shelf(key).lock().last_known(key, now)
    }
}

impl fmt::Debug for TierCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierCache")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

/// What a cache says of a caller.
pub(crate) enum Asked {
    Known(Option<Tier>),
    Later(TierWait),
}

/// A tier that comes.
pub(crate) type TierWait = Pin<Box<dyn Future<Output = Option<Tier>> + Send>>;

fn wait(mut landed: Landed) -> TierWait {
    Box::pin(async move {
        let tier = landed.wait_for(Option::is_some).await;
        tier.ok().and_then(|tier| tier.clone()).flatten()
    })
}

// === Shared ===

struct Shared {
    settings: TierCacheBuilder,
    shelves: Box<[Mutex<Shelf>]>,
    hasher: RandomState,
    /// Those under way now.
    lookups: AtomicUsize,
    /// Those that ever were.
    flights: AtomicU64,
    /// Whether a look-up that failed was reported.
    warned: AtomicBool,
}

impl Shared {
    fn shelf(&self, key: &Key) -> &Mutex<Shelf> {
        let count = self.shelves.len();
        let hash = self.hasher.hash_one(key).to_le_bytes();
        &self.shelves[usize::from(hash[0]) % count]
    }

    /// Returns the tier if it is known without waiting, else the shelf of the key.
    fn serve(
        self: &Arc<Self>,
        parts: &Parts,
        key: &Key,
    ) -> Result<Option<Tier>, MutexGuard<'_, Shelf>> {
        let mut shelf = self.shelf(key).lock();
        match shelf.cached(key, self.settings.clock.now()) {
            Cached::Fresh(tier) => Ok(tier),
            Cached::Stale(tier) => {
                self.look_up(shelf, parts, key);
                Ok(tier)
            }
            Cached::Missing => Err(shelf),
        }
    }

    /// Starts a lookup unless one is running. `None` when there are too many.
    fn look_up(
        self: &Arc<Self>,
        mut shelf: MutexGuard<'_, Shelf>,
        parts: &Parts,
        key: &Key,
    ) -> Option<Landed> {
        if let Some(landed) = shelf.flight(key) {
            return Some(landed);
        }
        if !self.may_take_off() {
            return None;
        }
        let (teller, landed) = watch::channel(None);
        let number = self.flights.fetch_add(1, Ordering::Relaxed);
        let flight = Flight {
            number,
            landed: landed.clone(),
        };
        shelf.take_off(*key, flight);
        drop(shelf);
        let pilot = Pilot {
            shared: Arc::clone(self),
            key: *key,
            number,
            teller,
            outcome: Err("it panicked, or there was no tokio runtime".into()),
        };
        // Not under the lock: it is somebody else's code.
        pilot.start(|shared| shared.settings.resolver.resolve(parts, key));
        Some(landed)
    }

    fn may_take_off(&self) -> bool {
        let most = self.settings.max_lookups;
        let more = |lookups| (lookups < most).then_some(lookups + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.lookups.fetch_update(set, fetch, more).is_ok()
    }

    /// Remembers what came of a look-up, and says what holds now.
    fn land(&self, key: &Key, number: u64, outcome: &Outcome) -> Option<Tier> {
        let settings = &self.settings;
        let now = settings.clock.now();
        let mut shelf = self.shelf(key).lock();
        let is_awaited = shelf.land(key, number);
        let former = shelf.entry(key);
        let (known, due) = match outcome {
            Ok(tier) => {
                let ttl = if tier.is_some() {
                    settings.ttl
                } else {
                    settings.negative_ttl
                };
                let due = now + ttl;
                let known = Known {
                    tier: tier.clone(),
                    stale_until: due + settings.stale,
                    until: due + settings.last_known.max(settings.stale),
                };
                (Some(known), due)
            }
            Err(_) => (
                former.and_then(|entry| entry.known.clone()),
                now + settings.retry,
            ),
        };
        let entry = Entry {
            known,
            due,
            is_used: false,
        };
        let tier = entry.tier(now);
        if is_awaited {
            shelf.put(*key, entry, settings.max_keys / self.shelves.len());
        }
        tier
    }

    fn note(&self, outcome: &Outcome) {
        if let Err(error) = outcome
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            log::event!(
                WARN,
                "a tier lookup failed: the last known tier or the policy's own quota applies",
                error = error,
            );
        }
    }
}

// === Pilot ===

/// Brings a look-up to its end, whatever becomes of it.
struct Pilot {
    shared: Arc<Shared>,
    key: Key,
    number: u64,
    teller: watch::Sender<Option<Option<Tier>>>,
    outcome: Outcome,
}

type Outcome = Result<Option<Tier>, Box<dyn error::Error + Send + Sync>>;

impl Pilot {
    fn start(mut self, resolve: impl FnOnce(&Shared) -> TierLookup) {
        let lookup = resolve(&self.shared);
        let flying = async move {
            let deadline = self.shared.settings.deadline;
            self.outcome = match timeout(deadline, lookup).await {
                Ok(outcome) => outcome,
                Err(late) => Err(late.into()),
            };
            drop(self);
        };
        // Without a runtime it is dropped here, which ends it too.
        spawn::on_current(flying);
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        let tier = self.shared.land(&self.key, self.number, &self.outcome);
        self.shared.lookups.fetch_sub(1, Ordering::Relaxed);
        self.shared.note(&self.outcome);
        self.teller.send_replace(Some(tier));
    }
}

const SHELVES: usize = 16;
