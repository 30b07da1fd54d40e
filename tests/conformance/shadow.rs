//! Charges that are counted and deny nothing: in shadow, and as a candidate in place of the charge before.

use tollgate::{
    Charge, Key, Policy, Quota,
    algorithm::{Algorithm, WindowStart},
    charge::{Enforcement, Receipt},
    decision::Outcome,
};

use crate::support::Random;

use super::{
    place::{Place, check},
    ways::WAYS,
};

on_every_store! { shadow, std::convert::identity, {
    shadow_over_its_limit_admits_the_request_and_is_not_charged
    shadow_alone_is_counted_up_to_its_limit_and_admits_more
    candidate_is_charged_where_only_the_charge_before_it_denies
    candidate_slots_are_not_taken_by_a_denied_request
    random_groups_are_decided_as_by_the_model
} }

async fn shadow_over_its_limit_admits_the_request_and_is_not_charged(place: Place) {
    let (wide, tight) = (
        Policy::new("wide", Quota::per_hour(10)),
        Policy::new("tight", Quota::per_hour(2)),
    );
    let limiter = place.limiter(&[&wide, &tight]);
    let ada = Key::new("ada");
    let charges = [
        wide.charge(ada),
        tight.charge(ada).enforcement(Enforcement::Shadow),
    ];
    for number in 1..=10 {
        let decision = check(&limiter, &charges).await;
        assert!(decision.is_allowed(), "{number}: {decision:?}");
        let denied: Vec<_> = decision.would_deny().map(|state| *state.policy()).collect();
        assert_eq!(denied.len(), usize::from(number > 2), "{number}");
        let receipt = Receipt::of(&charges, &decision).expect("a charge was made");
        let made = if number > 2 { 1 } else { 2 };
        assert_eq!(receipt.settlements().len(), made, "{number}");
        let narrowest = decision.narrowest().expect("one is counted");
        assert_eq!(narrowest.policy().as_str(), "wide");
    }
    let decision = check(&limiter, &charges).await;
    assert_eq!(decision.outcome(), Outcome::Limited);
    assert_eq!(left(&decision, 0), 0);
}

async fn shadow_alone_is_counted_up_to_its_limit_and_admits_more(place: Place) {
    for way in &WAYS {
        let policy = way.policy(&format!("alone-{}", way.name));
        let limiter = place.limiter(&[&policy]);
        for number in 1..=way.limit + 3 {
            let charge = policy
                .charge(Key::new("ada"))
                .enforcement(Enforcement::Shadow);
            let decision = check(&limiter, &[charge]).await;
            assert!(decision.is_allowed());
            assert_eq!(decision.delay(), None, "{}", way.name);
            let expected = way.limit.saturating_sub(number);
            assert_eq!(left(&decision, 0), expected, "{} {number}", way.name);
            assert_eq!(
                decision.would_deny().count(),
                usize::from(number > way.limit)
            );
            assert!(decision.narrowest().is_none());
        }
    }
}

async fn candidate_is_charged_where_only_the_charge_before_it_denies(place: Place) {
    let policy = |name, count| Policy::new(name, Quota::per_hour(count));
    let (now, tried, other) = (policy("now", 2), policy("tried", 4), policy("other", 8));
    let limiter = place.limiter(&[&now, &tried, &other]);
    let charges = |key: &str, other_key: &str| {
        let key = Key::new(key).co_located_with(&Key::new("ada"));
        let other_key = Key::new(other_key).co_located_with(&Key::new("ada"));
        [
            now.charge(key),
            tried.charge(key).enforcement(Enforcement::Candidate),
            other.charge(other_key),
        ]
    };
    for (number, expected) in [3, 2, 1, 0, 0].into_iter().enumerate() {
        let decision = check(&limiter, &charges("bob", "all")).await;
        assert_eq!(decision.is_allowed(), number < 2, "{number}");
        assert_eq!(left(&decision, 1), expected, "{number}");
        let would_deny = decision.would_deny().count();
        assert_eq!(would_deny, usize::from(number == 4), "{number}");
    }
    // Another policy denies too, or instead: the candidate would not have admitted the request either.
    let spent = other
        .charge(Key::new("all").co_located_with(&Key::new("ada")))
        .cost(6);
    assert!(check(&limiter, &[spent]).await.is_allowed());
    let decision = check(&limiter, &charges("eve", "all")).await;
    assert!(!decision.is_allowed());
    assert_eq!(left(&decision, 1), 4);
}

