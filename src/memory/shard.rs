//! One lock's worth of keys.

use std::collections::{HashMap, hash_map::Entry};

use crate::{
    algorithm::{
        BucketState, Counting, FixedWindow, LogState, SlidingLog, SlidingState, SlidingWindow,
        SlotState, Slots, TokenBucket, WindowState,
    },
    clock::Timestamp,
};

use super::{
    budget::Budget,
    fingerprint::Fingerprint,
    returned::Returned,
    shelf::{Asked, Kept, Shelf},
    table::Held,
};

/// The keys of one shard, by what is remembered of them: a plain bucket shall not pay for the length of a log.
#[derive(Debug)]
pub(super) struct Shard {
    buckets: Shelf<BucketState>,
    logs: Shelf<LogState>,
    slides: Shelf<SlidingState>,
    windows: Shelf<WindowState>,
    /// What is in flight: a key is here only as long as something of it is.
    slots: HashMap<Fingerprint, SlotState>,
    /// What was taken back of buckets.
    returned: Returned,
    max_slots: usize,
}

impl Shard {
    /// A shard of at most so many slots for each way of counting.
    pub(super) fn new(max_slots: usize, budget: &Budget) -> Self {
        Self {
            buckets: Shelf::new(max_slots, budget),
            logs: Shelf::new(max_slots, budget),
            slides: Shelf::new(max_slots, budget),
            windows: Shelf::new(max_slots, budget),
            slots: HashMap::new(),
            returned: Returned::new(max_slots),
            max_slots,
        }
    }

    /// Forgets what a key owes under a policy, however that is or was counted.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        self.buckets.reset(fingerprint);
        self.logs.reset(fingerprint);
        self.slides.reset(fingerprint);
        self.windows.reset(fingerprint);
        self.slots.remove(&fingerprint);
    }

    /// What was taken back of charges.
    #[inline]
    pub(super) fn returned(&mut self) -> &mut Returned {
        &mut self.returned
    }

    pub(super) fn keys(&self) -> usize {
        self.buckets.keys()
            + self.logs.keys()
            + self.slides.keys()
            + self.windows.keys()
            + self.slots.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes()
            + self.logs.bytes()
            + self.slides.bytes()
            + self.windows.bytes()
            + self.returned.bytes()
            + self.slots.capacity() * size_of::<(Fingerprint, SlotState)>()
    }
}

/// A way of counting that a shard has a place for.
pub(super) trait Shelved: Counting {
    /// Lets `change` at the state of a key; it answers, and says whether it changed anything.
    fn update<R>(
        &self,
        shard: &mut Shard,
        asked: &Asked<impl Fn() -> u64>,
        now: Timestamp,
        change: impl FnOnce(&mut Self::State) -> (R, bool),
    ) -> (R, Kept);

    /// Lets `change` at the state of a key that has one of its own.
    fn amend(
        shard: &mut Shard,
        fingerprint: Fingerprint,
        now: Timestamp,
        change: impl FnOnce(&mut Self::State),
    );

    /// Whether a key has no slot and may be counted in a shared state.
    fn may_be_pooled(&self, shard: &Shard, asked: &Asked<impl Fn() -> u64>, now: Timestamp)
    -> bool;
}

macro_rules! shelved {
    ($($counter:ident, $state:ident in $shelf:ident { $($more:item)* })*) => {
        $(impl Held for $state {
            #[inline]
            fn owes_until(&self) -> u64 {
                $counter::owes_until(self)
            }

            $($more)*
        }

        impl Shelved for $counter {
            #[inline]
            fn update<R>(
                &self,
                shard: &mut Shard,
                asked: &Asked<impl Fn() -> u64>,
                now: Timestamp,
                change: impl FnOnce(&mut $state) -> (R, bool),
            ) -> (R, Kept) {
                shard.$shelf.update(self, asked, now, change)
            }

            fn amend(
                shard: &mut Shard,
                fingerprint: Fingerprint,
                now: Timestamp,
                change: impl FnOnce(&mut $state),
            ) {
                shard.$shelf.amend(fingerprint, now, change);
            }

            fn may_be_pooled(
                &self,
                shard: &Shard,
                asked: &Asked<impl Fn() -> u64>,
                now: Timestamp,
            ) -> bool {
                shard.$shelf.may_be_pooled(asked, now)
            }
        })*
    };
}

impl Shelved for Slots {
    fn update<R>(
        &self,
        shard: &mut Shard,
        asked: &Asked<impl Fn() -> u64>,
        now: Timestamp,
        change: impl FnOnce(&mut SlotState) -> (R, bool),
    ) -> (R, Kept) {
        let held = shard.slots.get(&asked.fingerprint).copied();
        // Newcomers cannot share a state as elsewhere: nobody could tell whose slot is given back. They are turned away.
        let mut state = match held {
            None if shard.slots.len() >= shard.max_slots => self.spent(now),
            held => held.unwrap_or_default(),
        };
        let (answer, changed) = change(&mut state);
        if state == SlotState::default() {
            shard.slots.remove(&asked.fingerprint);
        } else if changed || held.is_some() {
            shard.slots.insert(asked.fingerprint, state);
        }
        (answer, Kept::ToldApart)
    }

    fn amend(
        shard: &mut Shard,
        fingerprint: Fingerprint,
        _: Timestamp,
        change: impl FnOnce(&mut SlotState),
    ) {
        if let Entry::Occupied(mut held) = shard.slots.entry(fingerprint) {
            change(held.get_mut());
            if *held.get() == SlotState::default() {
                held.remove();
            }
        }
    }

    fn may_be_pooled(&self, _: &Shard, _: &Asked<impl Fn() -> u64>, _: Timestamp) -> bool {
        false
    }
}

shelved! {
    FixedWindow, WindowState in windows {}
    SlidingLog, LogState in logs {
        fn bytes(&self) -> usize {
            self.bytes()
        }

        #[inline]
        fn more(&self) -> usize {
            self.more_than_few()
        }

        fn make_do(&mut self, more: usize) {
            self.make_do(more);
        }
    }
    SlidingWindow, SlidingState in slides {}
    TokenBucket, BucketState in buckets {}
}
