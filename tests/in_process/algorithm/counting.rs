//! What every way of counting promises: exact times, exact remainders, penalties within bounds, no overflow.

use std::{fmt::Debug, time::Duration};

use proptest::prelude::*;
use tollgate::{
    Quota,
    algorithm::{Algorithm, Counter, Counting, WindowStart},
    clock::Timestamp,
    decision::{Retry, Usage},
};

const START: u64 = 1_700_000_000_000_000;
/// The year 2255, to which times stay exact in a double.
const FURTHEST: u64 = 1 << 53;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// Runs an expression for a counter, with its own type.
macro_rules! with {
    ($counter:expr, $name:ident => $body:expr) => {
        match $counter {
            Counter::Bucket($name) => $body,
            Counter::FixedWindow($name) => $body,
            Counter::SlidingLog($name) => $body,
            Counter::SlidingWindow($name) => $body,
            other => panic!("a counter that this test does not know: {other:?}"),
        }
    };
}

/// One thing that happens to a key.
#[derive(Clone, Copy, Debug)]
enum Event {
    Penalise(u64),
    Take(u64),
    Wait(u64),
    /// The clock is set back.
    SetBack(u64),
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(vec![
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::FixedWindow(WindowStart::Month),
        Algorithm::LeakyBucket,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
    ])
}

fn any_counter() -> impl Strategy<Value = (Counter, u64)> {
    let millis = prop_oneof![
        Just(1_u64),
        1_u64..5_000,
        Just(60_000),
        Just(86_400_000),
        Just(366 * 86_400_000),
        1_u64..90_000_000,
    ];
    let limit = prop_oneof![4 => 1_u64..20, 2 => 1_u64..1_000, 1 => 1_u64..=10_000];
    (any_algorithm(), millis, limit).prop_map(|(algorithm, millis, limit)| {
        let quota = match algorithm {
            Algorithm::FixedWindow(WindowStart::Month) => Quota::per_month(limit),
            // A bucket admits 1,000,000 a second at most.
            _ => Quota::new(limit.min(millis * 1_000), Duration::from_millis(millis)),
        };
        let counter = Counter::new(quota, algorithm).expect("a usable quota");
        let period = u64::try_from(quota.period().as_micros()).expect("at most 366 days");
        (counter, period)
    })
}

/// Events whose times and costs matter to a period and a limit.
fn any_event(limit: u64, period: u64) -> impl Strategy<Value = Event> {
    let cost = prop_oneof![
        6 => Just(1_u64),
        4 => 1..=limit,
        1 => Just(limit),
        1 => Just(limit + 1),
        1 => Just(u64::MAX),
    ];
    let wait = prop_oneof![
        4 => 0..=period / limit,
        4 => 0..=period,
        1 => 0_u64..3,
        1 => 0..=3 * period,
    ];
    (cost, wait, 0_u8..20).prop_map(|(cost, wait, dice)| match dice {
        0..=1 => Event::Penalise(cost),
        2..=11 => Event::Take(cost),
        12 => Event::SetBack(wait),
        _ => Event::Wait(wait),
    })
}

fn any_life() -> impl Strategy<Value = (Counter, u64, Vec<Event>)> {
    any_counter().prop_flat_map(|(counter, period)| {
        let events = prop::collection::vec(any_event(counter.limit(), period), 1..40);
        (
            Just(counter),
            prop_oneof![Just(0), 0..=period, START..START + 10 * period],
            events,
        )
    })
}

/// Lets one thing happen.
fn happen<C: Counting>(counter: &C, state: &mut C::State, now: &mut u64, event: Event) {
    match event {
        Event::Penalise(cost) => counter.charge_denied(state, at(*now), cost),
        Event::SetBack(by) => *now = now.saturating_sub(by),
        Event::Take(cost) => {
            counter.take(state, at(*now), cost);
        }
        Event::Wait(by) => *now += by,
    }
}

/// When somebody can have that many units.
fn wait<C: Counting>(counter: &C, state: &C::State, now: u64, cost: u64) -> Timestamp {
    if counter.admits(state, at(now), cost) {
        return at(now);
    }
    match counter.retry(state, at(now), cost) {
        Retry::At(retry) => retry,
        other => panic!("{cost} fit in time: {other:?}"),
    }
}

/// A handful of costs up to a limit.
fn costs(limit: u64) -> impl Iterator<Item = u64> {
    [1, 2, limit / 3, limit / 2, limit - 1, limit]
        .into_iter()
        .filter(move |cost| (1..=limit).contains(cost))
}

