//! Requests in flight on the keys of one shard, within the memory budget.
//!
//! ```text
//! charge ──> slots with a lease ── hold ──> held slots ── release ──> free
//!                  |                                                   ^
//!                  +── release, or the lease ends ─────────────────────+
//! ```
//!
//! A lease protects a key against requests whose end is never reported: a charge that is not held frees its slots when the
//! lease ends. The layer holds the slots of each request that it admits, so they stay taken as long as the request runs.
//!
//! # Memory
//!
//! All shards share one budget of bytes. A shard reserves a chunk of records at a time, and returns chunks when records
//! are released. When the budget is used up, the shard first frees its own slots whose lease has ended. If that is not
//! enough, the charge is denied, and the store frees the ended leases of all shards.
//!
//! # Why do requests in flight have no table like the others?
//!
//! A bucket is one number per key. Requests in flight are a set per key, of one ticket or of ten thousand, and each must be found
//! when its request ends. A table sized for the largest set would not fit into memory. With a list per key, a release would be
//! slower the busier its key is. So each ticket is a record, found by hash, and the memory depends only on the number of requests
//! in flight. Records have no gaps, and their small chunks are freed when empty, because memory that one shard keeps is not
//! available to others.
//!
//! An overflow bucket is not possible here, because a release could not find its own slots in it. So a request is denied when
//! this memory is used up.

use crate::{
    algorithm::{Concurrency, SlotState},
    charge::Fingerprint,
    clock::Timestamp,
    decision::Ticket,
};

use super::{
    capacity::{Allotment, Capacity},
    keyed::{KeyRef, Placement},
    tickets::{HELD, Taken, Tickets},
};

/// Slots in use, each until its lease ends or it is released.
#[derive(Debug)]
pub(super) struct InFlight {
    tickets: Tickets,
    /// Number of keys that may have requests in flight in this shard.
    max_keys: usize,
    /// Reserved bytes.
    bytes: Allotment,
    /// Lower bound of the ends of all leases, in microseconds: nothing can be reclaimed before it.
    soonest: u64,
    /// Number of records from which on ended leases are reclaimed before memory is added.
    ///
    /// It is twice the number left by the last reclaim, so that as many charges share the cost of the next one.
    reclaim_at: usize,
}

