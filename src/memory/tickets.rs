//! A record for every ticket in flight on the keys of one shard.
//!
//! A key with one ticket is one record. A key with several tickets has a list of them:
//!
//! ```text
//! keys:   { key, used 2, ticket 71 }       { key, used 7, first 4 }
//! slots:                                     4: { units 3, next 9 } <=> 9: { units 4, next - }
//! ```
//!
//! Both kinds are found by hash, so the time to take and release slots does not depend on the number of tickets.
//!
//! A second ticket turns the first one into a list of two, and the list stays a list until the key has no ticket left:
//!
//! ```text
//! take 71 (2 units)     { used 2, ticket 71 }
//! take 72 (3 units)     { used 5, first -> 72 <=> 71 }
//! release 71            { used 3, first -> 72 }
//! release 72            no record
//! ```
//!
//! Records are packed and have no padding: 40 bytes for a key and 32 for a ticket in a list, links included, and about 4
//! bytes for the head of its hash chain.

use super::slab::{NONE, Record, Slab};
use crate::charge::Fingerprint;

/// The slots of every ticket, by key and ticket. A key has a record only while it has slots in use.
#[derive(Debug)]
pub(super) struct Tickets {
    keys: Slab<KeyRecord>,
    slots: Slab<SlotsRecord>,
}

/// Slots that a ticket takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// The ticket as a number.
    pub ticket: u64,
    /// Number of slots.
    pub units: u32,
    /// End of the lease, in microseconds since the Unix epoch; [`HELD`] once the slots are held.
    pub ends: u64,
}

/// A key with slots in use.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
struct KeyRecord {
    /// Identifies the key under its policy.
    fingerprint: Fingerprint,
    /// Units in use.
    used: u32,
    /// Lower bound of the ends of the key's leases, exact for a single ticket; [`HELD`] if no lease ends.
    soonest: u64,
    /// The ticket of a key without a list.
    ticket: u64,
    /// Index of the first record in the list of slots; [`NONE`] if the key has only one ticket.
    first: u32,
}

/// The slots of one of several tickets of a key.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
struct SlotsRecord {
    /// Hash of key and ticket; see [`id`].
    id: u64,
    /// End of the lease, as in [`Taken`].
    ends: u64,
    /// Number of slots.
    units: u32,
    /// Index of the next record in the list, or [`NONE`].
    next: u32,
    /// Index of the previous record in the list. The first record has the index of its key, marked by [`OF_KEY`].
    previous: u32,
}

impl Record for KeyRecord {
    #[inline]
    fn hash(&self) -> u64 {
        let fingerprint = self.fingerprint;
        fingerprint.low()
    }
}

impl Record for SlotsRecord {
    #[inline]
    fn hash(&self) -> u64 {
        self.id
    }
}

impl KeyRecord {
    /// Returns whether the ticket is the key's only one.
    fn is_only(&self, ticket: u64) -> bool {
        self.first == NONE && self.ticket == ticket
    }
}

impl Tickets {
    /// Returns a store without tickets, which allocates nothing.
    pub fn new() -> Self {
        Self {
            keys: Slab::new(),
            slots: Slab::new(),
        }
    }

    /// Returns the index of a key's record.
    #[inline]
    pub fn find(&self, fingerprint: Fingerprint) -> Option<u32> {
        let matches = |record: &KeyRecord| record.fingerprint == fingerprint;
        self.keys.find(fingerprint.low(), matches)
    }

    /// Units of a key that are in use.
    #[inline]
    pub fn used(&self, key: u32) -> u64 {
        u64::from(self.keys.get(key).used)
    }

    /// Lower bound of the ends of a key's leases.
    #[inline]
    pub fn soonest(&self, key: u32) -> u64 {
        self.keys.get(key).soonest
    }

    /// Adds a ticket to a key that may have none yet. There must be memory for it.
    pub fn take(&mut self, fingerprint: Fingerprint, taken: Taken) {
        let Some(key) = self.find(fingerprint) else {
            self.keys.insert(KeyRecord {
                fingerprint,
                used: taken.units,
                soonest: taken.ends,
                ticket: taken.ticket,
                first: NONE,
            });
            return;
        };
        let only = self.keys.get(key);
        if only.first == NONE {
            let only = Taken {
                ticket: only.ticket,
                units: only.used,
                ends: only.soonest,
            };
            self.list(key, only);
        }
        self.list(key, taken);
        let mut record = self.keys.get(key);
        record.used = record.used.saturating_add(taken.units);
        record.soonest = record.soonest.min(taken.ends);
        self.keys.set(key, record);
    }

    /// Removes the lease of a ticket, so that its slots stay taken. Returns `false` if the key has no such ticket.
    ///
    /// The lower bound of a list's leases stays as it is: at its end, one search through the list corrects it.
    pub fn hold(&mut self, key: u32, ticket: u64) -> bool {
        let mut record = self.keys.get(key);
        if record.is_only(ticket) {
            record.soonest = HELD;
            self.keys.set(key, record);
            return true;
        }
        let Some(index) = self.find_slots(record.fingerprint, ticket) else {
            return false;
        };
        let mut slots = self.slots.get(index);
        slots.ends = HELD;
        self.slots.set(index, slots);
        true
    }

    /// Removes a ticket from a key, if the key has it.
    pub fn release(&mut self, key: u32, ticket: u64) {
        let record = self.keys.get(key);
        if record.is_only(ticket) {
            self.remove_key(key);
        } else if let Some(index) = self.find_slots(record.fingerprint, ticket) {
            self.remove_slots(key, index);
            if self.keys.get(key).first == NONE {
                self.remove_key(key);
            }
        }
    }

