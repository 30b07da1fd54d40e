//! The sliding window counter against exact fractions.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;
use tollgate::{
    ErrorKind, Quota,
    algorithm::{Counting, SlidingState, SlidingWindow},
    clock::Timestamp,
    decision::Retry,
};

const START: u64 = 1_700_000_000_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn window(quota: Quota) -> SlidingWindow {
    SlidingWindow::new(quota).expect("a usable quota")
}

/// The units of every window by its number, and the estimate with nothing rounded.
struct Exact {
    span: u64,
    used: HashMap<u64, u64>,
}

impl Exact {
    fn new(window: &SlidingWindow) -> Self {
        let span = window.millis() * 1_000;
        let used = HashMap::new();
        Self { span, used }
    }

    fn of(&self, number: u64) -> u128 {
        u128::from(self.used.get(&number).copied().unwrap_or(0))
    }

    /// The estimate times the window's length, with the weight standing still for `tick` microseconds.
    fn estimate(&self, now: u64, tick: u64) -> u128 {
        let (number, passed) = (now / self.span, now % self.span);
        let left = self.span - passed / tick * tick;
        self.of(number) * u128::from(self.span) + self.of(number - 1) * u128::from(left)
    }

    fn has_room(&self, now: u64, tick: u64, (cost, limit): (u64, u64)) -> bool {
        let (cost, limit, span) = (u128::from(cost), u128::from(limit), u128::from(self.span));
        self.estimate(now, tick) + cost * span <= limit * span
    }
}

fn drain(window: &SlidingWindow, state: &mut SlidingState, now: u64) -> u64 {
    let mut units = 0;
    while window.take(state, at(now), 1) {
        units += 1;
    }
    units
}

#[test]
fn burst_on_both_sides_of_a_boundary_gets_the_limit_and_what_has_slid_out() {
    // After the burst at the end of a window, the part of the limit that passes early in the next is that part of it.
    for (portion, more) in [
        (0, 0),
        (1, 0),
        (9, 0),
        (10, 1),
        (100, 10),
        (500, 50),
        (990, 99),
    ] {
        let window = window(Quota::per_minute(100));
        let boundary = START / 60_000_000 * 60_000_000 + 60_000_000;
        let mut state = SlidingState::default();
        assert_eq!(drain(&window, &mut state, boundary - 1), 100);
        let now = boundary + portion * 60_000;
        assert_eq!(
            drain(&window, &mut state, now),
            more,
            "{portion} thousandths on"
        );
    }
}

#[test]
fn dripping_after_a_burst_gets_almost_two_limits_in_a_period_and_never_two() {
    let window = window(Quota::per_minute(100));
    let boundary = START / 60_000_000 * 60_000_000 + 60_000_000;
    let mut state = SlidingState::default();
    let mut admitted = drain(&window, &mut state, boundary - 1);
    for now in (boundary..boundary + 59_999_999).step_by(10_007) {
        admitted += drain(&window, &mut state, now);
    }
    assert_eq!(admitted, 199, "the stated price of an estimate");
}

#[test]
fn even_traffic_a_little_below_the_rate_passes_for_ever() {
    // The elder's share is rounded up, so the rate itself would be denied now and then.
    let window = window(Quota::per_minute(61));
    let mut state = SlidingState::default();
    for second in 0..1_000 {
        let now = at(START + second * 1_000_000);
        assert!(window.take(&mut state, now, 1), "second {second}");
    }
}

#[test]
fn traffic_above_the_rate_gets_the_rate_in_the_long_run() {
    let window = window(Quota::per_minute(60));
    let mut state = SlidingState::default();
    let minutes = 200;
    let times = (0..minutes * 600).map(|step| START + step * 100_000);
    let admitted: u64 = times
        .map(|now| u64::from(window.take(&mut state, at(now), 1)))
        .sum();
    assert!(admitted <= 60 * (minutes + 1), "{admitted}");
    assert!(admitted >= 60 * minutes * 95 / 100, "{admitted}");
}

#[test]
fn clock_that_is_set_back_forgives_no_debt() {
    let window = window(Quota::per_minute(10));
    let mut state = SlidingState::default();
    assert!(window.take(&mut state, at(START), 10));
    let reset = window.usage(&state, at(START)).reset_at;
    for back in [1, 60_000_000, 90_000_000_000_000] {
        let earlier = at(START - back);
        assert!(!window.take(&mut state, earlier, 1));
        assert_eq!(window.usage(&state, earlier).reset_at, reset);
    }
    assert!(window.take(&mut state, reset, 10));
}

// Regression: the product overflowed. A debug build panicked; without overflow checks, 2^31 units in 2^30 ms
// wrap to 0.
#[test]
fn count_times_period_that_overflows_is_refused() {
    const DAY: u64 = 86_400_000;
    for (count, millis) in [
        (10_000_000, 31 * DAY),
        (1 << 31, 1 << 30),
        (0xFFFF_FFFF, 366 * DAY),
    ] {
        let quota = Quota::new(count, Duration::from_millis(millis));
        let error = SlidingWindow::new(quota).expect_err("too large to count exactly");
        assert_eq!(error.kind(), ErrorKind::InvalidQuota, "{count}");
    }
}

#[test]
fn largest_count_per_month_is_the_documented_one() {
    let is_usable = |count| SlidingWindow::new(Quota::per_month(count)).is_ok();
    assert!(is_usable(1_681_451) && !is_usable(1_681_452));
}

#[test]
fn who_spent_all_waits_until_the_first_unit_has_slid_out() {
    let window = window(Quota::per_minute(10));
    let opens = START / 60_000_000 * 60_000_000;
    let mut state = SlidingState::default();
    assert!(window.take(&mut state, at(opens), 10));
    let retry = |cost| window.retry(&state, at(opens), cost);
    let second = |seconds: u64| Retry::At(at(opens + seconds * 1_000_000));
    assert_eq!([1, 5, 10].map(retry), [66, 90, 120].map(second));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn estimate_is_that_of_exact_fractions_and_never_below(
        limit in prop_oneof![4 => 1_u64..30, 1 => 1_u64..100_000],
        millis in prop_oneof![1_u64..10, 1_u64..100_000, Just(86_400_000), Just(366 * 86_400_000)],
        steps in prop::collection::vec((0.0..1.2, 0.0..1.3, any::<bool>()), 1..120),
    ) {
        let quota = Quota::new(limit, Duration::from_millis(millis));
        let window = window(quota);
        let mut exact = Exact::new(&window);
        let (span, tick) = (exact.span, window.tick());
        let (mut state, mut now) = (SlidingState::default(), START);
        for (portion, part, is_one) in steps {
            now += (span as f64 * portion * portion * portion) as u64;
            let cost = if is_one { 1 } else { (limit as f64 * part) as u64 };
            let remaining = window.usage(&state, at(now)).remaining;
            let admitted = window.take(&mut state, at(now), cost);
            if cost > 0 {
                prop_assert_eq!(admitted, exact.has_room(now, tick, (cost, limit)));
                prop_assert!(!admitted || exact.has_room(now, 1, (cost, limit)), "never too much");
            }
            let left = u128::from(limit) * u128::from(span);
            let left = left.saturating_sub(exact.estimate(now, tick)) / u128::from(span);
            prop_assert_eq!(u128::from(remaining), left);
            if admitted {
                *exact.used.entry(now / span).or_default() += cost;
            }
        }
        // A window holds at most the limit by itself, and two of them at most twice as much.
        prop_assert!(exact.used.values().all(|used| *used <= limit));
    }
}
