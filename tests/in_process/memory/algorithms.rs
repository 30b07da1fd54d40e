//! The in-process store with every algorithm: bounds hold, debts stay, and overflow states admit no more than one key.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;
use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    charge::Receipt,
    clock::{Clock, Timestamp},
    decision::Retry,
    memory::MemoryStore,
    store::Store,
};

/// The start of a month, a day and an hour: nothing comes back until a test moves the clock.
const START: Timestamp = Timestamp::from_micros(1_698_796_800_000_000);

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::FixedWindow(WindowStart::Clock),
    Algorithm::FixedWindow(WindowStart::FirstHit),
    Algorithm::LeakyBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::TokenBucket,
];

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

/// A policy of `units` units, which are also the capacity of a leaky bucket.
fn policy(algorithm: Algorithm, count: u64, period: Duration) -> Policy {
    let quota = match algorithm {
        Algorithm::LeakyBucket => Quota::new(count, period).burst(count),
        _ => Quota::new(count, period),
    };
    Policy::new("policy", quota).algorithm(algorithm)
}

fn key(number: usize) -> Key {
    Key::new(format!("key-{number}"))
}

fn remaining(decision: &Decision) -> u64 {
    decision.states()[0].usage().expect("counted").remaining
}

/// The documented bound: at most 48 bytes a slot, and the memory of logs in addition.
fn most_bytes(algorithm: Algorithm, max_keys: usize) -> usize {
    let slots = max_keys.div_ceil(3) * 4 + 64;
    match algorithm {
        Algorithm::FixedWindow(_) => slots * 28,
        Algorithm::SlidingLog => slots * (64 + 64) + 64 * max_keys,
        Algorithm::SlidingWindow => slots * 36,
        _ => slots * 24,
    }
}

#[test]
fn keys_and_bytes_stay_within_the_documented_bounds() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(3_000, &clock);
        let policy = policy(algorithm, 10, Duration::from_secs(3_600));
        for number in 0..60_000 {
            check(&store, &[policy.charge(key(number / 2))]);
            clock.advance(Duration::from_micros(1));
        }
        let most = most_bytes(algorithm, 3_000);
        assert!(store.bytes() <= most, "{algorithm:?}: {}", store.bytes());
        assert!(store.keys() <= 4_064, "{algorithm:?}: {}", store.keys());
        assert!(store.overflowed() > 0, "{algorithm:?}");
    }
}

#[test]
fn full_store_evicts_no_key_in_debt() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(300, &clock);
        let policy = policy(algorithm, 3, Duration::from_secs(86_400));
        let mut admitted: HashMap<usize, u64> = HashMap::new();
        for round in 0..8 {
            for number in 0..3_000 {
                let number = (number * 7 + round) % 3_000;
                let allowed = check(&store, &[policy.charge(key(number))]).is_allowed();
                *admitted.entry(number).or_default() += u64::from(allowed);
            }
        }
        let most = admitted.values().max().copied();
        assert_eq!(most, Some(3), "{algorithm:?}");
        let with_a_place = admitted.values().filter(|units| **units == 3).count();
        assert!(with_a_place >= 200, "{algorithm:?}: {with_a_place}");
    }
}

#[test]
fn slots_of_idle_keys_go_to_new_ones() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(300, &clock);
        let policy = policy(algorithm, 10, Duration::from_secs(1));
        for generation in 0..30 {
            for number in 0..150 {
                let decision = check(&store, &[policy.charge(key(generation * 150 + number))]);
                assert_eq!(remaining(&decision), 9, "{algorithm:?}: a newcomer is new");
            }
            clock.advance(Duration::from_millis(2_001));
        }
        assert_eq!(store.overflowed(), 0, "{algorithm:?}");
    }
}

