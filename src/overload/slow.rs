//! Slow requests among quick ones: those that have no place of the limit.
//!
//! One request in twenty may wait for seconds, while the others take a millisecond. Soon the slow ones are most of those in flight.
//! If the limit counted them, it would fall below their number, and shed all until some of them end. So a request that was in flight
//! for a whole window is not counted after it, if the quick ones took a small part of the window.
//!
//! In a queue all requests are slow, also the quickest fifth. Then none is added to those that are not counted.
//!
//! Requests may also never end: if they have all places of a class, nothing would ever be served there again. So if none of a class
//! ends for 5 s while requests are shed, those in flight are not counted after it, and as many others are let in: at once, after twice
//! the time, and so on, up to every 64 s.

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

/// How long no request of a class has ended, while some were shed.
#[derive(Clone, Copy)]
pub(super) struct Silence {
    lasts: Duration,
    /// After which time others are let in.
    patience: Duration,
}

impl Silence {
    pub const NONE: Self = Self {
        lasts: Duration::ZERO,
        patience: PATIENCE,
    };

    /// Notes a window of this length. Returns whether others are to be let in.
    fn note(&mut self, has_ended: bool, length: Duration) -> bool {
        if has_ended {
            *self = Self::NONE;
            return false;
        }
        self.lasts += length;
        let is_over = self.lasts >= self.patience;
        if is_over {
            self.lasts = Duration::ZERO;
            self.patience = (2 * self.patience).min(LONGEST_PATIENCE);
        }
        is_over
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_PATIENCE: Duration = Duration::from_secs(64);

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

    /// Begins the next window, after one of this length. `is_mixed` is whether requests that are still in flight are slow among quick
    /// ones, and `has_shed` whether some were shed.
    pub fn begin_window(
        &self,
        in_flight: &ByClass,
        silences: &mut [Silence; MOST_CLASSES],
        (is_mixed, has_shed): (bool, bool),
        (length, now): (Duration, Timestamp),
    ) {
        self.began_at.store(now.as_micros(), Relaxed);
        for (class, in_flight) in in_flight.iter().enumerate() {
            let in_flight = in_flight.load(Relaxed);
            let before = self.at_start[class].swap(in_flight, Relaxed);
            let left = self.left.0[class].swap(0, Relaxed);
            let uncounted = &self.uncounted[class];
            let may_hang = has_shed && before > 0 && left == 0;
            let slow = if silences[class].note(!may_hang, length) {
                in_flight
            } else if is_mixed {
                before.saturating_sub(left)
            } else {
                uncounted.load(Relaxed)
            };
            uncounted.store(slow.min(in_flight), Relaxed);
        }
        self.has_some.store(self.uncounted() > 0, Relaxed);
    }
}
