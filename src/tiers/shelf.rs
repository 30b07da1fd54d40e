//! What a cache of tiers remembers, and which keys are being looked up.

use std::collections::{HashMap, VecDeque};

use tokio::sync::watch;

use crate::{clock::Timestamp, key::Key, tier::Tier};

/// A part of a cache, under one lock.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    entries: HashMap<Key, Entry>,
    /// The keys of the entries, each once, in the order in which they are looked at for room.
    order: VecDeque<Key>,
    flights: HashMap<Key, Flight>,
}

/// What is known of a key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The last answer, if there was one.
    pub(super) known: Option<Known>,
    /// When it is to be looked up again.
    pub(super) due: Timestamp,
    /// Whether it was asked for since it was last looked at for room.
    pub(super) is_used: bool,
}

/// The last answer about a key.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) tier: Option<Tier>,
    /// Until when it is served while the key is looked up again.
    pub(super) stale_until: Timestamp,
    /// Until when it holds if no lookup brings a newer one.
    pub(super) until: Timestamp,
}

/// A key that is being looked up.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) landed: Landed,
}

/// Tells what came of a look-up.
pub(super) type Landed = watch::Receiver<Option<Option<Tier>>>;

/// Cached answer for a key.
pub(super) enum Cached {
    /// It holds.
    Fresh(Option<Tier>),
    /// It holds while the key is looked up again.
    Stale(Option<Tier>),
    /// There is nothing, or it is too old to be served while a newer one can be had.
    Missing,
}

impl Shelf {
    /// Returns the key's tier, if it can be served without waiting.
    pub(super) fn cached(&mut self, key: &Key, now: Timestamp) -> Cached {
        let Some(entry) = self.entries.get_mut(key) else {
            return Cached::Missing;
        };
        entry.is_used = true;
        if now < entry.due {
            return Cached::Fresh(entry.tier(now));
        }
        match &entry.known {
            Some(known) if now < known.stale_until => Cached::Stale(known.tier.clone()),
            _ => Cached::Missing,
        }
    }

    /// What holds when the key cannot be looked up.
    pub(super) fn last_known(&self, key: &Key, now: Timestamp) -> Option<Tier> {
        self.entries.get(key)?.tier(now)
    }

    pub(super) fn flight(&self, key: &Key) -> Option<Landed> {
        Some(self.flights.get(key)?.landed.clone())
    }

    pub(super) fn take_off(&mut self, key: Key, flight: Flight) {
        self.flights.insert(key, flight);
    }

    /// Ends a flight. Not so one whose key was forgotten meanwhile: what it brings is from before that.
    pub(super) fn land(&mut self, key: &Key, number: u64) -> bool {
        let is_awaited = self
            .flights
            .get(key)
            .is_some_and(|flight| flight.number == number);
        if is_awaited {
            self.flights.remove(key);
        }
        is_awaited
    }

    pub(super) fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Remembers a key, in place of another one when there are `most`.
    pub(super) fn put(&mut self, key: Key, entry: Entry, most: usize) {
        if let Some(former) = self.entries.get_mut(&key) {
            *former = entry;
            return;
        }
        if self.entries.len() >= most {
            self.make_room();
        }
        self.entries.insert(key, entry);
        self.order.push_back(key);
    }

    /// Forgets the first key that nobody asked for since it was last looked at, among the first few.
    fn make_room(&mut self) {
        for look in 1..=LOOKS {
            let Some(key) = self.order.pop_front() else {
                return;
            };
            match self.entries.get_mut(&key) {
                Some(entry) if entry.is_used && look < LOOKS => {
                    entry.is_used = false;
                    self.order.push_back(key);
                }
                _ => {
                    self.entries.remove(&key);
                    return;
                }
            }
        }
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.flights.remove(key);
        if self.entries.remove(key).is_some() {
            self.order.retain(|other| other != key);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Entry {
    /// Returns the tier that holds while no lookup returns a newer one.
    pub(super) fn tier(&self, now: Timestamp) -> Option<Tier> {
        let known = self.known.as_ref()?;
        known.tier.clone().filter(|_| now < known.until)
    }
}

/// How many keys are looked at for room at once, so that no request pays for a whole round.
const LOOKS: usize = 8;
