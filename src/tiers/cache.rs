//! A cache of tiers that are looked up.
//!
//! # Why a custom cache for tiers?
//!
//! `moka` and `quick_cache` expire entries, evict entries, and load each key once at a time. Neither keeps an expired entry for
//! the case that the next lookup fails. Both tie a load to the requests that wait for it: it ends when they give up after 100 ms,
//! so a database that takes 200 ms would never fill the cache. Here a lookup is a separate task, and its result serves later
//! requests. The rest is a map, a queue and a lock per segment, 120 lines on the standard library.
//!
//! # Why is a stale tier served?
//!
//! A tier changes once in months and is looked up once a minute. If requests waited for that lookup, the database would delay one
//! request per key and minute, and every request while it is slow. So the cached tier is used while one lookup runs. But an
//! account that was suspended while nobody used it must not come back under its old tier: from a minute after the time to live,
//! requests wait for the lookup. A failed lookup brings no newer result, so the last known tier holds for an hour.

use std::{
    error, fmt,
    future::Future,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::timeout};

use crate::{
    clock::{Clock, Timestamp},
    diagnosis::log,
    key::Key,
    request::RequestHead,
    task::{Mutex, spawn},
    telemetry::TierMetrics,
};

use super::{
    resolver::{TierLookup, TierResolver},
    segment::{CacheSegment, Cached, KnownTier, LookupReceiver, LookupState, TierEntry},
    tier::Tier,
};

/// Caches the results of a [`TierResolver`], so that a request waits for a lookup only if no recent result is known.
///
/// Clones share the cache. However many requests need a key's tier, only one lookup of the key runs at a time, and all that
/// cannot use a cached tier wait for it. A lookup runs in its own task on the Tokio runtime of the request that starts it. So it
/// ends and is cached even if that request is gone or has stopped waiting.
///
/// # How old a tier may be
///
/// ```text
/// looked up        ttl: 60 s            + serve_stale: 60 s             + serve_last_known: 1 h
///     |------------------|---------------------|--------------------------------|
///       used               used, while one       requests wait for the lookup;    the policy's own
///                          lookup runs           used if it fails or is late      quota applies
/// ```
///
/// Both spans begin when the time to live is over. So a key that is in use waits only for its first lookup, and a change
/// takes effect with the second request after the time to live; a key that comes back later than
/// [`serve_stale`](super::TierCacheBuilder::serve_stale) waits for the new tier. While lookups succeed, no request uses a tier older
/// than both together: two minutes by default. [`forget`](Self::forget) makes a change take effect at once.
///
/// # When a lookup fails or is late
///
/// The last known tier applies, for [an hour](super::TierCacheBuilder::serve_last_known) beyond its time to live; without one, the
/// policy's own quota applies. A failed lookup is retried after [a second](super::TierCacheBuilder::retry_failed_after) at the earliest.
/// The first failure is logged.
///
/// # Bounds
///
/// The builder limits the number of cached [keys](super::TierCacheBuilder::max_keys), the number of concurrent
/// [lookups](super::TierCacheBuilder::max_lookups), and the [time](super::TierCacheBuilder::deadline) of each lookup.
#[derive(Clone)]
pub struct TierCache {
    shared: Arc<SharedTiers>,
}

impl TierCache {
    /// Removes a key's tier from the cache, since it has changed. The next request looks it up.
    pub fn forget(&self, key: &Key) {
        self.shared.segment(key).lock().forget(key);
    }

    /// Removes all tiers from the cache.
    pub fn clear(&self) {
        let segments = self.shared.segments.iter();
        segments.for_each(|segment| segment.lock().clear());
    }

    /// Returns the number of cached keys.
    #[must_use]
    pub fn len(&self) -> usize {
        let segments = self.shared.segments.iter();
        segments.map(|segment| segment.lock().len()).sum()
    }

