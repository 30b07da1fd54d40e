//! A machine whose wall clock is set after the process has started: debts in the in-process store last as long as before,
//! and callers see the correct times.

use std::{sync::Arc, thread, time::Duration};

use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    charge::Receipt,
    clock::{Clock, Timestamp},
    decision::{Retry, Usage},
    memory::MemoryStore,
};

/// Shortly after the start of 1970, when a machine without a battery boots.
const BOOT: Timestamp = Timestamp::from_micros(40_000_123);
/// In 2026, not at the start of a second, hour or day.
const STEP: Duration = Duration::from_micros(1_770_000_123_456_789);
const HOUR: Duration = Duration::from_secs(3_600);

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::FixedWindow(WindowStart::Clock),
    Algorithm::FixedWindow(WindowStart::FirstHit),
    Algorithm::LeakyBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::TokenBucket,
    Algorithm::Concurrency { lease: HOUR },
];

fn policy(algorithm: Algorithm) -> Policy {
    let quota = match algorithm {
        Algorithm::Concurrency { .. } => Quota::in_flight(10),
        Algorithm::LeakyBucket => Quota::per_hour(10).burst(10),
        _ => Quota::per_hour(10),
    };
    Policy::new("policy", quota).algorithm(algorithm)
}

fn limiter(max_keys: usize, clock: &Clock) -> RateLimiter {
    let builder = MemoryStore::builder().max_keys(max_keys);
    let store = builder.clock(clock.clone()).build();
    RateLimiter::new(store.expect("a usable store"), []).expect("no policies")
}

fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    let answer = limiter.check(charges).take_ready();
    answer.expect("memory answers at once").expect("a decision")
}

fn usage(decision: &Decision) -> Usage {
    decision.states()[0].usage().expect("counted")
}

#[test]
fn debts_last_as_long_as_they_would_have() {
    for algorithm in ALGORITHMS {
        let policy = policy(algorithm);
        // The other clock continues without a step.
        let clocks = [Clock::manual(BOOT), Clock::manual(BOOT)];
        let limiters = clocks.each_ref().map(|clock| limiter(100, clock));
        let ada = policy.charge(Key::new("ada"));
        for limiter in &limiters {
            assert!(check(limiter, &[ada.cost(7)]).is_allowed());
        }
        clocks[0].step(STEP);
        for part in 0..=130 {
            let decisions = limiters
                .each_ref()
                .map(|limiter| check(limiter, &[ada.cost(0)]));
            let [stepped, other] = decisions.each_ref().map(usage);
            // The end of a sliding window is rounded up to a millisecond.
            let until = clocks.each_ref().map(Clock::now);
            let left = [stepped, other].map(|usage| usage.remaining);
            let resets = [
                stepped.reset_at.since(until[0]),
                other.reset_at.since(until[1]),
            ];
            let late = resets[0].saturating_sub(resets[1]);
            assert!(resets[0] >= resets[1], "{algorithm:?}: forgiven");
            assert!(late <= Duration::from_millis(1), "{algorithm:?}: {late:?}");
            assert!(left[0] <= left[1], "{algorithm:?}: {left:?} at {part}");
            if !matches!(algorithm, Algorithm::FixedWindow(WindowStart::Clock)) {
                assert_eq!(left[0], left[1], "{algorithm:?} at {part}");
            }
            clocks.iter().for_each(|clock| clock.advance(HOUR / 60));
        }
    }
}

#[test]
fn callers_see_the_correct_time() {
    let clock = Clock::manual(BOOT);
    let limiter = limiter(100, &clock);
    let policy = policy(Algorithm::TokenBucket);
    let ada = policy.charge(Key::new("ada"));
    check(&limiter, &[ada.cost(10)]);
    clock.step(STEP);
    let denied = check(&limiter, &[ada]);
    assert_eq!(denied.decided_at(), BOOT + STEP);
    assert_eq!(usage(&denied).reset_at, BOOT + STEP + HOUR);
    assert_eq!(denied.retry_after(), Some(HOUR / 10));
    assert_eq!(
        denied.states()[0].retry(),
        Retry::At(BOOT + STEP + HOUR / 10)
    );
}

