//! The requests in flight, and the windows in which they are observed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    clock::{Timestamp, micros},
    task::{Mutex, lane::Line},
};

use super::{
    classes::MOST_CLASSES,
    controller::{Controller, Window},
    slow::{EndedWindow, Silence, SlowRequests},
    spell::Spell,
    times::{SharedTimes, Times},
};

/// Counts the requests in flight, and adapts how many there may be. Shared by all requests of a service.
pub(super) struct AdaptiveLimit {
    /// By class, those that are shed last first.
    in_flight: Line<[AtomicU32; MOST_CLASSES]>,
    /// Those of them that are not counted.
    slow: SlowRequests,
    /// How many may be in flight, written once a window.
    cap: AtomicU32,
    /// How many more there may be of each class above the lowest.
    margin: AtomicU32,
    /// How many more there may be of the highest class at least.
    highest_margin: AtomicU32,
    /// When the window may end. Microseconds.
    ends_at: AtomicU64,
    /// Clients that hang up earlier are not counted as lost. Microseconds.
    quick: AtomicU64,
    /// By lane: what the requests of some threads have counted in this window.
    counts: Box<[Line<Counts>]>,
    is_overloaded: AtomicBool,
    /// Whether the last request that found no place got one in shadow.
    is_shadow: AtomicBool,
    /// Whether the service has a queue that the times of responses do not show.
    crowded: Option<Arc<IsCrowded>>,
    rolling: Mutex<Rolling>,
}

/// Returns whether a service is crowded.
pub(super) type IsCrowded = dyn Fn() -> bool + Send + Sync;

/// Requests of a window.
struct Counts {
    /// Those that came, and the sum of the requests that were in flight then.
    asked: AtomicU32,
    in_flight: AtomicU64,
    shed: AtomicU32,
    /// Those of the highest class that were shed.
    shed_highest: AtomicU32,
    /// The fewest in flight.
    fewest: AtomicU32,
    lost: AtomicU32,
    /// The times of responses. How many there were follows from them, so that a request has one atomic addition less.
    times: SharedTimes,
}

/// The state that one thread changes at a time.
struct Rolling {
    controller: Controller,
    started_at: Timestamp,
    /// In flight then.
    in_flight: u32,
    silences: [Silence; MOST_CLASSES],
    spell: Spell,
}

/// How a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has a response.
    Answered,
    /// Nobody waited for it any more.
    Left,
    /// It was not run after all, so it is not counted.
    NotRun,
    /// The service gave it up.
    TimedOut,
}

/// Whether a request gets a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Fits,
    /// It gets none.
    Full,
    /// It gets one in shadow, and would get none otherwise.
    Over,
}

impl AdaptiveLimit {
    /// Creates a limit whose requests are counted in so many lanes.
    pub fn new(lanes: usize, crowded: Option<Arc<IsCrowded>>, now: Timestamp) -> Self {
        let controller = Controller::new();
        let limit = Self {
            in_flight: Line::default(),
            slow: SlowRequests::default(),
            cap: AtomicU32::new(0),
            margin: AtomicU32::new(0),
            highest_margin: AtomicU32::new(0),
            ends_at: AtomicU64::new(0),
            quick: AtomicU64::new(0),
            counts: (0..lanes).map(|_| Line(Counts::none())).collect(),
            is_overloaded: AtomicBool::new(false),
            is_shadow: AtomicBool::new(false),
            crowded,
            rolling: Mutex::new(Rolling {
                controller,
                started_at: now,
                in_flight: 0,
                silences: [Silence::NONE; MOST_CLASSES],
                spell: Spell::default(),
            }),
        };
        limit.publish(&limit.rolling.lock(), now);
        limit
    }

    /// Returns how many requests may be in flight beside the slow ones.
    #[inline]
    pub fn cap(&self) -> u32 {
        self.cap.load(Relaxed)
    }

    /// Returns up to how many in flight the class at this place gets places, with so many classes below it, if the lowest gets them up
    /// to `cap`.
    #[inline]
    pub fn ceiling(&self, (class, below): (usize, u32), cap: u32) -> u32 {
        let margins = below.saturating_mul(self.margin.load(Relaxed));
        let margins = match class == 0 && below > 0 {
            true => margins.max(self.highest_margin.load(Relaxed)),
            false => margins,
        };
        cap.saturating_add(margins)
    }

