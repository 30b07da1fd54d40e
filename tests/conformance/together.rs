//! Behaviours that do not depend on one algorithm: charges decided together, keys, and the finest steps of time.

use std::time::Duration;

use tollgate::{
    Charge, ErrorKind, Key, Policy, Quota,
    algorithm::{Algorithm, WindowStart},
    decision::{PolicyState, Retry},
};

use super::{
    place::{MICRO, Place, START, check},
    ways::WAYS,
};

on_every_store! { together, std::convert::identity, {
    fractions_of_a_microsecond_do_not_add_up
    leaky_bucket_spaces_requests_evenly
    window_of_the_first_hit_is_exactly_as_long_as_its_length
    long_windows_and_logs_count_in_ticks
    every_policy_returns_its_state_in_order
    sixteen_policies_are_decided_together
    hostile_keys_are_counted_apart
    one_key_charged_twice_in_one_decision_is_refused
    decision_without_charges_is_allowed
} }

async fn fractions_of_a_microsecond_do_not_add_up(place: Place) {
    let policy = Policy::new("thirds", Quota::per_second(3).burst(1));
    let limiter = place.limiter(&[&policy]);
    let mut allowed_at = Vec::new();
    for _ in 0..301 {
        let mut decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        if let Some(wait) = decision.retry_after() {
            place.clock.advance(wait);
            decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        }
        assert!(decision.is_allowed());
        allowed_at.push(decision.decided_at());
    }
    let took = allowed_at[300].since(allowed_at[0]);
    assert!(
        took.abs_diff(Duration::from_secs(100)) <= Duration::from_micros(1),
        "{took:?}"
    );
}

async fn leaky_bucket_spaces_requests_evenly(place: Place) {
    let policy = Policy::new("even", Quota::per_minute(10)).algorithm(Algorithm::LeakyBucket);
    let ada = place.count(policy, "ada");
    ada.spend(1).await;
    for passed in 1..=10 {
        ada.comes_back(1, Duration::from_secs(6 * passed)).await;
    }
}

async fn window_of_the_first_hit_is_exactly_as_long_as_its_length(place: Place) {
    let opening = Algorithm::FixedWindow(WindowStart::FirstHit);
    let ada = place.count(
        Policy::new("odd", Quota::per_minute(1)).algorithm(opening),
        "ada",
    );
    // Regression: it was rounded up to a millisecond.
    place.clock.set(START + MICRO);
    ada.spend(1).await;
    ada.comes_back(1, MICRO + Duration::from_secs(60)).await;
}

async fn long_windows_and_logs_count_in_ticks(place: Place) {
    let log = Policy::new("log", Quota::per_day(10)).algorithm(Algorithm::SlidingLog);
    let ada = place.count(log, "ada");
    ada.spend(10).await;
    // The start lies on a tick of 64 us.
    let back = Duration::from_secs(86_400);
    ada.comes_back(10, back).await;

    place.clock.set(START);
    let year = Quota::new(100_000, Duration::from_secs(366 * 86_400));
    let window = Policy::new("window", year).algorithm(Algorithm::SlidingWindow);
    let ada = place.count(window, "ada");
    assert!(ada.take(100_000).await.is_allowed());
    // A hundred-thousandth of the window after it closes, in ticks of a millisecond.
    let back = Duration::from_millis(7_609_600_000 + 316_224);
    ada.comes_back(1, back).await;
}

