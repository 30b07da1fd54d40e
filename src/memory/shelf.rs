//! The keys of one shard that are counted in one way.

use std::mem;

use crate::{algorithm::Counting, clock::Timestamp, ticket::Ticket};

use super::{
    budget::Share,
    capacity::Capacity,
    fingerprint::Fingerprint,
    pools::Pools,
    table::{Held, Place, Table},
};

/// A table, and the states that newcomers share when it is full.
#[derive(Debug)]
pub(super) struct Shelf<S> {
    table: Table<S>,
    /// What the keys that got no slot owe, by policy.
    pools: Pools<S>,
    /// Whether a key ever got no slot.
    is_crowded: bool,
    /// Entries that the states have beyond those that every state may have.
    entries: Share,
}

/// What is asked for: a key under a policy, and a number for the policy alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<P> {
    pub(super) fingerprint: Fingerprint,
    /// Of the slots that it takes.
    pub(super) ticket: Option<Ticket>,
    /// Hashed only when keys of the policy share a state.
    pub(super) policy: P,
    /// Whether the update may add something to the state.
    pub(super) adds: bool,
}

impl<P> Asked<P> {
    /// Returns the ticket of a charge that takes slots.
    pub(super) fn slots(&self) -> Ticket {
        self.ticket
            .expect("a charge under a concurrency policy has a ticket")
    }
}

/// Where an update went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// In the state that newcomers of the policy share.
    Pooled,
    /// In a slot of the key's own, or nowhere since nothing had to be kept.
    ToldApart,
    /// Nowhere, since there was no memory for another request in flight.
    TurnedAway,
}

impl<S: Held> Shelf<S> {
    pub(super) fn new(capacity: &Capacity) -> Self {
        Self {
            table: Table::new(capacity),
            pools: Pools::default(),
            is_crowded: false,
            entries: Share::of(&capacity.log_entries),
        }
    }

    /// Lets `change` at the state of a key; it answers, and says whether it changed anything.
    #[inline]
    pub(super) fn update<C, P, R>(
        &mut self,
        counter: &C,
        asked: &Asked<P>,
        now: Timestamp,
        change: impl FnOnce(&mut S) -> (R, bool),
    ) -> (R, Kept)
    where
        C: Counting<State = S>,
        P: Fn() -> u64,
    {
        let micros = now.as_micros();
        if let Place::Found(index) = self.table.find(asked.fingerprint, micros) {
            if asked.adds && self.table.state(index).wanted().is_some() {
                self.resize(counter, index, now);
            }
            let state = self.table.state(index);
            let had = state.more();
            let (answer, _) = change(state);
            if state.more() != had {
                self.table.weigh(index, had);
                self.entries.hold(self.table.more());
            }
            return (answer, Kept::ToldApart);
        }
        self.update_newcomer(counter, asked, micros, change)
    }

    /// As [`update`](Self::update), for a key that has no slot. Apart, so that the usual way stays small.
    #[inline(never)]
    fn update_newcomer<C, P, R>(
        &mut self,
        counter: &C,
        asked: &Asked<P>,
        micros: u64,
        change: impl FnOnce(&mut S) -> (R, bool),
    ) -> (R, Kept)
    where
        C: Counting<State = S>,
        P: Fn() -> u64,
    {
        let (mut state, is_shared) = self.newcomer(counter, asked, micros);
        let (answer, changed) = change(&mut state);
        if changed {
            match self.insert(asked.fingerprint, state, micros) {
                Ok(()) => return (answer, Kept::ToldApart),
                Err(shared) => state = shared,
            }
            self.is_crowded = true;
        }
        // Stored though nothing was taken: the quota may have changed, and what is shared with it.
        if changed || is_shared {
            self.pools.set((asked.policy)(), state, micros);
        }
        let kept = if changed {
            Kept::Pooled
        } else {
            Kept::ToldApart
        };
        (answer, kept)
    }

    /// Gives a newcomer a slot, with memory for its entries.
    fn insert(&mut self, fingerprint: Fingerprint, mut state: S, now: u64) -> Result<(), S> {
        if !self.entries.hold(self.table.more() + state.more()) {
            state.make_do(0);
        }
        let inserted = self.table.insert(fingerprint, state, now);
        let is_held = self.entries.hold(self.table.more());
        debug_assert!(is_held, "memory is asked for before it is taken");
        inserted.map(drop)
    }

    /// Lets `change` at the state of a key that has a slot. What newcomers share is left alone: nobody knows whose it is.
    pub(super) fn amend(
        &mut self,
        fingerprint: Fingerprint,
        now: Timestamp,
        change: impl FnOnce(&mut S),
    ) {
        if let Place::Found(index) = self.table.find(fingerprint, now.as_micros()) {
            change(self.table.state(index));
        }
    }

    /// Whether a key has no slot and may be counted in a shared state, when others of the same decision get theirs first.
    pub(super) fn may_be_pooled<P>(&self, asked: &Asked<P>, now: Timestamp) -> bool {
        self.table.is_tight(asked.fingerprint, now.as_micros())
    }

    /// Forgets what a key owes. What was counted in a shared state stays: nobody knows whose it is.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        if let Place::Found(index) = self.table.find(fingerprint, 0) {
            let had = mem::take(self.table.state(index)).more();
            self.table.weigh(index, had);
            self.entries.hold(self.table.more());
        }
    }

    /// Moves every time forwards by so many microseconds.
    pub(super) fn shift(&mut self, micros: u64) {
        self.table.shift(micros);
        self.pools.shift(micros);
    }

    pub(super) fn keys(&self) -> usize {
        self.table.taken()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.pools.bytes()
    }

    /// Moves a state to as much memory as it wants. When that cannot be had, a state that is full gets by with half.
    #[cold]
    fn resize<C>(&mut self, counter: &C, index: usize, now: Timestamp)
    where
        C: Counting<State = S>,
    {
        let state = self.table.state(index);
        let had = state.more();
        counter.drop_expired(state, now);
        self.table.weigh(index, had);
        let Some(entries) = self.table.state(index).wanted() else {
            return;
        };
        // Until it has moved, its old memory is there too.
        if !self.entries.hold(self.table.more() + entries) {
            self.table.drop_idle(now.as_micros(), entries);
            if !self.entries.hold(self.table.more() + entries) {
                self.table.state(index).halve();
                self.entries.hold(self.table.more());
                return;
            }
        }
        let state = self.table.state(index);
        let had = state.more();
        state.resize(entries);
        self.table.weigh(index, had);
        self.entries.hold(self.table.more());
    }

    /// What a key without a slot may owe at most: it may have been counted in a shared state, or been dropped by
    /// somebody whose clock is ahead. And whether it is just what is shared.
    #[inline]
    fn newcomer<C, P>(&self, counter: &C, asked: &Asked<P>, now: u64) -> (S, bool)
    where
        C: Counting<State = S>,
        P: Fn() -> u64,
    {
        let pool = match self.is_crowded {
            true => self.pools.get((asked.policy)()),
            false => None,
        };
        if self.table.forgotten() > now {
            // What is shared may be less than what was dropped, though it is owed for longer.
            let shared = pool.map_or(0, S::owes_until);
            let until = self.table.forgotten().max(shared);
            return (counter.exhausted(Timestamp::from_micros(until)), false);
        }
        (pool.cloned().unwrap_or_default(), pool.is_some())
    }
}