#[test]
fn new_keys_of_a_full_store_get_no_more_than_one_key_together() {
    for algorithm in ALGORITHMS {
        for together in [1, 5, 16] {
            let clock = Clock::manual(START);
            // Four slots, all within reach of every key.
            let store = store(1, &clock);
            let policy = policy(algorithm, 16, Duration::from_secs(86_400));
            for number in 0..20 {
                check(&store, &[policy.charge(key(number)).cost(16)]);
            }
            assert_eq!(store.keys(), 4);
            // Two days later the four keys take their debts again, and all new keys overflow.
            clock.advance(Duration::from_secs(2 * 86_400));
            for number in 0..4 {
                check(&store, &[policy.charge(key(1_000 + number)).cost(16)]);
            }
            let mut admitted = 0;
            for round in 0..40 {
                let charges: Vec<Charge<'_>> = (0..together)
                    .map(|number| policy.charge(key(10_000 + round * 16 + number)))
                    .collect();
                admitted += together * usize::from(check(&store, &charges).is_allowed());
                clock.advance(Duration::from_micros(1));
            }
            assert!(
                admitted <= 16,
                "{algorithm:?}, {together} at once: {admitted}"
            );
            assert!(
                admitted + together > 16,
                "{algorithm:?}, {together} at once: {admitted}"
            );
        }
    }
}

#[test]
fn charges_of_one_decision_are_counted_all_or_none_by_every_algorithm() {
    let clock = Clock::manual(START);
    let store = store(10_000, &clock);
    let policies: Vec<Policy> = ALGORITHMS
        .into_iter()
        .enumerate()
        .map(|(index, algorithm)| {
            let quota = Quota::per_day(4 + index as u64);
            let quota = match algorithm {
                Algorithm::LeakyBucket => quota.burst(4 + index as u64),
                _ => quota,
            };
            Policy::new(format!("policy-{index}"), quota).algorithm(algorithm)
        })
        .collect();
    let charges: Vec<Charge<'_>> = policies
        .iter()
        .map(|policy| policy.charge(key(1)))
        .collect();
    let allowed = (0..20)
        .filter(|_| check(&store, &charges).is_allowed())
        .count();
    assert_eq!(allowed, 4, "the smallest quota decides");
    for (index, charge) in charges.iter().enumerate() {
        let left = remaining(&check(&store, &[charge.cost(0)]));
        assert_eq!(left, index as u64, "{:?}", ALGORITHMS[index]);
    }
}

#[test]
fn reset_clears_the_state_of_every_algorithm() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(100, &clock);
        let policy = policy(algorithm, 5, Duration::from_secs(60));
        assert!(check(&store, &[policy.charge(key(1)).cost(5)]).is_allowed());
        store
            .reset(&policy, &key(1))
            .take_ready()
            .expect("at once")
            .expect("forgotten");
        assert!(
            check(&store, &[policy.charge(key(1)).cost(5)]).is_allowed(),
            "{algorithm:?}"
        );
    }
}

// Regression: the overflow state replaced the larger debt of an evicted key.
#[test]
fn evicted_key_keeps_a_debt_above_that_of_the_overflow_state() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(1, &clock);
        let policy = policy(algorithm, 10, Duration::from_secs(60));
        assert!(check(&store, &[policy.charge(key(1)).cost(10)]).is_allowed());
        clock.set(START + Duration::from_secs(120));
        // Other keys take all slots, and one more key takes a unit of the overflow state.
        let others = (2..40).take_while(|_| store.overflowed() == 0);
        for number in others {
            check(&store, &[policy.charge(key(number))]);
        }
        assert_eq!(store.overflowed(), 1, "{algorithm:?}");
        clock.set(START + Duration::from_secs(15));
        let decision = check(&store, &[policy.charge(key(1)).cost(9)]);
        assert!(
            !decision.is_allowed(),
            "{algorithm:?}: {:?}",
            decision.states()
        );
    }
}

// Regression: the overflow state kept draining by the old quota as long as its keys were denied.
#[test]
fn overflow_state_follows_a_change_of_quota() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(1, &clock);
        let [old, new] =
            [30 * 86_400, 60].map(|seconds| policy(algorithm, 10, Duration::from_secs(seconds)));
        for number in 0..20 {
            check(&store, &[old.charge(key(number)).cost(10)]);
        }
        let newcomer = |cost| check(&store, &[new.charge(key(100)).cost(cost)]);
        assert!(!newcomer(1).is_allowed());
        let Retry::At(retry) = newcomer(1).states()[0].retry() else {
            panic!("{algorithm:?}: one unit fits in time");
        };
        assert!(retry <= START + Duration::from_secs(120), "{algorithm:?}");
        clock.set(retry);
        assert!(newcomer(1).is_allowed(), "{algorithm:?}");
    }
}