async fn every_policy_returns_its_state_in_order(place: Place) {
    let mut policies: Vec<Policy> = WAYS.iter().map(|way| way.policy(way.name)).collect();
    for _ in 0..2 {
        let limiter = place.limiter(&policies.iter().collect::<Vec<_>>());
        let key = Key::new(policies[0].name().as_str());
        let cost = |policy: &Policy| policy.name().as_str().len() as u64 % 7;
        let charges: Vec<Charge<'_>> = policies
            .iter()
            .map(|policy| policy.charge(key).cost(cost(policy)))
            .collect();
        let decision = check(&limiter, &charges).await;
        assert_eq!(decision.states().len(), WAYS.len());
        for (state, policy) in decision.states().iter().zip(&policies) {
            assert_eq!(state.policy(), policy.name());
            let (taken, usage) = (cost(policy), state.usage().expect("counted"));
            let way = WAYS.iter().find(|way| way.name == policy.name().as_str());
            let way = way.expect("named after it");
            assert_eq!(
                (usage.limit, usage.remaining),
                (way.limit, way.limit - taken)
            );
            let all_back = if taken > 0 {
                (way.all_back)(taken)
            } else {
                Duration::ZERO
            };
            assert_eq!(usage.reset_at, START + all_back);
            assert_eq!(state.retry(), Retry::Now);
        }
        policies.reverse();
    }
}

async fn sixteen_policies_are_decided_together(place: Place) {
    let ways = WAYS.iter().cycle().filter(|way| way.limit == 10);
    let policies: Vec<Policy> = (0..17)
        .zip(ways)
        .map(|(number, way)| way.policy(&format!("p{number}")))
        .collect();
    let limiter = place.limiter(&policies[..16].iter().collect::<Vec<_>>());
    let charges: Vec<Charge<'_>> = policies
        .iter()
        .map(|policy| policy.charge(Key::new("ada")))
        .collect();
    assert!(check(&limiter, &[charges[7].cost(9)]).await.is_allowed());
    assert!(check(&limiter, &charges[..16]).await.is_allowed());
    let decision = check(&limiter, &charges[..16]).await;
    assert!(!decision.is_allowed(), "p7 is used up");
    let left = |state: &PolicyState| state.usage().expect("counted").remaining;
    for (number, state) in decision.states().iter().enumerate() {
        assert_eq!(left(state), if number == 7 { 0 } else { 9 });
    }
    let error = limiter.check(&charges).await.expect_err("seventeen");
    assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
}

async fn hostile_keys_are_counted_apart(place: Place) {
    let policy = Policy::new("hostile", Quota::per_hour(1));
    let limiter = place.limiter(&[&policy]);
    let megabyte = vec![b'x'; 1_000_000];
    let mut other_megabyte = megabyte.clone();
    other_megabyte[999_999] = b'y';
    let keys: [&[u8]; 14] = [
        b"",
        b"{",
        b"}",
        b"{}",
        b"{a}",
        b"a}:hostile",
        b"a b",
        b"a%20b",
        b"\0",
        b"\0\0",
        b"\xff\xfe",
        b"\r\nDEL x\r\n",
        &megabyte,
        &other_megabyte,
    ];
    for key in keys {
        let charge = policy.charge(Key::new(key));
        assert!(check(&limiter, &[charge]).await.is_allowed());
        assert!(!check(&limiter, &[charge]).await.is_allowed());
    }
    if place.is_on_servers() {
        let (stored, start) = (place.keys(), format!("{}:{{", place.prefix()));
        assert_eq!(stored.len(), keys.len());
        for (key, _) in stored {
            assert!(
                key.starts_with(&start) && key.ends_with("}:hostile"),
                "{key}"
            );
            assert_eq!(
                (key.matches('{').count(), key.matches('}').count()),
                (1, 1),
                "{key}"
            );
            assert!(key.len() <= 64, "{key}");
        }
    }
}

async fn one_key_charged_twice_in_one_decision_is_refused(place: Place) {
    let policy = Policy::new("twice", Quota::per_second(3));
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    let error = limiter.check(&[charge, charge]).await.expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::DuplicatePolicy);
    let both = [charge, policy.charge(Key::new("bob"))];
    assert!(
        check(&limiter, &both).await.is_allowed(),
        "two keys under one policy are two counts"
    );
}

async fn decision_without_charges_is_allowed(place: Place) {
    let limiter = place.limiter(&[]);
    let decision = check(&limiter, &[]).await;
    assert!(decision.is_allowed());
    assert_eq!(decision.states(), []);
}
