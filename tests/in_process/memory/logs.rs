//! The memory of logs in the in-process store: bounded, freed, and no request too many is admitted without it.

use std::time::Duration;

use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimiter,
    algorithm::Algorithm,
    clock::{Clock, Timestamp},
    memory::MemoryStore,
    store::Store,
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn store(max_keys: usize, clock: &Clock) -> MemoryStore {
    let builder = MemoryStore::builder()
        .max_keys(max_keys)
        .clock(clock.clone());
    builder.build().expect("a usable store")
}

fn check(store: &MemoryStore, charges: &[Charge<'_>]) -> Decision {
    let limiter = RateLimiter::new(store.clone(), []).expect("no policies");
    let answer = limiter.check(charges).take_ready();
    answer.expect("memory answers at once").expect("a decision")
}

fn policy(count: u64, seconds: u64) -> Policy {
    let quota = Quota::new(count, Duration::from_secs(seconds));
    Policy::new("log", quota).algorithm(Algorithm::SlidingLog)
}

fn key(number: usize) -> Key {
    Key::new(format!("key-{number}"))
}

/// `slots * (64 + 4 * 16) + 4 * max_keys * 16`, as documented.
fn most_bytes(max_keys: usize) -> usize {
    (max_keys.div_ceil(3) * 4 + 64) * 128 + max_keys * 64
}

/// Returns the most units that were admitted in any span as long as the period.
fn most_in(span: Duration, admitted: &[Timestamp]) -> usize {
    let begins = admitted.iter().enumerate();
    let counts = begins.map(|(first, begin)| {
        let within = |time: &&Timestamp| **time < *begin + span;
        admitted[first..].iter().take_while(within).count()
    });
    counts.max().unwrap_or(0)
}

#[test]
fn many_long_logs_stay_within_the_documented_bound() {
    let clock = Clock::manual(START);
    let store = store(300, &clock);
    let policy = policy(10_000, 3_600);
    for round in 0..400 {
        for number in 0..300 {
            assert!(
                check(&store, &[policy.charge(key(number))]).is_allowed(),
                "{round}"
            );
            clock.advance(Duration::from_micros(1));
        }
        assert!(store.bytes() <= most_bytes(300), "{} bytes", store.bytes());
    }
    let left = check(&store, &[policy.charge(key(7)).cost(0)]).states()[0].usage();
    assert_eq!(
        left.expect("counted").remaining,
        9_600,
        "every unit is counted"
    );
}

#[test]
fn log_with_few_entries_never_admits_too_much() {
    let clock = Clock::manual(START);
    let store = store(30, &clock);
    let (narrow, period) = (policy(50, 10), Duration::from_secs(10));
    // Other logs hold all the memory.
    let wide = Policy::new("wide", Quota::per_day(10_000)).algorithm(Algorithm::SlidingLog);
    for _ in 0..1_000 {
        check(&store, &[wide.charge(key(1))]);
        check(&store, &[wide.charge(key(2))]);
        clock.advance(Duration::from_micros(1));
    }
    let mut admitted = Vec::new();
    for _ in 0..20_000 {
        if check(&store, &[narrow.charge(key(3))]).is_allowed() {
            admitted.push(clock.now());
        }
        clock.advance(Duration::from_micros(7_919));
    }
    assert!(most_in(period, &admitted) <= 50);
    // 158 seconds are almost 16 periods; with few entries, units come back late.
    assert!(admitted.len() >= 8 * 50, "{}", admitted.len());
    assert!(store.bytes() <= most_bytes(30), "{} bytes", store.bytes());
}

#[test]
fn log_is_exact_while_there_is_memory() {
    let clock = Clock::manual(START);
    let store = store(10_000, &clock);
    let policy = policy(5_000, 3_600);
    for _ in 0..5_000 {
        assert!(check(&store, &[policy.charge(key(1))]).is_allowed());
        clock.advance(Duration::from_micros(10));
    }
    clock.set(START + Duration::from_secs(3_600));
    for _ in 0..5_000 {
        assert!(check(&store, &[policy.charge(key(1))]).is_allowed());
        assert!(
            !check(&store, &[policy.charge(key(1))]).is_allowed(),
            "one at a time"
        );
        clock.advance(Duration::from_micros(10));
    }
}

#[test]
fn memory_of_idle_logs_goes_to_those_in_debt() {
    let clock = Clock::manual(START);
    let store = store(1_000, &clock);
    let policy = policy(1_000, 60);
    let fill = |keys: std::ops::Range<usize>, units: usize| {
        for _ in 0..units {
            for number in keys.clone() {
                assert!(check(&store, &[policy.charge(key(number))]).is_allowed());
            }
            clock.advance(Duration::from_micros(10));
        }
    };
    fill(0..100, 200);
    assert!(
        store.bytes() <= most_bytes(1_000),
        "{} bytes",
        store.bytes()
    );
    clock.advance(Duration::from_secs(120));
    // The hundred keys make no more requests.
    fill(500..501, 1_000);
    let last = clock.now();
    clock.set(last + Duration::from_micros(59_989_999));
    let usage = check(&store, &[policy.charge(key(500)).cost(0)]).states()[0].usage();
    assert_eq!(usage.expect("counted").remaining, 0);
    clock.set(last + Duration::from_micros(59_995_000));
    let usage = check(&store, &[policy.charge(key(500)).cost(0)]).states()[0].usage();
    let back = usage.expect("counted").remaining;
    assert!((450..=550).contains(&back), "half of it is back: {back}");
}

#[test]
fn reset_frees_the_memory_of_a_log() {
    let clock = Clock::manual(START);
    let store = store(10_000, &clock);
    let policy = policy(10_000, 3_600);
    for _ in 0..10 {
        for _ in 0..5_000 {
            assert!(check(&store, &[policy.charge(key(1))]).is_allowed());
            clock.advance(Duration::from_micros(2));
        }
        let long = store.bytes();
        store
            .reset(&policy, &key(1))
            .take_ready()
            .expect("at once")
            .expect("forgotten");
        assert!(store.bytes() + 5_000 * 16 <= long);
    }
}

#[test]
fn log_that_expires_while_full_leaves_its_memory_to_the_next() {
    let clock = Clock::manual(START);
    let store = store(300, &clock);
    // The memory doubles from 4 entries, so it is full when the log expires.
    let policy = policy(512, 10);
    for round in 0..8 {
        let opened = clock.now();
        for _ in 0..512 {
            assert!(check(&store, &[policy.charge(key(round))]).is_allowed());
            clock.advance(Duration::from_millis(1));
        }
        // A log that has merged entries returns their units later.
        clock.set(opened + Duration::from_micros(10_100_500));
        let left = check(&store, &[policy.charge(key(round)).cost(0)]).states()[0].usage();
        assert_eq!(left.expect("counted").remaining, 101, "log {round}");
        clock.advance(Duration::from_secs(10));
        assert!(check(&store, &[policy.charge(key(round))]).is_allowed());
    }
}
