//! The token bucket's arithmetic against exact fractions.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Quota,
    algorithm::{Counting, TokenBucket},
    clock::Timestamp,
    decision::Retry,
};

const START: u64 = 1_700_000_000_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// What a bucket says to one charge.
struct Judgement {
    admitted: bool,
    tat: u64,
}

fn judge(bucket: &TokenBucket, tat: u64, now: Timestamp, cost: u64) -> Judgement {
    let mut state = bucket.state(tat);
    Judgement {
        admitted: bucket.take(&mut state, now, cost),
        tat: state.tat(),
    }
}

fn bucket(quota: Quota) -> TokenBucket {
    TokenBucket::new(quota).expect("a usable quota")
}

/// Takes one unit again and again, each as early as allowed, and tells when the last was taken.
fn drain(bucket: &TokenBucket, units: u64) -> u64 {
    let (mut tat, mut now) = (0, START);
    for _ in 0..units {
        let judgement = judge(bucket, tat, at(now), 1);
        if judgement.admitted {
            tat = judgement.tat;
            continue;
        }
        let Retry::At(retry) = bucket.retry(&bucket.state(tat), at(now), 1) else {
            panic!("one unit always fits in time");
        };
        now = retry.as_micros();
        let judgement = judge(bucket, tat, at(now), 1);
        assert!(judgement.admitted, "the time to retry is exact");
        tat = judgement.tat;
    }
    now
}

/// What a bucket admits, with every division exact: the TAT in units of `1 / count` nanoseconds.
struct Exact {
    count: i128,
    period_nanos: i128,
    capacity: i128,
    tat: i128,
}

impl Exact {
    fn new(quota: Quota) -> Self {
        Self {
            count: i128::from(quota.count()),
            period_nanos: i128::try_from(quota.period().as_nanos()).expect("a period"),
            capacity: i128::from(quota.capacity()),
            tat: 0,
        }
    }

    /// How far the TAT would be over the limit after the charge, in nanoseconds times `count`; admitted when not above 0.
    fn excess(&self, now: u64, cost: u64) -> i128 {
        let now = i128::from(now) * 1_000 * self.count;
        let moved = self.tat.max(now) + i128::from(cost) * self.period_nanos;
        moved - now - self.capacity * self.period_nanos
    }

    fn charge(&mut self, now: u64, cost: u64) {
        let now = i128::from(now) * 1_000 * self.count;
        self.tat = self.tat.max(now) + i128::from(cost) * self.period_nanos;
    }
}

#[test]
fn whole_burst_passes_at_once_and_not_one_more() {
    for quota in [
        Quota::per_minute(10),
        Quota::per_minute(7),
        Quota::per_second(3).burst(17),
        Quota::per_second(70_000).burst(11),
        Quota::per_day(1),
    ] {
        let bucket = bucket(quota);
        // Moments all over, and those beside the points of the lattice of 3 and 7 a second.
        let phases = (0..1_000).map(|step| step * 7_919);
        let beside = (0..50).flat_map(|point| [333_333, 142_857].map(|interval| interval * point));
        for phase in phases.chain(beside.flat_map(|phase| [phase, phase + 1, phase + 2])) {
            let now = at(START + phase);
            let mut tat = 0;
            for unit in 0..quota.capacity() {
                let judgement = judge(&bucket, tat, now, 1);
                assert!(
                    judgement.admitted,
                    "{quota:?}: unit {unit} at phase {phase}"
                );
                assert_eq!(
                    bucket.usage(&bucket.state(judgement.tat), now).remaining,
                    quota.capacity() - unit - 1
                );
                tat = judgement.tat;
            }
            assert!(
                !judge(&bucket, tat, now, 1).admitted,
                "{quota:?} at phase {phase}"
            );
        }
    }
}

#[test]
fn long_run_rate_is_kept_for_twelve_rates() {
    let quotas = [
        ("1/day", Quota::per_day(1)),
        ("7/day", Quota::per_day(7)),
        ("999,983/day", Quota::per_day(999_983)),
        ("11/hour", Quota::per_hour(11)),
        ("7/min", Quota::per_minute(7)),
        ("100/min", Quota::per_minute(100)),
        ("3/s", Quota::per_second(3)),
        ("1,009/s", Quota::per_second(1_009)),
        ("70,000/s", Quota::per_second(70_000)),
        ("333,333/s", Quota::per_second(333_333)),
        ("999,983/s", Quota::per_second(999_983)),
        ("1,000,000/s", Quota::per_second(1_000_000)),
    ];
    for (name, quota) in quotas {
        let quota = quota.burst(1);
        let units = 1_000_000;
        let took = drain(&bucket(quota), units + 1) - START;
        // Exact time for the units after the first: units * period / count.
        let nanos = u128::from(units) * quota.period().as_nanos() / u128::from(quota.count());
        let exact = nanos as f64 / 1_000.0;
        let error = (took as f64 - exact) / exact;
        println!("{name:>12}: {units} units in {took} us, exact {exact:.1}, error {error:+.2e}");
        assert!(error.abs() <= 1e-4, "{name}: {error}");
        assert!(
            took as f64 >= exact - 2.0,
            "{name}: too fast by more than the stated two microseconds"
        );
    }
}

#[test]
fn cost_above_the_burst_is_denied_for_ever() {
    let bucket = bucket(Quota::per_second(3).burst(5));
    let judgement = judge(&bucket, 0, at(START), 6);
    assert!(!judgement.admitted);
    assert_eq!(judgement.tat, 0);
    assert_eq!(bucket.retry(&bucket.state(0), at(START), 6), Retry::Never);
    assert_eq!(
        bucket.retry(&bucket.state(0), at(START), u64::MAX),
        Retry::Never
    );
}

