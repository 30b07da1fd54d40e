//! The in-process store: bounded memory, and no key in debt is ever evicted.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimiter,
    clock::{Clock, Timestamp},
    decision::CountedBy,
    memory::MemoryStore,
};

use crate::support::{log::on_each_line, logged};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn store(max_keys: usize, clock: &Clock) -> MemoryStore {
    let builder = MemoryStore::builder()
        .max_keys(max_keys)
        .clock(clock.clone());
    builder.build().expect("a usable store")
}

fn limiter(store: &MemoryStore, policies: &[&Policy]) -> RateLimiter {
    RateLimiter::new(store.clone(), policies.iter().copied().cloned()).expect("usable policies")
}

fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    let answer = limiter.check(charges).take_ready();
    answer.expect("memory answers at once").expect("a decision")
}

fn key(number: usize) -> Key {
    Key::new(format!("key-{number}"))
}

// Reproducer: a key without a place in a full table was paused in the state that all new keys share.
#[test]
fn pause_of_a_key_in_a_full_store_closes_no_other_key() {
    let clock = Clock::manual(START);
    let store = store(1_000, &clock);
    let policy = Policy::new("flood", Quota::per_hour(10));
    let limiter = limiter(&store, &[&policy]);
    for number in 0..20_000 {
        check(&limiter, &[policy.charge(key(number))]);
    }
    // Of the first key, as of those that have no place, little is left.
    let left = |number| {
        let decision = check(&limiter, &[policy.charge(key(number)).cost(0)]);
        let usage = decision.states()[0].usage();
        usage.expect("it is counted").remaining
    };
    let before: Vec<u64> = (20_000..20_100).map(left).collect();
    for number in 30_000..30_100 {
        let paused = limiter.pause(&policy.charge(key(number)), Duration::from_secs(3_000));
        let paused = { paused }.take_ready().expect("memory answers at once");
        paused.expect("it is paused");
    }
    let after: Vec<u64> = (20_000..20_100).map(left).collect();
    assert_eq!(before, after);
}

#[test]
fn memory_stays_within_the_documented_bound_in_a_flood() {
    let clock = Clock::manual(START);
    let store = store(10_000, &clock);
    let policy = Policy::new("flood", Quota::per_hour(10));
    let limiter = limiter(&store, &[&policy]);
    for number in 0..200_000 {
        check(&limiter, &[policy.charge(key(number))]);
    }
    assert!(
        store.bytes() <= 32 * 10_000 + 24 * 64,
        "{} bytes",
        store.bytes()
    );
    assert!(store.keys() <= 10_000 * 4 / 3 + 64, "{} keys", store.keys());
    assert!(
        store.overflowed() > 0,
        "the flood was larger than the store"
    );
}

#[test]
fn flood_evicts_no_key_in_debt() {
    let clock = Clock::manual(START);
    let store = store(1_000, &clock);
    let policy = Policy::new("flood", Quota::per_hour(3));
    let limiter = limiter(&store, &[&policy]);
    let mut admitted: HashMap<usize, u64> = HashMap::new();
    // Ten times as many keys as fit take turns; nothing refills in this time.
    for round in 0..8 {
        for number in 0..10_000 {
            let number = (number * 7 + round) % 10_000;
            if check(&limiter, &[policy.charge(key(number))]).is_allowed() {
                *admitted.entry(number).or_default() += 1;
            }
        }
    }
    let most = admitted.values().max().copied();
    assert_eq!(most, Some(3), "no key got more than its burst");
    assert!(
        admitted.len() >= 900,
        "keys that came first have a place of their own: {}",
        admitted.len()
    );
}

