//! The fixed window against counters by the number of their window.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;
use tollgate::{
    Quota,
    algorithm::{Counting, FixedWindow, WindowStart, WindowState},
    clock::Timestamp,
    decision::Retry,
};

const START: u64 = 1_700_000_000_000_000;
const DAY: u64 = 86_400_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn window(quota: Quota, opening: WindowStart) -> FixedWindow {
    FixedWindow::new(quota, opening).expect("a usable quota")
}

/// How many units can be taken one by one.
fn drain(window: &FixedWindow, state: &mut WindowState, now: u64) -> u64 {
    let mut units = 0;
    while window.take(state, at(now), 1) {
        units += 1;
    }
    units
}

#[test]
fn two_full_windows_pass_around_a_boundary_and_never_more() {
    let window = window(Quota::per_minute(10), WindowStart::Clock);
    let boundary = START / 60_000_000 * 60_000_000 + 60_000_000;
    let mut state = WindowState::default();
    let mut admitted = 0;
    for now in boundary - 1_000..boundary + 1_000 {
        admitted += drain(&window, &mut state, now);
    }
    assert_eq!(admitted, 20, "twice the limit in two milliseconds");
    for now in (boundary..boundary + 60_000_000).step_by(997) {
        assert_eq!(drain(&window, &mut state, now), 0);
    }
    assert_eq!(drain(&window, &mut state, boundary + 60_000_000), 10);
}

#[test]
fn window_that_opens_with_the_first_hit_gives_two_full_ones_around_its_end() {
    let window = window(Quota::per_minute(10), WindowStart::FirstHit);
    let mut state = WindowState::default();
    let first = START + 17_000_123;
    assert!(window.take(&mut state, at(first), 1));
    let closes = window.usage(&state, at(first)).reset_at.as_micros();
    assert_eq!(closes, first + 60_000_000);
    assert_eq!(drain(&window, &mut state, closes - 1), 9);
    assert_eq!(drain(&window, &mut state, closes), 10);
    assert_eq!(drain(&window, &mut state, closes + 59_999_999), 0);
    assert_eq!(drain(&window, &mut state, closes + 60_000_000), 10);
}

#[test]
fn nothing_is_open_before_the_first_hit_and_denials_do_not_open() {
    let window = window(Quota::per_minute(10), WindowStart::FirstHit);
    let mut state = WindowState::default();
    assert!(!window.take(&mut state, at(START), 11));
    assert!(window.take(&mut state, at(START + 1_000_000), 0));
    assert_eq!(state, WindowState::default());
    let now = at(START + 40_000_000);
    assert_eq!(window.usage(&state, now).reset_at, now);
    assert!(window.take(&mut state, now, 10));
    assert_eq!(
        window.retry(&state, now, 1),
        Retry::At(at(START + 100_000_000))
    );
}

#[test]
fn windows_by_the_clock_open_for_all_keys_at_once() {
    for (quota, length) in [
        (Quota::per_second(5), 1_000_000),
        (Quota::per_hour(5), 3_600_000_000),
        (Quota::per_day(5), DAY),
    ] {
        let window = window(quota, WindowStart::Clock);
        for late in [0, 1, length / 2, length - 1] {
            let opens = START / length * length;
            let mut state = WindowState::default();
            assert!(window.take(&mut state, at(opens + late), 1));
            let usage = window.usage(&state, at(opens + late));
            assert_eq!(usage.reset_at, at(opens + length));
        }
    }
}

#[test]
fn months_end_as_in_a_calendar_until_2255() {
    let window = window(Quota::per_month(10), WindowStart::Month);
    let mut opens = 0;
    for year in 1970..2255_u64 {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let february = 28 + u64::from(is_leap);
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            let closes = opens + days * DAY;
            let mut state = WindowState::default();
            for now in [opens, opens + 1, opens + DAY, closes - DAY, closes - 1] {
                window.take(&mut state, at(now), 3);
                let usage = window.usage(&state, at(now));
                assert_eq!(usage.reset_at, at(closes), "{year}: {now}");
            }
            assert_eq!(window.usage(&state, at(closes - 1)).remaining, 1);
            assert_eq!(window.usage(&state, at(closes)).remaining, 10);
            opens = closes;
        }
    }
}

