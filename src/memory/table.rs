//! A hash table from fingerprints to states: open addressing with linear probing, and a hard limit on its size.
//!
//! ```text
//! place(fingerprint)
//!   v
//! [ D | D | i | D | - | .. ]     D: a key in debt   i: an idle key, which owes nothing   -: an empty slot
//!           ^       ^
//!           |       a search stops at the first empty slot, or after 512 slots
//!           a new key takes the first idle slot on its way
//! ```
//!
//! A slot that was taken is never emptied between two rebuilds, only handed on, so no tombstones are needed. When a new
//! key finds three quarters of the slots taken, the table makes room:
//!
//! ```text
//! at most half of the limit is in debt  =>  evict idle keys: shrink into a new table, or tidy in place
//! more is in debt                       =>  grow by half, one table of the store at a time
//! largest size                          =>  fill the last quarter, then new keys overflow
//! ```
//!
//! A key in debt is never evicted.
//!
//! # Time of an operation
//!
//! A search takes 2.5 steps on average at three quarters full if the key is there, and 8.5 if not (linear probing). Making
//! room walks over all slots. Between two walks, at least an eighth as many new keys arrive as there are slots, so a walk
//! costs each of them a constant time.
//!
//! # Why does the memory cap hold while a table grows?
//!
//! Both the old table and the new one exist then, and the new one has 50 % more slots. With many shards, the largest size is such
//! that one table may grow while all others are full, and tables grow one at a time. With few shards, this would take much of the
//! memory. But then tables are small, so they are made at full size. Dropping idle keys needs no second table, because a key can
//! only move closer to its place. A log reserves its new memory before it moves.

use std::{fmt::Debug, mem, sync::Arc};

use crate::charge::Fingerprint;
use crate::{charge::MAX_CHARGES, task::Mutex};

use super::capacity::{Capacity, slots_for};

/// The state of a key in a slot.
///
/// States of variable size report their *heap entries*: those beyond the few that every state may have.
pub(super) trait TableEntry: Clone + Debug + Default + Send {
    /// Returns when the key owes nothing any more, in microseconds since the Unix epoch. It may be evicted from then on.
    fn owes_until(&self) -> u64;

    /// Moves all times forward by `micros` microseconds.
    fn shift(&mut self, micros: u64);

    /// Allocated bytes beyond the slot.
    #[inline]
    fn bytes(&self) -> usize {
        0
    }

    /// Number of heap entries that memory is allocated for.
    #[inline]
    fn heap_entries(&self) -> usize {
        0
    }

    /// Returns how many entries memory should be allocated for before the next one is added, or `None` to keep it.
    #[inline]
    fn wanted_entries(&self) -> Option<usize> {
        None
    }

    /// Moves to memory for this number of entries.
    #[inline]
    fn resize(&mut self, _entries: usize) {}

    /// Makes room for an entry without new memory. The state may owe for longer afterwards, never for shorter.
    #[inline]
    fn merge_if_full(&mut self) {}

    /// Reduces the memory to this number of heap entries. The state may owe for longer afterwards, never for shorter.
    #[inline]
    fn shrink_to(&mut self, _heap_entries: usize) {}
}

/// Fingerprints with the states of their keys.
#[derive(Debug)]
pub(super) struct Table<S> {
    slots: Box<[Slot<S>]>,
    /// Number of slots that are not empty.
    taken: usize,
    min_slots: usize,
    max_slots: usize,
    /// Held while a table grows, so that the old and the new memory of only one table coexist.
    growth: Arc<Mutex<()>>,
    /// Latest end of the debt of any evicted key, so the most that an absent key may owe.
    ///
    /// It is in the past, except for a caller whose time is older than that of the caller that evicted the key.
    evicted_until: u64,
    /// Heap entries of all states.
    heap_entries: usize,
    /// Number of new keys to reject before the next attempt to grow, which walks over all slots.
    grow_cooldown: usize,
    /// Number of entries to be requested before the next eviction for memory, which walks over all slots.
    evict_cooldown: usize,
}