impl InFlight {
    /// Returns an empty record, which allocates nothing before the first charge.
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            tickets: Tickets::new(),
            max_keys: capacity.max_slots,
            bytes: capacity.in_flight.allotment(),
            soonest: HELD,
            reclaim_at: MIN_RECLAIM,
        }
    }

    /// Reserves memory for `charges` more charges, the last of which is on this key. Returns `false` if there is none.
    ///
    /// Ended leases are reclaimed first, if there are enough records to make that worthwhile.
    pub fn reserve(&mut self, fingerprint: Fingerprint, charges: usize, now: Timestamp) -> bool {
        let has_spare = self.tickets.bytes_to_grow(charges).is_none();
        if !has_spare && self.tickets.records() >= self.reclaim_at {
            self.reclaim(now);
        }
        self.has_room(fingerprint, charges)
            || (self.reclaim(now) && self.has_room(fingerprint, charges))
    }

    /// Runs `change` on the state of a key. `change` returns a result, and whether it modified the state.
    ///
    /// The slots that it charges belong to the key's ticket until their lease ends or they are released. A key without
    /// memory for a charge appears full: it cannot share a state with other keys, because a release must find its own slots.
    pub fn update<R>(
        &mut self,
        counter: &Concurrency,
        key: &KeyRef,
        now: Timestamp,
        change: impl FnOnce(&mut SlotState) -> (R, bool),
    ) -> (R, Placement) {
        let has_memory = !key.may_add || self.reserve(key.fingerprint, 1, now);
        let record = self.tickets.find(key.fingerprint);
        let used = match record {
            _ if !has_memory => counter.limit(),
            Some(record) if self.end_leases(record, now) => self.tickets.used(record),
            _ => 0,
        };
        let mut state = counter.state(used);
        let (result, _) = change(&mut state);
        let units = capped(state.used().saturating_sub(used));
        if units > 0 {
            let ends = (now + counter.lease()).as_micros();
            self.take(key.fingerprint, key.ticket(), units, ends);
        }
        let placement = if has_memory {
            Placement::Own
        } else {
            Placement::NoMemory
        };
        (result, placement)
    }

    /// Returns `false`: no key shares its slots with others.
    pub fn may_overflow(&self, _key: &KeyRef, _now: Timestamp) -> bool {
        false
    }

    /// Returns `false`, as [`may_overflow`](Self::may_overflow).
    pub fn is_shared(&self, _key: &KeyRef, _now: Timestamp) -> bool {
        false
    }

    /// Replaces the lease of a ticket's slots: they stay taken until they are released.
    ///
    /// If their lease has ended meanwhile, they are taken again, provided there is memory, because the request is in flight.
    pub fn hold(&mut self, fingerprint: Fingerprint, ticket: Ticket, units: u64) {
        let record = self.tickets.find(fingerprint);
        let is_held = record.is_some_and(|record| self.tickets.hold(record, ticket.as_u64()));
        if !is_held && self.has_room(fingerprint, 1) {
            self.take(fingerprint, ticket, capped(units), HELD);
        }
    }

    /// Releases the slots of a ticket, if it has any.
    pub fn release(&mut self, fingerprint: Fingerprint, ticket: Ticket) {
        if let Some(record) = self.tickets.find(fingerprint) {
            self.tickets.release(record, ticket.as_u64());
            self.shrink();
        }
    }

    /// Releases all slots of a key.
    pub fn reset(&mut self, fingerprint: Fingerprint) {
        if let Some(record) = self.tickets.find(fingerprint) {
            self.tickets.remove(record);
            self.shrink();
        }
    }

    /// Releases all slots whose lease has ended. Returns `false` if there can be none.
    pub fn reclaim(&mut self, now: Timestamp) -> bool {
        if self.soonest > now.as_micros() {
            return false;
        }
        let (mut record, mut soonest) = (0, HELD);
        while (record as usize) < self.tickets.keys() {
            // When a record is removed, another one takes its index.
            if self.end_leases(record, now) {
                soonest = soonest.min(self.tickets.soonest(record));
                record += 1;
            }
        }
        self.soonest = soonest;
        self.reclaim_at = MIN_RECLAIM.max(2 * self.tickets.records());
        true
    }

    /// Moves all times forward by `micros` microseconds.
    pub fn shift(&mut self, micros: u64) {
        self.soonest = self.soonest.saturating_add(micros);
        self.tickets.shift(micros);
    }

    /// Number of keys with requests in flight.
    pub fn keys(&self) -> usize {
        self.tickets.keys()
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.tickets.bytes()
    }

    /// Takes slots for a ticket, until `ends`. There must be memory.
    fn take(&mut self, fingerprint: Fingerprint, ticket: Ticket, units: u32, ends: u64) {
        self.soonest = self.soonest.min(ends);
        let ticket = ticket.as_u64();
        let taken = Taken {
            ticket,
            units,
            ends,
        };
        self.tickets.take(fingerprint, taken);
    }

    /// Releases the slots of a key whose lease has ended. Returns `false` if the key has nothing in flight any more.
    #[inline]
    fn end_leases(&mut self, record: u32, now: Timestamp) -> bool {
        let has_slots = self.tickets.end_leases(record, now.as_micros());
        self.shrink();
        has_slots
    }

    /// Returns whether there is memory for `charges` more charges, the last of which is on this key.
    fn has_room(&mut self, fingerprint: Fingerprint, charges: usize) -> bool {
        while let Some(bytes) = self.tickets.bytes_to_grow(charges) {
            if !self.bytes.reserve(bytes) {
                return false;
            }
            self.tickets.grow(charges);
            self.bytes.reserve(self.tickets.bytes());
        }
        self.tickets.keys() + charges <= self.max_keys || self.tickets.find(fingerprint).is_some()
    }

    /// Returns unneeded memory to the budget.
    #[inline]
    fn shrink(&mut self) {
        while self.tickets.shrink() {
            self.bytes.reserve(self.tickets.bytes());
        }
    }
}

/// Returns units as a record stores them. No limit exceeds 100,000, so none is cut off.
fn capped(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Number of records below which reclaiming does not pay.
const MIN_RECLAIM: usize = 64;
