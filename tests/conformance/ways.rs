//! The ways of counting, and what each comes to.

use std::time::Duration;

use tollgate::{
    Policy, Quota,
    algorithm::{Algorithm, WindowStart},
};

use super::place::{Count, Place};

/// A way of counting, by a policy of ten units a minute or month, or at once.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) algorithm: Algorithm,
    pub(super) quota: Quota,
    pub(super) limit: u64,
    /// When all is back after so many units were taken at the start.
    pub(super) all_back: fn(u64) -> Duration,
    /// When the next unit can be had after all were taken at the start, and how many can be had then.
    pub(super) next: (Duration, u64),
    /// When three units can be had after all but two were taken at the start.
    pub(super) next_three: Duration,
    /// What somebody gets in five periods who takes whatever can be had as soon as it can.
    pub(super) greedy: u64,
    /// As `next`, when an attempt was denied three seconds before that and counted; and after many such attempts.
    pub(super) knocked: [Duration; 2],
    pub(super) changes: &'static [Change],
}

/// What the policy's quota becomes, and what is left of it.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) quota: Quota,
    /// To who had used half of the limit.
    pub(super) half_left: u64,
    /// To who had used all of it.
    pub(super) none_left: u64,
    /// When the latter gets the next unit, when nothing is left.
    pub(super) next: Duration,
}

impl Way {
    pub(super) fn policy(&self, name: &str) -> Policy {
        Policy::new(name, self.quota).algorithm(self.algorithm)
    }
}

// === Trial ===

/// A way of counting to try in a place.
pub(super) struct Trial {
    pub(super) way: &'static Way,
    pub(super) place: Place,
}

impl Trial {
    pub(super) fn of(name: &str, place: Place) -> Self {
        let way = WAYS.iter().find(|way| way.name == name);
        let way = way.unwrap_or_else(|| panic!("no way of counting is named {name}"));
        Self { way, place }
    }

    /// What is in flight, to try in a place.
    pub(super) fn of_slots(place: Place) -> Self {
        Self::of("concurrency", place)
    }

    /// The way's own policy as it counts a key.
    pub(super) fn count(&self, key: &str) -> Count<'_> {
        self.place.count(self.way.policy("tried"), key)
    }
}

// === The numbers ===

const TEN: Quota = Quota::per_minute(10);
const SLOW: Quota = Quota::per_hour(10);
const SHORT: Quota = Quota::new(10, seconds(30));
/// Of the slots.
pub(super) const LEASE: Duration = seconds(60);
/// From the start to the first of December.
const MONTH: Duration = seconds(1_388_800);

