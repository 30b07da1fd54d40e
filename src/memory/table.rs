//! One shard's keys: open addressing with linear probing, bounded, never forgetting a debt.

use std::{fmt::Debug, mem};

use super::fingerprint::Fingerprint;

/// What a table remembers of a key.
pub(super) trait Held: Clone + Debug + Default + Send {
    /// From when on it is as good as forgotten, in microseconds.
    fn owes_until(&self) -> u64;

    /// Bytes that it takes beyond its slot.
    #[inline]
    fn bytes(&self) -> usize {
        0
    }

    /// Entries that it has memory for, beyond those that every state may have.
    #[inline]
    fn more(&self) -> usize {
        0
    }

    /// Gets by with memory for so many entries more. It may owe for longer then, never for shorter.
    #[inline]
    fn make_do(&mut self, _more: usize) {}
}

/// Fingerprints and what their keys owe.
///
/// A slot once taken is never emptied, only handed on when its key owes nothing any more, so a probe may stop at the
/// first empty slot and no tombstones are needed.
#[derive(Debug)]
pub(super) struct Table<S> {
    slots: Box<[Slot<S>]>,
    taken: usize,
    max_slots: usize,
    /// Until when any key that was dropped owed: what a key that is not here may owe at most. It lies in the past,
    /// except for a caller whose time is older than the one that dropped the key.
    forgotten: u64,
    /// What all states have [`more`](Held::more) of.
    more: usize,
    /// How many more newcomers are to be turned away before the walk over all slots is worth it again.
    patience: usize,
    /// The same for the walk that takes memory from states that owe nothing.
    thrift: usize,
}

#[derive(Clone, Debug, Default)]
struct Slot<S> {
    fingerprint: Fingerprint,
    state: S,
}

/// Where a key is, or could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// No slot within reach holds the key or may be handed on.
    Crowded,
    /// The key's slot.
    Found(usize),
    /// A slot that the key may take.
    Free(usize),
}

impl<S: Held> Table<S> {
    /// An empty table that will grow to `max_slots` at most.
    pub(super) fn new(max_slots: usize) -> Self {
        Self {
            slots: Box::default(),
            taken: 0,
            max_slots,
            forgotten: 0,
            more: 0,
            patience: 0,
            thrift: 0,
        }
    }