#[test]
fn clock_that_is_set_back_opens_no_second_window() {
    for opening in [
        WindowStart::Clock,
        WindowStart::FirstHit,
        WindowStart::Month,
    ] {
        let window = window(Quota::per_month(10), opening);
        let mut state = WindowState::default();
        assert!(window.take(&mut state, at(START), 10));
        let closes = window.usage(&state, at(START)).reset_at;
        for back in [1, DAY, 40 * DAY, 4_000 * DAY] {
            assert!(!window.take(&mut state, at(START - back), 1), "{opening:?}");
            assert_eq!(window.retry(&state, at(START - back), 1), Retry::At(closes));
        }
        assert!(window.take(&mut state, closes, 10));
    }
}

#[test]
fn clock_that_is_set_forward_opens_one_window() {
    for opening in [
        WindowStart::Clock,
        WindowStart::FirstHit,
        WindowStart::Month,
    ] {
        let window = window(Quota::per_month(10), opening);
        let mut state = WindowState::default();
        assert!(window.take(&mut state, at(START), 10));
        assert_eq!(drain(&window, &mut state, START + 4_000 * DAY), 10);
        assert_eq!(drain(&window, &mut state, START), 0, "set back again");
    }
}

/// A boundary-free view: in any span as long as a window at most twice the limit was admitted.
fn most_in_a_span(admitted: &[(u64, u64)], span: u64) -> u64 {
    let sums = admitted.iter().enumerate().map(|(first, (begin, _))| {
        let within = admitted[first..]
            .iter()
            .take_while(|(now, _)| *now < begin + span);
        within.map(|(_, cost)| cost).sum()
    });
    sums.max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn clock_windows_admit_what_counters_by_number_admit(
        limit in 1_u64..30,
        millis in prop_oneof![1_u64..10, 1_u64..100_000, Just(366 * 86_400_000)],
        steps in prop::collection::vec((0.0..0.7, prop_oneof![Just(1_u64), 0_u64..40]), 1..150),
    ) {
        let window = window(Quota::new(limit, Duration::from_millis(millis)), WindowStart::Clock);
        let span = millis * 1_000;
        let (mut state, mut now) = (WindowState::default(), START);
        let (mut counters, mut admitted) = (HashMap::<u64, u64>::new(), Vec::new());
        for (portion, cost) in steps {
            now += (span as f64 * portion * portion) as u64;
            let used = counters.entry(now / span).or_default();
            prop_assert_eq!(window.usage(&state, at(now)).remaining, limit - *used);
            let has_room = cost == 0 || *used + cost <= limit;
            prop_assert_eq!(window.take(&mut state, at(now), cost), has_room);
            if has_room {
                *used += cost;
                admitted.push((now, cost));
            }
        }
        prop_assert!(most_in_a_span(&admitted, span) <= 2 * limit);
    }

    #[test]
    fn first_hit_windows_are_exactly_as_long_as_their_length(
        limit in 1_u64..30,
        millis in prop_oneof![1_u64..10, 1_u64..100_000],
        steps in prop::collection::vec((0.0..0.7, prop_oneof![Just(1_u64), 0_u64..40]), 1..150),
    ) {
        let window = window(Quota::new(limit, Duration::from_millis(millis)), WindowStart::FirstHit);
        let span = millis * 1_000;
        let (mut state, mut now) = (WindowState::default(), START);
        let (mut opened, mut used, mut admitted) = (0, 0, Vec::new());
        for (portion, cost) in steps {
            now += (span as f64 * portion) as u64;
            if now >= opened + span {
                used = 0;
            }
            let has_room = cost == 0 || used + cost <= limit;
            prop_assert_eq!(window.take(&mut state, at(now), cost), has_room);
            if has_room && cost > 0 {
                if used == 0 {
                    opened = now;
                }
                used += cost;
                admitted.push((now, cost));
            }
            prop_assert_eq!(window.usage(&state, at(now)).remaining, limit - used);
        }
        prop_assert!(most_in_a_span(&admitted, span) <= 2 * limit);
    }
}
