//! What is in flight at the keys of one shard.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::{
    algorithm::{SlotState, Slots},
    clock::Timestamp,
};

use super::fingerprint::Fingerprint;

/// Slots by key and ticket. A key is here only as long as something of it is in flight.
#[derive(Debug)]
pub(super) struct Flights {
    keys: HashMap<Fingerprint, Flight>,
    max_keys: usize,
    /// When a lease ends at the soonest, or earlier: before that, no key is worth a look for room.
    soonest: Timestamp,
}

/// What is in flight at one key.
#[derive(Debug)]
struct Flight {
    used: u64,
    /// When a lease ends at the soonest, or earlier.
    soonest: Timestamp,
    taken: SmallVec<[Taken; 1]>,
}

/// The slots of one ticket. Nobody gives back what is another's, or twice.
#[derive(Clone, Copy, Debug)]
struct Taken {
    ticket: u64,
    units: u64,
    /// [`HELD`] once somebody holds them.
    ends: Timestamp,
}

impl Flights {
    /// Room for so many keys.
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            keys: HashMap::new(),
            max_keys,
            soonest: HELD,
        }
    }

    /// Lets `change` at the state of a key. What is charged is taken by `ticket`, until its lease ends or it is held.
    pub(super) fn update<R>(
        &mut self,
        slots: &Slots,
        (fingerprint, ticket): (Fingerprint, u64),
        now: Timestamp,
        change: impl FnOnce(&mut SlotState) -> R,
    ) -> R {
        self.end_leases(fingerprint, now);
        let used = self.keys.get(&fingerprint).map(|flight| flight.used);
        // Newcomers cannot share a state as elsewhere: nobody could tell whose slot is given back. They are turned away.
        let used = match used {
            None if !self.has_room(now) => slots.limit(),
            used => used.unwrap_or_default(),
        };
        let mut state = slots.state(used);
        let answer = change(&mut state);
        let units = state.used().saturating_sub(used);
        if units > 0 {
            let ends = now + slots.lease();
            self.take(
                fingerprint,
                Taken {
                    ticket,
                    units,
                    ends,
                },
            );
        }
        answer
    }

    /// Ends the lease of a ticket's slots: they are taken until they are given back. Those that were lost meanwhile are
    /// taken again, since they are in flight.
    pub(super) fn hold(&mut self, fingerprint: Fingerprint, ticket: u64, units: u64) {
        let ends = HELD;
        let flight = self.keys.get_mut(&fingerprint);
        match flight.and_then(|flight| flight.of(ticket)) {
            Some(taken) => taken.ends = ends,
            None => self.take(
                fingerprint,
                Taken {
                    ticket,
                    units,
                    ends,
                },
            ),
        }
    }

    /// Gives the slots of a ticket back, if it has any.
    pub(super) fn release(&mut self, fingerprint: Fingerprint, ticket: u64) {
        let Some(flight) = self.keys.get_mut(&fingerprint) else {
            return;
        };
        let place = flight.taken.iter().position(|taken| taken.ticket == ticket);
        if let Some(place) = place {
            flight.used -= flight.taken.swap_remove(place).units;
        }
        if flight.taken.is_empty() {
            self.keys.remove(&fingerprint);
        }
    }

    /// Forgets what is in flight at a key.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        self.keys.remove(&fingerprint);
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let beyond = self.keys.values().map(Flight::bytes).sum::<usize>();
        self.keys.capacity() * size_of::<(Fingerprint, Flight)>() + beyond
    }

    fn take(&mut self, fingerprint: Fingerprint, taken: Taken) {
        self.soonest = self.soonest.min(taken.ends);
        let flight = self.keys.entry(fingerprint).or_insert_with(Flight::new);
        flight.used += taken.units;
        flight.soonest = flight.soonest.min(taken.ends);
        flight.taken.push(taken);
    }

    fn end_leases(&mut self, fingerprint: Fingerprint, now: Timestamp) {
        if let Some(flight) = self.keys.get_mut(&fingerprint)
            && flight.soonest <= now
        {
            flight.end_leases(now);
            if flight.taken.is_empty() {
                self.keys.remove(&fingerprint);
            }
        }
    }

    /// Whether one more key has room. Those whose slots nobody held make some when their leases have ended.
    fn has_room(&mut self, now: Timestamp) -> bool {
        if self.keys.len() >= self.max_keys && self.soonest <= now {
            self.keys.retain(|_, flight| {
                flight.end_leases(now);
                !flight.taken.is_empty()
            });
            let soonest = self.keys.values().map(|flight| flight.soonest).min();
            self.soonest = soonest.unwrap_or(HELD);
        }
        self.keys.len() < self.max_keys
    }
}

// === Flight ===

impl Flight {
    fn new() -> Self {
        Self {
            used: 0,
            soonest: HELD,
            taken: SmallVec::new(),
        }
    }

    /// The slots of a ticket; the last that were taken are asked for most.
    fn of(&mut self, ticket: u64) -> Option<&mut Taken> {
        let mut taken = self.taken.iter_mut().rev();
        taken.find(|taken| taken.ticket == ticket)
    }

    fn end_leases(&mut self, now: Timestamp) {
        self.taken.retain(|taken| taken.ends > now);
        self.used = self.taken.iter().map(|taken| taken.units).sum();
        let soonest = self.taken.iter().map(|taken| taken.ends).min();
        self.soonest = soonest.unwrap_or(HELD);
    }

    fn bytes(&self) -> usize {
        match self.taken.spilled() {
            true => self.taken.capacity() * size_of::<Taken>(),
            false => 0,
        }
    }
}

/// When the lease of slots ends that are held: never.
const HELD: Timestamp = Timestamp::from_micros(u64::MAX);