/// Returns the most units that one key got in any span of a period. `admitted` holds times and units.
fn most_in_a_period(admitted: &[(u64, u64)], period: u64) -> u64 {
    let spans = admitted.iter().enumerate().map(|(first, (begin, _))| {
        let within = |(time, _): &&(u64, u64)| *time < begin + period;
        let units = admitted[first..].iter().take_while(within);
        units.map(|(_, cost)| cost).sum()
    });
    spans.max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_key_gets_more_than_its_own_limit_however_full_the_store_is(
        algorithm in prop::sample::select(ALGORITHMS.to_vec()),
        counts_denied in any::<bool>(),
        steps in prop::collection::vec(
            (prop_oneof![Just(0.0), 0.0..0.05, 0.0..0.7], prop::collection::btree_map(0_usize..14, 1_u64..6, 1..5)),
            1..120,
        ),
    ) {
        let clock = Clock::manual(START);
        let store = store(1, &clock);
        let (limit, period) = (10, 60_000_000);
        let policy = policy(algorithm, limit, Duration::from_micros(period)).count_denied(counts_denied);
        let mut admitted: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
        for (portion, costs) in steps {
            clock.advance(Duration::from_micros((period as f64 * portion) as u64));
            let charges: Vec<Charge<'_>> = costs
                .iter()
                .map(|(number, cost)| policy.charge(key(*number)).cost(*cost))
                .collect();
            if check(&store, &charges).is_allowed() {
                for (number, cost) in costs {
                    admitted.entry(number).or_default().push((clock.now().as_micros(), cost));
                }
            }
        }
        for (number, times) in admitted {
            let most = most_in_a_period(&times, period);
            // A log is exact; all others may admit up to twice the limit in a span as long as the period.
            let bound = if algorithm == Algorithm::SlidingLog { limit } else { 2 * limit };
            prop_assert!(most <= bound, "key {} got {}: {:?}", number, most, times);
        }
    }
}

// Regression: several new keys of one decision all found the last free slot, and those that did not get it were admitted
// beyond the quota left in the overflow state.
#[test]
fn new_keys_that_compete_for_the_last_slot_take_no_more_than_one_key() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(1, &clock);
        let policy = policy(algorithm, 10, Duration::from_secs(60));
        let own = |number: &usize| {
            check(&store, &[policy.charge(key(*number)).cost(10)]);
            store.overflowed() == 0
        };
        let slots = (0..).take_while(own).count();
        // All keys are idle; then all slots but one are taken again, and the overflow state is empty.
        clock.set(START + Duration::from_secs(240));
        for number in 1..slots {
            check(&store, &[policy.charge(key(number)).cost(10)]);
        }
        let [first, second, third] =
            [100, 101, 102].map(|number| policy.charge(key(number)).cost(6));
        assert!(
            !check(&store, &[first, second, third]).is_allowed(),
            "{algorithm:?}"
        );
        assert_eq!(store.overflowed(), 1, "{algorithm:?}: the one before");
        assert!(check(&store, &[first]).is_allowed(), "{algorithm:?}");
    }
}

// Regression: a refund of one key was made to the overflow state, which has no total of the refunds of the other keys.
#[test]
fn overflow_state_gets_no_refunds() {
    for algorithm in ALGORITHMS {
        let clock = Clock::manual(START);
        let store = store(1, &clock);
        let policy = policy(algorithm, 10, Duration::from_secs(60));
        let own = |number: &usize| {
            check(&store, &[policy.charge(key(*number))]);
            store.overflowed() == 0
        };
        let slots = (0..).take_while(own).count();
        let charge = policy.charge(key(slots + 1)).cost(5);
        let decision = check(&store, std::slice::from_ref(&charge));
        assert_eq!(remaining(&decision), 4, "{algorithm:?}");
        let receipt = Receipt::of(&[charge], &decision).expect("it was charged");
        let settled = store.settle(receipt.actual_cost(|_, _| 0)).take_ready();
        settled.expect("at once").expect("settled");
        let later = check(&store, &[policy.charge(key(slots + 2)).cost(0)]);
        assert_eq!(remaining(&later), 4, "{algorithm:?}");
    }
}
