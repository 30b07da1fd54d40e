//! The in-process store decides a key without a lock once it was decided several times in a row: with the same results.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use proptest::prelude::*;
use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimiter,
    charge::Receipt,
    clock::{Clock, Timestamp},
    memory::MemoryStore,
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const KEYS: usize = 3;

fn store(clock: &Clock) -> (MemoryStore, RateLimiter) {
    // One shard, so that the keys take the place of the hot key from each other.
    let builder = MemoryStore::builder().max_keys(100);
    let store = builder.clock(clock.clone()).build();
    let store = store.expect("a usable store");
    let limiter = RateLimiter::new(store.clone(), []).expect("no policies");
    (store, limiter)
}

fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    let decision = limiter.check(charges).take_ready();
    decision.expect("memory decides at once").expect("decided")
}

fn key(number: usize) -> Key {
    Key::new(format!("key-{number}"))
}

// === One thread ===

/// The next event, on a key under one of the policies.
#[derive(Clone, Copy, Debug)]
enum Step {
    Charge {
        key: usize,
        policy: usize,
        cost: u64,
        times: usize,
    },
    Together {
        cost: u64,
    },
    Settle {
        request: usize,
        actual: u64,
    },
    Reset {
        key: usize,
    },
    Pass {
        micros: u64,
    },
    SetClock {
        micros: u64,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    prop_oneof![
        60 => (key.clone(), 0..4_usize, 0_u64..4, 1_usize..12)
            .prop_map(|(key, policy, cost, times)| Step::Charge { key, policy, cost, times }),
        5 => (0_u64..3).prop_map(|cost| Step::Together { cost }),
        15 => (any::<usize>(), 0_u64..6)
            .prop_map(|(request, actual)| Step::Settle { request, actual }),
        2 => key.prop_map(|key| Step::Reset { key }),
        15 => (0_u64..3_000_000).prop_map(|micros| Step::Pass { micros }),
        1 => (1_u64..3_000_000).prop_map(|micros| Step::SetClock { micros }),
    ]
}

/// Policies of one name: a bucket, the same with a fractional interval, a slow one, and one that counts denials.
fn policies() -> [Policy; 4] {
    let policy = |quota| Policy::new("rate", quota);
    [
        policy(Quota::per_second(10)),
        policy(Quota::per_second(3).burst(7)),
        policy(Quota::per_hour(2).burst(20)),
        policy(Quota::per_second(10)).count_denied(true),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn hot_key_is_decided_as_under_the_lock(steps in prop::collection::vec(any_step(), 1..120)) {
        let clock = Clock::manual(START);
        let (_, hot) = store(&clock);
        // Every decision here is made under the lock, because a look at the number of keys ends the loan before it.
        let (locked_store, locked) = store(&clock);
        let policies = policies();
        let mut receipts: Vec<[Receipt; 2]> = Vec::new();
        let both = |charges: &[Charge<'_>]| {
            let _ = locked_store.keys();
            [check(&hot, charges), check(&locked, charges)]
        };
        for step in steps {
            match step {
                Step::Charge { key: number, policy, cost, times } => {
                    let charges = [policies[policy].charge(key(number)).cost(cost)];
                    for _ in 0..times {
                        let [hot, locked] = both(&charges);
                        prop_assert_eq!(&hot, &locked);
                        let made = [hot, locked].map(|decision| Receipt::of(&charges, &decision));
                        if let [Some(hot), Some(locked)] = made {
                            receipts.push([hot, locked]);
                        }
                    }
                }
                Step::Together { cost } => {
                    let charges = [0, 1].map(|number| policies[0].charge(key(number)).cost(cost));
                    let [hot, locked] = both(&charges);
                    prop_assert_eq!(hot, locked);
                }
                Step::Settle { request, actual } if !receipts.is_empty() => {
                    let index = request % receipts.len();
                    for (limiter, receipt) in [&hot, &locked].into_iter().zip(receipts.swap_remove(index)) {
                        let receipt = receipt.actual_cost(|_, _| actual);
                        let settled = limiter.settle(receipt).take_ready();
                        settled.expect("at once").expect("settled");
                    }
                }
                Step::Reset { key: number } => {
                    for limiter in [&hot, &locked] {
                        let reset = limiter.reset(&policies[0], &key(number)).take_ready();
                        reset.expect("at once").expect("reset");
                    }
                }
                Step::Pass { micros } => clock.advance(Duration::from_micros(micros)),
                Step::SetClock { micros } => clock.step(Duration::from_micros(micros)),
                Step::Settle { .. } => {}
            }
        }
    }
}

// === Several threads ===

#[test]
fn threads_on_hot_keys_admit_exactly_the_quota() {
    const QUOTA: u64 = 100_000;
    let clock = Clock::manual(START);
    let (store, limiter) = store(&clock);
    // The TAT moves by almost a second per charge, so that a loan ends after about 5,000 charges.
    let policy = Policy::new("hot", Quota::per_day(QUOTA));
    let admitted = [0, 0].map(AtomicU64::new);
    let is_done = AtomicBool::new(false);
    let run = |number: usize| {
        let charges = [policy.charge(key(number))];
        for _ in 0..60_000 {
            let is_allowed = check(&limiter, &charges).is_allowed();
            admitted[number].fetch_add(u64::from(is_allowed), Ordering::Relaxed);
        }
    };
    let disturb = || {
        while !is_done.load(Ordering::Relaxed) {
            let peeks = [0, 1].map(|number| policy.charge(key(number)).cost(0));
            check(&limiter, &peeks);
            assert_eq!(store.overflowed(), 0);
            thread::sleep(Duration::from_micros(50));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = [0, 0, 0, 1, 1]
            .into_iter()
            .map(|number| {
                scope.spawn({
                    let run = &run;
                    move || run(number)
                })
            })
            .collect();
        scope.spawn(disturb);
        for worker in workers {
            worker.join().expect("no panic");
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let expected = [QUOTA, QUOTA];
    assert_eq!(admitted.map(AtomicU64::into_inner), expected);
}