#[test]
fn peek_moves_nothing_and_is_always_admitted() {
    let bucket = bucket(Quota::per_second(3));
    for tat in [0, START, START + 5_000_000_000] {
        let judgement = judge(&bucket, tat, at(START), 0);
        assert!(judgement.admitted);
        assert_eq!(judgement.tat, tat);
    }
}

#[test]
fn clock_that_is_set_back_forgives_no_debt() {
    let bucket = bucket(Quota::per_minute(10));
    let spent = judge(&bucket, 0, at(START), 10);
    let earlier = at(START - 3_600_000_000);
    let judgement = judge(&bucket, spent.tat, earlier, 1);
    assert!(!judgement.admitted);
    assert_eq!(bucket.usage(&bucket.state(spent.tat), earlier).remaining, 0);
    assert_eq!(
        bucket.retry(&bucket.state(spent.tat), earlier, 1),
        Retry::At(at(START + 6_000_000))
    );
}

#[test]
fn reset_is_the_same_for_two_decisions_on_one_state() {
    let bucket = bucket(Quota::per_second(3));
    let tat = judge(&bucket, 0, at(START), 2).tat;
    let resets = [0, 1, 333_333, 500_000]
        .map(|later| bucket.usage(&bucket.state(tat), at(START + later)).reset_at);
    assert!(resets.iter().all(|reset| *reset == resets[0]), "{resets:?}");
}

/// The least time between two units of a leaky bucket, over all places of the first within a period.
fn least_gap(quota: Quota) -> u64 {
    let leaky = TokenBucket::leaky(quota).expect("a usable quota");
    let period = u64::try_from(quota.period().as_micros()).expect("it is short enough");
    let gaps = (0..period).map(|place| {
        let now = START.next_multiple_of(period) + place;
        let tat = judge(&leaky, 0, at(now), 1).tat;
        let Retry::At(next) = leaky.retry(&leaky.state(tat), at(now), 1) else {
            panic!("one unit always fits in time");
        };
        assert!(judge(&leaky, tat, next, 1).admitted);
        next.as_micros() - now
    });
    gaps.min().expect("a period is not empty")
}

// Regression: the guide said that two requests are never closer than the interval.
#[test]
fn leaky_bucket_of_an_odd_rate_admits_less_than_three_microseconds_early() {
    // 333,333.33 us
    assert_eq!(least_gap(Quota::per_second(3)), 333_331);
    // 142,857.14 us
    assert_eq!(least_gap(Quota::per_second(7)), 142_855);
    // 1.67 us
    assert_eq!(least_gap(Quota::per_second(600_000)), 0);
    // whole: exact
    for count in [1, 8, 1_000, 1_000_000] {
        assert_eq!(least_gap(Quota::per_second(count)), 1_000_000 / count);
    }
    for count in (1..2_000).step_by(7) {
        let quota = Quota::new(count, Duration::from_millis(2));
        assert!((least_gap(quota) + 3) * count > 2_000, "{count} in 2 ms");
    }
}

fn any_quota() -> impl Strategy<Value = Quota> {
    let periods = prop_oneof![
        Just(1_000_000_u64),
        Just(60_000_000),
        Just(3_600_000_000),
        Just(86_400_000_000),
        1_000_u64..100_000_000,
    ];
    (periods, 0.0_f64..1.0, 1_u64..2_000).prop_map(|(period, portion, burst)| {
        // From one a period to the fastest rate, evenly by magnitude.
        let count = (period as f64).powf(portion) as u64;
        Quota::new(
            count.clamp(1, period),
            std::time::Duration::from_micros(period),
        )
        .burst(burst)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn never_differs_from_exact_fractions_by_more_than_three_microseconds(
        quota in any_quota(),
        steps in prop::collection::vec((0_u64..3_000_000, 0_u64..20), 1..200),
    ) {
        let bucket = bucket(quota);
        let mut exact = Exact::new(quota);
        let (mut tat, mut now) = (0, START);
        for (wait, cost) in steps {
            now += wait;
            let judgement = judge(&bucket, tat, at(now), cost);
            let slack = 3_000 * exact.count;
            let excess = exact.excess(now, cost);
            if cost > quota.capacity() {
                prop_assert!(!judgement.admitted);
            } else if cost > 0 && judgement.admitted {
                prop_assert!(excess <= slack, "admitted {} too early", excess);
            } else if cost > 0 {
                prop_assert!(excess >= -slack, "denied although {} were left", -excess);
            }
            if judgement.admitted && cost > 0 {
                // The exact model follows what was admitted, so a drift would grow until it shows.
                exact.charge(now, cost);
            }
            tat = judgement.tat;
        }
    }

    #[test]
    fn remaining_is_what_can_be_taken_and_retry_is_exact(
        quota in any_quota(),
        owed in 0_u64..100_000_000,
        phase in 0_u64..10_000_000,
        cost in 1_u64..2_000,
    ) {
        let bucket = bucket(quota);
        let now = START + phase;
        let tat = now + owed % (bucket.span() + 1);
        let remaining = bucket.usage(&bucket.state(tat), at(now)).remaining;
        if remaining > 0 {
            prop_assert!(judge(&bucket, tat, at(now), remaining).admitted);
        }
        prop_assert!(!judge(&bucket, tat, at(now), remaining + 1).admitted);
        if cost > remaining && cost <= quota.capacity() {
            let Retry::At(retry) = bucket.retry(&bucket.state(tat), at(now), cost) else {
                return Err(TestCaseError::fail("a cost within the burst fits in time"));
            };
            prop_assert!(judge(&bucket, tat, retry, cost).admitted);
            let early = at(retry.as_micros() - 1);
            prop_assert!(!judge(&bucket, tat, early, cost).admitted);
        }
    }
}