#[test]
fn calendar_windows_follow_the_clock_that_was_set() {
    let clock = Clock::manual(BOOT);
    let limiter = limiter(100, &clock);
    let policy = policy(Algorithm::FixedWindow(WindowStart::Clock));
    let ada = policy.charge(Key::new("ada"));
    check(&limiter, &[ada.cost(10)]);
    clock.step(STEP);
    assert!(!check(&limiter, &[ada]).is_allowed(), "its window is open");
    clock.advance(HOUR);
    let next = usage(&check(&limiter, &[ada]));
    assert_eq!(next.remaining, 9);
    assert_eq!(
        next.reset_at.as_micros() % HOUR.as_micros() as u64,
        0,
        "on the hour"
    );
}

#[test]
fn refunds_and_releases_after_the_step_return_at_most_the_charge() {
    let clock = Clock::manual(BOOT);
    let limiter = limiter(100, &clock);
    let rate = policy(Algorithm::TokenBucket);
    let slots = Policy::concurrency("slots", 10);
    let key = Key::new("ada");
    let charges = [rate.charge(key).cost(4), slots.charge(key).cost(4)];
    let before = Receipt::of(&charges, &check(&limiter, &charges)).expect("charged");
    check(&limiter, &[rate.charge(key).cost(2)]);
    clock.step(STEP);
    let later = [rate.charge(key).cost(3), slots.charge(key).cost(3)];
    let after = Receipt::of(&later, &check(&limiter, &later)).expect("charged");
    let left = |policy: &Policy| usage(&check(&limiter, &[policy.charge(key).cost(0)])).remaining;
    let settle = |receipt: Receipt| {
        let settled = limiter.settle(receipt.actual_cost(|_, _| 0)).take_ready();
        settled.expect("at once").expect("settled");
    };
    settle(before);
    assert!(left(&rate) <= 5, "a refund of at most the charge");
    assert_eq!(left(&slots), 7);
    let so_far = left(&rate);
    settle(after);
    assert_eq!(left(&rate), so_far + 3);
    assert_eq!(left(&slots), 10);
}

#[test]
fn overflow_bucket_stays_in_debt() {
    let clock = Clock::manual(BOOT);
    let limiter = limiter(1, &clock);
    let policy = policy(Algorithm::TokenBucket);
    let key = |number: u32| Key::new(number.to_string());
    let fill = |numbers: std::ops::Range<u32>| {
        let charges = numbers.map(|number| policy.charge(key(number)).cost(10));
        let admitted = charges.filter(|charge| check(&limiter, &[*charge]).is_allowed());
        admitted.count()
    };
    // Four slots and the shared bucket.
    assert_eq!(fill(0..20), 5);
    clock.step(STEP);
    assert_eq!(fill(0..40), 0);
    clock.advance(HOUR);
    assert_eq!(fill(40..60), 5);
}

#[test]
fn threads_that_read_the_time_before_the_step_admit_no_request_twice() {
    let clock = Clock::manual(BOOT);
    let limiter = Arc::new(limiter(100_000, &clock));
    let policies = [
        policy(Algorithm::TokenBucket),
        Policy::new("day", Quota::per_day(10)).algorithm(Algorithm::SlidingLog),
    ];
    let admitted: usize = thread::scope(|scope| {
        let work = |_| {
            let (limiter, policies) = (Arc::clone(&limiter), &policies);
            scope.spawn(move || {
                let admitted = (0..20_000).filter(|number| {
                    let key = Key::new((number % 1_000).to_string());
                    let charges = policies.each_ref().map(|policy| policy.charge(key));
                    check(&limiter, &charges).is_allowed()
                });
                admitted.count()
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        clock.step(STEP);
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|admitted| admitted.expect("no panic")).sum()
    });
    assert_eq!(admitted, 10_000, "ten for each of a thousand keys");
}
