//! One shard's keys: open addressing with linear probing, bounded, never forgetting a debt.
//!
//! A table grows into a new one, and is tidied in place:
//!
//! ```text
//! taken >= 3/4, most keys owe nothing   =>  tidy: idle keys are dropped, the others move towards their place
//! taken >= 3/4, most keys owe           =>  grow by half, one table of the store at a time
//! largest size                          =>  the last quarter is used up, then newcomers overflow
//! ```

use std::{fmt::Debug, mem, sync::Arc};

use crate::sync::Mutex;

use super::{
    capacity::{Capacity, slots_for},
    fingerprint::Fingerprint,
};

/// What a table remembers of a key.
pub(super) trait Held: Clone + Debug + Default + Send {
    /// From when on it is as good as forgotten, in microseconds.
    fn owes_until(&self) -> u64;

    /// Moves every time in it forwards by this number of microseconds.
    fn shift(&mut self, micros: u64);

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

    /// Entries that it should have memory for before the next one is added, if not as many as now.
    #[inline]
    fn wanted(&self) -> Option<usize> {
        None
    }

    /// Moves to memory for this number of entries.
    #[inline]
    fn resize(&mut self, _entries: usize) {}

    /// Makes room for an entry without new memory, when there is none. It may owe for longer then, never for shorter.
    #[inline]
    fn halve(&mut self) {}

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
    min_slots: usize,
    max_slots: usize,
    /// Locked while a table grows, so that the old and the new memory of only one are there at a time.
    growth: Arc<Mutex<()>>,
    /// Until when any key that was dropped owed: what a key that is not here may owe at most. It lies in the past,
    /// except for a caller whose time is older than the one that dropped the key.
    forgotten: u64,
    /// What all states have [`more`](Held::more) of.
    more: usize,
    /// How many more newcomers are to be turned away before the walk over all slots is worth it again.
    patience: usize,
    /// How many more entries are to be wanted before the walk that takes memory from states that owe nothing.
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
    /// An empty table, without memory until the first key comes.
    pub(super) fn new(capacity: &Capacity) -> Self {
        Self {
            slots: Box::default(),
            taken: 0,
            min_slots: capacity.min_slots,
            max_slots: capacity.max_slots,
            growth: Arc::clone(&capacity.growth),
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

    /// Gives a newcomer a slot, growing when there is need and leave.
    ///
    /// # Errors
    ///
    /// The state, when no slot can be had.
    pub(super) fn insert(
        &mut self,
        fingerprint: Fingerprint,
        state: S,
        now: u64,
    ) -> Result<usize, S> {
        loop {
            let index = match self.find(fingerprint, now) {
                Place::Found(index) => index,
                Place::Free(index) if self.is_roomy() || !self.is_empty(index) => index,
                // At the largest size the last quarter is used up too, and misses walk further.
                Place::Free(index) if !self.make_room(now) => index,
                Place::Crowded if !self.make_room(now) => return Err(state),
                Place::Crowded | Place::Free(_) => continue,
            };
            let former = &mut self.slots[index];
            self.taken += usize::from(former.fingerprint == Fingerprint::EMPTY);
            self.forgotten = self.forgotten.max(former.state.owes_until());
            let had = former.state.more();
            *former = Slot { fingerprint, state };
            self.weigh(index, had);
            return Ok(index);
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

    /// Drops the states of all keys that owe nothing, to make room for this number of entries of another key.
    pub(super) fn drop_idle(&mut self, now: u64, entries: usize) {
        self.thrift = self.thrift.saturating_sub(entries);
        if self.thrift > 0 {
            return;
        }
        self.thrift = self.slots.len() / 8;
        for index in 0..self.slots.len() {
            if self.slots[index].state.owes_until() <= now {
                self.drop_state(index);
            }
        }
    }

    /// Forgets what the key in a slot owes. The slot stays taken, so that the keys behind it are still found.
    fn drop_state(&mut self, index: usize) {
        let state = mem::take(&mut self.slots[index].state);
        self.forgotten = self.forgotten.max(state.owes_until());
        self.more -= state.more();
    }

    /// What a key that is not here may owe at most.
    #[inline]
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Concurrency taken, by keys in debt or not.
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
        self.patience = slots / 8;
        false
    }

    /// The next larger size: each is half as large again as the one before.
    ///
    /// Counted down from the largest, so that the last step is no smaller than the others.
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

    /// An empty slot for a key that is known not to be here.
    fn vacancy(&self, fingerprint: Fingerprint) -> Option<usize> {
        let slots = self.slots.len();
        let place = fingerprint.place(slots);
        (place..place + REACH.min(slots))
            .map(|index| index % slots)
            .find(|index| self.is_empty(*index))
    }

    /// Drops the keys that owe nothing, in place.
    ///
    /// From an empty slot on, which no key's way from its place leads across, each key moves to the first empty slot from
    /// its place: at the latest to where it was, since that was just emptied. Where no slot is empty, the second round
    /// closes the gaps that the first one left on ways across its start.
    fn tidy(&mut self, now: u64) {
        let slots = self.slots.len();
        let empty = (0..slots).find(|index| self.is_empty(*index));
        for index in 0..slots {
            if !self.is_empty(index) && self.slots[index].state.owes_until() <= now {
                self.drop_state(index);
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

    /// Moves the keys in debt to a table of this size. `false`, and nothing changes, when one finds no place there.
    fn rebuild(&mut self, slots: usize, now: u64) -> bool {
        let growth = Arc::clone(&self.growth);
        let _one_at_a_time = growth.lock();
        let mut table = Self {
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            taken: 0,
            min_slots: self.min_slots,
            max_slots: self.max_slots,
            growth: Arc::clone(&growth),
            forgotten: self.forgotten,
            more: 0,
            patience: 0,
            thrift: 0,
        };
        for slot in &mut *self.slots {
            let owed = slot.state.owes_until();
            if owed <= now {
                table.forgotten = table.forgotten.max(owed);
                continue;
            }
            let Some(index) = table.vacancy(slot.fingerprint) else {
                table.hand_back(self);
                return false;
            };
            table.taken += 1;
            table.slots[index].fingerprint = slot.fingerprint;
            table.slots[index].state = mem::take(&mut slot.state);
            table.weigh(index, 0);
        }
        *self = table;
        true
    }

    /// Puts every state back to where it was taken from.
    #[cold]
    fn hand_back(self, owner: &mut Self) {
        for slot in self.slots {
            if slot.fingerprint != Fingerprint::EMPTY
                && let Place::Found(index) = owner.find(slot.fingerprint, 0)
            {
                owner.slots[index].state = slot.state;
            }
        }
    }

    /// Moves every time forwards by so many microseconds.
    pub(super) fn shift(&mut self, micros: u64) {
        self.forgotten = self.forgotten.saturating_add(micros);
        let taken = |slot: &&mut Slot<S>| slot.fingerprint != Fingerprint::EMPTY;
        for slot in self.slots.iter_mut().filter(taken) {
            slot.state.shift(micros);
        }
    }
}

/// Slots that may be taken out of `slots`: three quarters, where a miss costs about eight steps.
const fn full(slots: usize) -> usize {
    slots / 4 * 3
}

/// How many slots a key may be away from its place.
const REACH: usize = 256;
/// The most charges that are decided together.
const TOGETHER: usize = 16;