pub(super) static WAYS: [Way; 8] = [
    Way {
        name: "token_bucket",
        algorithm: Algorithm::TokenBucket,
        quota: TEN,
        limit: 10,
        all_back: |taken| seconds(6 * taken),
        next: (seconds(6), 1),
        next_three: seconds(6),
        greedy: 10 + 50,
        knocked: [seconds(9), seconds(9)],
        // The spent share stays: half of the old burst is half of the new one.
        changes: &[
            change(Quota::per_minute(20), 10, 0, seconds(3)),
            change(TEN.burst(20), 10, 0, seconds(6)),
            change(Quota::per_minute(5), 2, 0, seconds(12)),
            change(TEN.burst(4), 2, 0, seconds(6)),
            change(SLOW, 5, 0, seconds(360)),
        ],
    },
    Way {
        name: "leaky_bucket",
        algorithm: Algorithm::LeakyBucket,
        quota: TEN.burst(8),
        limit: 8,
        all_back: |taken| seconds(6 * taken),
        next: (seconds(6), 1),
        next_three: seconds(6),
        greedy: 8 + 50,
        knocked: [seconds(9), seconds(9)],
        changes: &[
            change(Quota::per_minute(20).burst(16), 8, 0, seconds(3)),
            change(TEN.burst(16), 8, 0, seconds(6)),
            change(Quota::per_minute(5).burst(4), 2, 0, seconds(12)),
            change(TEN, 0, 0, seconds(6)),
            change(SLOW.burst(8), 4, 0, seconds(360)),
        ],
    },
    Way {
        name: "fixed_window_by_clock",
        algorithm: Algorithm::FixedWindow(WindowStart::Clock),
        quota: TEN,
        limit: 10,
        all_back: |_| seconds(40),
        next: (seconds(40), 10),
        next_three: seconds(40),
        greedy: 10 + 5 * 10,
        knocked: [seconds(40), seconds(40)],
        // The used number stays, in a window of the new length.
        changes: &[
            change(Quota::per_minute(20), 15, 10, ZERO),
            change(Quota::per_minute(5), 0, 0, seconds(40)),
            change(SHORT, 5, 0, seconds(10)),
            change(SLOW, 5, 0, seconds(2_800)),
        ],
    },
    Way {
        name: "fixed_window_by_first_hit",
        algorithm: Algorithm::FixedWindow(WindowStart::FirstHit),
        quota: TEN,
        limit: 10,
        all_back: |_| seconds(60),
        next: (seconds(60), 10),
        next_three: seconds(60),
        greedy: 10 + 5 * 10,
        knocked: [seconds(60), seconds(60)],
        changes: &[
            change(Quota::per_minute(20), 15, 10, ZERO),
            change(Quota::per_minute(5), 0, 0, seconds(60)),
            change(SHORT, 5, 0, seconds(30)),
            change(SLOW, 5, 0, seconds(3_600)),
        ],
    },
    Way {
        name: "fixed_window_by_month",
        algorithm: Algorithm::FixedWindow(WindowStart::Month),
        quota: Quota::per_month(10),
        limit: 10,
        all_back: |_| MONTH,
        next: (MONTH, 10),
        next_three: MONTH,
        // Until the middle of April.
        greedy: 10 + 5 * 10,
        knocked: [MONTH, MONTH],
        changes: &[
            change(Quota::per_month(20), 15, 10, ZERO),
            change(Quota::per_month(5), 0, 0, MONTH),
            change(Quota::new(10, seconds(28 * 86_400)), 5, 0, MONTH),
        ],
    },
    Way {
        name: "sliding_window",
        algorithm: Algorithm::SlidingWindow,
        quota: TEN,
        limit: 10,
        // This window and the next, which looks back at it.
        all_back: |_| seconds(100),
        // A tenth of the next window.
        next: (seconds(46), 1),
        // An eighth of the next window.
        next_three: Duration::from_millis(47_500),
        // The next window's first comes after a tenth of it; the tenth one falls into the window after that. From then
        // on nine fit in each, spread by nine of the last; of the last window only two thirds belong to the five.
        greedy: 10 + 9 + 9 + 9 + 9 + 4,
        // The attempt counts in the next window: three seconds into it, one is to be taken and one was. After many the
        // next window is as full as this one, and the one after that has to wait.
        knocked: [seconds(52), seconds(106)],
        changes: &[
            change(Quota::per_minute(20), 15, 10, ZERO),
            // Five, which is all of the new limit, must shrink to four.
            change(Quota::per_minute(5), 0, 0, seconds(40 + 12)),
            change(SHORT, 5, 0, seconds(10 + 3)),
            change(SLOW, 5, 0, seconds(2_800 + 360)),
        ],
    },
    Way {
        name: "sliding_log",
        algorithm: Algorithm::SlidingLog,
        quota: TEN,
        limit: 10,
        all_back: |_| seconds(60),
        next: (seconds(60), 10),
        next_three: seconds(60),
        greedy: 10 + 5 * 10,
        // An attempt that counts pushes the oldest out, ten of them all that was.
        knocked: [seconds(60), seconds(57 + 60)],
        changes: &[
            change(Quota::per_minute(20), 15, 10, ZERO),
            change(Quota::per_minute(5), 0, 0, seconds(60)),
            change(SHORT, 5, 0, seconds(30)),
            change(SLOW, 5, 0, seconds(3_600)),
        ],
    },
    // Nobody knows when a slot is given back, so all that is told is the time of the answer.
    Way {
        name: "concurrency",
        algorithm: Algorithm::Concurrency { lease: LEASE },
        quota: Quota::in_flight(10),
        limit: 10,
        all_back: |_| ZERO,
        next: (ZERO, 1),
        next_three: ZERO,
        // However long: what is given back is all that can be had.
        greedy: 10,
        knocked: [ZERO, ZERO],
        changes: &[
            change(Quota::in_flight(20), 15, 10, ZERO),
            change(Quota::in_flight(5), 0, 0, ZERO),
            change(Quota::in_flight(1), 0, 0, ZERO),
        ],
    },
];

const fn change(quota: Quota, half_left: u64, none_left: u64, next: Duration) -> Change {
    Change {
        quota,
        half_left,
        none_left,
        next,
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const ZERO: Duration = Duration::ZERO;
