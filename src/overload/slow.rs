//! Slow requests among quick ones: those that have no place of the limit.
//!
//! One request in twenty may wait for seconds, while the others take a millisecond. Soon the slow ones are most of those in flight.
//! If the limit counted them, it would fall below their number, and shed all until some of them end. So a request that was in flight
//! for a whole window is not counted after it, if the quick ones took a small part of the window.
//!
//! In a queue all requests are slow, also the quickest fifth. Then none is added to those that are not counted. Others take the places
//! of those that leave, since they may be as slow; but if the limit falls, as in an overload, the number falls with it.
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
    /// Those that are not counted, chosen once a window: they came until then. Microseconds.
    uncounted: ByClass,
    came_until: [AtomicU64; MOST_CLASSES],
    /// Those of them that have left since, and the places of so many that others may take until the window ends.
    uncounted_left: ByClass,
    replaced: AtomicU32,
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

/// A window that has ended.
pub(super) struct EndedWindow {
    pub length: Duration,
    pub has_shed: bool,
    /// Whether requests that were in flight in all of it are slow among quick ones.
    pub is_mixed: bool,
    /// How many others there may be from now on.
    pub cap: u32,
    /// The part of the limit that is left after the window, if it fell.
    pub lowered: f64,
}

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
        let left = self.uncounted_left[class].load(Relaxed);
        let missing = left.saturating_sub(self.replaced.load(Relaxed));
        self.uncounted[class].load(Relaxed).saturating_sub(missing)
    }

    /// Returns how many are not counted.
    pub fn uncounted(&self) -> u32 {
        (0..MOST_CLASSES).map(|class| self.of(class)).sum()
    }

    /// Notes that a request of this age has left.
    #[inline]
    pub fn note_left(&self, class: usize, now: Timestamp, age: Duration) {
        let came_at = now.as_micros().saturating_sub(micros(age));
        // Also one that came just then: it may have ended the window before.
        if came_at > self.began_at.load(Relaxed) {
            return;
        }
        self.left.0[class].fetch_add(1, Relaxed);
        if came_at <= self.came_until[class].load(Relaxed) {
            self.uncounted_left[class].fetch_add(1, Relaxed);
        }
    }

    /// Begins the next window.
    pub fn begin_window(
        &self,
        in_flight: &ByClass,
        silences: &mut [Silence; MOST_CLASSES],
        ended: EndedWindow,
        now: Timestamp,
    ) {
        let began_before = self.began_at.swap(now.as_micros(), Relaxed);
        // As slow ones leave, others come that are not known to be slow yet. But more that leave together make no room.
        self.replaced.store(ended.cap.saturating_mul(2), Relaxed);
        for (class, in_flight) in in_flight.iter().enumerate() {
            let in_flight = in_flight.load(Relaxed);
            let before = self.at_start[class].swap(in_flight, Relaxed);
            let left = self.left.0[class].swap(0, Relaxed);
            self.uncounted_left[class].store(0, Relaxed);
            let may_hang = ended.has_shed && before > 0 && left == 0;
            let (slow, came_until) = if silences[class].note(!may_hang, ended.length) {
                (in_flight, now.as_micros())
            } else if ended.is_mixed {
                (before.saturating_sub(left), began_before)
            } else {
                let known = f64::from(self.uncounted[class].load(Relaxed));
                let came_until = self.came_until[class].load(Relaxed);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "at most `known`"
                )]
                let kept = (known * ended.lowered) as u32;
                (kept, came_until)
            };
            self.came_until[class].store(came_until, Relaxed);
            self.uncounted[class].store(slow.min(in_flight), Relaxed);
        }
        self.has_some.store(self.uncounted() > 0, Relaxed);
    }
}
