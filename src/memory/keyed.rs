//! The states of one shard's keys under one algorithm.
//!
//! ```text
//! key has a slot  ──────────────────────────────────────────────>  its state changes in place
//! key has none    ── starts empty, or with the overflow's debt ──> changed?  gets a slot
//!                                                                            no slot free: the policy's overflow state
//! ```
//!
//! # Example of an overflow
//!
//! A policy admits 10 a minute, and all slots near the place of the new keys A and B hold keys in debt:
//!
//! ```text
//! A takes 4     no slot             overflow of the policy: 4 used
//! B takes 5     no slot             overflow: 9 used, so A and B have 1 left together
//! another key is back at full quota, and its slot is free
//! B takes 1     gets that slot      B: 10 used, since the overflow may hold B's charges; overflow: still 9 used
//! A takes 1     no slot             overflow: 10 used
//! ```
//!
//! So a key can be counted too strictly while the table is full, but never admitted more often than its limit allows.
//!
//! # Heap entries
//!
//! A log grows with its requests. Before an entry is added to a full log, [`KeyedStates`] reserves memory for a larger one
//! from the budget that all shards share. Without it, idle keys of the shard are evicted; if that is not enough, the log
//! merges its entries in pairs and becomes stricter.

use std::mem;

use crate::{
    algorithm::{
        BucketState, Counting, FixedWindow, LogState, RefundToken, Refunded, SlidingLog,
        SlidingState, SlidingWindow, TokenBucket, WindowState,
    },
    charge::{Charge, Fingerprint},
    clock::Timestamp,
    decision::Ticket,
    policy::Policy,
};

use super::{
    capacity::{Allotment, Capacity},
    table::{Place, Table, TableEntry},
};

/// A table of states, and one overflow state per policy for keys that got no slot.
#[derive(Debug)]
pub(super) struct KeyedStates<S> {
    /// The states of keys that have a slot.
    table: Table<S>,
    /// The states of keys that have none.
    overflow: Overflow<S>,
    /// Whether a key ever got no slot.
    has_overflowed: bool,
    /// Heap entries of all states here.
    entries: Allotment,
}

/// A key under a policy, as a shard looks it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRef {
    /// Identifies the key under its policy, in every table.
    pub fingerprint: Fingerprint,
    /// Identifies the policy's overflow state.
    policy: u64,
    /// Ticket of the slots that the charge takes.
    ticket: Option<Ticket>,
    /// Whether the update may add something to the state.
    pub may_add: bool,
}

impl KeyRef {
    /// Returns the key of a charge, hashed under its policy.
    // Always inlined: with several callers the compiler would not, and a result returned through memory costs a decision 4 %.
    #[inline(always)]
    pub fn of(charge: &Charge<'_>) -> Self {
        let fingerprint = Fingerprint::of(charge.policy(), charge.key());
        Self {
            ticket: charge.ticket(),
            ..Self::new(fingerprint, charge.policy(), charge.units())
        }
    }

    /// Returns the key with this fingerprint under a policy that has no tickets.
    #[inline]
    pub fn new(fingerprint: Fingerprint, policy: &Policy, units: u64) -> Self {
        Self {
            fingerprint,
            policy: policy.name_hash().low,
            ticket: None,
            may_add: units > 0,
        }
    }

    /// Returns the same key for an update that may add something to the state, or may not.
    pub fn adding(self, may_add: bool) -> Self {
        Self { may_add, ..self }
    }

    /// Returns the ticket of a charge that takes slots.
    ///
    /// # Panics
    ///
    /// Panics if the policy does not limit concurrency.
    pub fn ticket(&self) -> Ticket {
        self.ticket
            .expect("a charge under a concurrency policy has a ticket")
    }
}

/// Where an update was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Nowhere: there was no memory for another request in flight.
    NoMemory,
    /// In the overflow state of the policy.
    Overflow,
    /// In the key's own slot, or nowhere because the update changed nothing.
    Own,
}

