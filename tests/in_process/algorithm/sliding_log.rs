//! The sliding window log against a plain list of what was admitted.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Quota,
    algorithm::{Admitted, Counting, LogState, SlidingLog},
    clock::Timestamp,
    decision::Retry,
};

const START: u64 = 1_700_000_000_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn log(limit: u64, period: Duration) -> SlidingLog {
    SlidingLog::new(Quota::new(limit, period)).expect("a usable quota")
}

fn micros(log: &SlidingLog) -> u64 {
    log.millis() * 1_000
}

/// The documented bound on how late a unit comes back: 2^31 ticks are at least a period, and at most two.
fn tick(log: &SlidingLog) -> u64 {
    micros(log).div_ceil(1 << 31).next_power_of_two()
}

/// What was admitted, and when.
#[derive(Default)]
struct List {
    admitted: Vec<(u64, u64)>,
}

impl List {
    /// The units that were taken within a period before `now`, when each counts for `late` longer.
    fn used(&self, now: u64, period: u64, late: u64) -> u64 {
        let counts = |made: &u64| made + period + late > now;
        self.admitted
            .iter()
            .filter(|(made, _)| counts(made))
            .map(|(_, cost)| cost)
            .sum()
    }

    /// The most units in any span that is as long as the period.
    fn most_in_a_period(&self, period: u64) -> u64 {
        let spans = self.admitted.iter().enumerate().map(|(first, (begin, _))| {
            self.admitted[first..]
                .iter()
                .take_while(|(made, _)| *made < begin + period)
                .map(|(_, cost)| cost)
                .sum()
        });
        spans.max().unwrap_or(0)
    }
}

/// Takes what can be had one by one at each of these times.
fn greedy(log: &SlidingLog, times: impl IntoIterator<Item = u64>) -> List {
    let (mut state, mut list) = (LogState::default(), List::default());
    for now in times {
        while log.take(&mut state, at(now), 1) {
            list.admitted.push((now, 1));
        }
    }
    list
}

#[test]
fn full_burst_at_the_end_of_a_period_leaves_none_for_the_next() {
    let log = log(10, Duration::from_secs(60));
    // Around the minute, where a fixed window would begin anew.
    let minute = START / 60_000_000 * 60_000_000 + 60_000_000;
    let around = [
        minute - 1,
        minute,
        minute + 1,
        minute + 1_000_000,
        minute + 59_999_998,
    ];
    assert_eq!(greedy(&log, around).admitted.len(), 10);
    let later = [minute - 1, minute + 59_999_998, minute + 59_999_999];
    assert_eq!(greedy(&log, later).admitted.len(), 20);
}

// Regression: a charge's time, rounded up to a tick, was taken for the present, and what was almost a period old left
// up to a tick early.
#[test]
fn unit_does_not_come_back_a_tick_early_because_of_the_next_charge() {
    for (hours, tick) in [(1, 2), (24, 64), (31 * 24, 2_048), (366 * 24, 16_384)] {
        let log = log(10, Duration::from_secs(hours * 3_600));
        let period = micros(&log);
        let first = START.next_multiple_of(tick);
        let mut state = LogState::default();
        assert!(log.take(&mut state, at(first), 9));
        let next = first + period - tick + 1;
        assert!(log.take(&mut state, at(next), 1));
        let usage = log.usage(&state, at(next));
        assert_eq!(
            usage.remaining, 0,
            "{hours} hours: the nine are not a period old"
        );
        assert!(
            !log.take(&mut state, at(first + period - 1), 1),
            "{hours} hours"
        );
    }
}

#[test]
fn units_of_one_charge_come_back_together_and_others_when_they_were_taken() {
    let log = log(10, Duration::from_secs(60));
    let mut state = LogState::default();
    for (second, cost) in [(0, 4), (10, 3), (20, 3)] {
        assert!(log.take(&mut state, at(START + second * 1_000_000), cost));
    }
    let left = |second: u64| log.usage(&state, at(START + second * 1_000_000)).remaining;
    assert_eq!(
        [30, 59, 60, 69, 70, 79, 80].map(left),
        [0, 0, 4, 4, 7, 7, 10]
    );
    let retry = |cost| log.retry(&state, at(START + 30_000_000), cost);
    let second = |second: u64| Retry::At(at(START + second * 1_000_000));
    assert_eq!(
        [1, 4, 5, 7, 8, 10].map(retry),
        [60, 60, 70, 70, 80, 80].map(second)
    );
    assert_eq!(retry(11), Retry::Never);
}

#[test]
fn clock_that_is_set_back_forgives_no_debt() {
    let log = log(10, Duration::from_secs(60));
    let mut state = LogState::default();
    assert!(log.take(&mut state, at(START), 10));
    for back in [1, 60_000_000, 90_000_000_000_000] {
        let earlier = at(START - back);
        assert!(!log.take(&mut state, earlier, 1));
        assert_eq!(
            log.retry(&state, earlier, 1),
            Retry::At(at(START + 60_000_000))
        );
    }
    assert!(log.take(&mut state, at(START + 60_000_000), 10));
}

#[test]
fn clock_that_is_set_forward_gives_a_period_and_no_more() {
    let log = log(10, Duration::from_secs(60));
    let mut state = LogState::default();
    let year = 366 * 86_400_000_000;
    assert!(log.take(&mut state, at(START), 10));
    assert!(log.take(&mut state, at(START + year), 10));
    assert!(!log.take(&mut state, at(START + year), 1));
    assert!(!log.take(&mut state, at(START), 1), "set back again");
}