fn remaining_can_be_taken<C: Counting>(counter: &C, state: &C::State, now: u64) -> Usage {
    let usage = counter.usage(state, at(now));
    assert!(counter.admits(state, at(now), usage.remaining));
    assert!(!counter.admits(state, at(now), usage.remaining + 1));
    assert!(!counter.admits(state, at(now), u64::MAX));
    usage
}

fn retry_is_exact<C: Counting>(counter: &C, state: &C::State, now: u64, limit: u64) {
    for cost in costs(limit).filter(|cost| !counter.admits(state, at(now), *cost)) {
        let Retry::At(retry) = counter.retry(state, at(now), cost) else {
            panic!("{cost} of {limit} fit in time");
        };
        assert!(retry > at(now), "{cost} do not fit now");
        assert!(
            counter.admits(state, retry, cost),
            "{cost} fit at {retry:?}"
        );
        let early = at(retry.as_micros() - 1);
        assert!(
            !counter.admits(state, early, cost),
            "{cost} fit before {retry:?}"
        );
    }
    assert_eq!(counter.retry(state, at(now), limit + 1), Retry::Never);
    assert_eq!(counter.retry(state, at(now), u64::MAX), Retry::Never);
}

fn reset_is_stable_and_gives_all_back<C: Counting>(
    counter: &C,
    state: &C::State,
    now: u64,
    usage: Usage,
) {
    let reset = usage.reset_at.as_micros();
    assert!(reset >= now);
    if usage.remaining < usage.limit {
        assert!(reset > now, "something is out");
        for later in [
            now,
            now + (reset - now) / 3,
            now + (reset - now) / 2,
            reset - 1,
        ] {
            assert_eq!(counter.usage(state, at(later)).reset_at, usage.reset_at);
        }
    }
    let whole = Usage::new(usage.limit, usage.limit, usage.reset_at);
    assert_eq!(counter.usage(state, usage.reset_at), whole);
    assert!(counter.admits(state, usage.reset_at, usage.limit));
}

fn who_owes_nothing_is_as_new<C: Counting>(counter: &C, state: &C::State, limit: u64, period: u64) {
    let until = C::owes_until(state);
    for now in [until, until + 1, until + period / 2, until + 5 * period] {
        let (mut old, mut new) = (state.clone(), C::State::default());
        assert_eq!(counter.usage(&old, at(now)), counter.usage(&new, at(now)));
        for cost in costs(limit) {
            assert!(counter.admits(&old, at(now), cost));
        }
        counter.charge(&mut old, at(now), 1);
        counter.charge(&mut new, at(now), 1);
        for later in [now, now + 1, now + period / 3, now + period] {
            let (old, new) = (
                counter.usage(&old, at(later)),
                counter.usage(&new, at(later)),
            );
            assert_eq!(old, new, "{until} {now} {later}");
        }
    }
}

fn penalty_is_bounded<C: Counting>(
    counter: &C,
    state: &C::State,
    (now, latest): (u64, u64),
    limit: u64,
    cost: u64,
) {
    let mut fined = state.clone();
    counter.charge_denied(&mut fined, at(now), cost);
    // What admitted charges could have made: this key takes all it has left, or a fresh one takes everything now.
    let (mut emptied, mut spent) = (state.clone(), C::State::default());
    let remaining = counter.usage(state, at(now)).remaining;
    counter.take(&mut emptied, at(now), remaining);
    // A clock that was set back counts from the last charge on.
    counter.take(&mut spent, at(latest), limit);
    for units in costs(limit) {
        let [before, after, empty, most] =
            [state, &fined, &emptied, &spent].map(|state| wait(counter, state, now, units));
        assert!(
            after >= before,
            "a penalty of {cost} made {units} come sooner"
        );
        let most = before.max(empty).max(most) + ROUNDING;
        assert!(after <= most, "{units} after {cost}");
    }
    let [before, after, empty, most] =
        [state, &fined, &emptied, &spent].map(|state| counter.usage(state, at(now)));
    assert!(after.remaining <= before.remaining);
    assert!(after.remaining >= before.remaining.saturating_sub(cost.saturating_add(1)));
    assert!(after.reset_at >= before.reset_at);
    let most = before.reset_at.max(empty.reset_at).max(most.reset_at);
    assert!(after.reset_at <= most + ROUNDING);
}

/// Where the interval is no whole number of microseconds, a bucket's span leaves as much room for rounding.
const ROUNDING: Duration = Duration::from_micros(3);