impl<S: TableEntry> KeyedStates<S> {
    /// Returns an empty table, which allocates nothing before the first key.
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            table: Table::new(capacity),
            overflow: Overflow::default(),
            has_overflowed: false,
            entries: capacity.log_entries.allotment(),
        }
    }

    /// Runs `change` on the state of a key. `change` returns a result, and whether it modified the state.
    ///
    /// A key with a slot is found by one search, and its state changes in place. A key without one gets a slot only if
    /// `change` modified the state, so that peeks and denied requests take no memory.
    #[inline]
    pub fn update<C, R>(
        &mut self,
        counter: &C,
        key: &KeyRef,
        now: Timestamp,
        change: impl FnOnce(&mut S) -> (R, bool),
    ) -> (R, Placement)
    where
        C: Counting<State = S>,
    {
        let Place::Found(index) = self.table.find(key.fingerprint, now.as_micros()) else {
            return self.update_newcomer(counter, key, now.as_micros(), change);
        };
        if key.may_add && self.table.state(index).wanted_entries().is_some() {
            self.resize(counter, index, now);
        }
        let state = self.table.state(index);
        let entries_before = state.heap_entries();
        let (result, _) = change(state);
        if state.heap_entries() != entries_before {
            self.account(index, entries_before);
        }
        (result, Placement::Own)
    }

    /// As [`update`](Self::update), for a key without a slot. Not inlined, so that the usual path stays small.
    #[inline(never)]
    fn update_newcomer<C, R>(
        &mut self,
        counter: &C,
        key: &KeyRef,
        now: u64,
        change: impl FnOnce(&mut S) -> (R, bool),
    ) -> (R, Placement)
    where
        C: Counting<State = S>,
    {
        let (mut state, is_shared) = self.newcomer(counter, key, now);
        let (result, is_changed) = change(&mut state);
        if is_changed {
            match self.insert(key.fingerprint, state, now) {
                Ok(()) => return (result, Placement::Own),
                Err(rejected) => state = rejected,
            }
            self.has_overflowed = true;
        }
        // A shared state is stored even if nothing was taken, because it may have been converted to a new limit.
        if is_changed || is_shared {
            self.overflow.set(key.policy, state, now);
        }
        let placement = if is_changed {
            Placement::Overflow
        } else {
            Placement::Own
        };
        (result, placement)
    }

    /// Returns the largest debt that a key without a slot may have, and whether it is the policy's overflow state.
    ///
    /// The key may have been counted there, or may have been evicted by a thread whose time is ahead of `now`.
    #[inline]
    fn newcomer<C>(&self, counter: &C, key: &KeyRef, now: u64) -> (S, bool)
    where
        C: Counting<State = S>,
    {
        let shared = if self.has_overflowed {
            self.overflow.get(key.policy)
        } else {
            None
        };
        let evicted_until = self.table.evicted_until();
        if evicted_until > now {
            // The shared state may owe less than the evicted one, although for longer.
            let until = evicted_until.max(shared.map_or(0, S::owes_until));
            return (counter.exhausted(Timestamp::from_micros(until)), false);
        }
        (shared.cloned().unwrap_or_default(), shared.is_some())
    }

    /// Inserts a state, with memory for its entries. Returns the state when no slot is free.
    fn insert(&mut self, fingerprint: Fingerprint, mut state: S, now: u64) -> Result<(), S> {
        let entries = self.table.heap_entries() + state.heap_entries();
        if !self.entries.reserve(entries) {
            state.shrink_to(0);
        }
        let inserted = self.table.insert(fingerprint, state, now);
        let is_reserved = self.entries.reserve(self.table.heap_entries());
        debug_assert!(is_reserved, "memory is reserved before it is taken");
        inserted
    }

    /// Runs `change` on the state of a key that has a slot. Overflow states are left alone: they mix several keys.
    pub fn amend(&mut self, fingerprint: Fingerprint, now: Timestamp, change: impl FnOnce(&mut S)) {
        if let Place::Found(index) = self.table.find(fingerprint, now.as_micros()) {
            change(self.table.state(index));
        }
    }

    /// Refunds units of a window's charge. The state alone shows how much of the charge is outstanding.
    pub fn refund<C: Counting<State = S>>(
        &mut self,
        counter: &C,
        fingerprint: Fingerprint,
        (mark, units): (RefundToken, u64),
        now: Timestamp,
    ) {
        self.amend(fingerprint, now, |state| {
            counter.refund(state, &mut Refunded::default(), now, mark, units);
        });
    }

    /// Returns the index of a key's slot.
    #[inline]
    pub fn slot(&self, fingerprint: Fingerprint) -> Option<usize> {
        match self.table.find(fingerprint, 0) {
            Place::Found(index) => Some(index),
            Place::Free(_) | Place::Full => None,
        }
    }

    /// A copy of the state in a slot.
    #[inline]
    pub fn state_in(&self, slot: usize) -> S
    where
        S: Copy,
    {
        self.table.state_in(slot)
    }

    /// The state in a slot that [`slot`](Self::slot) returned, while the shard is locked or the slot is lent.
    pub fn state(&mut self, slot: usize) -> &mut S {
        self.table.state(slot)
    }

    /// Returns whether a key may end in the overflow state, if other keys of the same decision get their slots first.
    pub fn may_overflow(&self, key: &KeyRef, now: Timestamp) -> bool {
        self.table.is_tight(key.fingerprint, now.as_micros())
    }

    /// Returns whether a key without a slot is decided by what other keys owe.
    pub fn is_shared(&self, key: &KeyRef, now: Timestamp) -> bool {
        let now = now.as_micros();
        let owes = |shared: &S| shared.owes_until() > now;
        !matches!(self.table.find(key.fingerprint, now), Place::Found(_))
            && (self.table.evicted_until() > now || self.overflow.get(key.policy).is_some_and(owes))
    }

    /// Clears the state of a key that has a slot. Overflow states are left alone: they mix several keys.
    pub fn reset(&mut self, fingerprint: Fingerprint) {
        if let Place::Found(index) = self.table.find(fingerprint, 0) {
            let entries_before = mem::take(self.table.state(index)).heap_entries();
            self.account(index, entries_before);
        }
    }

    /// Moves all times forward by `micros` microseconds.
    pub fn shift(&mut self, micros: u64) {
        self.table.shift(micros);
        self.overflow.shift(micros);
    }

    /// Number of keys that have a slot, whether they are in debt or not.
    pub fn keys(&self) -> usize {
        self.table.taken()
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.overflow.bytes()
    }

    /// Moves a state to as much memory as it wants. Without that memory, the entries of a full state are merged in pairs.
    #[cold]
    fn resize<C>(&mut self, counter: &C, index: usize, now: Timestamp)
    where
        C: Counting<State = S>,
    {
        let state = self.table.state(index);
        let entries_before = state.heap_entries();
        counter.drop_expired(state, now);
        self.account(index, entries_before);
        let Some(wanted) = self.table.state(index).wanted_entries() else {
            return;
        };
        // The old memory coexists with the new one until the state has moved.
        let peak = |table: &Table<S>| table.heap_entries() + wanted;
        if !self.entries.reserve(peak(&self.table)) {
            self.table.evict_for(wanted, now.as_micros());
            if !self.entries.reserve(peak(&self.table)) {
                self.table.state(index).merge_if_full();
                self.entries.reserve(self.table.heap_entries());
                return;
            }
        }
        let state = self.table.state(index);
        let entries_before = state.heap_entries();
        state.resize(wanted);
        self.account(index, entries_before);
    }

    /// Updates the reserved memory after the state in a slot has changed.
    fn account(&mut self, index: usize, entries_before: usize) {
        self.table.account(index, entries_before);
        self.entries.reserve(self.table.heap_entries());
    }
}

