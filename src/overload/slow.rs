//! Slow requests among quick ones: those that have no place of the limit.
//!
//! One request in twenty may wait for seconds, while the others take a millisecond. Soon the slow ones are most of those in flight.
//! If the limit counted them, it would fall below their number, and shed all until some of them end. So a request that was in flight
//! for a whole window is not counted after it, if the quick ones took a small part of the window.
//!
//! In a queue all requests are slow, also the quickest fifth. Then none is added to those that are not counted.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    clock::{Timestamp, micros},
    task::lane::Line,
};

use super::classes::MOST_CLASSES;

/// Counts, by class, the requests in flight that are slow.
#[derive(Default)]
pub(super) struct SlowRequests {
    /// Those that are not counted, chosen once a window.
    uncounted: ByClass,
    /// Whether there are any: most services have none, and read one flag.
    has_some: AtomicBool,
    /// In flight when the window began.
    at_start: ByClass,
    /// Those of them that have left since.
    left: Line<ByClass>,
    /// When the window began. Microseconds.
    began_at: AtomicU64,
}

type ByClass = [AtomicU32; MOST_CLASSES];

impl SlowRequests {
    /// Returns whether some are not counted.
    #[inline]
    pub fn has_some(&self) -> bool {
        self.has_some.load(Relaxed)
    }

    /// Returns how many of a class are not counted.
    #[inline]
    pub fn of(&self, class: usize) -> u32 {
        self.uncounted[class].load(Relaxed)
    }

    /// Returns how many are not counted.
    pub fn uncounted(&self) -> u32 {
        let counts = self.uncounted.iter();
        counts.map(|count| count.load(Relaxed)).sum()
    }

    /// Notes that a request of this age has left.
    #[inline]
    pub fn note_left(&self, class: usize, now: Timestamp, age: Duration) {
        let came_at = now.as_micros().saturating_sub(micros(age));
        if came_at < self.began_at.load(Relaxed) {
            self.left.0[class].fetch_add(1, Relaxed);
        }
    }

    /// Begins the next window. `is_mixed` is whether requests that are still in flight are slow among quick ones.
    pub fn begin_window(&self, in_flight: &ByClass, is_mixed: bool, now: Timestamp) {
        self.began_at.store(now.as_micros(), Relaxed);
        for (class, in_flight) in in_flight.iter().enumerate() {
            let in_flight = in_flight.load(Relaxed);
            let before = self.at_start[class].swap(in_flight, Relaxed);
            let stayed = before.saturating_sub(self.left.0[class].swap(0, Relaxed));
            let uncounted = &self.uncounted[class];
            let slow = if is_mixed {
                stayed
            } else {
                uncounted.load(Relaxed)
            };
            uncounted.store(slow.min(in_flight), Relaxed);
        }
        self.has_some.store(self.uncounted() > 0, Relaxed);
    }
}
