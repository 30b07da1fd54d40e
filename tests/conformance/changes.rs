//! What becomes of keys in debt when their policy's limit changes.

use std::time::Duration;

use tollgate::{
    Policy, Quota,
    algorithm::{Algorithm, WindowStart},
    decision::Usage,
};

use super::{
    place::{Count, Place, START, usage},
    ways::{Change, LEASE, Trial},
};

by_every_way! { changes, {
    changed_limit_keeps_what_was_used
    wait_under_a_changed_limit_is_at_most_the_wait_of_the_new_limit
    limit_that_is_changed_there_and_back_forgives_nothing
    peek_by_a_changed_limit_stores_nothing
    denied_attempts_that_counted_make_no_debt_beyond_the_limit
} }

on_every_store! { changes, std::convert::identity, {
    window_that_opens_otherwise_keeps_what_was_used
    algorithm_that_is_new_to_a_key_starts_afresh
    bucket_that_leaks_instead_keeps_the_spent_share
} }

/// The policy after a change, as it counts the same key.
pub(super) fn changed<'a>(trial: &'a Trial, change: &Change, key: &str) -> Count<'a> {
    let policy = Policy::new("tried", change.quota).algorithm(trial.way.algorithm);
    trial.place.count(policy, key)
}

async fn changed_limit_keeps_what_was_used(trial: Trial) {
    let way = trial.way;
    for (number, change) in way.changes.iter().enumerate() {
        trial.place.clock.set(START);
        let (half, all) = (format!("half-{number}"), format!("all-{number}"));
        trial.count(&half).spend(way.limit / 2).await;
        trial.count(&all).spend(way.limit).await;
        let (half, all) = (
            changed(&trial, change, &half),
            changed(&trial, change, &all),
        );
        let left = (half.left().await, all.left().await);
        assert_eq!(left, (change.half_left, change.none_left), "{change:?}");
        assert_eq!(half.drain().await, change.half_left, "{change:?}");
        assert_eq!(all.drain().await, change.none_left, "{change:?}");
        if change.none_left == 0 {
            all.comes_back(1, change.next).await;
        }
    }
}

async fn wait_under_a_changed_limit_is_at_most_the_wait_of_the_new_limit(trial: Trial) {
    let way = trial.way;
    for (number, change) in way.changes.iter().enumerate() {
        let (old, new) = (format!("old-{number}"), format!("new-{number}"));
        trial.count(&old).spend(way.limit).await;
        let (old, new) = (changed(&trial, change, &old), changed(&trial, change, &new));
        assert!(!old.take(u64::MAX).await.is_allowed());
        new.drain().await;
        assert_eq!(
            old.peek().await.reset_at,
            new.peek().await.reset_at,
            "{change:?}"
        );
        assert!(old.left().await < change.quota.capacity(), "{change:?}");
    }
}

pub(super) async fn limit_that_is_changed_there_and_back_forgives_nothing(trial: Trial) {
    let way = trial.way;
    for (number, change) in way.changes.iter().enumerate() {
        let key = format!("key-{number}");
        let count = trial.count(&key);
        count.spend(way.limit / 2).await;
        let before = count.peek().await;
        // Denied, and still the state is brought over to the new limit.
        assert!(
            !changed(&trial, change, &key)
                .take(u64::MAX)
                .await
                .is_allowed()
        );
        assert_eq!(count.peek().await, before, "{change:?}");
        assert_eq!(count.drain().await, way.limit - way.limit / 2, "{change:?}");
    }
}

pub(super) async fn peek_by_a_changed_limit_stores_nothing(trial: Trial) {
    let way = trial.way;
    let count = trial.count("ada");
    count.spend(way.limit / 2).await;
    let (usage, values) = (count.peek().await, trial.place.values());
    for change in way.changes {
        changed(&trial, change, "ada").peek().await;
        assert_eq!(count.peek().await, usage, "{change:?}");
    }
    assert_eq!(trial.place.values(), values);
}

async fn denied_attempts_that_counted_make_no_debt_beyond_the_limit(trial: Trial) {
    let way = trial.way;
    let stern = trial
        .place
        .count(way.policy("tried").count_denied(true), "ada");
    stern.spend(way.limit).await;
    let spent = stern.peek().await;
    for _ in 0..30 {
        assert_eq!(usage(&stern.take(1).await), spent);
        assert_eq!(usage(&stern.take(way.limit + 1).await), spent);
    }
    // A higher limit shows what was beyond the lower one.
    let raised = &way.changes[0];
    let left = changed(&trial, raised, "ada").left().await;
    assert_eq!(left, raised.none_left);
}

async fn window_that_opens_otherwise_keeps_what_was_used(place: Place) {
    let openings = [
        (WindowStart::Clock, 784_000),
        (WindowStart::FirstHit, 2_678_400),
        (WindowStart::Month, 1_388_800),
        (WindowStart::Clock, 784_000),
    ];
    for (taken, (opening, closes)) in (1..).zip(openings) {
        let policy = Policy::new("opened", Quota::per_month(10));
        let count = place.count(policy.algorithm(Algorithm::FixedWindow(opening)), "ada");
        let closes = START + Duration::from_secs(closes);
        let expected = Usage::new(10, 10 - taken, closes);
        assert_eq!(usage(&count.take(1).await), expected, "{opening:?}");
    }
}

async fn algorithm_that_is_new_to_a_key_starts_afresh(place: Place) {
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::Concurrency { lease: LEASE },
    ];
    let count = |algorithm| {
        let quota = match algorithm {
            Algorithm::Concurrency { .. } => Quota::in_flight(5),
            _ => Quota::per_hour(5),
        };
        let policy = Policy::new("changed", quota).algorithm(algorithm);
        place.count(policy, "ada")
    };
    for algorithm in algorithms {
        assert_eq!(count(algorithm).drain().await, 5, "{algorithm:?}");
    }
    for algorithm in algorithms {
        assert_eq!(count(algorithm).left().await, 0, "{algorithm:?}");
    }
}

async fn bucket_that_leaks_instead_keeps_the_spent_share(place: Place) {
    let policy = Policy::new("changed", Quota::per_minute(10));
    let bucket = place.count(policy.clone(), "ada");
    bucket.spend(5).await;
    let leaky = place.count(policy.algorithm(Algorithm::LeakyBucket), "ada");
    // Half of six seconds.
    leaky.comes_back(1, Duration::from_secs(3)).await;
}
