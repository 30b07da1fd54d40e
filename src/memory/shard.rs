//! One lock's worth of keys.

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
    flights::Flights,
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
    pub(super) flights: Flights,
    /// What was taken back of buckets.
    returned: Returned,
}

impl Shard {
    /// A shard of at most so many slots for each way of counting.
    pub(super) fn new(max_slots: usize, budget: &Budget) -> Self {
        Self {
            buckets: Shelf::new(max_slots, budget),
            logs: Shelf::new(max_slots, budget),
            slides: Shelf::new(max_slots, budget),
            windows: Shelf::new(max_slots, budget),
            flights: Flights::new(max_slots),
            returned: Returned::new(max_slots),
        }
    }

    /// Forgets what a key owes under a policy, however that is or was counted.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        self.buckets.reset(fingerprint);
        self.logs.reset(fingerprint);
        self.slides.reset(fingerprint);
        self.windows.reset(fingerprint);
        self.flights.reset(fingerprint);
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
            + self.flights.keys()
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes()
            + self.logs.bytes()
            + self.slides.bytes()
            + self.windows.bytes()
            + self.returned.bytes()
            + self.flights.bytes()
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
        let whose = (asked.fingerprint, asked.ticket);
        let change = |state: &mut SlotState| change(state).0;
        let answer = shard.flights.update(self, whose, now, change);
        (answer, Kept::ToldApart)
    }

    /// Nothing: slots are released by ticket, not given back in part.
    fn amend(_: &mut Shard, _: Fingerprint, _: Timestamp, _: impl FnOnce(&mut SlotState)) {}

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