async fn candidate_slots_are_not_taken_by_a_denied_request(place: Place) {
    let (now, tried) = (
        Policy::concurrency("now", 1),
        Policy::concurrency("tried", 3),
    );
    let limiter = place.limiter(&[&now, &tried]);
    let charges = [
        now.charge(Key::new("ada")),
        tried
            .charge(Key::new("ada"))
            .enforcement(Enforcement::Candidate),
    ];
    let first = check(&limiter, &charges).await;
    assert!(first.is_allowed());
    for _ in 0..3 {
        let denied = check(&limiter, &charges).await;
        assert!(!denied.is_allowed());
        assert_eq!(left(&denied, 1), 2);
    }
    let receipt = Receipt::of(&charges, &first).expect("slots were taken");
    limiter.settle(receipt).await.expect("released");
    let peek = limiter.peek(&charges[1..]).await.expect("a state");
    assert_eq!(left(&peek, 0), 3);
}

/// Groups of all algorithms at one time, when each of them is a counter.
async fn random_groups_are_decided_as_by_the_model(place: Place) {
    let mut random = Random(7);
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ];
    let policies: Vec<Policy> = (0..10)
        .map(|number| {
            let quota = Quota::per_hour(5 + number);
            let algorithm = algorithms[number as usize % algorithms.len()];
            Policy::new(format!("p{number}"), quota).algorithm(algorithm)
        })
        .collect();
    let limiter = place.limiter(&policies.iter().collect::<Vec<_>>());
    let mut would_deny = 0;
    for round in 0..20 {
        let key = Key::new(format!("key{round}"));
        let mut used = [0; 10];
        for _ in 0..20 {
            let mut charges: Vec<Charge<'_>> = Vec::new();
            let (mut chosen, mut candidates) = (Vec::new(), Vec::new());
            for (number, policy) in policies.iter().enumerate() {
                if random.below(3) == 0 {
                    continue;
                }
                let is_after_enforced = charges.last().is_some_and(|last| !last.is_shadow());
                let enforcement = match random.below(4) {
                    0 => Enforcement::Shadow,
                    1 if is_after_enforced => Enforcement::Candidate,
                    _ => Enforcement::Enforced,
                };
                let charge = policy.charge(key).cost(random.below(4));
                charges.push(charge.enforcement(enforcement));
                candidates.push(enforcement == Enforcement::Candidate);
                chosen.push(number);
            }
            let decision = check(&limiter, &charges).await;
            let fits = |index: usize| {
                let charge = &charges[index];
                used[chosen[index]] + charge.units() <= policies[chosen[index]].counter().limit()
            };
            let denying: Vec<usize> = (0..charges.len())
                .filter(|&index| !charges[index].is_shadow() && !fits(index))
                .collect();
            assert_eq!(decision.is_allowed(), denying.is_empty());
            let made: Vec<bool> = (0..charges.len())
                .map(|index| {
                    let is_replaced = index > 0 && denying == [index - 1];
                    let in_place = candidates[index] && is_replaced;
                    fits(index) && (denying.is_empty() || in_place)
                })
                .collect();
            for (index, state) in decision.states().iter().enumerate() {
                assert_eq!(
                    state.outcome() == Outcome::Allowed,
                    fits(index),
                    "{state:?}"
                );
            }
            would_deny += decision.would_deny().count();
            for (index, is_made) in made.into_iter().enumerate() {
                if is_made {
                    used[chosen[index]] += charges[index].units();
                }
                let limit = policies[chosen[index]].counter().limit();
                assert_eq!(
                    left(&decision, index),
                    limit - used[chosen[index]],
                    "{index} {charges:?}"
                );
            }
        }
    }
    assert!(would_deny > 100, "{would_deny}");
}

fn left(decision: &tollgate::Decision, index: usize) -> u64 {
    let usage = decision.states()[index].usage();
    usage.expect("counted").remaining
}