#[derive(Clone, Debug, Default)]
struct Slot<S> {
    /// [`Fingerprint::EMPTY`] if the slot is empty.
    fingerprint: Fingerprint,
    state: S,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The index of the key's slot.
    Found(usize),
    /// The index of a slot that the key may take.
    Free(usize),
    /// All slots within reach hold other keys in debt.
    Full,
}

impl<S: TableEntry> Table<S> {
    /// Returns an empty table, which allocates nothing before the first key.
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            slots: Box::default(),
            taken: 0,
            min_slots: capacity.min_slots,
            max_slots: capacity.max_slots,
            growth: Arc::clone(&capacity.growth),
            evicted_until: 0,
            heap_entries: 0,
            grow_cooldown: 0,
            evict_cooldown: 0,
        }
    }

    /// Searches for a key, and for a slot that it could take.
    #[inline]
    pub fn find(&self, fingerprint: Fingerprint, now: u64) -> Place {
        let slots = self.slots.len();
        if slots == 0 {
            return Place::Full;
        }
        let mut index = fingerprint.place(slots);
        let mut free = None;
        for _ in 0..REACH.min(slots) {
            let slot = &self.slots[index];
            if slot.fingerprint == fingerprint {
                return Place::Found(index);
            }
            if slot.fingerprint == Fingerprint::EMPTY {
                return Place::Free(free.unwrap_or(index));
            }
            if free.is_none() && slot.state.owes_until() <= now {
                free = Some(index);
            }
            index += 1;
            if index == slots {
                index = 0;
            }
        }
        free.map_or(Place::Full, Place::Free)
    }

    /// Returns whether a key that has no slot may find none: the other keys of its decision could take all free slots
    /// within its reach.
    pub fn is_tight(&self, fingerprint: Fingerprint, now: u64) -> bool {
        let slots = self.slots.len();
        if slots < self.max_slots || matches!(self.find(fingerprint, now), Place::Found(_)) {
            return false;
        }
        let place = fingerprint.place(slots);
        let free = (place..place + REACH.min(slots))
            .map(|index| &self.slots[index % slots])
            .filter(|slot| slot.state.owes_until() <= now);
        free.take(MAX_CHARGES).count() < MAX_CHARGES
    }

    /// The state in a slot that [`find`](Self::find) returned.
    #[inline]
    pub fn state(&mut self, index: usize) -> &mut S {
        &mut self.slots[index].state
    }

    /// A copy of the state in a slot that [`find`](Self::find) returned.
    #[inline]
    pub fn state_in(&self, index: usize) -> S
    where
        S: Copy,
    {
        self.slots[index].state
    }

    /// Inserts a new key, and grows the table if necessary.
    ///
    /// # Errors
    ///
    /// The state, when no slot is free and the table cannot grow.
    pub fn insert(&mut self, fingerprint: Fingerprint, state: S, now: u64) -> Result<(), S> {
        loop {
            let index = match self.find(fingerprint, now) {
                Place::Found(index) => index,
                Place::Free(index) if self.is_roomy() || !self.is_empty(index) => index,
                // At the largest size the last quarter is filled too, and unsuccessful searches take longer.
                Place::Free(index) if !self.make_room(now) => index,
                Place::Full if !self.make_room(now) => return Err(state),
                Place::Full | Place::Free(_) => continue,
            };
            let former = &mut self.slots[index];
            self.taken += usize::from(former.fingerprint == Fingerprint::EMPTY);
            self.evicted_until = self.evicted_until.max(former.state.owes_until());
            let entries_before = former.state.heap_entries();
            *former = Slot { fingerprint, state };
            self.account(index, entries_before);
            return Ok(());
        }
    }

    /// Updates the heap entries after the state in a slot has changed. `before` is their number before the change.
    #[inline]
    pub fn account(&mut self, index: usize, before: usize) {
        self.heap_entries = self.heap_entries - before + self.slots[index].state.heap_entries();
    }

    /// Heap entries of all states.
    #[inline]
    pub fn heap_entries(&self) -> usize {
        self.heap_entries
    }

    /// Frees the memory of all idle keys, so that another key can have `entries` entries.
    pub fn evict_for(&mut self, entries: usize, now: u64) {
        self.evict_cooldown = self.evict_cooldown.saturating_sub(entries);
        if self.evict_cooldown > 0 {
            return;
        }
        self.evict_cooldown = self.slots.len() / 8;
        for index in 0..self.slots.len() {
            if self.slots[index].state.owes_until() <= now {
                self.evict(index);
            }
        }
    }

    /// Clears the state in a slot. The slot stays taken, so that searches for the keys behind it do not stop here.
    fn evict(&mut self, index: usize) {
        let state = mem::take(&mut self.slots[index].state);
        self.evicted_until = self.evicted_until.max(state.owes_until());
        self.heap_entries -= state.heap_entries();
    }

    /// Returns when an absent key owes nothing any more at the latest, in microseconds since the Unix epoch.
    #[inline]
    pub fn evicted_until(&self) -> u64 {
        self.evicted_until
    }

    /// Number of slots that are not empty, whether their keys are in debt or not.
    #[inline]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Allocated bytes: the slots and the heap memory of their states.
    pub fn bytes(&self) -> usize {
        let heap: usize = self.slots.iter().map(|slot| slot.state.bytes()).sum();
        size_of_val(&*self.slots) + heap
    }

    fn is_roomy(&self) -> bool {
        self.taken < full(self.slots.len())
    }

    fn is_empty(&self, index: usize) -> bool {
        self.slots[index].fingerprint == Fingerprint::EMPTY
    }

    /// Evicts idle keys, or grows. Returns `false` when neither is possible.
    fn make_room(&mut self, now: u64) -> bool {
        let slots = self.slots.len();
        if self.grow_cooldown > 0 {
            self.grow_cooldown -= 1;
            return false;
        }
        let owing = self
            .slots
            .iter()
            .filter(|slot| slot.state.owes_until() > now)
            .count();
        // Eviction must free half of the room, so that as many new keys share the cost of the next walk.
        if slots > 0 && !self.is_roomy() && owing <= full(slots) / 2 {
            let fitting = self.size_above(slots_for(4 * owing));
            if fitting > slots / 2 || !self.rebuild(fitting, now) {
                self.tidy(now);
            }
            return true;
        }
        let mut larger = slots;
        while larger < self.max_slots {
            larger = self.size_above(larger);
            if self.rebuild(larger, now) {
                return true;
            }
        }
        self.grow_cooldown = slots / 8;
        false
    }

    /// Returns the next size above `slots`. Each size is half as large again as the one before.
    ///
    /// The sizes are counted down from the largest, so that the last step is as large as the others.
    fn size_above(&self, slots: usize) -> usize {
        let mut size = self.max_slots;
        loop {
            let smaller = size - size / 3;
            if smaller <= slots || smaller < self.min_slots {
                return size;
            }
            size = smaller;
        }
    }

    /// Returns an empty slot within reach of a key that is not in the table.
    fn vacancy(&self, fingerprint: Fingerprint) -> Option<usize> {
        let slots = self.slots.len();
        let place = fingerprint.place(slots);
        (place..place + REACH.min(slots))
            .map(|index| index % slots)
            .find(|index| self.is_empty(*index))
    }

    /// Evicts idle keys in place.
    ///
    /// The walk starts at an empty slot, which no search path crosses. Each key moves to the first empty slot on its search
    /// path, which is its own former slot at the latest. If no slot is empty, a second round closes the gaps that the
    /// first one left on search paths across its start.
    fn tidy(&mut self, now: u64) {
        let slots = self.slots.len();
        let empty = (0..slots).find(|index| self.is_empty(*index));
        for index in 0..slots {
            if !self.is_empty(index) && self.slots[index].state.owes_until() <= now {
                self.evict(index);
                self.slots[index].fingerprint = Fingerprint::EMPTY;
                self.taken -= 1;
            }
        }
        let (start, rounds) = empty.map_or((0, 2), |start| (start, 1));
        for index in (start..start + rounds * slots).map(|index| index % slots) {
            if !self.is_empty(index) {
                let slot = mem::take(&mut self.slots[index]);
                let nearer = self.vacancy(slot.fingerprint);
                self.slots[nearer.unwrap_or(index)] = slot;
            }
        }
    }

    /// Moves the keys in debt to a table of this size. Returns `false`, and changes nothing, when one finds no slot there.
    fn rebuild(&mut self, slots: usize, now: u64) -> bool {
        let growth = Arc::clone(&self.growth);
        let _held = growth.lock();
        let mut table = Self {
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            taken: 0,
            min_slots: self.min_slots,
            max_slots: self.max_slots,
            growth: Arc::clone(&growth),
            evicted_until: self.evicted_until,
            heap_entries: 0,
            grow_cooldown: 0,
            evict_cooldown: 0,
        };
        for slot in &mut *self.slots {
            let owed = slot.state.owes_until();
            if owed <= now {
                table.evicted_until = table.evicted_until.max(owed);
                continue;
            }
            let Some(index) = table.vacancy(slot.fingerprint) else {
                table.return_to(self);
                return false;
            };
            table.taken += 1;
            table.slots[index].fingerprint = slot.fingerprint;
            table.slots[index].state = mem::take(&mut slot.state);
            table.account(index, 0);
        }
        *self = table;
        true
    }

    /// Moves every state back to the table that it came from.
    #[cold]
    fn return_to(self, owner: &mut Self) {
        for slot in self.slots {
            if slot.fingerprint != Fingerprint::EMPTY
                && let Place::Found(index) = owner.find(slot.fingerprint, 0)
            {
                owner.slots[index].state = slot.state;
            }
        }
    }

    /// Moves all times forward by `micros` microseconds.
    pub fn shift(&mut self, micros: u64) {
        self.evicted_until = self.evicted_until.saturating_add(micros);
        let taken = |slot: &&mut Slot<S>| slot.fingerprint != Fingerprint::EMPTY;
        for slot in self.slots.iter_mut().filter(taken) {
            slot.state.shift(micros);
        }
    }
}

