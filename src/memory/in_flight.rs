//! Requests in flight on the keys of one shard, within the memory budget.

use crate::{
    algorithm::{Concurrency, SlotState},
    clock::Timestamp,
    ticket::Ticket,
};

use super::{
    budget::Share,
    capacity::Capacity,
    fingerprint::Fingerprint,
    tickets::{HELD, Taken, Tickets},
};

/// Slots that are taken, until their lease ends or they are released.
#[derive(Debug)]
pub(super) struct InFlight {
    tickets: Tickets,
    max_keys: usize,
    bytes: Share,
    /// When a lease ends at the soonest, or earlier: before that, nothing can be reclaimed.
    soonest: u64,
    /// How many records there may be before ended leases are looked for instead of new memory: twice as many as were left
    /// the last time, so that each look is paid for by as many charges.
    reclaim_at: usize,
}

impl InFlight {
    pub(super) fn new(capacity: &Capacity) -> Self {
        Self {
            tickets: Tickets::new(),
            max_keys: capacity.max_slots,
            bytes: Share::of(&capacity.in_flight),
            soonest: HELD,
            reclaim_at: FEW,
        }
    }

    /// Reserves memory for `charges` more charges, the last of which is on this key. Returns `false` when there is none.
    pub(super) fn reserve(
        &mut self,
        fingerprint: Fingerprint,
        charges: usize,
        now: Timestamp,
    ) -> bool {
        let has_spare = self.tickets.bytes_to_grow(charges).is_none();
        if !has_spare && self.tickets.records() >= self.reclaim_at {
            self.reclaim(now);
        }
        self.has_room(fingerprint, charges)
            || (self.reclaim(now) && self.has_room(fingerprint, charges))
    }

    /// Runs `change` on the state of a key. The slots that it charges belong to `ticket`, until their lease ends or they are
    /// released.
    ///
    /// A key without memory for a charge appears full: newcomers cannot share a state as elsewhere, because a release must
    /// find its own slots.
    pub(super) fn update<R>(
        &mut self,
        slots: &Concurrency,
        (fingerprint, ticket): (Fingerprint, Ticket),
        (now, has_room): (Timestamp, bool),
        change: impl FnOnce(&mut SlotState) -> R,
    ) -> R {
        let key = self.tickets.find(fingerprint);
        let used = match key {
            _ if !has_room => slots.limit(),
            Some(key) if self.end_leases(key, now) => self.tickets.used(key),
            _ => 0,
        };
        let mut state = slots.state(used);
        let answer = change(&mut state);
        let units = capped(state.used().saturating_sub(used));
        if units > 0 {
            let ends = (now + slots.lease()).as_micros();
            self.take(
                fingerprint,
                Taken {
                    ticket: ticket.as_u64(),
                    units,
                    ends,
                },
            );
        }
        answer
    }

    /// Ends the lease of a ticket's slots: they are taken until they are released. Those that were lost meanwhile are
    /// taken again, if there is memory, since they are in flight.
    pub(super) fn hold(&mut self, fingerprint: Fingerprint, ticket: Ticket, units: u64) {
        let key = self.tickets.find(fingerprint);
        let is_held = key.is_some_and(|key| self.tickets.hold(key, ticket.as_u64()));
        if !is_held && self.has_room(fingerprint, 1) {
            let (units, ends) = (capped(units), HELD);
            self.take(
                fingerprint,
                Taken {
                    ticket: ticket.as_u64(),
                    units,
                    ends,
                },
            );
        }
    }

    /// Releases the slots of a ticket, if it has any.
    pub(super) fn release(&mut self, fingerprint: Fingerprint, ticket: Ticket) {
        if let Some(key) = self.tickets.find(fingerprint) {
            self.tickets.release(key, ticket.as_u64());
            self.shrink();
        }
    }

    /// Frees all slots of a key.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        if let Some(key) = self.tickets.find(fingerprint) {
            self.tickets.remove(key);
            self.shrink();
        }
    }

    /// Frees all slots whose lease has ended. Returns `false` when there can be none.
    pub(super) fn reclaim(&mut self, now: Timestamp) -> bool {
        if self.soonest > now.as_micros() {
            return false;
        }
        let (mut key, mut soonest) = (0, HELD);
        while (key as usize) < self.tickets.keys() {
            // Where the key is gone, another has taken its place.
            if self.end_leases(key, now) {
                soonest = soonest.min(self.tickets.soonest(key));
                key += 1;
            }
        }
        self.soonest = soonest;
        self.reclaim_at = FEW.max(2 * self.tickets.records());
        true
    }

    /// Moves every time forwards by so many microseconds.
    pub(super) fn shift(&mut self, micros: u64) {
        self.soonest = self.soonest.saturating_add(micros);
        self.tickets.shift(micros);
    }

    pub(super) fn keys(&self) -> usize {
        self.tickets.keys()
    }

    pub(super) fn bytes(&self) -> usize {
        self.tickets.bytes()
    }

    fn take(&mut self, fingerprint: Fingerprint, taken: Taken) {
        self.soonest = self.soonest.min(taken.ends);
        self.tickets.take(fingerprint, taken);
    }

    /// Frees the slots of a key whose lease has ended. Returns `false` when the key has nothing in flight any more.
    #[inline]
    fn end_leases(&mut self, key: u32, now: Timestamp) -> bool {
        let is_there = self.tickets.end_leases(key, now.as_micros());
        self.shrink();
        is_there
    }

    /// Returns whether there is memory for so many more charges, the last of which is on this key.
    fn has_room(&mut self, fingerprint: Fingerprint, charges: usize) -> bool {
        while let Some(bytes) = self.tickets.bytes_to_grow(charges) {
            if !self.bytes.hold(bytes) {
                return false;
            }
            self.tickets.grow(charges);
            self.bytes.hold(self.tickets.bytes());
        }
        self.tickets.keys() + charges <= self.max_keys || self.tickets.find(fingerprint).is_some()
    }

    /// Returns memory to the budget that is no longer needed.
    #[inline]
    fn shrink(&mut self) {
        while self.tickets.shrink() {
            self.bytes.hold(self.tickets.bytes());
        }
    }
}

fn capped(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

const FEW: usize = 64;
