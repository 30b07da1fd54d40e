//! Explanations of what an instance decides without Redis: by leased units, and by denials that it keeps.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate::{
    Charge, Consistency, Key, Policy, Quota, RateLimiter,
    decision::{CountedBy, Outcome},
    explain::PolicyExplanation,
    store::KeyLease,
};

use crate::{fleet::shares::until_shared, support::Server};

/// So little comes back in a test that it does not matter.
fn leased() -> Policy {
    let quota = Quota::per_hour(100).burst(100_000);
    Policy::new("all", quota).consistency(Consistency::Leased)
}

async fn limiter(server: &Server, policy: &Policy) -> RateLimiter {
    let limiter = RateLimiter::builder()
        .redis(server.url())
        .deadline(Duration::from_secs(5))
        .policy(policy.clone())
        .record_denials(100)
        .build()
        .expect("a usable limiter");
    until_shared(&limiter).await;
    limiter
}

async fn explained(limiter: &RateLimiter, policy: &Policy, key: Key) -> PolicyExplanation {
    let explanation = limiter.explain(&key).await.expect("explained");
    let explained = explanation.policy(policy.name().as_str());
    explained.expect("a policy of the limiter").clone()
}

async fn counted_by(limiter: &RateLimiter, charge: Charge<'_>) -> CountedBy {
    let decision = limiter.check(&[charge]).await.expect("a decision");
    decision.counted_by()
}

#[tokio::test]
async fn leased_units_are_shown_with_those_of_others_and_the_age_of_the_last_report() {
    let server = Server::start();
    let policy = leased();
    let [one, other] = [
        limiter(&server, &policy).await,
        limiter(&server, &policy).await,
    ];
    let charge = policy.charge(Key::GLOBAL);
    assert_eq!(explained(&one, &policy, Key::GLOBAL).await.lease(), None);
    let (explained, lease) = loop {
        for limiter in [&one, &other] {
            join_all((0..8).map(|_| counted_by(limiter, charge))).await;
        }
        let explained = explained(&one, &policy, Key::GLOBAL).await;
        let lease = explained.lease();
        let is_shared = |lease: &KeyLease| lease.units() > 0 && lease.leased_elsewhere() > 0;
        if let Some(lease) = lease.filter(is_shared) {
            break (explained, lease);
        }
    };
    assert_eq!(explained.counted_by(), CountedBy::Lease);
    assert_eq!(explained.outcome(), Outcome::Allowed);
    assert_eq!(explained.shared_count_age(), Some(lease.age()));
    assert!(lease.age() < Duration::from_secs(2), "{lease:?}");
    let text = explained.to_string();
    let line = format!(
        "counted by: lease\n  lease: {} units here, {} elsewhere ",
        lease.units(),
        lease.leased_elsewhere()
    );
    assert!(text.contains(&line), "{text}");
}

// Regression: a key without a unit left in Redis was limited, although this instance had units.
#[tokio::test]
async fn key_whose_last_units_are_leased_here_is_allowed() {
    let server = Server::start();
    let policy = leased();
    let strict = policy.clone().consistency(Consistency::Strict);
    let one = limiter(&server, &policy).await;
    let other = limiter(&server, &strict).await;
    // On a busy machine, the units may have come back before they are explained.
    for number in 0.. {
        let key = Key::new(number.to_string());
        while explained(&one, &policy, key)
            .await
            .lease()
            .is_none_or(|lease| lease.units() < 4)
        {
            counted_by(&one, policy.charge(key)).await;
        }
        for cost in [10_000, 1_000, 100, 10, 1] {
            let charges = [strict.charge(key).cost(cost)];
            while other
                .check(&charges)
                .await
                .expect("a decision")
                .is_allowed()
            {}
        }
        let explained = explained(&one, &policy, key).await;
        if explained.lease().is_some_and(|lease| lease.units() > 0) {
            assert_eq!(explained.outcome(), Outcome::Allowed, "{explained}");
            return;
        }
    }
}

#[tokio::test]
async fn denial_by_the_reply_to_a_report_is_explained_as_such() {
    let server = Server::start();
    // Units come back so fast that no denial is kept.
    let quota = Quota::per_second(5_000).burst(1_000);
    let policy = Policy::new("all", quota).consistency(Consistency::Leased);
    let one = limiter(&server, &policy).await;
    let charges = [policy.charge(Key::GLOBAL)];
    let text = loop {
        join_all((0..32).map(|_| one.check(&charges))).await;
        let explained = explained(&one, &policy, Key::GLOBAL).await;
        let denial = explained.last_denial();
        if denial.is_some_and(|denial| denial.counted_by() == CountedBy::Lease) {
            break explained.to_string();
        }
    };
    let denied = "limited, denied by Redis in its reply to a report of leased units";
    assert!(text.contains(denied), "{text}");
}

#[tokio::test]
async fn denial_that_is_kept_is_shown_until_redis_is_asked_again() {
    let server = Server::start();
    let policy = Policy::new("daily", Quota::per_day(10));
    let [one, other] = [
        limiter(&server, &policy).await,
        limiter(&server, &policy).await,
    ];
    let charge = policy.charge(Key::GLOBAL);
    counted_by(&one, charge.cost(10)).await;
    assert_eq!(counted_by(&one, charge).await, CountedBy::Shared);
    other.reset(&policy, &Key::GLOBAL).await.expect("reset");
    let explained = explained(&one, &policy, Key::GLOBAL).await;
    let is_kept = counted_by(&one, charge).await == CountedBy::DenialCache;
    assert!(is_kept, "for 2 s");
    assert_eq!(explained.outcome(), Outcome::Limited);
    assert_eq!(explained.counted_by(), CountedBy::DenialCache);
    assert_eq!(explained.usage().expect("counted").remaining, 10);
    let left = explained.denied_for().expect("it is denied");
    assert!(left <= Duration::from_secs(2), "{left:?}");
    let line = "counted by: denial_cache\n  denied from the cache of this instance for ";
    assert!(explained.to_string().contains(line), "{explained}");
}