/// Returns how many of `slots` may be taken: three quarters, where an unsuccessful search takes about eight steps.
const fn full(slots: usize) -> usize {
    slots / 4 * 3
}

/// Length of a search path in slots.
///
/// With `max_keys` keys a table is three quarters full, and a little more by chance. With paths of 256 slots, one of a
/// million such keys found no slot in 3 % of simulated stores; each further 64 slots made that about ten times as rare.
const REACH: usize = 512;

#[cfg(test)]
mod tests {
    use crate::{algorithm::Quota, key::Key, policy::Policy};

    use super::*;

    #[derive(Clone, Copy, Debug, Default)]
    struct InDebt;

    impl TableEntry for InDebt {
        fn owes_until(&self) -> u64 {
            u64::MAX
        }

        fn shift(&mut self, _micros: u64) {}
    }

    #[test]
    fn key_has_its_own_slot_behind_hundreds_of_neighbours() {
        let mut table = Table::<InDebt>::new(&Capacity::of(1_000, 1));
        let policy = Policy::new("policy", Quota::per_hour(10));
        let keys = (0_u64..).map(|number| Fingerprint::of(&policy, &Key::from(number)));
        let neighbours = keys.filter(|fingerprint| fingerprint.place(slots_for(1_000)) < 16);
        for fingerprint in neighbours.take(400) {
            assert!(table.insert(fingerprint, InDebt, 0).is_ok());
            assert!(matches!(table.find(fingerprint, 0), Place::Found(_)));
        }
    }
}
