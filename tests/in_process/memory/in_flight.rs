//! Requests in flight in the in-process store, beside a model that keeps every ticket.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Key, Policy, RateLimiter,
    algorithm::Algorithm,
    charge::Receipt,
    clock::{Clock, Timestamp},
    memory::MemoryStore,
    store::Store,
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const LEASE: Duration = Duration::from_millis(100);
const KEYS: usize = 5;
const LIMIT: u64 = 60;

/// The next event, on a key or on one of the admitted requests.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take { key: usize, units: u64 },
    Hold { request: usize },
    Release { request: usize },
    Reset { key: usize },
    Pass { micros: u64 },
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    prop_oneof![
        60 => (key.clone(), 1_u64..4).prop_map(|(key, units)| Step::Take { key, units }),
        20 => any::<usize>().prop_map(|request| Step::Hold { request }),
        35 => any::<usize>().prop_map(|request| Step::Release { request }),
        1 => key.prop_map(|key| Step::Reset { key }),
        10 => (0_u64..20_000).prop_map(|micros| Step::Pass { micros }),
    ]
}

/// An admitted request, and the time at which its lease ends: never once its slots are held.
struct Request {
    key: usize,
    units: u64,
    ends: Timestamp,
    receipt: Receipt,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_ticket_is_counted_until_it_ends(steps in prop::collection::vec(any_step(), 1..600)) {
        let clock = Clock::manual(START);
        let store = MemoryStore::builder().max_keys(10).clock(clock.clone());
        let store = store.build().expect("a usable store");
        let policy = Policy::concurrency("slots", LIMIT)
            .algorithm(Algorithm::Concurrency { lease: LEASE });
        let limiter = RateLimiter::new(store.clone(), [policy.clone()]).expect("a usable policy");
        let key = |number: usize| Key::new(format!("key-{number}"));
        let mut requests: Vec<Request> = Vec::new();
        for step in steps {
            let now = clock.now();
            let used = |requests: &[Request], key| -> u64 {
                let of_key = requests.iter().filter(|one| one.key == key && one.ends > now);
                of_key.map(|one| one.units).sum()
            };
            match step {
                Step::Take { key: number, units } => {
                    let charges = [policy.charge(key(number)).cost(units)];
                    let decision = limiter.check(&charges).take_ready().expect("at once");
                    let decision = decision.expect("a decision");
                    let fits = used(&requests, number) + units <= LIMIT;
                    prop_assert_eq!(decision.is_allowed(), fits);
                    if let Some(receipt) = Receipt::of(&charges, &decision) {
                        requests.push(Request { key: number, units, ends: now + LEASE, receipt });
                    }
                }
                Step::Hold { request } if !requests.is_empty() => {
                    let index = request % requests.len();
                    let request = &mut requests[index];
                    store.hold(&request.receipt);
                    request.ends = Timestamp::from_micros(u64::MAX);
                }
                Step::Release { request } if !requests.is_empty() => {
                    let request = requests.swap_remove(request % requests.len());
                    let settled = limiter.settle(request.receipt).take_ready();
                    settled.expect("at once").expect("released");
                }
                Step::Reset { key: number } => {
                    let reset = limiter.reset(&policy, &key(number)).take_ready();
                    reset.expect("at once").expect("reset");
                    requests.retain(|one| one.key != number);
                }
                Step::Pass { micros } => clock.advance(Duration::from_micros(micros)),
                Step::Hold { .. } | Step::Release { .. } => {}
            }
            let now = clock.now();
            for number in 0..KEYS {
                let peek = limiter.peek(&[policy.charge(key(number))]).take_ready();
                let peek = peek.expect("at once").expect("a decision");
                let used: u64 = requests
                    .iter()
                    .filter(|one| one.key == number && one.ends > now)
                    .map(|one| one.units)
                    .sum();
                let remaining = peek.states()[0].usage().expect("counted").remaining;
                prop_assert_eq!(remaining, LIMIT.saturating_sub(used), "key {}", number);
            }
        }
        // Leases that were not released end with time, and no key is left.
        for request in requests.drain(..) {
            let settled = limiter.settle(request.receipt).take_ready();
            settled.expect("at once").expect("released");
        }
        clock.advance(LEASE);
        for number in 0..KEYS {
            let peek = limiter.peek(&[policy.charge(key(number))]).take_ready();
            prop_assert!(peek.expect("at once").is_ok());
        }
        prop_assert_eq!(store.keys(), 0);
    }
}
