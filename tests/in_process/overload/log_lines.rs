//! The log lines: few, however many requests are shed.

use std::time::Duration;

use tollgate::{
    clock::Clock,
    overload::{InFlight, Overload, Priority},
    rules::RuleMode,
};

use super::places::{built, fill, stopped};
use crate::support::logged;

/// Sends so many requests at once, ten times, each of which takes this long.
fn windows(overload: &Overload, clock: &Clock, crowd: u32, took: Duration) {
    for _ in 0..10 {
        let places: Vec<_> = (0..crowd)
            .filter_map(|_| overload.enter(Priority::Normal, None).ok())
            .collect();
        clock.advance(took);
        places.into_iter().for_each(InFlight::answered);
    }
}

/// Keeps all places taken.
fn crowd(overload: &Overload, clock: &Clock) {
    let mut places: Vec<_> = fill(overload, Priority::Normal);
    for _ in 0..600 {
        clock.advance(Duration::from_millis(2));
        places.remove(0).answered();
        places.extend(fill(overload, Priority::Normal));
    }
}

/// Expects these lines since the last call, each by its level and its text.
#[track_caller]
fn expect_lines(expected: &[[&str; 2]]) {
    let lines = logged();
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, words) in lines.iter().zip(expected) {
        assert!(words.iter().all(|word| line.contains(word)), "{lines:?}");
    }
}

// A burst in each second is one overload for the log, and its end is logged 10 s later.
#[test]
fn overload_has_a_log_line_when_it_begins_and_one_when_it_is_over() {
    expect_lines(&[]);
    let (builder, clock) = stopped();
    let overload = built(builder);
    windows(&overload, &clock, 30, Duration::from_millis(20));
    expect_lines(&[]);
    crowd(&overload, &clock);
    assert!(overload.is_overloaded());
    // The first window is full, and not slow yet.
    expect_lines(&[SHED, OVERLOADED]);
    for _ in 0..3 {
        windows(&overload, &clock, 1, Duration::from_millis(300));
        crowd(&overload, &clock);
    }
    expect_lines(&[]);
    windows(&overload, &clock, 1, Duration::from_millis(1_100));
    windows(&overload, &clock, 1, Duration::from_millis(1_100));
    expect_lines(&[["INFO", "the service is no longer overloaded"]]);
}

/// Sends a burst that is far above the limit and is served as quickly as ever.
fn burst(overload: &Overload, clock: &Clock) {
    let places = fill(overload, Priority::Normal);
    for _ in 0..100 {
        let shed = overload.enter(Priority::Normal, None);
        shed.expect_err("no place is left");
    }
    clock.advance(Duration::from_millis(20));
    places.into_iter().for_each(InFlight::answered);
    windows(overload, clock, 1, Duration::from_millis(20));
}

#[test]
fn bursts_that_are_shed_without_overload_have_a_log_line_when_they_begin_and_one_when_they_end() {
    expect_lines(&[]);
    let (builder, clock) = stopped();
    let overload = built(builder);
    windows(&overload, &clock, 30, Duration::from_millis(20));
    burst(&overload, &clock);
    assert!(!overload.is_overloaded());
    expect_lines(&[["requests are shed", "mode=enforce"]]);
    for _ in 0..5 {
        burst(&overload, &clock);
        windows(&overload, &clock, 1, Duration::from_millis(300));
    }
    expect_lines(&[]);
    for _ in 0..4 {
        windows(&overload, &clock, 1, Duration::from_millis(300));
    }
    expect_lines(&[["requests are no longer shed", "shed=606"]]);
    windows(&overload, &clock, 1, Duration::from_millis(1_100));
    expect_lines(&[]);
}

#[test]
fn log_line_has_the_mode_of_what_would_be_shed_in_shadow() {
    expect_lines(&[]);
    let (builder, clock) = stopped();
    let overload = built(builder.mode(RuleMode::Shadow));
    windows(&overload, &clock, 30, Duration::from_millis(20));
    windows(&overload, &clock, 1_000, Duration::from_millis(20));
    assert!(!overload.is_overloaded());
    expect_lines(&[["requests are shed", "mode=shadow"]]);
}

const OVERLOADED: [&str; 2] = ["WARN", "the service is overloaded"];
const SHED: [&str; 2] = ["WARN", "requests are shed"];
