//! The keys of one shard that are counted in one way.

use std::mem;

use crate::{algorithm::Counting, clock::Timestamp};

use super::{
    budget::Budget,
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
    budget: Budget,
    /// What the table has of the budget.
    held: usize,
}

/// What is asked for: a key under a policy, and a number for the policy alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<P> {
    pub(super) fingerprint: Fingerprint,
    /// Of the slots that it takes.
    pub(super) ticket: u64,
    /// Hashed only when keys of the policy share a state.
    pub(super) policy: P,
}

/// Where an update went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// In the state that newcomers of the policy share.
    Pooled,
    /// In a slot of the key's own, or nowhere since nothing had to be kept.
    ToldApart,
}

impl<S: Held> Shelf<S> {
    pub(super) fn new(max_slots: usize, budget: &Budget) -> Self {
        Self {
            table: Table::new(max_slots),
            pools: Pools::default(),
            is_crowded: false,
            budget: budget.clone(),
            held: 0,
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
            let state = self.table.state(index);
            let had = state.more();
            let (answer, _) = change(state);
            if state.more() != had {
                self.table.weigh(index, had);
                self.afford(index, micros);
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
        if changed && let Some(index) = self.table.insert(asked.fingerprint, &state, micros) {
            self.afford(index, micros);
            return (answer, Kept::ToldApart);
        }
        self.is_crowded |= changed;
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

    /// Lets `change` at the state of a key that has a slot. What newcomers share is left alone: nobody knows whose it is.
    pub(super) fn amend(
        &mut self,
        fingerprint: Fingerprint,
        now: Timestamp,
        change: impl FnOnce(&mut S),
    ) {
        let now = now.as_micros();
        if let Place::Found(index) = self.table.find(fingerprint, now) {
            let state = self.table.state(index);
            let had = state.more();
            change(state);
            self.table.weigh(index, had);
            self.afford(index, now);
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
            self.afford(index, 0);
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.table.taken()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.pools.bytes()
    }

    /// Lets the table have what it needs of the budget, or else takes from the state that grew what is too much.
    #[inline]
    fn afford(&mut self, index: usize, now: u64) {
        if self.table.more() != self.held && !self.budget.hold(&mut self.held, self.table.more()) {
            self.economise(index, now);
        }
    }

    #[cold]
    fn economise(&mut self, index: usize, now: u64) {
        self.table.lessen_idle(now);
        if !self.budget.hold(&mut self.held, self.table.more()) {
            self.table.lessen(index, self.table.more() - self.held);
            let is_held = self.budget.hold(&mut self.held, self.table.more());
            debug_assert!(is_held, "a state can give back by how much it grew");
        }
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
            return (counter.spent(Timestamp::from_micros(until)), false);
        }
        (pool.cloned().unwrap_or_default(), pool.is_some())
    }
}
