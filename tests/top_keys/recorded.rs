//! Top keys of a limiter: the requests that it denies in process, by Redis and without it are recorded.

use std::convert::Infallible;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    builder::RateLimiterBuilder,
    decision::CountedBy,
    extract::Header,
    rules::RuleMode,
    top_keys::{ShownKeys, TopKeys},
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{fleet::shares::until_degraded, support::Server};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: std::time::Duration = std::time::Duration::from_millis(250);

fn plain() -> TopKeys {
    let builder = TopKeys::builder().shown_keys(ShownKeys::plain());
    builder.build().expect("usable settings")
}

fn daily() -> Policy {
    Policy::new("daily", Quota::per_day(2))
}

fn recording(builder: RateLimiterBuilder) -> RateLimiter {
    let builder = builder.policy(daily()).top_keys(plain());
    builder.build().expect("a usable limiter")
}

async fn check(limiter: &RateLimiter, key: &str) -> Decision {
    let decision = limiter.check(&[daily().charge(Key::new(key))]).await;
    decision.expect("a decision")
}

/// The denied requests of each key under the policy, the most first.
fn denied(limiter: &RateLimiter) -> Vec<(String, u64)> {
    let snapshot = limiter.top_keys().expect("they are recorded");
    let Some(list) = snapshot.policy("daily") else {
        return Vec::new();
    };
    let keys = list.keys().iter();
    keys.map(|top| (top.key().to_owned(), top.count()))
        .collect()
}

fn counts(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    let counts = expected.iter();
    counts
        .map(|(key, count)| ((*key).to_owned(), *count))
        .collect()
}

#[tokio::test]
async fn denied_requests_are_recorded_and_others_are_not() {
    let limiter = recording(RateLimiter::builder());
    check(&limiter, "ada").await;
    check(&limiter, "bob").await;
    assert_eq!(denied(&limiter), counts(&[]));
    for _ in 0..4 {
        check(&limiter, "ada").await;
    }
    check(&limiter, "bob").await;
    check(&limiter, "bob").await;
    let peek = limiter.peek(&[daily().charge(Key::new("bob"))]).await;
    assert!(peek.expect("a state").is_allowed());
    assert_eq!(denied(&limiter), counts(&[("ada", 3), ("bob", 1)]));
    assert_eq!(
        denied(&limiter.clone()),
        denied(&limiter),
        "clones share the counts"
    );
}

#[tokio::test]
async fn policies_without_denials_are_not_listed() {
    let hourly =
        |name: &str, units| Policy::new(name, Quota::per_hour(units)).key(Header::new("x-user"));
    let layer = RateLimitLayer::builder()
        .policy(hourly("tried", 1).mode(RuleMode::Shadow))
        .policy(hourly("login", 2).candidate(Quota::per_hour(1)))
        .top_keys(plain());
    let layer = layer.build().expect("a usable layer");
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    for _ in 0..5 {
        let request = Request::get("/").header("x-user", "ada");
        let request = request.body(Body::empty()).expect("a request");
        let Ok(_) = service.clone().oneshot(request).await;
    }
    let snapshot = layer.limiter().top_keys().expect("they are recorded");
    let lists = snapshot.policies().iter();
    let denied: Vec<_> = lists
        .map(|list| (list.policy().as_str(), list.keys()[0].count()))
        .collect();
    assert_eq!(denied, [("login", 3)]);
}

#[tokio::test]
async fn limiter_without_top_keys_returns_none() {
    let limiter = RateLimiter::builder().build().expect("a usable limiter");
    assert_eq!(limiter.top_keys(), None);
    let store = tollgate::memory::MemoryStore::builder()
        .build()
        .expect("usable");
    let limiter = RateLimiter::new(store, [daily()]).expect("a usable limiter");
    assert_eq!(limiter.top_keys(), None);
}

#[tokio::test]
async fn layer_records_denied_requests() {
    let layer = RateLimitLayer::builder()
        .policy(daily().key(Header::new("x-user")))
        .top_keys(plain());
    let layer = layer.build().expect("a usable layer");
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let mut limited = 0;
    for _ in 0..5 {
        let request = Request::get("/").header("x-user", "ada");
        let request = request.body(Body::empty()).expect("a request");
        let Ok(response) = service.clone().oneshot(request).await;
        limited += u64::from(response.status() == StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(limited, 3);
    assert_eq!(denied(layer.limiter()), counts(&[("ada", 3)]));
}

#[test]
fn layer_with_a_limiter_takes_its_top_keys() {
    let limiter = RateLimiter::builder().build().expect("a usable limiter");
    let layer = RateLimitLayer::builder()
        .policy(daily().key(Header::new("x-user")))
        .limiter(&limiter)
        .top_keys(plain());
    let error = layer.build().expect_err("two places for one setting");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("top_keys"), "{error}");
}

#[tokio::test]
async fn denials_of_redis_are_recorded_and_those_of_the_fallback_too() {
    let mut server = Server::start();
    let builder = RateLimiter::builder().redis(server.url());
    let limiter = recording(builder.deadline(DEADLINE));
    let mut by_redis = 0;
    for _ in 0..5 {
        let decision = check(&limiter, "ada").await;
        let is_by_redis = decision.counted_by() == CountedBy::Shared;
        by_redis += u64::from(is_by_redis && !decision.is_allowed());
    }
    assert!(by_redis > 0, "redis decided");
    let before = denied(&limiter)[0].1;
    assert!(before >= by_redis);

    server.kill();
    until_degraded(std::slice::from_ref(&limiter)).await;
    let before = denied(&limiter)[0].1;
    for _ in 0..4 {
        let decision = check(&limiter, "ada").await;
        assert_eq!(decision.counted_by(), CountedBy::Fallback);
        assert!(
            !decision.is_allowed(),
            "the count continues from that of redis"
        );
    }
    assert_eq!(denied(&limiter), counts(&[("ada", before + 4)]));
}
