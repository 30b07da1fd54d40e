//! One lock's worth of keys.

use crate::algorithm::{
    BucketState, Counting, FixedWindow, LogState, SlidingLog, SlidingState, SlidingWindow,
    TokenBucket, WindowState,
};

use super::{budget::Budget, fingerprint::Fingerprint, shelf::Shelf, table::Held};

/// The keys of one shard, by what is remembered of them: a plain bucket shall not pay for the length of a log.
#[derive(Debug)]
pub(super) struct Shard {
    buckets: Shelf<BucketState>,
    logs: Shelf<LogState>,
    slides: Shelf<SlidingState>,
    windows: Shelf<WindowState>,
}

impl Shard {
    /// A shard of at most so many slots for each way of counting.
    pub(super) fn new(max_slots: usize, budget: &Budget) -> Self {
        Self {
            buckets: Shelf::new(max_slots, budget),
            logs: Shelf::new(max_slots, budget),
            slides: Shelf::new(max_slots, budget),
            windows: Shelf::new(max_slots, budget),
        }
    }

    /// Forgets what a key owes under a policy, however that is or was counted.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        self.buckets.reset(fingerprint);
        self.logs.reset(fingerprint);
        self.slides.reset(fingerprint);
        self.windows.reset(fingerprint);
    }

    pub(super) fn keys(&self) -> usize {
        self.buckets.keys() + self.logs.keys() + self.slides.keys() + self.windows.keys()
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes() + self.logs.bytes() + self.slides.bytes() + self.windows.bytes()
    }
}

/// A way of counting that a shard has a shelf for.
pub(super) trait Shelved: Counting<State: Held> {
    /// Its shelf.
    fn shelf(shard: &mut Shard) -> &mut Shelf<Self::State>;
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
            fn shelf(shard: &mut Shard) -> &mut Shelf<$state> {
                &mut shard.$shelf
            }
        })*
    };
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
