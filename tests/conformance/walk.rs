//! A random walk: whatever is charged, and however long after, a server and a store in process make the same decisions.

use std::time::Duration;

use tollgate::{
    Charge, Key, Policy, Quota,
    algorithm::{Algorithm, WindowStart},
};

use crate::support::Random;

use super::place::{Place, check};

on_every_server! { walk, std::convert::identity, {
    random_charges_have_the_results_of_a_store_in_process
} }

pub(super) async fn random_charges_have_the_results_of_a_store_in_process(place: Place) {
    let (mut random, twin) = (Random(20_231_114), Place::memory());
    let policies = policies();
    let all: Vec<&Policy> = policies.iter().collect();
    let (limiter, other) = (place.limiter(&all), twin.limiter(&all));
    let mut admitted = 0;
    for step in 0..STEPS {
        let pause = Duration::from_micros(random.below(3_000_000));
        place.clock.advance(pause);
        twin.clock.advance(pause);
        let key = Key::from(random.below(5));
        // Each policy once, in any order.
        let first = random.below(policies.len() as u64) as usize;
        let count = 1 + random.below(3) as usize;
        let chosen = policies.iter().cycle().skip(first).take(count);
        let charges: Vec<Charge<'_>> = chosen
            .map(|policy| policy.charge(key).cost(random.below(4)))
            .collect();
        let decision = check(&limiter, &charges).await;
        let expected = check(&other, &charges).await;
        let case = || format!("step {step}, {random:?}, {charges:?}");
        assert_eq!(decision.is_allowed(), expected.is_allowed(), "{}", case());
        assert_eq!(decision.decided_at(), expected.decided_at(), "{}", case());
        for (state, expected) in decision.states().iter().zip(expected.states()) {
            assert_eq!(state.usage(), expected.usage(), "{}", case());
            assert_eq!(state.retry(), expected.retry(), "{}", case());
        }
        admitted += usize::from(decision.is_allowed());
    }
    // Neither all nor none: the limits matter.
    assert!(
        (STEPS / 5..STEPS * 19 / 20).contains(&admitted),
        "{admitted}"
    );
}

fn policies() -> Vec<Policy> {
    let of = |name, quota, algorithm| Policy::new(name, quota).algorithm(algorithm);
    vec![
        of(
            "token",
            Quota::per_minute(7).burst(5),
            Algorithm::TokenBucket,
        ),
        of(
            "leaky",
            Quota::per_minute(9).burst(3),
            Algorithm::LeakyBucket,
        ),
        of(
            "clock",
            Quota::per_minute(6),
            Algorithm::FixedWindow(WindowStart::Clock),
        ),
        of(
            "first-hit",
            Quota::per_minute(5),
            Algorithm::FixedWindow(WindowStart::FirstHit),
        ),
        of("log", Quota::per_minute(8), Algorithm::SlidingLog),
        of("sliding", Quota::per_minute(8), Algorithm::SlidingWindow),
    ]
}

const STEPS: usize = 1_000;
