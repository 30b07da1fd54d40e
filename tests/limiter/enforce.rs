//! Decisions in handlers, on Redis.

use std::time::{Duration, Instant};

use http::StatusCode;
use tollgate::{
    Key, OnOutage, Policy, Quota, RateLimiter, decision::CountedBy, rejection::Rejection,
    remote::RedisStore,
};

use crate::{fleet::shares::until_degraded, support::Server};

fn on(server: &Server, policies: [&Policy; 2]) -> RateLimiter {
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(5));
    let builder = RateLimiter::builder().redis(store);
    let builder = policies
        .into_iter()
        .fold(builder, |builder, policy| builder.policy(policy.clone()));
    builder.build().expect("it is well set up")
}

#[tokio::test]
async fn permits_of_two_instances_share_counts_and_slots() {
    let server = Server::start();
    let rate = Policy::new("rate", Quota::per_hour(3));
    let slots = Policy::concurrency("slots", 1);
    let [one, other] = [(); 2].map(|()| on(&server, [&rate, &slots]));
    let key = Key::new("ada");
    let both = [rate.charge(key), slots.charge(key)];

    let permit = one.enforce(&both).await.expect("a slot is free");
    assert_eq!(permit.decision().counted_by(), CountedBy::Shared);
    let rejection = other.enforce(&both).await.expect_err("it is taken");
    assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
    let policy = rejection.reason().policy().map(ToString::to_string);
    assert_eq!(policy.as_deref(), Some("slots"));
    drop(permit);
    let permit = until_permitted(&other, slots.charge(key)).await;
    drop(permit);

    let permit = other.enforce(rate.charge(key).cost(2)).await;
    permit.expect("two are left").settle(|_, _| 1);
    let left = async || {
        let peeked = one.peek(rate.charge(key)).await.expect("a decision");
        peeked.remaining()
    };
    let started = Instant::now();
    while left().await != Some(1) {
        assert!(started.elapsed() < Duration::from_secs(10), "no refund");
        tokio::task::yield_now().await;
    }
    drop(one.enforce(rate.charge(key)).await.expect("one is left"));
    let rejection = one.enforce(rate.charge(key)).await.expect_err("none");
    assert!(
        rejection
            .retry_after_secs()
            .is_some_and(|wait| wait > 1_000)
    );
}

/// Waits until the release of a slot has arrived.
async fn until_permitted(
    limiter: &RateLimiter,
    charge: tollgate::Charge<'_>,
) -> tollgate::acquire::Permit {
    let started = Instant::now();
    loop {
        match limiter.enforce(charge).await {
            Ok(permit) => return permit,
            Err(rejection) => assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS),
        }
        assert!(started.elapsed() < Duration::from_secs(10), "no slot");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn outage_is_decided_by_the_choice_of_each_policy() {
    let mut server = Server::start();
    let denying = Policy::new("denying", Quota::per_hour(3)).on_outage(OnOutage::Deny);
    let allowing = Policy::new("allowing", Quota::per_hour(3)).on_outage(OnOutage::Allow);
    let limiter = on(&server, [&denying, &allowing]);
    let key = Key::new("ada");
    drop(
        limiter
            .enforce(denying.charge(key))
            .await
            .expect("it is up"),
    );
    server.kill();
    // The breaker opens after a few calls that fail.
    let failing = async {
        loop {
            let _ = limiter.enforce(denying.charge(key)).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = until_degraded(std::slice::from_ref(&limiter)) => {}
        () = failing => {}
    }
    let rejection: Rejection = limiter
        .enforce(denying.charge(key))
        .await
        .expect_err("it is down");
    assert_eq!(rejection.status(), StatusCode::SERVICE_UNAVAILABLE);
    let permit = limiter.enforce(allowing.charge(key)).await;
    let permit = permit.expect("it is allowed then");
    assert_eq!(permit.decision().counted_by(), CountedBy::Uncounted);
    assert_eq!(permit.decision().remaining(), None);
}
