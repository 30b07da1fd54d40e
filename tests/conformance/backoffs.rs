//! Delays after failures, on every store: they grow, end, and are forgiven.

use std::time::Duration;

use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter,
    decision::{DeniedBy, Retry},
    memory::MemoryStore,
    policy::Backoff,
};

use crate::support::Random;

use super::place::{MICRO, Place, START, check};

on_every_store! { backoffs, std::convert::identity, {
    delays_grow_up_to_the_longest_and_are_forgiven
    denials_begin_no_delay_and_prolong_none
    failure_during_a_delay_begins_the_next_one
    keys_and_policies_are_delayed_apart
    policy_without_a_backoff_counts_no_failures
    unusable_backoff_is_an_error
    clock_that_is_set_back_prolongs_a_delay_by_the_longest_at_most
    random_failures_are_delayed_as_in_process
} }

const SECOND: Duration = Duration::from_secs(1);

fn ada() -> Key {
    Key::new("ada")
}

/// One request in an hour, and delays of 1, 3, 9 and 20 s after failures.
fn tight() -> Policy {
    Policy::new("tight", Quota::per_hour(1)).backoff(
        Backoff::doubling(SECOND, 20 * SECOND)
            .factor(3)
            .forgiven_after(60 * SECOND),
    )
}

/// The same delays, without a quota that is in the way.
fn wide() -> Policy {
    Policy::new("wide", Quota::per_second(100_000)).backoff(
        Backoff::doubling(SECOND, 20 * SECOND)
            .factor(3)
            .forgiven_after(60 * SECOND),
    )
}

async fn fail(limiter: &RateLimiter, policy: &Policy, place: &Place) -> Duration {
    let until = limiter.count_failure(policy, &ada()).await;
    let until = until.expect("it is counted").expect("a delay");
    until.since(place.clock.now())
}

async fn delays_grow_up_to_the_longest_and_are_forgiven(place: Place) {
    let policy = wide();
    let limiter = place.limiter(&[&policy]);
    for seconds in [1, 3, 9, 20, 20] {
        assert!(check(&limiter, &[policy.charge(ada())]).await.is_allowed());
        assert_eq!(fail(&limiter, &policy, &place).await, seconds * SECOND);
        let until = place.clock.now() + seconds * SECOND;
        place.clock.set(until - MICRO);
        let denied = check(&limiter, &[policy.charge(ada())]).await;
        assert_eq!(denied.states()[0].denied_by(), Some(DeniedBy::Ban));
        assert_eq!(denied.states()[0].retry(), Retry::At(until));
        assert_eq!(denied.retry_after(), Some(MICRO));
        place.clock.set(until);
    }
    place.clock.advance(60 * SECOND - MICRO);
    assert_eq!(fail(&limiter, &policy, &place).await, 20 * SECOND);
    place.clock.advance(80 * SECOND);
    assert_eq!(fail(&limiter, &policy, &place).await, SECOND);
    limiter.reset(&policy, &ada()).await.expect("reset");
    assert!(check(&limiter, &[policy.charge(ada())]).await.is_allowed());
    assert_eq!(fail(&limiter, &policy, &place).await, SECOND);
}

async fn denials_begin_no_delay_and_prolong_none(place: Place) {
    let policy = tight();
    let limiter = place.limiter(&[&policy]);
    assert!(check(&limiter, &[policy.charge(ada())]).await.is_allowed());
    for _ in 0..10 {
        let denied = check(&limiter, &[policy.charge(ada())]).await;
        assert_eq!(denied.states()[0].denied_by(), Some(DeniedBy::Quota));
    }
    let status = limiter
        .ban_status(&policy, &ada())
        .await
        .expect("it is read");
    assert_eq!(status, None);
    assert_eq!(fail(&limiter, &policy, &place).await, SECOND);
    place.clock.advance(SECOND / 2);
    for _ in 0..10 {
        let denied = check(&limiter, &[policy.charge(ada())]).await;
        assert_eq!(denied.states()[0].denied_by(), Some(DeniedBy::Ban));
    }
    let status = limiter
        .ban_status(&policy, &ada())
        .await
        .expect("it is read");
    let status = status.expect("it is delayed");
    assert_eq!((status.bans(), status.denials()), (1, 0));
    assert_eq!(status.banned_until(), Some(place.clock.now() + SECOND / 2));
    place.clock.advance(SECOND / 2);
    let denied = check(&limiter, &[policy.charge(ada())]).await;
    assert_eq!(denied.states()[0].denied_by(), Some(DeniedBy::Quota));
}