// === Overflow ===

/// The states that keys share while all slots hold keys in debt, one per policy.
///
/// There are as many as policies, whose names come from the configuration and not from clients.
#[derive(Debug)]
struct Overflow<S> {
    states: Vec<OverflowState<S>>,
}

/// The state that the keys of one policy share.
#[derive(Debug)]
struct OverflowState<S> {
    /// Identifies the policy, as [`KeyRef`] does.
    policy: u64,
    state: S,
}

impl<S: TableEntry> Overflow<S> {
    /// Returns the state of a policy, or `None` if none of its keys has overflowed.
    fn get(&self, policy: u64) -> Option<&S> {
        let mut states = self.states.iter();
        Some(&states.find(|shared| shared.policy == policy)?.state)
    }

    /// Stores the state of a policy. A new one replaces a state that owes nothing, if there is one.
    fn set(&mut self, policy: u64, mut state: S, now: u64) {
        state.shrink_to(OVERFLOW_ENTRIES);
        let is_own = |shared: &OverflowState<S>| shared.policy == policy;
        let is_idle = |shared: &OverflowState<S>| shared.state.owes_until() <= now;
        let index = self
            .states
            .iter()
            .position(is_own)
            .or_else(|| self.states.iter().position(is_idle));
        let shared = OverflowState { policy, state };
        match index {
            Some(index) => self.states[index] = shared,
            None => self.states.push(shared),
        }
    }

    /// Moves all times forward by `micros` microseconds.
    fn shift(&mut self, micros: u64) {
        for shared in &mut self.states {
            shared.state.shift(micros);
        }
    }

    /// Allocated bytes.
    fn bytes(&self) -> usize {
        let heap: usize = self.states.iter().map(|shared| shared.state.bytes()).sum();
        self.states.capacity() * size_of::<OverflowState<S>>() + heap
    }
}

impl<S> Default for Overflow<S> {
    fn default() -> Self {
        Self { states: Vec::new() }
    }
}

/// Heap entries of an overflow log: with the few that every log may have, they take a kilobyte.
const OVERFLOW_ENTRIES: usize = 60;

// === The states as table entries ===

impl TableEntry for BucketState {
    #[inline]
    fn owes_until(&self) -> u64 {
        TokenBucket::owes_until(self)
    }

    fn shift(&mut self, micros: u64) {
        self.shift(micros);
    }
}

impl TableEntry for WindowState {
    #[inline]
    fn owes_until(&self) -> u64 {
        FixedWindow::owes_until(self)
    }

    fn shift(&mut self, micros: u64) {
        self.shift(micros);
    }
}

impl TableEntry for SlidingState {
    #[inline]
    fn owes_until(&self) -> u64 {
        SlidingWindow::owes_until(self)
    }

    fn shift(&mut self, micros: u64) {
        self.shift(micros);
    }
}

impl TableEntry for LogState {
    #[inline]
    fn owes_until(&self) -> u64 {
        SlidingLog::owes_until(self)
    }

    fn shift(&mut self, micros: u64) {
        self.shift(micros);
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }

    #[inline]
    fn heap_entries(&self) -> usize {
        self.extra_capacity()
    }

    #[inline]
    fn wanted_entries(&self) -> Option<usize> {
        self.target_capacity()
    }

    fn resize(&mut self, entries: usize) {
        self.resize(entries);
    }

    fn merge_if_full(&mut self) {
        self.merge_if_full();
    }

    fn shrink_to(&mut self, heap_entries: usize) {
        self.shrink_to(heap_entries);
    }
}
