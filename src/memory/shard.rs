//! One lock's worth of keys.

use crate::{
    algorithm::{
        BucketState, ChargeMark, Concurrency, Counting, FixedWindow, LogState, SlidingLog,
        SlidingState, SlidingWindow, SlotState, TokenBucket, WindowState,
    },
    clock::{Clock, Reading, Timestamp},
};

use super::{
    capacity::Capacity,
    fingerprint::Fingerprint,
    in_flight::InFlight,
    refunds::Refunds,
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
    pub(super) in_flight: InFlight,
    /// Units refunded to buckets.
    refunds: Refunds,
    /// The step of the clock that all times here are counted by.
    step: u64,
}

impl Shard {
    /// An empty shard.
    pub(super) fn new(capacity: &Capacity) -> Self {
        Self {
            buckets: Shelf::new(capacity),
            logs: Shelf::new(capacity),
            slides: Shelf::new(capacity),
            windows: Shelf::new(capacity),
            in_flight: InFlight::new(capacity),
            refunds: Refunds::new(capacity),
            step: 0,
        }
    }

    /// Returns the time to count by, which was read before the shard was locked.
    ///
    /// When the clock has stepped, every time in here moves with it: nobody in debt waits longer or shorter.
    #[inline]
    pub(super) fn now(&mut self, read: Reading, clock: &Clock) -> Timestamp {
        if self.has_step(read) {
            return read.now;
        }
        let read = clock.read();
        self.step(read);
        read.now
    }

    /// Whether the clock has not stepped between the last use of the shard and this reading.
    #[inline]
    pub(super) fn has_step(&self, read: Reading) -> bool {
        read.step == self.step
    }

    /// Follows a step of the clock, which must have been read while the shard was locked.
    #[cold]
    pub(super) fn step(&mut self, read: Reading) {
        let micros = read.step.saturating_sub(self.step);
        if micros == 0 {
            return;
        }
        self.buckets.shift(micros);
        self.logs.shift(micros);
        self.slides.shift(micros);
        self.windows.shift(micros);
        self.in_flight.shift(micros);
        self.refunds.shift(micros);
        self.step = read.step;
    }

    /// Forgets what a key owes under a policy, however that is or was counted.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        self.buckets.reset(fingerprint);
        self.logs.reset(fingerprint);
        self.slides.reset(fingerprint);
        self.windows.reset(fingerprint);
        self.in_flight.reset(fingerprint);
    }

    /// Returns what was refunded to a key, by which a charge that lapses at `until` is known.
    #[inline]
    pub(super) fn refunded(&mut self, fingerprint: Fingerprint, until: Timestamp) -> u64 {
        self.refunds.mark(fingerprint, until.as_micros())
    }

    /// Refunds units of a bucket's charge. Without room to note the refund, the charge stands.
    pub(super) fn refund_bucket(
        &mut self,
        bucket: &TokenBucket,
        fingerprint: Fingerprint,
        (mark, units): (ChargeMark, u64),
        now: Timestamp,
    ) {
        let micros = now.as_micros();
        let refunds = &mut self.refunds;
        let Some(before) = refunds.of(fingerprint, micros) else {
            return;
        };
        self.buckets.amend(fingerprint, now, |state| {
            let (charged, mut sum) = (*state, before);
            bucket.refund(state, &mut sum, now, mark, units);
            if sum != before && !refunds.set((fingerprint, sum), charged.tat(), micros) {
                *state = charged;
            }
        });
    }

    pub(super) fn keys(&self) -> usize {
        self.buckets.keys()
            + self.logs.keys()
            + self.slides.keys()
            + self.windows.keys()
            + self.in_flight.keys()
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes()
            + self.logs.bytes()
            + self.slides.bytes()
            + self.windows.bytes()
            + self.in_flight.bytes()
            + self.refunds.bytes()
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

            fn shift(&mut self, micros: u64) {
                self.shift(micros);
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

impl Shelved for Concurrency {
    fn update<R>(
        &self,
        shard: &mut Shard,
        asked: &Asked<impl Fn() -> u64>,
        now: Timestamp,
        change: impl FnOnce(&mut SlotState) -> (R, bool),
    ) -> (R, Kept) {
        let whose = (asked.fingerprint, asked.slots());
        let has_room = !asked.adds || shard.in_flight.reserve(asked.fingerprint, 1, now);
        let change = |state: &mut SlotState| change(state).0;
        let in_flight = &mut shard.in_flight;
        let answer = in_flight.update(self, whose, (now, has_room), change);
        let kept = match has_room {
            true => Kept::ToldApart,
            false => Kept::TurnedAway,
        };
        (answer, kept)
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
            self.extra_capacity()
        }

        #[inline]
        fn wanted(&self) -> Option<usize> {
            self.target_capacity()
        }

        fn resize(&mut self, entries: usize) {
            self.resize(entries);
        }

        fn halve(&mut self) {
            self.merge_if_full();
        }

        fn make_do(&mut self, more: usize) {
            self.shrink_to(more);
        }
    }
    SlidingWindow, SlidingState in slides {}
    TokenBucket, BucketState in buckets {}
}
