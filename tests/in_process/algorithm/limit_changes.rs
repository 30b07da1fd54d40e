//! Limits that change while keys are in debt: nobody is locked out by it, and nobody is let off.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Quota,
    algorithm::{Algorithm, Counter, Counting, SlidingLog, TokenBucket, WindowStart},
    clock::Timestamp,
    decision::Retry,
};

/// A minute opens here, and an hour and a day do not.
const START: u64 = 1_700_000_040_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// Runs an expression for two counters of one kind, with their own type.
macro_rules! with {
    ($counters:expr, ($old:ident, $new:ident) => $body:expr) => {
        match $counters {
            (Counter::Bucket($old), Counter::Bucket($new)) => $body,
            (Counter::FixedWindow($old), Counter::FixedWindow($new)) => $body,
            (Counter::SlidingLog($old), Counter::SlidingLog($new)) => $body,
            (Counter::SlidingWindow($old), Counter::SlidingWindow($new)) => $body,
            others => panic!("two kinds of counting: {others:?}"),
        }
    };
}

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::FixedWindow(WindowStart::Clock),
    Algorithm::FixedWindow(WindowStart::FirstHit),
    Algorithm::LeakyBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::TokenBucket,
];

fn counter(quota: Quota, algorithm: Algorithm) -> Counter {
    Counter::new(quota, algorithm).expect("a usable quota")
}

/// Microseconds until that many units can be had.
fn wait<C: Counting>(counter: &C, state: &C::State, now: u64, cost: u64) -> u64 {
    if counter.admits(state, at(now), cost) {
        return 0;
    }
    match counter.retry(state, at(now), cost) {
        Retry::At(retry) => retry.as_micros() - now,
        other => panic!("{cost} fit in time: {other:?}"),
    }
}

/// What is left, and how many milliseconds one unit and the whole limit are away, rounded up.
type Standing = (u64, u64, u64);

fn standing<C: Counting>(counter: &C, state: &C::State, now: u64) -> Standing {
    let usage = counter.usage(state, at(now));
    let millis = |cost| wait(counter, state, now, cost).div_ceil(1_000);
    (usage.remaining, millis(1), millis(usage.limit))
}

/// The standings of a key that took so much of the old limit, 15 seconds later: before a change, after it, and after
/// the change back.
fn there_and_back<C: Counting>((old, new): (&C, &C), taken: u64) -> [Standing; 3] {
    let mut state = C::State::default();
    assert!(old.take(&mut state, at(START), taken));
    let now = START + 15_000_000;
    let before = standing(old, &state, now);
    new.adopt(&mut state, at(now));
    let changed = standing(new, &state, now);
    old.adopt(&mut state, at(now));
    [before, changed, standing(old, &state, now)]
}

fn standings(algorithm: Algorithm, quotas: [Quota; 2], taken: u64) -> [Standing; 3] {
    let [old, new] = quotas.map(|quota| counter(quota, algorithm));
    with!((&old, &new), (old, new) => there_and_back((old, new), taken))
}

