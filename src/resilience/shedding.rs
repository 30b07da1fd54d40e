//! Decisions that were not sent, because this process asks for more than the store can make in time.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::Timestamp;

/// Counts shed decisions, and finds out when shedding begins and ends.
#[derive(Debug, Default)]
pub(super) struct Shedding {
    decisions: AtomicU64,
    is_on: AtomicBool,
    /// When the latest decision was shed, in microseconds.
    latest: AtomicU64,
}

impl Shedding {
    /// Returns the number of decisions shed so far.
    pub(super) fn decisions(&self) -> u64 {
        self.decisions.load(Ordering::Relaxed)
    }

    /// Returns whether shedding began and did not end.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Counts a decision. Returns whether shedding began with it.
    pub(super) fn shed(&self, now: Timestamp) -> bool {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.latest.fetch_max(now.as_micros(), Ordering::Relaxed);
        !self.is_on() && !self.is_on.swap(true, Ordering::Relaxed)
    }

    /// Ends shedding if nothing was shed for a while. Returns whether this call ended it.
    pub(super) fn end(&self, now: Timestamp) -> bool {
        let latest = Timestamp::from_micros(self.latest.load(Ordering::Relaxed));
        now.since(latest) > CALM && self.is_on.swap(false, Ordering::Relaxed)
    }
}

/// A process on the edge sheds now and then: this long without is the end, so that log lines stay few.
pub(super) const CALM: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_and_ends_once_and_ends_only_after_a_while() {
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        let shedding = Shedding::default();
        assert_eq!(
            [10, 10, 15].map(|second| shedding.shed(at(second))),
            [true, false, false]
        );
        assert_eq!(
            [16, 25, 26, 27].map(|second| shedding.end(at(second))),
            [false, false, true, false]
        );
        assert!(shedding.shed(at(30)));
        assert_eq!(shedding.decisions(), 4);
    }
}
