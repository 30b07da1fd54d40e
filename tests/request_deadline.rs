//! The deadline of a request: one for all decisions of a store, however many layers it goes through.

use std::{
    convert::Infallible,
    future,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use http::{Request, request::Parts};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter, extract::Global, middleware::RateLimitInfo,
    remote::RedisStore, rules::RuleMode, store::Store,
};
use tower::ServiceExt;

use crate::support::Server;

/// Longer than the default, so that a loaded machine does not look like an outage. A few of them do not open the breaker.
const DEADLINE: Duration = Duration::from_millis(400);

fn quota(name: &'static str) -> Policy {
    Policy::new(name, Quota::per_hour(1_000))
}

fn limiter(server: &Server) -> RateLimiter {
    let builder = RateLimiter::builder().redis(server.url());
    let limiter = builder.deadline(DEADLINE).build();
    limiter.expect("a usable limiter")
}

fn layer(limiter: &RateLimiter, name: &'static str) -> RateLimitLayer {
    let layer = RateLimitLayer::builder()
        .limiter(limiter)
        .policy(quota(name).key(Global));
    layer.build().expect("a usable layer")
}

/// Returns who counted the request, from the innermost layer to the outermost.
async fn counted_by(info: RateLimitInfo) -> String {
    let decisions = info.decisions().iter();
    let counted_by = decisions.map(|decision| format!("{:?}", decision.counted_by()));
    counted_by.collect::<Vec<_>>().join(" ")
}

async fn text(app: &Router) -> String {
    let request = Request::get("/").body(Body::empty()).expect("a request");
    let response = app.clone().oneshot(request).await.expect("a response");
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    String::from_utf8(bytes.expect("a body").to_vec()).expect("text")
}

/// Asserts that a request waits for a server that hangs for one deadline, or twice that on a busy machine. `counted` is who
/// counts it before, and while the server hangs.
async fn waits_for_one_deadline(server: &Server, app: &Router, counted: [&str; 2]) {
    // A new connection first, so that the server and not the dial takes the time.
    assert_eq!(text(app).await, counted[0]);
    server.pause();
    let started = Instant::now();
    assert_eq!(text(app).await, counted[1]);
    let waited = started.elapsed();
    server.resume();
    assert!(waited >= DEADLINE / 2, "it asks the server: {waited:?}");
    assert!(waited < DEADLINE * 2, "{waited:?}");
}

// Regression: each layer waited for a deadline of its own.
#[tokio::test]
async fn layers_on_one_limiter_wait_for_one_deadline() {
    let server = Server::start();
    let limiter = limiter(&server);
    let app = Router::new().route("/", get(counted_by));
    let app = ["inner", "middle", "outer"]
        .into_iter()
        .fold(app, |app, name| app.layer(layer(&limiter, name)));
    let counted = ["Shared Shared Shared", "Fallback Fallback Fallback"];
    waits_for_one_deadline(&server, &app, counted).await;
}

// Regression: the decisions before and after the lookups had a deadline each.
#[tokio::test]
async fn decisions_before_and_after_lookups_wait_for_one_deadline() {
    let server = Server::start();
    let session = |_: &Parts| future::ready(Ok::<_, Infallible>(Some(Key::new("ada"))));
    let limiter = limiter(&server);
    let layer = |[all, user]: [&'static str; 2]| {
        let layer = RateLimitLayer::builder()
            .limiter(&limiter)
            .policy(quota(all).key(Global))
            .policy(quota(user).key_async(session));
        layer.build().expect("a usable layer")
    };
    let app = Router::new()
        .route("/", get(counted_by))
        .layer(layer(["all", "user"]))
        .layer(layer(["everybody", "client"]));
    let counted = ["Shared Shared", "Fallback Fallback"];
    waits_for_one_deadline(&server, &app, counted).await;
}

#[tokio::test]
async fn layer_on_another_store_has_its_own_deadline() {
    let (hung, healthy) = (Server::start(), Server::start());
    let app = Router::new()
        .route("/", get(counted_by))
        .layer(layer(&limiter(&healthy), "inner"))
        .layer(layer(&limiter(&hung), "outer"));
    waits_for_one_deadline(&hung, &app, ["Shared Shared", "Shared Fallback"]).await;
}

// A store without a fallback returns an error instead.
#[tokio::test]
async fn store_without_a_fallback_is_not_asked_once_the_deadline_is_used_up() {
    let server = Server::start();
    let store = RedisStore::builder(server.url()).deadline(DEADLINE).build();
    let store = store.expect("a usable store");
    assert_eq!(store.deadline(), Some(DEADLINE));
    let shadow = |name| quota(name).key(Global).mode(RuleMode::Shadow);
    let limiter = RateLimiter::new(store, []).expect("a limiter");
    let layer = |name| {
        let layer = RateLimitLayer::builder().limiter(&limiter);
        layer.policy(shadow(name)).build().expect("a usable layer")
    };
    let app = Router::new()
        .route("/", get(counted_by))
        .layer(layer("inner"))
        .layer(layer("outer"));
    waits_for_one_deadline(&server, &app, ["Shared Shared", ""]).await;
}
