//! The deadline of a request: one for all decisions of a store, however many layers it goes through.

use std::{
    convert::Infallible,
    future,
    sync::Mutex,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use http::Request;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    extract::Global,
    memory::MemoryStore,
    middleware::RateLimitInfo,
    remote::RedisStore,
    resilience::ResilientStore,
    rules::RuleMode,
    store::{Store, StoreFuture},
    testing::ScriptedStore,
};
use tower::ServiceExt;

use crate::support::{Cluster, Mode, Proxy, Server};

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
    let session = |_: &RequestHead| future::ready(Ok::<_, Infallible>(Some(Key::new("ada"))));
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

/// A deadline of which half is much, also on a loaded machine.
const LONG: Duration = Duration::from_secs(2);

/// Returns who counts a request by two layers, while each reply of Redis takes more than half of the deadline.
async fn counted_in_half_of_the_deadline(
    proxy: &Proxy,
    limiter: &RateLimiter,
    mode: RuleMode,
) -> String {
    let layer = |name| {
        let layer = RateLimitLayer::builder().limiter(limiter);
        let layer = layer.policy(quota(name).key(Global).mode(mode));
        layer.build().expect("a usable layer")
    };
    let app = Router::new()
        .route("/", get(counted_by))
        .layer(layer("inner"))
        .layer(layer("outer"));
    assert_eq!(text(&app).await, "Shared Shared");
    proxy.set(Mode::Delay(LONG * 3 / 5));
    let counted = text(&app).await;
    proxy.set(Mode::Pass);
    counted
}

// Regression: the inner layer asked Redis too, and waited for a reply of its own.
#[tokio::test]
async fn server_is_not_asked_again_once_half_of_the_deadline_is_used_up() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = RateLimiter::builder().redis(proxy.url()).deadline(LONG);
    let limiter = limiter.build().expect("a usable limiter");
    let counted = counted_in_half_of_the_deadline(&proxy, &limiter, RuleMode::Enforce).await;
    assert_eq!(counted, "Fallback Shared");
}

// A store without a fallback returns an error instead.
#[tokio::test]
async fn store_without_a_fallback_is_not_asked_once_half_of_the_deadline_is_used_up() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let store = RedisStore::builder(proxy.url()).deadline(LONG).build();
    let store = store.expect("a usable store");
    assert_eq!(store.deadline(), Some(LONG));
    let limiter = RateLimiter::new(store, []).expect("a limiter");
    let counted = counted_in_half_of_the_deadline(&proxy, &limiter, RuleMode::Shadow).await;
    assert_eq!(counted, "Shared");
    let inner = quota("inner");
    let peeked = limiter.peek(&[inner.charge(Key::GLOBAL)]).await;
    let usage = peeked.expect("a decision").states()[0].usage();
    assert_eq!(usage.expect("counted").remaining, 999);
}

#[tokio::test]
async fn custom_store_is_asked_again_only_for_what_is_left_of_the_deadline() {
    for (takes, times) in [([3, 0], 1), ([2, 4], 2)] {
        let memory = MemoryStore::new();
        let pauses = Mutex::new(takes.map(|fifths| LONG * fifths / 5).into_iter());
        // A custom store without a deadline, whose two decisions take these times.
        let slow = ScriptedStore::new(move |charges| {
            let pause = pauses.lock().expect("no panic").next().expect("two calls");
            let decision = memory.decide(charges);
            StoreFuture::boxed(async move {
                tokio::time::sleep(pause).await;
                decision.await
            })
        });
        let store = ResilientStore::builder(slow.clone(), MemoryStore::new()).deadline(LONG);
        let store = store.build().expect("a usable store");
        let limiter = RateLimiter::new(store, []).expect("a limiter");
        let app = Router::new()
            .route("/", get(counted_by))
            .layer(layer(&limiter, "inner"))
            .layer(layer(&limiter, "outer"));
        assert_eq!(text(&app).await, "Fallback InProcess", "{takes:?}");
        assert_eq!(slow.calls(), times, "{takes:?}");
    }
}

// Regression: the decisions of several nodes forgot how long the request had waited.
#[tokio::test]
async fn layers_whose_keys_are_on_several_nodes_wait_for_one_deadline() {
    let cluster = Cluster::start(2, 0);
    let limiter = RateLimiter::builder().redis(cluster.nodes[0].url());
    let limiter = limiter.deadline(DEADLINE).build();
    let limiter = limiter.expect("a usable limiter");
    let layer = |names: [&'static str; 3]| {
        let builder = RateLimitLayer::builder().limiter(&limiter);
        // With three keys at random there are two slots at least.
        let builder = names.into_iter().fold(builder, |builder, name| {
            builder.policy(quota(name).key(move |_: &RequestHead| Some(Key::new(name))))
        });
        builder.build().expect("a usable layer")
    };
    let app = Router::new()
        .route("/", get(counted_by))
        .layer(layer(["a", "b", "c"]))
        .layer(layer(["d", "e", "f"]));
    let started = Instant::now();
    while text(&app).await != "Shared Shared" {
        assert!(started.elapsed() < Duration::from_secs(30), "no decisions");
    }
    for node in &cluster.nodes {
        node.pause();
    }
    let started = Instant::now();
    assert_eq!(text(&app).await, "Fallback Fallback");
    let waited = started.elapsed();
    for node in &cluster.nodes {
        node.resume();
    }
    assert!(waited >= DEADLINE / 2, "it asks the nodes: {waited:?}");
    assert!(waited < DEADLINE * 2, "{waited:?}");
}