    /// Returns whether no key is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn new(settings: Settings) -> Self {
        // In several segments, one may be full and evict while others have room. That matters only for a small cache.
        let segments = if settings.max_keys < 64 * SEGMENTS {
            1
        } else {
            SEGMENTS
        };
        let shared = SharedTiers {
            segments: (0..segments).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            running_lookups: AtomicUsize::new(0),
            has_warned: AtomicBool::new(false),
            metrics: TierMetrics::default(),
            settings,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns what can be used without waiting. Looks a stale tier up again in the background.
    pub(crate) fn cached(&self, head: &RequestHead<'_>, key: &Key) -> Cached {
        let mut segment = self.shared.segment(key).lock();
        let cached = segment.cached(key, self.shared.settings.clock.now());
        if let Cached::Stale(_) = cached {
            self.shared.look_up(segment, head, key);
        } else {
            drop(segment);
        }
        match cached {
            Cached::Fresh(_) => self.shared.metrics.hit(),
            Cached::Stale(_) => self.shared.metrics.stale_hit(),
            // Counted by `resolve`, which follows.
            Cached::Missing => {}
        }
        cached
    }

    /// Returns the tier if it can be used without waiting, otherwise the future of a lookup.
    pub(crate) fn resolve(&self, head: &RequestHead<'_>, key: &Key) -> TierResolution {
        let mut segment = self.shared.segment(key).lock();
        match segment.cached(key, self.shared.settings.clock.now()) {
            Cached::Fresh(tier) => {
                // Recorders are foreign code, so they are not called under the lock.
                drop(segment);
                self.shared.metrics.hit();
                TierResolution::Known(tier)
            }
            Cached::Stale(tier) => {
                self.shared.look_up(segment, head, key);
                self.shared.metrics.stale_hit();
                TierResolution::Known(tier)
            }
            Cached::Missing => {
                let lookup = self.shared.look_up(segment, head, key);
                self.shared.metrics.missed();
                match lookup {
                    Some(lookup) => TierResolution::Pending(finished(lookup)),
                    None => TierResolution::Known(self.last_known(key)),
                }
            }
        }
    }

    /// Returns the tier that applies if the lookup fails or is late.
    pub(crate) fn last_known(&self, key: &Key) -> Option<Tier> {
        let now = self.shared.settings.clock.now();
        self.shared.segment(key).lock().last_known(key, now)
    }
}

impl fmt::Debug for TierCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierCache")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

/// A tier, known or to be awaited. `None` in place of a tier means that the policy's own quota applies.
pub(crate) enum TierResolution {
    Known(Option<Tier>),
    Pending(TierFuture),
}

/// Waits for a lookup and returns the tier that applies then.
pub(crate) type TierFuture = Pin<Box<dyn Future<Output = Option<Tier>> + Send>>;

fn finished(mut lookup: LookupReceiver) -> TierFuture {
    Box::pin(async move {
        let is_finished = |state: &LookupState| matches!(state, LookupState::Finished(_));
        match lookup.wait_for(is_finished).await.as_deref() {
            Ok(LookupState::Finished(tier)) => tier.clone(),
            Ok(LookupState::Running) | Err(_) => None,
        }
    })
}

// === Settings ===

/// Settings of a cache. The methods of [`TierCacheBuilder`](super::TierCacheBuilder) describe each.
pub(super) struct Settings {
    pub resolver: Box<dyn TierResolver>,
    pub max_keys: usize,
    pub max_lookups: usize,
    pub ttl: Duration,
    pub negative_ttl: Duration,
    pub retry_failed_after: Duration,
    pub serve_stale: Duration,
    pub serve_last_known: Duration,
    pub deadline: Duration,
    pub clock: Clock,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("max_keys", &self.max_keys)
            .field("max_lookups", &self.max_lookups)
            .field("ttl", &self.ttl)
            .field("negative_ttl", &self.negative_ttl)
            .field("retry_failed_after", &self.retry_failed_after)
            .field("serve_stale", &self.serve_stale)
            .field("serve_last_known", &self.serve_last_known)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

// === SharedTiers ===

/// The state that all clones of a cache share.
struct SharedTiers {
    settings: Settings,
    segments: Box<[Mutex<CacheSegment>]>,
    /// Chooses the segment of a key.
    hasher: RandomState,
    running_lookups: AtomicUsize,
    /// Whether a failed lookup was logged: only the first one is.
    has_warned: AtomicBool,
    metrics: TierMetrics,
}

impl SharedTiers {
    fn segment(&self, key: &Key) -> &Mutex<CacheSegment> {
        let count = self.segments.len();
        let hash = self.hasher.hash_one(key).to_le_bytes();
        &self.segments[usize::from(hash[0]) % count]
    }