#[test]
fn ten_a_minute_to_a_hundred_and_back_in_numbers() {
    let quotas = [Quota::per_minute(10), Quota::per_minute(100)];
    // Left, milliseconds to one unit, milliseconds to all. Half spent, then all spent, 15 seconds before.
    let table = [
        // A share stays a share: 15 seconds gave 2.5 of 10 back, and 25 of 100.
        (
            Algorithm::TokenBucket,
            5,
            [(7, 0, 15_000), (75, 0, 15_000), (7, 0, 15_000)],
        ),
        (
            Algorithm::TokenBucket,
            10,
            [(2, 0, 45_000), (25, 0, 45_000), (2, 0, 45_000)],
        ),
        // A number stays a number.
        (
            Algorithm::FixedWindow(WindowStart::Clock),
            5,
            [(5, 0, 45_000), (95, 0, 45_000), (5, 0, 45_000)],
        ),
        (
            Algorithm::FixedWindow(WindowStart::Clock),
            10,
            [(0, 45_000, 45_000), (90, 0, 45_000), (0, 45_000, 45_000)],
        ),
        (
            Algorithm::FixedWindow(WindowStart::FirstHit),
            5,
            [(5, 0, 45_000), (95, 0, 45_000), (5, 0, 45_000)],
        ),
        (
            Algorithm::FixedWindow(WindowStart::FirstHit),
            10,
            [(0, 45_000, 45_000), (90, 0, 45_000), (0, 45_000, 45_000)],
        ),
        (
            Algorithm::SlidingLog,
            5,
            [(5, 0, 45_000), (95, 0, 45_000), (5, 0, 45_000)],
        ),
        (
            Algorithm::SlidingLog,
            10,
            [(0, 45_000, 45_000), (90, 0, 45_000), (0, 45_000, 45_000)],
        ),
        // One of ten has slid out a tenth of a window after the window closes.
        (
            Algorithm::SlidingWindow,
            5,
            [(5, 0, 105_000), (95, 0, 105_000), (5, 0, 105_000)],
        ),
        (
            Algorithm::SlidingWindow,
            10,
            [(0, 51_000, 105_000), (90, 0, 105_000), (0, 51_000, 105_000)],
        ),
    ];
    for (algorithm, taken, expected) in table {
        let found = standings(algorithm, quotas, taken);
        assert_eq!(found, expected, "{algorithm:?}, {taken} of 10");
    }
    // A leaky bucket holds one: half an interval after it was taken, half an interval is owed.
    let quotas = [Quota::per_minute(2), Quota::per_minute(20)];
    let found = standings(Algorithm::LeakyBucket, quotas, 1);
    assert_eq!(
        found,
        [(0, 15_000, 15_000), (0, 1_500, 1_500), (0, 15_000, 15_000)]
    );
}

#[test]
fn a_hundred_a_minute_to_ten_and_back_in_numbers() {
    let quotas = [Quota::per_minute(100), Quota::per_minute(10)];
    let table = [
        (
            Algorithm::TokenBucket,
            50,
            [(75, 0, 15_000), (7, 0, 15_000), (75, 0, 15_000)],
        ),
        (
            Algorithm::TokenBucket,
            100,
            [(25, 0, 45_000), (2, 0, 45_000), (25, 0, 45_000)],
        ),
        (
            Algorithm::FixedWindow(WindowStart::Clock),
            50,
            [(50, 0, 45_000), (0, 45_000, 45_000), (50, 0, 45_000)],
        ),
        (
            Algorithm::FixedWindow(WindowStart::Clock),
            100,
            [(0, 45_000, 45_000); 3],
        ),
        (
            Algorithm::SlidingLog,
            50,
            [(50, 0, 45_000), (0, 45_000, 45_000), (50, 0, 45_000)],
        ),
        (Algorithm::SlidingLog, 100, [(0, 45_000, 45_000); 3]),
        // Who used more than the new limit waits as long as who used all of the new limit: 51 seconds for one unit.
        (
            Algorithm::SlidingWindow,
            50,
            [(50, 0, 105_000), (0, 51_000, 105_000), (50, 0, 105_000)],
        ),
        (
            Algorithm::SlidingWindow,
            100,
            [
                (0, 45_600, 105_000),
                (0, 51_000, 105_000),
                (0, 45_600, 105_000),
            ],
        ),
    ];
    for (algorithm, taken, expected) in table {
        let found = standings(algorithm, quotas, taken);
        assert_eq!(found, expected, "{algorithm:?}, {taken} of 100");
    }
}