    /// Removes all tickets of a key.
    pub fn remove(&mut self, key: u32) {
        while self.keys.get(key).first != NONE {
            self.remove_slots(key, self.keys.get(key).first);
        }
        self.remove_key(key);
    }

    /// Removes the tickets of a key whose lease has ended.
    ///
    /// Returns `false` if no ticket is left. In that case the key's record is removed, and the last record may take its
    /// index.
    #[inline]
    pub fn end_leases(&mut self, key: u32, now: u64) -> bool {
        self.soonest(key) > now || self.end_some_leases(key, now)
    }

    /// As [`end_leases`](Self::end_leases), for a key of which at least one lease may have ended.
    fn end_some_leases(&mut self, key: u32, now: u64) -> bool {
        let (mut index, mut soonest) = (self.keys.get(key).first, HELD);
        while index != NONE {
            let slots = self.slots.get(index);
            if slots.ends > now {
                soonest = soonest.min(slots.ends);
                index = slots.next;
                continue;
            }
            let moved = self.remove_slots(key, index);
            // The next record may have moved to the index of the removed one.
            if moved != Some(slots.next) {
                index = slots.next;
            }
        }
        let mut record = self.keys.get(key);
        record.soonest = soonest;
        self.keys.set(key, record);
        if record.first == NONE {
            self.remove_key(key);
        }
        record.first != NONE
    }

    /// Moves all times forward by `micros` microseconds.
    pub fn shift(&mut self, micros: u64) {
        for key in (0..).take(self.keys.len()) {
            let mut record = self.keys.get(key);
            record.soonest = record.soonest.saturating_add(micros);
            self.keys.set(key, record);
        }
        for index in (0..).take(self.slots.len()) {
            let mut slots = self.slots.get(index);
            slots.ends = slots.ends.saturating_add(micros);
            self.slots.set(index, slots);
        }
    }

    // === Memory ===

    /// Number of keys, whose indices are below it.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Number of records, of keys and of tickets in lists.
    pub fn records(&self) -> usize {
        self.keys.len() + self.slots.len()
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.slots.bytes()
    }

    /// Returns the peak number of bytes while memory is added for `tickets` tickets, or `None` if there is enough.
    #[inline]
    pub fn bytes_to_grow(&self, tickets: usize) -> Option<usize> {
        if self.keys.spare() < tickets {
            Some(self.keys.bytes_to_grow() + self.slots.bytes())
        } else if self.slots.spare() < 2 * tickets {
            Some(self.keys.bytes() + self.slots.bytes_to_grow())
        } else {
            None
        }
    }

    /// Adds one chunk of memory for `tickets` tickets. The first ticket of a key takes one record, the second takes two.
    pub fn grow(&mut self, tickets: usize) {
        if self.keys.spare() < tickets {
            self.keys.grow();
        } else {
            self.slots.grow();
        }
    }

    /// Frees one unneeded chunk of memory. Returns whether there was one.
    #[inline]
    pub fn shrink(&mut self) -> bool {
        self.keys.shrink() || self.slots.shrink()
    }

    // === Links ===

    /// Returns the index of a ticket's record in the list of its key.
    fn find_slots(&self, fingerprint: Fingerprint, ticket: u64) -> Option<u32> {
        let id = id(fingerprint, ticket);
        self.slots.find(id, |slots| slots.id == id)
    }

    /// Adds a ticket at the head of a key's list.
    fn list(&mut self, key: u32, taken: Taken) {
        let mut record = self.keys.get(key);
        let index = self.slots.insert(SlotsRecord {
            id: id(record.fingerprint, taken.ticket),
            ends: taken.ends,
            units: taken.units,
            next: record.first,
            previous: OF_KEY | key,
        });
        self.link_back(record.first, index);
        record.first = index;
        self.keys.set(key, record);
    }

    /// Removes a ticket from a key's list. Returns the former index of the record that was moved to its index, if any.
    fn remove_slots(&mut self, key: u32, index: u32) -> Option<u32> {
        let removed = self.slots.get(index);
        self.link(removed.previous, removed.next);
        self.link_back(removed.next, removed.previous);
        let mut record = self.keys.get(key);
        record.used = record.used.saturating_sub(removed.units);
        self.keys.set(key, record);
        let former = self.slots.remove(index)?;
        let moved = self.slots.get(index);
        self.link(moved.previous, index);
        self.link_back(moved.next, index);
        Some(former)
    }

    /// Removes a key without a list.
    fn remove_key(&mut self, key: u32) {
        if self.keys.remove(key).is_some() {
            self.link_back(self.keys.get(key).first, OF_KEY | key);
        }
    }

    /// Sets the next record of a record, or the first record of a key.
    fn link(&mut self, previous: u32, next: u32) {
        if previous & OF_KEY == 0 {
            let mut slots = self.slots.get(previous);
            slots.next = next;
            self.slots.set(previous, slots);
        } else {
            let key = previous & !OF_KEY;
            let mut record = self.keys.get(key);
            record.first = next;
            self.keys.set(key, record);
        }
    }

    /// Sets the previous record of the record at `index`, unless `index` is [`NONE`].
    fn link_back(&mut self, index: u32, previous: u32) {
        if index != NONE {
            let mut slots = self.slots.get(index);
            slots.previous = previous;
            self.slots.set(index, slots);
        }
    }
}

/// Combines a key and a ticket into the hash of their record. Clients do not know the fingerprint, so they cannot aim at one.
fn id(fingerprint: Fingerprint, ticket: u64) -> u64 {
    fingerprint.low() ^ ticket
}

/// End of the lease of held slots: never.
pub(super) const HELD: u64 = u64::MAX;
/// Marks an index as that of a key.
const OF_KEY: u32 = 1 << 31;