    /// Looks a key up.
    #[inline]
    pub(super) fn find(&self, fingerprint: Fingerprint, now: u64) -> Place {
        let slots = self.slots.len();
        if slots == 0 {
            return Place::Crowded;
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
        free.map_or(Place::Crowded, Place::Free)
    }

    /// Whether a key has no slot and those within its reach could all be taken by others of the same decision.
    pub(super) fn is_tight(&self, fingerprint: Fingerprint, now: u64) -> bool {
        let slots = self.slots.len();
        if slots < self.max_slots || matches!(self.find(fingerprint, now), Place::Found(_)) {
            return false;
        }
        let place = fingerprint.place(slots);
        let free = (place..place + REACH.min(slots))
            .map(|index| &self.slots[index % slots])
            .filter(|slot| slot.state.owes_until() <= now);
        free.take(TOGETHER).count() < TOGETHER
    }

    /// What is in a slot that [`find`](Self::find) found.
    #[inline]
    pub(super) fn state(&mut self, index: usize) -> &mut S {
        &mut self.slots[index].state
    }

    /// Gives a newcomer a slot, growing when there is need and leave. `None` when none can be had.
    pub(super) fn insert(
        &mut self,
        fingerprint: Fingerprint,
        state: &S,
        now: u64,
    ) -> Option<usize> {
        loop {
            let index = match self.find(fingerprint, now) {
                Place::Found(index) => index,
                Place::Free(index) if self.is_roomy() || !self.is_empty(index) => index,
                // At the largest size the last quarter is used up too, and misses walk further.
                Place::Free(index) if !self.make_room(now) => index,
                Place::Crowded if !self.make_room(now) => return None,
                Place::Crowded | Place::Free(_) => continue,
            };
            let former = &mut self.slots[index];
            self.taken += usize::from(former.fingerprint == Fingerprint::EMPTY);
            self.forgotten = self.forgotten.max(former.state.owes_until());
            let had = former.state.more();
            *former = Slot {
                fingerprint,
                state: state.clone(),
            };
            self.weigh(index, had);
            return Some(index);
        }
    }

    /// Notes that the state in a slot had so much more than every state may have, and has changed.
    #[inline]
    pub(super) fn weigh(&mut self, index: usize, had: usize) {
        self.more = self.more - had + self.slots[index].state.more();
    }

    /// What all states have beyond what every state may have.
    #[inline]
    pub(super) fn more(&self) -> usize {
        self.more
    }

    /// Takes so much of that from a state.
    pub(super) fn lessen(&mut self, index: usize, by: usize) {
        let state = &mut self.slots[index].state;
        let had = state.more();
        state.make_do(had.saturating_sub(by));
        self.weigh(index, had);
    }

    /// Takes it from all that owe nothing.
    pub(super) fn lessen_idle(&mut self, now: u64) {
        if self.thrift > 0 {
            self.thrift -= 1;
            return;
        }
        self.thrift = self.slots.len() / 8;
        for index in 0..self.slots.len() {
            if self.slots[index].state.owes_until() <= now {
                self.lessen(index, usize::MAX);
            }
        }
    }

    /// What a key that is not here may owe at most.
    #[inline]
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Slots taken, by keys in debt or not.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Bytes that the slots take, and what is beyond them.
    pub(super) fn bytes(&self) -> usize {
        let beyond: usize = self.slots.iter().map(|slot| slot.state.bytes()).sum();
        size_of_val(&*self.slots) + beyond
    }

    fn is_roomy(&self) -> bool {
        self.taken < full(self.slots.len())
    }

    fn is_empty(&self, index: usize) -> bool {
        self.slots[index].fingerprint == Fingerprint::EMPTY
    }

    /// Drops the keys that owe nothing, or grows. `false` when neither helps.
    fn make_room(&mut self, now: u64) -> bool {
        let slots = self.slots.len();
        if self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        let owing = self
            .slots
            .iter()
            .filter(|slot| slot.state.owes_until() > now)
            .count();
        // Dropping pays when it frees half the room, so that as many newcomers share the cost of the next walk.
        if slots > 0 && !self.is_roomy() && owing <= full(slots) / 2 && self.rebuild(slots, now) {
            return true;
        }
        let mut larger = slots;
        while larger < self.max_slots {
            larger = (larger + larger / 2).max(SMALLEST).min(self.max_slots);
            if self.rebuild(larger, now) {
                return true;
            }
        }
        self.patience = slots / 8;
        false
    }

    /// An empty slot for a key that is known not to be here.
    fn vacancy(&self, fingerprint: Fingerprint) -> Option<usize> {
        let slots = self.slots.len();
        let place = fingerprint.place(slots);
        (place..place + REACH.min(slots))
            .map(|index| index % slots)
            .find(|index| self.is_empty(*index))
    }

    /// Moves the keys in debt to a table of this size, unless one of them finds no place there.
    fn rebuild(&mut self, slots: usize, now: u64) -> bool {
        let mut table = Self {
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            taken: 0,
            max_slots: self.max_slots,
            forgotten: self.forgotten,
            more: 0,
            patience: 0,
            thrift: 0,
        };
        let mut moves = Vec::with_capacity(self.taken);
        for (from, slot) in self.slots.iter().enumerate() {
            if slot.state.owes_until() <= now {
                table.forgotten = table.forgotten.max(slot.state.owes_until());
                continue;
            }
            let Some(to) = table.vacancy(slot.fingerprint) else {
                return false;
            };
            table.slots[to].fingerprint = slot.fingerprint;
            table.taken += 1;
            moves.push((from, to));
        }
        // Only now is it sure that the old table is given up.
        for (from, to) in moves {
            table.slots[to].state = mem::take(&mut self.slots[from].state);
            table.weigh(to, 0);
        }
        *self = table;
        true
    }
}

/// Slots that may be taken out of `slots`: three quarters, where a miss costs about eight steps.
const fn full(slots: usize) -> usize {
    slots / 4 * 3
}

/// Slots that hold `keys` keys at three quarters.
pub(super) const fn slots_for(keys: usize) -> usize {
    keys.div_ceil(3).saturating_mul(4)
}

/// How many slots a key may be away from its place.
const REACH: usize = 96;
const SMALLEST: usize = 16;
/// The most charges that are decided together.
const TOGETHER: usize = 16;