fn keeps_every_promise<C: Counting + Debug>(
    counter: &C,
    (limit, period): (u64, u64),
    start: u64,
    events: &[Event],
) {
    let (mut state, mut now, mut latest) = (C::State::default(), start, start);
    for event in events {
        happen(counter, &mut state, &mut now, *event);
        latest = latest.max(now);
        let usage = remaining_can_be_taken(counter, &state, now);
        assert_eq!(usage.limit, limit);
        retry_is_exact(counter, &state, now, limit);
        reset_is_stable_and_gives_all_back(counter, &state, now, usage);
        let mut peeked = state.clone();
        assert!(counter.take(&mut peeked, at(now), 0), "a peek passes");
        assert_eq!(peeked, state, "a peek changes nothing");
        who_owes_nothing_is_as_new(counter, &state, limit, period);
        for cost in [1, limit, u64::MAX] {
            penalty_is_bounded(counter, &state, (now, latest), limit, cost);
        }
    }
}

#[test]
fn knocking_on_does_not_lock_out_for_longer_than_spending_all() {
    for algorithm in [
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::LeakyBucket,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
    ] {
        let counter = Counter::new(Quota::per_minute(10), algorithm).expect("a usable quota");
        with!(&counter, counter => {
            let mut state = Default::default();
            for knock in 0..10_000 {
                counter.charge_denied(&mut state, at(START + knock * 1_000), 3);
            }
            let now = START + 10_000_000;
            let retry = wait(counter, &state, now, 1);
            assert!(retry > at(now), "{algorithm:?}: nothing is left");
            // A sliding window counts what was used for up to two windows.
            assert!(retry <= at(now + 120_000_000), "{algorithm:?}: {retry:?}");
            assert!(counter.admits(&state, retry, 1), "{algorithm:?}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_algorithm_keeps_every_promise_all_life_long(life in any_life()) {
        let (counter, start, events) = life;
        let period = with!(&counter, counter => max_wait(counter));
        let limit = counter.limit();
        with!(&counter, counter => keeps_every_promise(counter, (limit, period), start, &events));
    }

    #[test]
    fn no_time_and_no_cost_makes_an_overflow(
        (counter, _) in any_counter(),
        steps in prop::collection::vec(
            (prop_oneof![Just(0), 0_u64..100, Just(START), 0..FURTHEST, Just(FURTHEST)], any_extreme(), any::<bool>()),
            1..30,
        ),
    ) {
        with!(&counter, counter => {
            let mut state = Default::default();
            for (now, cost, is_adopted) in steps {
                if is_adopted {
                    counter.adopt(&mut state, at(now));
                }
                let has_room = counter.take(&mut state, at(now), cost);
                if !has_room {
                    counter.charge_denied(&mut state, at(now), cost);
                    counter.charge(&mut state, at(now), cost);
                }
                let usage = counter.usage(&state, at(now));
                prop_assert!(usage.remaining <= usage.limit);
                counter.retry(&state, at(now), cost);
                counter.retry(&state, at(now), usage.limit);
                let spent = counter.exhausted(at(now));
                counter.usage(&spent, at(now / 2));
            }
        });
    }

    #[test]
    fn spent_key_has_nothing_left_until_the_last_moment_that_it_may_owe(
        (counter, _) in any_counter(),
        start in START..START + 100_000_000,
        portion in 0.0_f64..1.0,
    ) {
        let limit = counter.limit();
        with!(&counter, counter => {
            // Whatever a key can owe when it is dropped, `spent` owes no less.
            let mut owing = Default::default();
            counter.take(&mut owing, at(start), (limit as f64 * portion).ceil() as u64);
            let until = owes_until(counter, &owing);
            let spent = counter.exhausted(at(until));
            for now in [start, start + (until - start) / 2, until - 1] {
                let (mine, others) = (counter.usage(&owing, at(now)), counter.usage(&spent, at(now)));
                prop_assert!(others.remaining <= mine.remaining);
                prop_assert!(owes_until(counter, &spent) >= until);
            }
        });
    }
}

fn owes_until<C: Counting>(_counter: &C, state: &C::State) -> u64 {
    C::owes_until(state)
}

/// How long everything takes to come back.
fn max_wait<C: Counting>(counter: &C) -> u64 {
    let limit = counter.usage(&C::State::default(), at(START)).limit;
    let mut state = C::State::default();
    counter.take(&mut state, at(START), limit);
    counter.usage(&state, at(START)).reset_at.as_micros() - START
}

fn any_extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        0_u64..20_000,
        Just(u64::from(u32::MAX)),
        Just(1 << 52),
        Just(u64::MAX - 1),
        Just(u64::MAX),
    ]
}