#[test]
fn longer_and_shorter_periods_in_numbers() {
    let (minute, hour) = (Quota::per_minute(10), Quota::per_hour(10));
    // Seconds until the hour closes.
    let left = 3_600 - START / 1_000_000 % 3_600 - 15;
    let table = [
        // A quarter came back of the minute, and a quarter is back of the hour.
        (
            Algorithm::TokenBucket,
            [(2, 0, 45_000), (2, 0, 2_700_000), (2, 0, 45_000)],
        ),
        (
            Algorithm::FixedWindow(WindowStart::Clock),
            [
                (0, 45_000, 45_000),
                (0, left * 1_000, left * 1_000),
                (0, 45_000, 45_000),
            ],
        ),
        // Opened anew by the change, and by the change back.
        (
            Algorithm::FixedWindow(WindowStart::FirstHit),
            [
                (0, 45_000, 45_000),
                (0, 3_600_000, 3_600_000),
                (0, 60_000, 60_000),
            ],
        ),
        (
            Algorithm::SlidingLog,
            [
                (0, 45_000, 45_000),
                (0, 3_585_000, 3_585_000),
                (0, 45_000, 45_000),
            ],
        ),
    ];
    for (algorithm, expected) in table {
        let found = standings(algorithm, [minute, hour], 10);
        assert_eq!(found, expected, "{algorithm:?}");
    }
    let table = [
        (
            Algorithm::TokenBucket,
            [
                (0, 345_000, 3_585_000),
                (0, 5_750, 59_750),
                (0, 345_000, 3_585_000),
            ],
        ),
        (
            Algorithm::SlidingLog,
            [
                (0, 3_585_000, 3_585_000),
                (0, 45_000, 45_000),
                (0, 3_585_000, 3_585_000),
            ],
        ),
    ];
    for (algorithm, expected) in table {
        let found = standings(algorithm, [hour, minute], 10);
        assert_eq!(found, expected, "{algorithm:?}");
    }
}

// Regression: the units of the elder window counted in full against a limit that had been lowered since.
#[test]
fn lowered_limit_of_a_sliding_window_keeps_out_no_longer_than_spending_all_of_it() {
    let [old, new] =
        [1_000_000, 10].map(|limit| counter(Quota::per_minute(limit), Algorithm::SlidingWindow));
    with!((&old, &new), (old, new) => {
        let (mut mine, mut others) = (Default::default(), Default::default());
        assert!(old.take(&mut mine, at(START), 1_000_000));
        assert!(new.take(&mut others, at(START), 10));
        new.adopt(&mut mine, at(START));
        for cost in 1..=10 {
            for now in [START, START + 59_999_999, START + 60_000_000, START + 63_000_000] {
                assert_eq!(wait(new, &mine, now, cost), wait(new, &others, now, cost));
            }
        }
    });
}

// Regression: ticks of 41 us for a day and 1,248 us for a month made a log's times creep on with every change, without
// end and past the present.
#[test]
fn changing_to_and_fro_does_not_move_a_log() {
    let [day, month] = [Quota::per_day(10), Quota::per_month(10)]
        .map(|quota| SlidingLog::new(quota).expect("a usable quota"));
    let mut state = Default::default();
    assert!(day.take(&mut state, at(START + 7), 10));
    for _ in 0..10_000 {
        month.adopt(&mut state, at(START + 7));
        day.adopt(&mut state, at(START + 7));
    }
    let late = wait(&day, &state, START + 7, 10) - 86_400_000_000;
    assert!(late <= 2_048, "{late} us");
}

#[test]
fn changing_to_and_fro_never_owes_a_bucket_more_than_all() {
    let [minute, month] = [Quota::per_minute(10), Quota::per_month(10)]
        .map(|quota| TokenBucket::new(quota).expect("a usable quota"));
    let mut state = Default::default();
    assert!(minute.take(&mut state, at(START), 10));
    for _ in 0..10_000 {
        month.adopt(&mut state, at(START));
        minute.adopt(&mut state, at(START));
    }
    assert_eq!(wait(&minute, &state, START, 10), 60_000_000);
}