    /// Starts a lookup, or joins the one that is running. Returns `None` if too many are running.
    fn look_up(
        self: &Arc<Self>,
        mut segment: MutexGuard<'_, CacheSegment>,
        head: &RequestHead<'_>,
        key: &Key,
    ) -> Option<LookupReceiver> {
        if let Some(running) = segment.lookups.get(key) {
            return Some(running.clone());
        }
        if !self.reserve_lookup() {
            return None;
        }
        let (sender, receiver) = watch::channel(LookupState::Running);
        segment.lookups.insert(*key, receiver.clone());
        // The resolver is foreign code, so it is not called under the lock.
        drop(segment);
        let task = LookupTask {
            shared: Arc::clone(self),
            key: *key,
            sender,
            result: Err("the lookup panicked, or there is no tokio runtime".into()),
        };
        task.start(|shared| shared.settings.resolver.resolve(head, key));
        Some(receiver)
    }

    /// Counts a lookup as running. Returns `false` if too many are.
    fn reserve_lookup(&self) -> bool {
        let max = self.settings.max_lookups;
        let more = |lookups| (lookups < max).then_some(lookups + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.running_lookups.fetch_update(set, fetch, more).is_ok()
    }

    /// Caches the result of a lookup. Returns the tier that applies now.
    fn finish(&self, key: &Key, lookup: &LookupReceiver, result: &LookupResult) -> Option<Tier> {
        let settings = &self.settings;
        let now = settings.clock.now();
        let mut segment = self.segment(key).lock();
        let is_current = segment.finish_lookup(key, lookup);
        let entry = match result {
            Ok(tier) => settings.found(tier, now),
            Err(_) => {
                let former = segment.entry(key);
                TierEntry {
                    known: former.and_then(|entry| entry.known.clone()),
                    due: now + settings.retry_failed_after,
                    is_referenced: false,
                }
            }
        };
        let tier = entry.tier(now);
        if is_current {
            segment.insert(*key, entry, settings.max_keys / self.segments.len());
        }
        tier
    }

    fn note_failure(&self, result: &LookupResult) {
        let Err(error) = result else { return };
        self.metrics.failed();
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            log::event!(
                WARN,
                "a tier lookup failed: the last known tier or the policy's own quota applies",
                error = error,
            );
        }
    }
}

impl Settings {
    /// Returns the entry of a lookup that succeeded now.
    fn found(&self, tier: &Option<Tier>, now: Timestamp) -> TierEntry {
        let ttl = if tier.is_some() {
            self.ttl
        } else {
            self.negative_ttl
        };
        let due = now + ttl;
        let known = KnownTier {
            tier: tier.clone(),
            stale_until: due + self.serve_stale,
            until: due + self.serve_last_known.max(self.serve_stale),
        };
        TierEntry {
            known: Some(known),
            due,
            is_referenced: false,
        }
    }
}

// === LookupTask ===

/// A running lookup. Dropping it, after it has ended or at any earlier time, caches the result and wakes those who wait.
struct LookupTask {
    shared: Arc<SharedTiers>,
    key: Key,
    sender: watch::Sender<LookupState>,
    /// An error until the resolver returns.
    result: LookupResult,
}

type LookupResult = Result<Option<Tier>, Box<dyn error::Error + Send + Sync>>;

impl LookupTask {
    /// Calls the resolver, and awaits its answer in a task.
    fn start(mut self, resolve: impl FnOnce(&SharedTiers) -> TierLookup) {
        let lookup = resolve(&self.shared);
        let running = async move {
            let deadline = self.shared.settings.deadline;
            self.result = match timeout(deadline, lookup).await {
                Ok(result) => result,
                Err(elapsed) => Err(elapsed.into()),
            };
            drop(self);
        };
        // Without a runtime, this drops the task, which ends the lookup too.
        spawn::on_current(running);
    }
}

impl Drop for LookupTask {
    fn drop(&mut self) {
        let lookup = self.sender.subscribe();
        let tier = self.shared.finish(&self.key, &lookup, &self.result);
        self.shared.running_lookups.fetch_sub(1, Ordering::Relaxed);
        self.shared.note_failure(&self.result);
        self.sender.send_replace(LookupState::Finished(tier));
    }
}

const SEGMENTS: usize = 16;