#[test]
fn entries_are_one_for_each_moment_and_as_many_as_the_limit_at_most() {
    let log = log(100, Duration::from_secs(60));
    let mut state = LogState::default();
    for step in 0..100_000 {
        log.take(&mut state, at(START + step * 7_919), 1);
        assert!(state.entries() <= 100);
    }
    let mut state = LogState::default();
    for _ in 0..100 {
        assert!(log.take(&mut state, at(START), 1));
    }
    assert_eq!(state.entries(), 1);
}

#[test]
fn log_that_was_long_gives_its_memory_back() {
    let log = log(10_000, Duration::from_secs(60));
    let mut state = LogState::default();
    for step in 0..10_000 {
        assert!(log.take(&mut state, at(START + step), 1));
    }
    let long = state.bytes();
    assert!((160_000..=320_000).contains(&long), "{long}");
    for step in 0..100 {
        assert!(log.take(&mut state, at(START + 100_000_000 + step), 1));
    }
    assert!(state.bytes() <= 8 * 100 * 16, "{}", state.bytes());
}

// Regression: the guide said 41 us for a day.
#[test]
fn unit_comes_back_as_late_as_the_guide_states_at_most() {
    const MINUTE: u64 = 60;
    const DAY: u64 = 86_400;
    for (seconds, latest) in [
        (1, 0),
        (35 * MINUTE, 0),
        (60 * MINUTE, 1),
        (DAY, 63),
        (31 * DAY, 2_047),
        (366 * DAY, 16_383),
    ] {
        let log = log(1, Duration::from_secs(seconds));
        let period = micros(&log);
        // Every place within a tick.
        let lateness = (0..tick(&log)).map(|place| {
            let now = START + place;
            let mut state = LogState::default();
            assert!(log.take(&mut state, at(now), 1));
            let Retry::At(back) = log.retry(&state, at(now), 1) else {
                panic!("it comes back");
            };
            assert!(!log.admits(&state, at(back.as_micros() - 1), 1));
            assert!(log.admits(&state, back, 1));
            back.as_micros() - (now + period)
        });
        assert_eq!(lateness.max(), Some(latest), "{seconds} s");
    }
}

fn any_steps() -> impl Strategy<Value = Vec<(f64, u64)>> {
    let portion =
        prop_oneof![3 => Just(0.0), 4 => 0.0..0.2, 2 => 0.0..1.1, 1 => 0.999_999..1.000_001];
    prop::collection::vec(
        (portion, prop_oneof![3 => Just(1_u64), 1 => 0_u64..12]),
        1..150,
    )
}

// Regression: units that were merged or restored came back a period after the merge.
#[test]
fn merged_units_come_back_when_the_latest_of_them_does() {
    let (log, now) = (log(100, Duration::from_secs(60)), at(START + 100_000_000));
    let until = at(START + 119_000_000);
    for (amount, from) in [(0, 100), (100, 0)] {
        // The entries stay in the order of their times.
        for (newest, reset_at) in [
            (START, until),
            (START + 80_000_000, at(START + 140_000_000)),
        ] {
            let mut state = LogState::default();
            assert!(log.take(&mut state, at(newest), 1));
            log.merge(&mut state, now, Admitted::new(amount, from, until));
            let usage = log.usage(&state, now);
            assert_eq!((usage.remaining, usage.reset_at), (0, reset_at));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn admits_exactly_what_the_list_admits_up_to_35_minutes(
        limit in 1_u64..20,
        millis in prop_oneof![1_u64..100, 1_u64..=35 * 60_000, Just(35 * 60_000)],
        steps in any_steps(),
    ) {
        let log = log(limit, Duration::from_millis(millis));
        let period = micros(&log);
        prop_assert_eq!(tick(&log), 1);
        let (mut state, mut list, mut now) = (LogState::default(), List::default(), START);
        for (portion, cost) in steps {
            now += (period as f64 * portion) as u64;
            let used = list.used(now, period, 0);
            prop_assert_eq!(log.usage(&state, at(now)).remaining, limit - used);
            let admitted = log.take(&mut state, at(now), cost);
            prop_assert_eq!(admitted, cost == 0 || used + cost <= limit);
            if admitted && cost > 0 {
                list.admitted.push((now, cost));
            }
        }
        prop_assert!(list.most_in_a_period(period) <= limit);
    }

    #[test]
    fn never_early_and_at_most_a_tick_late_for_any_period(
        limit in 1_u64..20,
        millis in prop_oneof![1_u64..=366 * 86_400_000, Just(86_400_000), Just(366 * 86_400_000)],
        phase in 0_u64..100_000,
        steps in any_steps(),
        within_ticks in prop::collection::vec(0_u64..40_000, 150),
    ) {
        let log = log(limit, Duration::from_millis(millis));
        let (period, tick) = (micros(&log), tick(&log));
        let (mut state, mut list, mut now) = (LogState::default(), List::default(), START + phase);
        for ((portion, cost), jitter) in steps.into_iter().zip(within_ticks) {
            // Around the moment when the eldest comes back, to the tick.
            now = match list.admitted.iter().find(|(made, _)| made + period + tick > now) {
                Some((made, _)) if portion > 0.5 => now.max(made + period + tick - jitter % (2 * tick)),
                _ => now + (period as f64 * portion) as u64 + jitter % 3,
            };
            let admitted = log.take(&mut state, at(now), cost);
            if admitted && cost > 0 {
                prop_assert!(list.used(now, period, 0) + cost <= limit, "early");
                list.admitted.push((now, cost));
            } else if cost > 0 {
                prop_assert!(list.used(now, period, tick) + cost > limit, "over a tick late");
            }
        }
        prop_assert!(list.most_in_a_period(period) <= limit);
    }
}