#[test]
fn log_counts_what_was_taken_within_the_new_period() {
    let [hour, minute] = [Quota::per_hour(10), Quota::per_minute(10)]
        .map(|quota| SlidingLog::new(quota).expect("a usable quota"));
    let mut state = Default::default();
    assert!(hour.take(&mut state, at(START), 6));
    assert!(hour.take(&mut state, at(START + 100_000_000), 4));
    let now = START + 130_000_000;
    minute.adopt(&mut state, at(now));
    assert_eq!(standing(&minute, &state, now), (6, 0, 30_000));
}

#[test]
fn two_periods_at_once_keep_no_modest_caller_out() {
    // First-hit and sliding windows are left out: see the docs of `algorithm`.
    let algorithms = [
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::LeakyBucket,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket,
    ];
    for algorithm in algorithms {
        let [minute, double] = [(20, 60), (40, 120)].map(|(limit, seconds)| {
            counter(Quota::new(limit, Duration::from_secs(seconds)), algorithm)
        });
        let admitted = with!((&minute, &double), (minute, double) => {
            let mut state = Default::default();
            let mut ask = |request: u64| {
                let counter = if request.is_multiple_of(2) { minute } else { double };
                let now = at(START + request * 5_000_000);
                counter.adopt(&mut state, now);
                counter.take(&mut state, now, 1)
            };
            // 12 a minute, for twenty minutes.
            (0..240).filter(|request| ask(*request)).count()
        });
        assert!(admitted >= 220, "{algorithm:?}: {admitted} of 240");
    }
}

#[test]
fn key_that_owes_nothing_owes_nothing_after_a_change() {
    for algorithm in ALGORITHMS {
        let [old, new] =
            [Quota::per_minute(10), Quota::per_hour(7)].map(|quota| counter(quota, algorithm));
        with!((&old, &new), (old, new) => {
            let mut state = Default::default();
            assert!(old.take(&mut state, at(START), 1));
            let now = START + 2 * 3_600_000_000;
            new.adopt(&mut state, at(now));
            assert_eq!(standing(new, &state, now).0, new.usage(&state, at(now)).limit, "{algorithm:?}");
        });
    }
}

fn any_quotas() -> impl Strategy<Value = (Algorithm, Counter, Counter)> {
    let millis = || {
        prop_oneof![
            Just(1_000_u64),
            Just(60_000),
            Just(3_600_000),
            Just(86_400_000),
            10_u64..100_000_000
        ]
    };
    let limit = || prop_oneof![1_u64..20, 1_u64..2_000];
    let quota = |(millis, limit): (u64, u64)| Quota::new(limit, Duration::from_millis(millis));
    (
        prop::sample::select(ALGORITHMS.to_vec()),
        (millis(), limit()),
        (millis(), limit()),
    )
        .prop_map(move |(algorithm, old, new)| {
            (
                algorithm,
                counter(quota(old), algorithm),
                counter(quota(new), algorithm),
            )
        })
}

/// A key's life under the old quota: portions of the limit and of the period.
fn live<C: Counting>(old: &C, steps: &[(f64, f64)], now: &mut u64) -> C::State {
    let mut state = C::State::default();
    let mut fresh = C::State::default();
    let limit = old.usage(&state, at(*now)).limit;
    old.take(&mut fresh, at(*now), limit);
    let span = wait(old, &fresh, *now, limit) as f64;
    for (portion, part) in steps {
        *now += (span * portion) as u64;
        old.take(&mut state, at(*now), (limit as f64 * part) as u64);
    }
    state
}