async fn failure_during_a_delay_begins_the_next_one(place: Place) {
    let policy = wide();
    let limiter = place.limiter(&[&policy]);
    for seconds in [1, 3, 9] {
        assert_eq!(fail(&limiter, &policy, &place).await, seconds * SECOND);
    }
    let denied = check(&limiter, &[policy.charge(ada())]).await;
    assert_eq!(denied.retry_after(), Some(9 * SECOND));
}

async fn keys_and_policies_are_delayed_apart(place: Place) {
    let (wide, tight) = (wide(), tight());
    let limiter = place.limiter(&[&wide, &tight]);
    assert_eq!(fail(&limiter, &wide, &place).await, SECOND);
    let bob = [wide.charge(Key::new("bob")), tight.charge(Key::new("bob"))];
    assert!(check(&limiter, &bob).await.is_allowed());
    // All or nothing: the other policy is not charged.
    let both = [wide.charge(ada()), tight.charge(ada())];
    assert!(!check(&limiter, &both).await.is_allowed());
    let alone = [tight.charge(ada())];
    assert!(check(&limiter, &alone).await.is_allowed());
}

async fn policy_without_a_backoff_counts_no_failures(place: Place) {
    let policy = Policy::new("plain", Quota::per_hour(1));
    let limiter = place.limiter(&[&policy]);
    let counted = limiter.count_failure(&policy, &ada()).await;
    assert_eq!(counted.expect("it responds"), None);
    assert!(check(&limiter, &[policy.charge(ada())]).await.is_allowed());
}

/// Regression: the times were taken as they are.
async fn unusable_backoff_is_an_error(place: Place) {
    let limiter = place.limiter(&[]);
    for time in [Duration::ZERO, Duration::MAX] {
        let policy =
            Policy::new("wrong", Quota::per_hour(1)).backoff(Backoff::doubling(time, time));
        let counted = limiter.count_failure(&policy, &ada()).await;
        let error = counted.expect_err("its times are unusable");
        assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
    }
}

async fn clock_that_is_set_back_prolongs_a_delay_by_the_longest_at_most(place: Place) {
    let policy = wide();
    let limiter = place.limiter(&[&policy]);
    for _ in 0..4 {
        fail(&limiter, &policy, &place).await;
    }
    place.clock.set(START - 1_000 * SECOND);
    let denied = check(&limiter, &[policy.charge(ada())]).await;
    assert_eq!(denied.retry_after(), Some(20 * SECOND));
    assert_eq!(fail(&limiter, &policy, &place).await, 20 * SECOND);
    place.clock.advance(20 * SECOND);
    assert!(check(&limiter, &[policy.charge(ada())]).await.is_allowed());
}

async fn random_failures_are_delayed_as_in_process(place: Place) {
    let mut random = Random(7);
    let twin = MemoryStore::builder().clock(place.clock.clone()).build();
    let policies: Vec<Policy> = (0..6_u32)
        .map(|number| {
            let first = u64::from(1 + number) * 700_001;
            let first = Duration::from_micros(first);
            let backoff = Backoff::doubling(first, (1 + number) * 9 * SECOND);
            let backoff = backoff.factor(1 + number % 4);
            let quota = Quota::per_minute(20 + u64::from(number));
            Policy::new(format!("p{number}"), quota).backoff(backoff.forgiven_after(15 * SECOND))
        })
        .collect();
    let all: Vec<&Policy> = policies.iter().collect();
    let limiter = place.limiter(&all);
    let twin = RateLimiter::new(twin.expect("a store"), policies.iter().cloned());
    let twin = twin.expect("a usable limiter");
    let mut delayed = 0;
    for round in 0..400 {
        let step = Duration::from_micros(random.below(3_000_000));
        place.clock.set(place.clock.now() + step);
        let key = Key::new(format!("key{}", random.below(2)));
        let policy = &policies[random.below(6) as usize];
        if random.below(3) == 0 {
            let until = limiter.count_failure(policy, &key).await;
            let expected = twin.count_failure(policy, &key).await;
            assert_eq!(
                until.expect("it is counted"),
                expected.expect("it is counted")
            );
        }
        let decision = check(&limiter, &[policy.charge(key)]).await;
        let expected = check(&twin, &[policy.charge(key)]).await;
        let (state, expected) = (decision.states()[0], expected.states()[0]);
        assert_eq!(state.denied_by(), expected.denied_by(), "round {round}");
        assert_eq!(state.retry(), expected.retry(), "round {round}");
        let status = limiter.ban_status(policy, &key).await.expect("it is read");
        let expected = twin.ban_status(policy, &key).await.expect("it is read");
        assert_eq!(status, expected, "round {round}");
        delayed += usize::from(state.denied_by() == Some(DeniedBy::Ban));
    }
    assert!((50..350).contains(&delayed), "{delayed}");
}