#[test]
fn idle_keys_make_room_for_new_ones() {
    let clock = Clock::manual(START);
    let store = store(1_000, &clock);
    let policy = Policy::new("visits", Quota::per_second(10));
    let limiter = limiter(&store, &[&policy]);
    for generation in 0..50 {
        for number in 0..500 {
            let decision = check(&limiter, &[policy.charge(key(generation * 500 + number))]);
            let usage = decision.states()[0].usage().expect("counted");
            assert_eq!(usage.remaining, 9, "a new key starts with a full bucket");
        }
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(store.overflowed(), 0);
}

#[test]
fn growing_keeps_every_debt() {
    let clock = Clock::manual(START);
    let store = store(100_000, &clock);
    let policy = Policy::new("debts", Quota::per_hour(10));
    let limiter = limiter(&store, &[&policy]);
    for number in 0..50_000 {
        let cost = number as u64 % 10 + 1;
        assert!(check(&limiter, &[policy.charge(key(number)).cost(cost)]).is_allowed());
    }
    for number in 0..50_000 {
        let decision = check(&limiter, &[policy.charge(key(number)).cost(0)]);
        let usage = decision.states()[0].usage().expect("counted");
        assert_eq!(usage.remaining, 9 - number as u64 % 10, "key {number}");
    }
    assert_eq!(store.overflowed(), 0);
    let bytes_a_key = store.bytes() as f64 / 50_000.0;
    assert!(
        (24.0..=49.0).contains(&bytes_a_key),
        "{bytes_a_key} bytes a key"
    );
}

#[test]
fn evicted_key_stays_in_debt_for_an_older_time() {
    let clock = Clock::manual(START);
    let store = store(1, &clock);
    let policy = Policy::new("handed-on", Quota::per_minute(10));
    let limiter = limiter(&store, &[&policy]);
    assert!(check(&limiter, &[policy.charge(key(1)).cost(10)]).is_allowed());
    clock.advance(Duration::from_secs(60));
    // Its bucket is full again, so another key may take the slot.
    for number in 2..20 {
        check(&limiter, &[policy.charge(key(number))]);
    }
    clock.set(START + Duration::from_secs(30));
    let decision = check(&limiter, &[policy.charge(key(1)).cost(10)]);
    assert!(
        !decision.is_allowed(),
        "half a minute after the burst only half of it is back"
    );
}

#[test]
fn overflow_of_one_policy_does_not_limit_another() {
    let clock = Clock::manual(START);
    let store = store(100, &clock);
    let flooded = Policy::new("flooded", Quota::per_day(1));
    let calm = Policy::new("calm", Quota::per_second(5));
    let limiter = limiter(&store, &[&flooded, &calm]);
    for number in 0..1_000 {
        check(&limiter, &[flooded.charge(key(number))]);
    }
    assert!(store.overflowed() > 0);
    let mut allowed = 0;
    for _ in 0..10 {
        allowed += u32::from(check(&limiter, &[calm.charge(key(5_000))]).is_allowed());
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(allowed, 10);
}

// Regression: all charges of a decision were checked against the shared bucket as it was before the decision, and the TAT
// of the last one was stored.
#[test]
fn new_keys_of_one_decision_share_the_overflow_bucket() {
    let clock = Clock::manual(START);
    // Four slots, all within reach of every key: once they are taken, all other keys overflow.
    let store = store(1, &clock);
    let policy = Policy::new("crowd", Quota::per_day(16));
    let limiter = limiter(&store, &[&policy]);
    for number in 0..100 {
        check(&limiter, &[policy.charge(key(number)).cost(16)]);
    }
    assert_eq!(store.keys(), 4);
    // Half of the shared bucket comes back.
    clock.advance(Duration::from_secs(43_200));
    let mut admitted = 0;
    for round in 0..64 {
        let charges: Vec<Charge<'_>> = (0..16)
            .map(|number| policy.charge(key(10_000 + round * 16 + number)))
            .collect();
        admitted += 16 * u64::from(check(&limiter, &charges).is_allowed());
        admitted += 2 * u64::from(check(&limiter, &charges[..2]).is_allowed());
    }
    assert_eq!(admitted, 8);
}

// Regression: a hash of the policy name selected one of 64 shared buckets, so several policies could share one.
#[test]
fn overflow_bucket_belongs_to_one_policy() {
    let clock = Clock::manual(START);
    let store = store(100, &clock);
    let flooded = Policy::new("flooded", Quota::per_day(10));
    let policies: Vec<Policy> = (0..300)
        .map(|number| Policy::new(format!("calm-{number}"), Quota::per_second(1_000)))
        .collect();
    let limiter = RateLimiter::new(store.clone(), []).expect("no policies");
    for number in 0..1_000 {
        check(&limiter, &[flooded.charge(key(number)).cost(10)]);
    }
    assert!(store.overflowed() > 0);
    for policy in &policies {
        let decision = check(&limiter, &[policy.charge(key(5_000))]);
        assert!(decision.is_allowed(), "{}", policy.name());
        clock.advance(Duration::from_millis(1));
    }
}

#[test]
fn threads_together_admit_exactly_the_burst() {
    let clock = Clock::manual(START);
    // Large enough for many shards, so that a decision takes several locks.
    let store = store(1_000_000, &clock);
    let hot = Policy::new("hot", Quota::per_hour(1_000));
    let wide = Policy::new("wide", Quota::per_hour(5));
    let limiter = Arc::new(limiter(&store, &[&hot, &wide]));
    let admitted: Vec<Vec<usize>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|worker| {
                let (limiter, hot, wide) = (Arc::clone(&limiter), &hot, &wide);
                scope.spawn(move || {
                    // The order of the charges varies: locks taken in that order would deadlock.
                    let admits = |round: usize| {
                        let mut charges = [hot.charge(key(0)), wide.charge(key(1 + round % 300))];
                        if worker % 2 == 0 {
                            charges.reverse();
                        }
                        check(&limiter, &charges).is_allowed()
                    };
                    (0..3_000).filter(|round| admits(*round)).collect()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .collect()
    });
    let mut by_key = HashMap::new();
    for round in admitted.iter().flatten() {
        *by_key.entry(round % 300).or_insert(0) += 1;
    }
    let total: usize = admitted.iter().map(Vec::len).sum();
    assert_eq!(total, 1_000, "the hot policy is used up exactly");
    assert!(by_key.values().all(|count| *count <= 5), "{by_key:?}");
    let left = check(&limiter, &[hot.charge(key(0)).cost(0)]);
    assert_eq!(
        left.states()[0].usage().map(|usage| usage.remaining),
        Some(0)
    );
    let charged: u64 = (0..300)
        .map(|number| check(&limiter, &[wide.charge(key(1 + number)).cost(0)]))
        .map(|decision| 5 - decision.states()[0].usage().expect("counted").remaining)
        .sum();
    assert_eq!(
        charged, 1_000,
        "a denial by the hot policy charged none of the wide ones"
    );
}

#[test]
fn store_for_no_keys_is_rejected() {
    let error = MemoryStore::builder()
        .max_keys(0)
        .build()
        .expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn decision_reports_that_this_process_counted() {
    let clock = Clock::manual(START);
    let policy = Policy::new("mine", Quota::per_second(1));
    let limiter = limiter(&store(10, &clock), &[&policy]);
    let decision = check(&limiter, &[policy.charge(key(1))]);
    assert_eq!(decision.counted_by(), CountedBy::InProcess);
    assert_eq!(decision.decided_at(), START);
}

// Regression: the line was written while the shards of the decision were locked, so this test never returned.
#[test]
fn log_writer_that_uses_the_same_store_does_not_deadlock() {
    let rate = Policy::new("rate", Quota::per_day(1_000));
    let slots = Policy::concurrency("slots", 1);
    for (policy, line) in [
        (rate, "new keys share one count per policy"),
        (slots, "requests in flight"),
    ] {
        for charges in [1, 2, 16] {
            let (policy, (done, end)) = (policy.clone(), mpsc::channel());
            thread::spawn(move || {
                let clock = Clock::manual(START);
                let limiter = limiter(&store(1, &clock), &[]);
                let asked = limiter.clone();
                on_each_line(move || {
                    let policy = Policy::new("log", Quota::per_second(1));
                    check(&asked, &[policy.charge(Key::new("line"))]);
                });
                for number in 0..100 {
                    let keys = (0..charges).map(|charge| key(number * charges + charge));
                    let charges: Vec<Charge<'_>> = keys.map(|key| policy.charge(key)).collect();
                    check(&limiter, &charges);
                }
                done.send(logged()).expect("awaited");
            });
            let lines = end.recv_timeout(Duration::from_secs(20));
            let lines = lines.expect("the writer does not wait for a lock that its caller holds");
            let found = lines.iter().filter(|logged| logged.contains(line));
            assert_eq!(found.count(), 1, "{charges} charges: {lines:?}");
        }
    }
}

// A table that evicts idle keys moves the others: each must still be found, with its debt.
#[test]
fn eviction_of_idle_keys_keeps_every_debt() {
    for max_keys in [40, 1_500, 30_000] {
        let clock = Clock::manual(START);
        let (small, large) = (store(max_keys, &clock), store(1_000_000, &clock));
        let policy = Policy::new("visits", Quota::per_minute(10));
        let [small_limiter, large_limiter] = [&small, &large].map(|one| limiter(one, &[&policy]));
        // Only keys of the last half minute are in debt: half as many as the small store holds.
        for number in 0..20 * max_keys {
            let cost = (number % 5 + 1) as u64;
            for key in [key(number), key(number.saturating_sub(max_keys / 3))] {
                let charge = policy.charge(key).cost(cost);
                let decision = check(&small_limiter, &[charge]);
                assert_eq!(decision, check(&large_limiter, &[charge]), "{number}");
            }
            clock.advance(Duration::from_secs(30) * 2 / max_keys as u32);
        }
        assert_eq!(small.overflowed(), 0, "{max_keys}");
    }
}