/// What must hold whenever one quota follows another.
fn change_is_fair<C: Counting>(
    (old, new): (&C, &C),
    algorithm: Algorithm,
    steps: &[(f64, f64)],
    start: u64,
) {
    let mut now = start;
    let state = live(old, steps, &mut now);
    let (had, mut changed) = (old.usage(&state, at(now)), state.clone());
    new.adopt(&mut changed, at(now));
    let got = new.usage(&changed, at(now));
    // The most that the new quota alone could make anybody wait.
    let mut spent = C::State::default();
    assert!(new.take(&mut spent, at(now), got.limit));
    // A tick of a log.
    let slack = 64;
    for cost in [1, got.limit.div_ceil(2), got.limit] {
        let (mine, most) = (wait(new, &changed, now, cost), wait(new, &spent, now, cost));
        assert!(
            mine <= most + slack,
            "{mine} instead of at most {most} us for {cost}"
        );
    }
    let is_too_little = match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let mut all = C::State::default();
            assert!(old.take(&mut all, at(now), had.limit));
            let [owed, whole] = [&state, &all].map(|state| wait(old, state, now, had.limit));
            let most = wait(new, &spent, now, got.limit);
            let share = u128::from(owed) * u128::from(most) / u128::from(whole);
            let share = u64::try_from(share).expect("no more than the most");
            let kept = wait(new, &changed, now, got.limit);
            // Three microseconds of either span, and the old one is kept to 26 significant bits.
            let error = 3 + 3 * most.div_ceil(whole) + (most >> 24);
            assert!(
                kept.abs_diff(share) <= error,
                "{kept} of a share of {share}"
            );
            // A span is up to two microseconds longer than its units need: within these, a debt takes no unit away.
            share < 2
        }
        // A log knows the times: perhaps nothing was taken within the new period.
        Algorithm::SlidingLog => true,
        _ => is_nearly_back(old, &state, now),
    };
    if had.remaining == 0 && !is_too_little {
        assert!(got.remaining < got.limit, "{had:?} became {got:?}");
    }
    // Told about before it is stored, the same is told as after.
    let peeked = new.usage(&state, at(now));
    assert_eq!(peeked.remaining, got.remaining);
    // And adopting twice is adopting once.
    let mut twice = changed.clone();
    new.adopt(&mut twice, at(now));
    assert_eq!(twice, changed);
}

/// Whether so little is owed that a share of it is less than a millisecond, in which windows are kept.
fn is_nearly_back<C: Counting>(old: &C, state: &C::State, now: u64) -> bool {
    let limit = old.usage(state, at(now)).limit;
    wait(old, state, now, limit) < 1_000
}

fn change_back_is_no_gift<C: Counting>(
    (old, new): (&C, &C),
    algorithm: Algorithm,
    steps: &[(f64, f64)],
    start: u64,
) {
    let mut now = start;
    let state = live(old, steps, &mut now);
    let mut back = state.clone();
    new.adopt(&mut back, at(now));
    old.adopt(&mut back, at(now));
    let (had, has) = (old.usage(&state, at(now)), old.usage(&back, at(now)));
    let shortest = |counter: &C| {
        let (mut spent, limit) = (C::State::default(), counter.usage(&state, at(now)).limit);
        counter.take(&mut spent, at(now), limit);
        counter.usage(&spent, at(now)).reset_at
    };
    match algorithm {
        // A shorter log forgets what is older than itself.
        Algorithm::SlidingLog if shortest(new) < shortest(old) => {
            assert!(has.remaining >= had.remaining);
        }
        _ => {
            assert!(has.remaining <= had.remaining + 1, "{had:?} became {has:?}");
            assert!(
                has.remaining + 1 + had.limit / 1_000 >= had.remaining,
                "{had:?} became {has:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn changed_limit_neither_blocks_a_key_nor_forgives_its_debt(
        (algorithm, old, new) in any_quotas(),
        steps in prop::collection::vec((prop_oneof![Just(0.0), 0.0..0.4], prop_oneof![Just(1.0), 0.0..1.0]), 1..12),
        phase in 0_u64..100_000_000_000,
    ) {
        with!((&old, &new), (old, new) => {
            change_is_fair((old, new), algorithm, &steps, START + phase);
            change_back_is_no_gift((old, new), algorithm, &steps, START + phase);
        });
    }
}