    /// Returns how many requests may be in flight with the slow ones.
    pub fn limit(&self) -> u32 {
        self.cap().saturating_add(self.slow.uncounted())
    }

    /// Returns how many requests are in flight, with the slow ones.
    pub fn in_flight(&self) -> u32 {
        let counts = self.in_flight.0.iter();
        counts.map(|count| count.load(Relaxed)).sum()
    }

    /// Returns how many requests of this class and those above it are in flight, and how many in all, without the slow ones.
    #[inline]
    pub fn counted_up_to(&self, class: usize) -> (u32, u32) {
        let (mut up_to, mut all) = (0, 0);
        let has_slow = self.slow.has_some();
        for (place, count) in self.in_flight.0.iter().enumerate() {
            let slow = if has_slow { self.slow.of(place) } else { 0 };
            // Some may have left since they were chosen.
            all += count.load(Relaxed).saturating_sub(slow);
            if place == class {
                up_to = all;
            }
        }
        (up_to, all)
    }

    pub fn is_overloaded(&self) -> bool {
        self.is_overloaded.load(Relaxed)
    }

    /// Counts a request that came, and takes a place if `may` finds that this many others of its class and above leave one, or in
    /// shadow.
    #[inline]
    pub fn enter(
        &self,
        (lane, class): (usize, usize),
        now: Timestamp,
        is_shadow: bool,
        may: impl FnOnce(u32) -> bool,
    ) -> Entry {
        // Taken first, so that requests that come together do not all find the last place.
        self.in_flight.0[class].fetch_add(1, Relaxed);
        let counts = self.counted_up_to(class);
        let (up_to, others) = (counts.0.saturating_sub(1), counts.1.saturating_sub(1));
        let entry = match (may(up_to), is_shadow) {
            (true, _) => Entry::Fits,
            (false, true) => Entry::Over,
            (false, false) => Entry::Full,
        };
        if entry == Entry::Full {
            self.in_flight.0[class].fetch_sub(1, Relaxed);
        }
        let counts = &self.counts[lane].0;
        if entry != Entry::Fits {
            counts.shed.fetch_add(1, Relaxed);
            if class == 0 {
                counts.shed_highest.fetch_add(1, Relaxed);
            }
            // Read first: it rarely changes, and a write takes longer.
            if self.is_shadow.load(Relaxed) != is_shadow {
                self.is_shadow.store(is_shadow, Relaxed);
            }
        }
        counts.note_fewest(others);
        counts.asked.fetch_add(1, Relaxed);
        counts.in_flight.fetch_add(others.into(), Relaxed);
        self.end_window_if_due(now);
        entry
    }

    /// Gives a place back.
    #[inline]
    pub fn leave(&self, (lane, class): (usize, usize), now: Timestamp, took: Duration, end: End) {
        self.in_flight.0[class].fetch_sub(1, Relaxed);
        self.slow.note_left(class, now, took);
        let (_, left) = self.counted_up_to(class);
        let counts = &self.counts[lane].0;
        counts.note_fewest(left);
        match end {
            End::Answered => counts.times.count(took),
            End::Left if micros(took) <= self.quick.load(Relaxed) => {}
            End::Left | End::TimedOut => {
                counts.lost.fetch_add(1, Relaxed);
            }
            End::NotRun => {}
        }
        self.end_window_if_due(now);
    }

    /// Ends a window with its requests, and also if nobody but a reader comes by.
    #[inline]
    pub fn end_window_if_due(&self, now: Timestamp) {
        if now.as_micros() >= self.ends_at.load(Relaxed) {
            self.end_window(now);
        }
    }

    #[cold]
    fn end_window(&self, now: Timestamp) {
        // Whoever has it ends the window.
        let Some(mut rolling) = self.rolling.try_lock() else {
            return;
        };
        if now.as_micros() < self.ends_at.load(Relaxed) {
            return;
        }
        let age = now.since(rolling.started_at);
        let seen: u32 = self.lanes().map(Counts::seen).sum();
        if seen < ENOUGH && age < LONGEST {
            self.ends_at.store((now + AGAIN).as_micros(), Relaxed);
            return;
        }
        let window = self.take(age, rolling.in_flight);
        let before = rolling.controller.limit();
        rolling.controller.end_window(&window);
        (rolling.started_at, rolling.in_flight) = (now, self.counted_up_to(0).1);
        let ended = EndedWindow {
            length: age,
            has_shed: window.shed > 0.0,
            is_mixed: rolling.controller.is_mixed(&window, age),
            cap: rolling.controller.cap(),
            lowered: match rolling.controller.is_overloaded() {
                true => (rolling.controller.limit() / before).min(1.0),
                false => 1.0,
            },
        };
        self.slow
            .begin_window(&self.in_flight.0, &mut rolling.silences, ended, now);
        self.publish(&rolling, now);
        let is_overloaded = rolling.controller.is_overloaded();
        let (limit, is_shadow) = (self.limit(), self.is_shadow.load(Relaxed));
        rolling
            .spell
            .note(now, is_overloaded, &window, (age, limit, is_shadow));
    }

