//! A group of buckets whose keys have slots takes a shorter way than other groups: with the same results.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimiter,
    clock::{Clock, Timestamp},
    memory::MemoryStore,
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn limiter(clock: &Clock) -> RateLimiter {
    let store = MemoryStore::builder().max_keys(100).clock(clock.clone());
    RateLimiter::new(store.build().expect("a usable store"), []).expect("no policies")
}

fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    let decision = limiter.check(charges).take_ready();
    decision.expect("memory decides at once").expect("decided")
}

/// The next event.
#[derive(Clone, Debug)]
enum Step {
    /// Charges the policies: for each the number of the key, and the cost.
    Decide([(u8, u64); 3]),
    /// Charges one policy alone, which may lend its key.
    Alone(u8),
    Advance(u64),
    Reset(u8),
    /// Halves or restores the limit of the second policy.
    Change,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::array::uniform3((0..2_u8, 0..4_u64)).prop_map(Step::Decide),
        2 => (0..2_u8).prop_map(Step::Alone),
        3 => (0..3_000_000_u64).prop_map(Step::Advance),
        1 => (0..2_u8).prop_map(Step::Reset),
        1 => Just(Step::Change),
    ]
}

proptest! {
    #[test]
    fn group_of_buckets_is_decided_as_a_larger_group(steps in prop::collection::vec(step(), 1..200)) {
        let clock = Clock::manual(START);
        let (short, long) = (limiter(&clock), limiter(&clock));
        let uneven = Policy::new("uneven", Quota::per_minute(7).burst(5));
        let limits = [6, 3].map(|count| Policy::new("changed", Quota::per_second(count)));
        let slow = Policy::new("slow", Quota::per_hour(50));
        // With these the group has more than four charges.
        let ample = ["one", "two"].map(|name| Policy::new(name, Quota::per_second(1_000_000)));
        let key = |number: u8| Key::from(u64::from(number));
        let mut limit = 0;
        for step in steps {
            match step {
                Step::Decide(charges) => {
                    let policies = [&uneven, &limits[limit], &slow];
                    let charges: Vec<_> = policies
                        .into_iter()
                        .zip(charges)
                        .map(|(policy, (number, cost))| policy.charge(key(number)).cost(cost))
                        .collect();
                    let others = ample.iter().map(|policy| policy.charge(Key::GLOBAL));
                    let larger: Vec<_> = charges.iter().copied().chain(others).collect();
                    let (group, larger) = (check(&short, &charges), check(&long, &larger));
                    prop_assert_eq!(group.outcome(), larger.outcome());
                    prop_assert_eq!(group.states(), &larger.states()[..3]);
                }
                Step::Alone(number) => {
                    let charges = [limits[limit].charge(key(number))];
                    prop_assert_eq!(check(&short, &charges), check(&long, &charges));
                }
                Step::Advance(micros) => clock.advance(Duration::from_micros(micros)),
                Step::Reset(number) => {
                    for limiter in [&short, &long] {
                        let reset = limiter.reset(&slow, &key(number)).take_ready();
                        prop_assert!(reset.expect("at once").is_ok());
                    }
                }
                Step::Change => limit = 1 - limit,
            }
        }
    }
}
