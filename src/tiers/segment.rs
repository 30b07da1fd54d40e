//! A part of a tier cache: known tiers and running lookups, under one lock.

use std::collections::{HashMap, VecDeque};

use tokio::sync::watch;

use crate::{clock::Timestamp, key::Key};

use super::tier::Tier;

/// Known tiers and running lookups of some keys.
#[derive(Debug, Default)]
pub(super) struct CacheSegment {
    entries: HashMap<Key, TierEntry>,
    /// The keys of the entries, each once, in the order in which they are considered for eviction.
    order: VecDeque<Key>,
    /// The lookups that are running.
    pub lookups: HashMap<Key, LookupReceiver>,
}

/// Cache entry of a key.
#[derive(Clone, Debug)]
pub(super) struct TierEntry {
    /// Result of the last lookup that succeeded, if any.
    pub known: Option<KnownTier>,
    /// Time from which the key must be looked up again.
    pub due: Timestamp,
    /// CLOCK reference bit: set on access, cleared when the hand passes.
    pub is_referenced: bool,
}

/// Result of a lookup that succeeded.
#[derive(Clone, Debug)]
pub(super) struct KnownTier {
    /// `None` if the key has no tier.
    pub tier: Option<Tier>,
    /// Until this time, requests do not wait for the next lookup.
    pub stale_until: Timestamp,
    /// Until this time, the tier applies if the next lookup fails or is late.
    pub until: Timestamp,
}

/// State of a lookup.
#[derive(Clone, Debug)]
pub(super) enum LookupState {
    /// The lookup has ended, and this tier applies now.
    Finished(Option<Tier>),
    Running,
}

/// Receives the end of a lookup.
pub(super) type LookupReceiver = watch::Receiver<LookupState>;

/// State of a key in the cache. `None` in place of a tier means that the policy's own quota applies.
pub(crate) enum Cached {
    /// The tier applies.
    Fresh(Option<Tier>),
    /// The tier applies while the key is looked up again.
    Stale(Option<Tier>),
    /// The key is not cached, or its tier is too old to be used without a lookup.
    Missing,
}

impl CacheSegment {
    /// Returns what can be used without waiting.
    pub fn cached(&mut self, key: &Key, now: Timestamp) -> Cached {
        let Some(entry) = self.entries.get_mut(key) else {
            return Cached::Missing;
        };
        entry.is_referenced = true;
        if now < entry.due {
            return Cached::Fresh(entry.tier(now));
        }
        match &entry.known {
            Some(known) if now < known.stale_until => Cached::Stale(known.tier.clone()),
            _ => Cached::Missing,
        }
    }

    /// Returns the tier that applies if the key cannot be looked up.
    pub fn last_known(&self, key: &Key, now: Timestamp) -> Option<Tier> {
        self.entries.get(key)?.tier(now)
    }

    /// Ends a lookup. Returns `false` if the key was forgotten meanwhile, so that the result may be outdated.
    pub fn finish_lookup(&mut self, key: &Key, lookup: &LookupReceiver) -> bool {
        let running = self.lookups.get(key);
        let is_current = running.is_some_and(|running| running.same_channel(lookup));
        if is_current {
            self.lookups.remove(key);
        }
        is_current
    }

    pub fn entry(&self, key: &Key) -> Option<&TierEntry> {
        self.entries.get(key)
    }

    /// Inserts or replaces the entry of a key. If there are `capacity` entries, evicts another one.
    pub fn insert(&mut self, key: Key, entry: TierEntry, capacity: usize) {
        if let Some(former) = self.entries.get_mut(&key) {
            *former = entry;
            return;
        }
        if self.entries.len() >= capacity {
            self.evict_one();
        }
        self.entries.insert(key, entry);
        self.order.push_back(key);
    }

    /// Evicts the next entry that was not used since the hand last passed it, or the 8th if the first 7 were.
    fn evict_one(&mut self) {
        for step in 1..=MAX_STEPS {
            let Some(key) = self.order.pop_front() else {
                return;
            };
            match self.entries.get_mut(&key) {
                Some(entry) if entry.is_referenced && step < MAX_STEPS => {
                    entry.is_referenced = false;
                    self.order.push_back(key);
                }
                _ => {
                    self.entries.remove(&key);
                    return;
                }
            }
        }
    }

    pub fn forget(&mut self, key: &Key) {
        self.lookups.remove(key);
        if self.entries.remove(key).is_some() {
            self.order.retain(|other| other != key);
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

impl TierEntry {
    /// Returns the tier that applies while no lookup returns a newer one.
    pub fn tier(&self, now: Timestamp) -> Option<Tier> {
        let known = self.known.as_ref()?;
        known.tier.clone().filter(|_| now < known.until)
    }
}

/// Maximum number of entries that the hand passes at once, so that no single request pays for a whole round.
const MAX_STEPS: usize = 8;