    fn lanes(&self) -> impl Iterator<Item = &Counts> {
        self.counts.iter().map(|Line(counts)| counts)
    }

    /// Returns what was seen since so many were in flight, and begins anew.
    fn take(&self, span: Duration, at_start: u32) -> Window {
        let whole = |count: fn(&Counts) -> &AtomicU32| {
            let counts = self.lanes().map(|lane| count(lane).swap(0, Relaxed));
            f64::from(counts.sum::<u32>())
        };
        let fewest = self.lanes().map(|lane| lane.fewest.swap(u32::MAX, Relaxed));
        let fewest = fewest.min().unwrap_or(u32::MAX);
        let asked = whole(|lane| &lane.asked);
        let in_flight = self.lanes().map(|lane| lane.in_flight.swap(0, Relaxed));
        #[expect(clippy::cast_precision_loss, reason = "the mean need not be exact")]
        let in_flight = in_flight.sum::<u64>() as f64;
        let mut times = Times::none();
        self.lanes().for_each(|lane| times.add(&lane.times.take()));
        // Responses end windows, too.
        let in_flight = match asked > 0.0 {
            true => in_flight / asked,
            false => f64::from(at_start.max(self.counted_up_to(0).1)),
        };
        Window {
            span: span.as_secs_f64(),
            in_flight,
            slow: f64::from(self.slow.uncounted()),
            fewest: (fewest != u32::MAX && asked > 0.0).then(|| f64::from(fewest)),
            asked,
            shed: whole(|lane| &lane.shed),
            shed_highest: whole(|lane| &lane.shed_highest),
            lost: whole(|lane| &lane.lost),
            times,
            is_crowded: self.is_crowded(),
        }
    }

    /// Asks the user's sign. One that panics is not true: a request that is dropped in a panic may ask it, and a second panic would
    /// abort the process.
    fn is_crowded(&self) -> bool {
        let ask = |crowded: &Arc<IsCrowded>| catch_unwind(AssertUnwindSafe(|| crowded()));
        matches!(self.crowded.as_ref().map(ask), Some(Ok(true)))
    }

    fn publish(&self, rolling: &Rolling, now: Timestamp) {
        let controller = &rolling.controller;
        let quick = micros(Duration::from_secs_f64(controller.quick()));
        self.cap.store(controller.cap(), Relaxed);
        self.margin.store(controller.margin(), Relaxed);
        self.highest_margin
            .store(controller.highest_margin(), Relaxed);
        self.is_overloaded
            .store(controller.is_overloaded(), Relaxed);
        self.quick.store(quick, Relaxed);
        let ends_at = now + Duration::from_secs_f64(controller.next_window());
        self.ends_at.store(ends_at.as_micros(), Relaxed);
    }
}

impl Counts {
    fn none() -> Self {
        Self {
            asked: AtomicU32::new(0),
            in_flight: AtomicU64::new(0),
            shed: AtomicU32::new(0),
            shed_highest: AtomicU32::new(0),
            fewest: AtomicU32::new(u32::MAX),
            lost: AtomicU32::new(0),
            times: SharedTimes::none(),
        }
    }

    /// Notes how many others were in flight at some time.
    #[inline]
    fn note_fewest(&self, others: u32) {
        // Read first: it rarely falls, and a write takes longer.
        if others < self.fewest.load(Relaxed) {
            self.fewest.fetch_min(others, Relaxed);
        }
    }

    fn seen(&self) -> u32 {
        self.times.total() + self.lost.load(Relaxed)
    }
}

/// Responses that a window needs, unless it is as long as this.
const ENOUGH: u32 = 20;
const LONGEST: Duration = Duration::from_secs(1);
/// When a window that is too short is looked at again.
const AGAIN: Duration = Duration::from_millis(5);
