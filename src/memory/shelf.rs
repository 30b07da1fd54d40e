//! The keys of one shard that are counted in one way.

use crate::{algorithm::Counting, clock::Timestamp};

use super::{
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
}

/// What is asked for: a key under a policy, and a number for the policy alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<P> {
    pub(super) fingerprint: Fingerprint,
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
    pub(super) fn new(max_slots: usize) -> Self {
        Self {
            table: Table::new(max_slots),
            pools: Pools::default(),
            is_crowded: false,
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
            let (answer, _) = change(self.table.state(index));
            return (answer, Kept::ToldApart);
        }
        let mut state = self.newcomer(counter, asked, micros);
        let (answer, changed) = change(&mut state);
        if !changed || self.table.insert(asked.fingerprint, &state, micros) {
            return (answer, Kept::ToldApart);
        }
        self.is_crowded = true;
        self.pools.set((asked.policy)(), state, micros);
        (answer, Kept::Pooled)
    }

    /// Whether a key has no slot and would be counted in a shared state.
    pub(super) fn is_pooled<P>(&self, asked: &Asked<P>, now: Timestamp) -> bool {
        self.is_crowded && self.table.find(asked.fingerprint, now.as_micros()) == Place::Crowded
    }

    /// Forgets what a key owes. What was counted in a shared state stays: nobody knows whose it is.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        if let Place::Found(index) = self.table.find(fingerprint, 0) {
            *self.table.state(index) = S::default();
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.table.taken()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// What a key without a slot may owe at most: it may have been counted in a shared state, or been dropped by
    /// somebody whose clock is ahead.
    #[inline]
    fn newcomer<C, P>(&self, counter: &C, asked: &Asked<P>, now: u64) -> S
    where
        C: Counting<State = S>,
        P: Fn() -> u64,
    {
        let mut state = S::default();
        if self.is_crowded
            && let Some(pool) = self.pools.get((asked.policy)())
        {
            state = pool.clone();
        }
        if self.table.forgotten() > now.max(state.owes_until()) {
            state = counter.spent(Timestamp::from_micros(self.table.forgotten()));
        }
        state
    }
}
