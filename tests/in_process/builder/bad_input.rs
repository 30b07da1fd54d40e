//! Wrong settings fail where they are built, with a kind to match on and a sentence that says what to do.

use std::{convert::Infallible, error::Error as _, fmt::Write as _, time::Duration};

use axum::{Router, body::Body};
use http::{Request, Response};
use tollgate::{
    Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    builder::RateLimitLayerBuilder,
    clock::Clock,
    decision::PolicyName,
    extract::{Global, PeerIp},
    headers::Headers,
    matching::PathPattern,
    memory::MemoryStore,
    remote::{RedisStore, RedisStoreBuilder},
    resilience::ResilientStore,
    store::Store,
};
use tower::{Layer, ServiceExt, service_fn};

// === Quotas ===

#[test]
fn quota_of_zero_is_refused() {
    refused_quota(Quota::per_minute(0), "set at least 1");
}

#[test]
fn quota_in_no_time_is_refused() {
    for period in [Duration::ZERO, Duration::from_nanos(999)] {
        refused_quota(Quota::new(5, period), "at least a microsecond");
    }
}

#[test]
fn burst_of_zero_is_refused() {
    refused_quota(Quota::per_minute(5).burst(0), "at least 1");
}

#[test]
fn burst_below_the_cost_of_a_request_is_refused() {
    let policy = Policy::new("uploads", Quota::per_minute(100).burst(4)).cost(5);
    let error = refused_policy(policy, ErrorKind::InvalidPolicy);
    says(
        &error,
        &["uploads", "costs 5", "burst is 4", "raise the burst"],
    );
    accepted(Policy::new("uploads", Quota::per_minute(100).burst(5)).cost(5));
    // without a burst the count is one
    let policy = Policy::new("uploads", Quota::per_minute(4)).cost(5);
    refused_policy(policy, ErrorKind::InvalidPolicy);
}

#[test]
fn rate_above_a_million_a_second_is_refused() {
    for quota in [
        Quota::per_second(1_000_001),
        Quota::per_second(u64::MAX),
        Quota::new(2, Duration::from_micros(1)),
        Quota::new(1_000_000_000, Duration::from_millis(999_999)),
    ] {
        refused_quota(quota, "1,000,000 a second: divide");
    }
    accepted(Policy::new("fast", Quota::per_second(1_000_000)));
    accepted(Policy::new("fast", Quota::new(1, Duration::from_micros(1))));
}

#[test]
fn rate_below_one_in_366_days_is_refused() {
    let longest = Duration::from_secs(366 * 86_400);
    refused_quota(
        Quota::new(1, longest + Duration::from_micros(1)),
        "366 days: shorten",
    );
    refused_quota(Quota::new(1, longest * 1_000), "366 days: shorten");
    accepted(Policy::new("slow", Quota::new(1, longest)));
    accepted(Policy::new("slow", Quota::new(10, longest * 10)));
}

// `Duration::MAX` is what "once and never again" is written as; the advice must not be to ask for less.
#[test]
fn rate_below_one_unit_in_366_days_is_refused() {
    for quota in [
        Quota::new(1, Duration::MAX),
        Quota::new(1, Duration::from_secs(u64::MAX / 100_000)),
    ] {
        refused_quota(quota, "366 days: shorten");
    }
}

#[test]
fn burst_that_takes_35_years_to_refill_is_refused() {
    let day = Duration::from_secs(86_400);
    refused_quota(Quota::new(1, day).burst(36 * 366), "35 years");
    refused_quota(Quota::per_second(1).burst(u64::MAX), "35 years");
    refused_quota(Quota::per_second(1_000_000).burst(u64::MAX), "35 years");
    accepted(Policy::new("deep", Quota::new(1, day).burst(35 * 365)));
}

// === Policies ===

#[test]
fn two_policies_of_one_name_are_refused() {
    let twice = || Policy::new("per-ip", Quota::per_minute(1));
    let error = refused(
        RateLimitLayer::builder()
            .policy(twice().key(PeerIp))
            .policy(Policy::new("other", Quota::per_minute(1)).key(Global))
            .policy(twice().key(Global)),
        ErrorKind::DuplicatePolicy,
    );
    says(&error, &["\"per-ip\"", "give each a different name"]);
    let error = RateLimiter::builder()
        .policy(twice())
        .policy(twice())
        .build();
    let error = error.expect_err("it is refused");
    checked(&error, ErrorKind::DuplicatePolicy);
}

#[test]
fn policies_of_one_name_are_refused_over_a_shared_limiter_too() {
    let limiter = RateLimiter::builder().build().expect("it is well set up");
    let twice = || Policy::new("per-ip", Quota::per_minute(1)).key(Global);
    let layer = RateLimitLayer::builder().limiter(&limiter);
    refused(
        layer.policy(twice()).policy(twice()),
        ErrorKind::DuplicatePolicy,
    );
}

#[test]
fn policy_without_a_key_is_refused() {
    let error = refused(
        RateLimitLayer::builder()
            .policy(Policy::new("keyed", Quota::per_minute(1)).key(Global))
            .policy(Policy::new("bare", Quota::per_minute(1))),
        ErrorKind::PolicyWithoutKey,
    );
    says(&error, &["\"bare\"", ".key("]);
}

#[test]
fn layer_without_policies_is_refused() {
    let error = refused(RateLimitLayer::builder(), ErrorKind::NoPolicy);
    says(&error, &["add .policy("]);
}

#[test]
fn more_than_sixteen_policies_are_refused() {
    let layer = |count: usize| {
        (0..count).fold(RateLimitLayer::builder(), |layer, number| {
            let name = format!("policy-{number}");
            layer.policy(Policy::new(name, Quota::per_minute(1)).key(Global))
        })
    };
    let error = refused(layer(17), ErrorKind::InvalidPolicy);
    says(&error, &["17", "at most 16", ".when("]);
    assert!(layer(16).build().is_ok());
}

// Regression: a layer with a policy for each of 17 endpoints was refused.
#[tokio::test]
async fn a_layer_may_have_a_policy_for_each_of_many_endpoints_but_a_request_at_most_sixteen() {
    let layer = |count: usize, pattern: fn(usize) -> String| {
        (0..count).fold(RateLimitLayer::builder(), |layer, number| {
            let name = format!("policy-{number}");
            let policy = Policy::new(name, Quota::per_minute(1)).key(Global);
            layer.policy(policy.when(PathPattern::new(pattern(number))))
        })
    };
    let error = refused(
        layer(1_001, |number| format!("/{number}")),
        ErrorKind::InvalidPolicy,
    );
    says(&error, &["1001", "at most 1000"]);
    let ask = async |layer: &RateLimitLayer, path: &str| {
        let request = Request::builder().uri(path).body(Body::empty());
        let service = layer.layer(service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }));
        let response = service.oneshot(request.expect("a request")).await;
        response.expect("a response").status().as_u16()
    };
    let disjoint = layer(1_000, |number| format!("/{number}"))
        .build()
        .expect("a layer");
    let statuses = [
        ask(&disjoint, "/7").await,
        ask(&disjoint, "/7").await,
        ask(&disjoint, "/999").await,
    ];
    assert_eq!(statuses, [200, 429, 200]);
    let common = |_| "/a".to_owned();
    let most = layer(16, common).build().expect("a layer");
    let beyond = layer(17, common).build().expect("a layer");
    assert_eq!(
        [ask(&most, "/a").await, ask(&beyond, "/a").await],
        [200, 503]
    );
    assert_eq!(ask(&beyond, "/b").await, 200);
}

#[test]
fn name_that_cannot_stand_in_a_redis_key_is_refused() {
    let too_long = "a".repeat(40);
    for name in [
        "", &too_long, "per ip", "per:ip", "{per-ip}", "per/ip", "é", "a\0b", "a\r\nb",
    ] {
        let policy = Policy::new(name, Quota::per_minute(1));
        let error = refused_policy(policy, ErrorKind::InvalidPolicy);
        says(&error, &["policy name", "1 to 39 of A-Z a-z 0-9 . _ -"]);
        let error = PolicyName::new(name).expect_err("it is refused");
        checked(&error, ErrorKind::InvalidPolicy);
    }
    accepted(Policy::new("a".repeat(39), Quota::per_minute(1)));
    accepted(Policy::new("Per.IP_v-6", Quota::per_minute(1)));
}

#[test]
fn unusable_policy_is_refused_over_a_shared_limiter_too() {
    let limiter = RateLimiter::builder().build().expect("it is well set up");
    let layer = RateLimitLayer::builder().limiter(&limiter);
    let policy = Policy::new("none", Quota::per_minute(0)).key(Global);
    refused(layer.policy(policy), ErrorKind::InvalidQuota);
}

#[tokio::test]
async fn unusable_policy_that_no_build_has_seen_is_an_error_when_it_is_charged() {
    let limiter = RateLimiter::builder().build().expect("it is well set up");
    let policy = Policy::new("none", Quota::per_minute(0));
    let charges = [policy.charge(Key::GLOBAL)];
    let error = limiter.check(&charges).await.expect_err("it is refused");
    checked(&error, ErrorKind::InvalidQuota);
}

// === Stores ===

#[test]
fn redis_url_that_cannot_be_understood_is_refused() {
    for url in [
        "",
        "localhost",
        "http://localhost",
        "redis://",
        "redis://host:port",
        "redis://host:99999",
        "redis://host/database",
        "redis:/host",
    ] {
        let error = refused(sound().redis(url), ErrorKind::InvalidUrl);
        says(&error, &["redis://[user:password@]host[:port]"]);
        assert!(error.source().is_some(), "{url:?} has a cause");
    }
}

#[test]
fn deadline_of_zero_is_refused() {
    let zero = Duration::ZERO;
    let server = || RedisStoreBuilder::from(LOCAL);
    for layer in [
        sound().redis(LOCAL).deadline(zero),
        sound().deadline(zero).redis(LOCAL),
        sound().redis(server().deadline(zero)),
    ] {
        let error = refused(layer, ErrorKind::InvalidConfig);
        says(&error, &["deadline of zero", "default is 50 ms"]);
    }
    let error = RedisStore::builder(LOCAL).deadline(zero).build();
    checked(&error.expect_err("it is refused"), ErrorKind::InvalidConfig);
    let store = ResilientStore::builder(MemoryStore::new(), MemoryStore::new());
    let error = store.deadline(zero).build().expect_err("it is refused");
    checked(&error, ErrorKind::InvalidConfig);
}

#[test]
fn connect_timeout_of_zero_is_refused() {
    let server = RedisStoreBuilder::from(LOCAL).connect_timeout(Duration::ZERO);
    let error = refused(sound().redis(server), ErrorKind::InvalidConfig);
    says(&error, &["connect timeout of zero", "default is 500 ms"]);
}

#[test]
fn zero_connections_are_refused() {
    let server = RedisStoreBuilder::from(LOCAL).connections(0);
    let error = refused(sound().redis(server), ErrorKind::InvalidConfig);
    says(&error, &["zero connections", "default is 2"]);
}

#[test]
fn prefix_that_would_break_keys_is_refused() {
    let too_long = "a".repeat(65);
    for prefix in ["", &too_long, "a b", "{a}", "a}", "é", "a\n", "a\0"] {
        let server = RedisStoreBuilder::from(LOCAL).prefix(prefix);
        let error = refused(sound().redis(server), ErrorKind::InvalidConfig);
        says(&error, &["prefix", "1 to 64 visible ASCII characters"]);
    }
    let server = RedisStoreBuilder::from(LOCAL).prefix("a".repeat(64));
    assert!(sound().redis(server).build().is_ok());
}

#[test]
fn max_keys_of_zero_is_refused() {
    let error = refused(sound().max_keys(0), ErrorKind::InvalidConfig);
    says(&error, &["max_keys of 0", "at least one"]);
    // it bounds the memory of an outage as well
    refused(sound().redis(LOCAL).max_keys(0), ErrorKind::InvalidConfig);
    let error = MemoryStore::builder().max_keys(0).build();
    checked(&error.expect_err("it is refused"), ErrorKind::InvalidConfig);
    assert!(sound().max_keys(1).build().is_ok());
}

// === Settings without measure ===

#[test]
fn deadline_or_connect_timeout_without_end_is_refused() {
    let endless = Duration::MAX;
    let server = || RedisStoreBuilder::from(LOCAL);
    for layer in [
        sound().redis(LOCAL).deadline(endless),
        sound().redis(server().deadline(endless)),
        sound().redis(server().connect_timeout(endless)),
    ] {
        let error = refused(layer, ErrorKind::InvalidConfig);
        says(&error, &["above an hour", "defaults are 50 and 500 ms"]);
    }
}

#[tokio::test]
async fn deadline_without_end_over_a_store_of_ones_own_does_not_panic() {
    let store = ResilientStore::builder(MemoryStore::new(), MemoryStore::new());
    let Ok(store) = store.deadline(Duration::MAX).build() else {
        return;
    };
    let policy = Policy::new("any", Quota::per_minute(1));
    let decided = store.decide(&[policy.charge(Key::GLOBAL)]).await;
    assert!(decided.expect("it decides").is_allowed());
}

#[test]
fn connections_without_end_are_refused() {
    for count in [1_025, usize::MAX] {
        let server = RedisStoreBuilder::from(LOCAL).connections(count);
        let error = refused(sound().redis(server), ErrorKind::InvalidConfig);
        says(&error, &["1,024 connections", "default is 2"]);
    }
}

#[tokio::test]
async fn max_keys_without_end_takes_no_memory_ahead_of_time() {
    let layer = sound().max_keys(usize::MAX).build().expect("it is a bound");
    let app = Router::new().fallback(async || "fine").layer(layer);
    let response = app.oneshot(Request::new(Body::empty())).await;
    assert_eq!(response.expect("infallible").status().as_u16(), 200);
}

#[test]
fn jitter_above_thirty_percent_is_refused() {
    for share in [0.301, 1.0, 30.0, -0.1, f64::INFINITY, f64::NAN] {
        let error = refused(sound().retry_after_jitter(share), ErrorKind::InvalidConfig);
        let given = format!("retry_after_jitter of {share}");
        says(
            &error,
            &[&given, "from 0.0 to 0.3", "0.1 to add up to 10 %"],
        );
    }
    for share in [0.0, 0.000_1, 0.3] {
        assert!(sound().retry_after_jitter(share).build().is_ok(), "{share}");
    }
}

// === Stores ===

#[test]
fn two_stores_are_refused() {
    for layer in [
        sound().redis(LOCAL).redis(LOCAL),
        sound().redis(LOCAL).store(MemoryStore::new()),
        sound().store(MemoryStore::new()).redis(LOCAL),
        sound().store(MemoryStore::new()).store(MemoryStore::new()),
    ] {
        let error = refused(layer, ErrorKind::InvalidConfig);
        says(&error, &["two stores", "once"]);
    }
}

#[test]
fn settings_that_a_store_of_ones_own_would_not_heed_are_refused() {
    let own = || sound().store(MemoryStore::new());
    for layer in [
        own().max_keys(1),
        own().clock(Clock::system()),
        own().deadline(Duration::from_secs(1)),
        sound().max_keys(1).store(MemoryStore::new()),
    ] {
        let error = refused(layer, ErrorKind::InvalidConfig);
        says(&error, &["a custom store", "on the store"]);
    }
    assert!(own().build().is_ok());
}

// === Shared limiters ===

#[test]
fn settings_of_the_store_beside_a_shared_limiter_are_refused() {
    let limiter = RateLimiter::builder().build().expect("it is well set up");
    for layer in [
        sound().limiter(&limiter).redis(LOCAL),
        sound().redis(LOCAL).limiter(&limiter),
        sound().limiter(&limiter).deadline(Duration::from_secs(1)),
        sound().limiter(&limiter).max_keys(1),
        sound().limiter(&limiter).clock(Clock::system()),
        sound().store(MemoryStore::new()).limiter(&limiter),
    ] {
        let error = refused(layer, ErrorKind::InvalidConfig);
        says(&error, &["on the limiter"]);
    }
    assert!(
        sound()
            .limiter(&limiter)
            .headers(Headers::none())
            .build()
            .is_ok()
    );
}

#[test]
fn two_quotas_under_one_name_on_one_limiter_are_refused() {
    let limiter = RateLimiter::builder()
        .policy(Policy::new("first", Quota::per_minute(1)))
        .build()
        .expect("it is well set up");
    let layer = |name, count| {
        RateLimitLayer::builder()
            .limiter(&limiter)
            .policy(Policy::new(name, Quota::per_minute(count)).key(Global))
    };
    assert!(layer("first", 1).build().is_ok());
    assert!(layer("second", 2).build().is_ok());
    for name in ["first", "second"] {
        let error = refused(layer(name, 3), ErrorKind::DuplicatePolicy);
        says(
            &error,
            &[name, "different quota", "give it a different name"],
        );
    }
}

#[test]
fn layer_that_was_refused_leaves_no_name_on_the_limiter() {
    let taken = Policy::new("taken", Quota::per_minute(1));
    let limiter = RateLimiter::builder().policy(taken).build();
    let limiter = limiter.expect("it is well set up");
    let layer = |count| {
        RateLimitLayer::builder()
            .limiter(&limiter)
            .policy(Policy::new("new", Quota::per_minute(count)).key(Global))
    };
    let taken = Policy::new("taken", Quota::per_minute(9)).key(Global);
    refused(layer(1).policy(taken), ErrorKind::DuplicatePolicy);
    assert!(layer(2).build().is_ok(), "nobody has it");
}

// === Secrets ===

#[test]
fn password_of_the_url_is_not_in_any_message() {
    for url in [
        "redis://ada:hunter2@host:port",
        "redis://:hunter2@host:99999/1",
        "redis://ada:hunter2@host/database",
        "redis://ada:hunter2@",
        "rediss://ada:hunter2@host/#insecure",
        "redis-sentinel://ada:hunter2@host:port?sentinelMasterId=x",
        "http://ada:hunter2@host",
        "ada:hunter2@host",
        "redis://ada:hunter2%ZZ@host:port",
    ] {
        let error = refused(sound().redis(url), ErrorKind::InvalidUrl);
        assert!(!told(&error).contains("hunter2"), "{}", told(&error));
    }
}

#[test]
fn password_of_the_url_is_not_in_any_debug_output() {
    let url = "redis://ada:hunter2@localhost/";
    let server = RedisStoreBuilder::from(url);
    let store = RedisStore::builder(url).build().expect("it is a url");
    let limiter = RateLimiter::builder().redis(url);
    let layer = sound().redis(url);
    for shown in [
        format!("{server:?}"),
        format!("{store:#?}"),
        format!("{limiter:?}"),
        format!("{layer:?}"),
        format!("{:?}", limiter.clone().build().expect("it is a url")),
        format!("{:#?}", layer.clone().build().expect("it is a url")),
    ] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

// Reproducer: it showed all connections, calls and leases, twice.
#[tokio::test]
async fn debug_of_a_redis_layer_is_less_than_a_kilobyte() {
    let layer = sound().redis("redis://ada:hunter2@localhost/");
    let layer = layer.build().expect("it is well set up");
    let shown = format!("{layer:?}");
    assert!(shown.len() < 1_000, "{} bytes: {shown}", shown.len());
    for part in [
        "localhost:6379",
        "tollgate",
        "50ms",
        "Enforce",
        "is_open: false",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let limiter = format!("{:?}", layer.limiter());
    assert!(limiter.len() < 600, "{} bytes: {limiter}", limiter.len());
}

// === Errors ===

#[test]
fn error_shows_its_message_and_keeps_its_cause_apart() {
    let cause = std::io::Error::other("the cause");
    let error = Error::new(ErrorKind::Connect, "the message").with_source(cause);
    assert_eq!(error.to_string(), "the message");
    let source = error.source().expect("it was given");
    assert_eq!(source.to_string(), "the cause");
    assert_eq!(error.clone().kind(), ErrorKind::Connect);
    assert!(error.is_transient());
    let lasting = Error::new(ErrorKind::InvalidUrl, "the message");
    assert!(!lasting.is_transient());
    assert!(lasting.source().is_none());
}

#[test]
fn first_of_several_mistakes_is_reported() {
    let error = refused(
        RateLimitLayer::builder().policy(Policy::new("a b", Quota::per_minute(0)).key(Global)),
        ErrorKind::InvalidPolicy,
    );
    says(&error, &["\"a b\""]);
}

fn sound() -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(Policy::new("sound", Quota::per_minute(10)).key(Global))
}

#[track_caller]
fn refused(layer: RateLimitLayerBuilder, kind: ErrorKind) -> Error {
    let error = layer.build().expect_err("it is refused");
    checked(&error, kind);
    error
}

/// Refused by the layer, by the limiter and by itself, in the same words.
#[track_caller]
fn refused_policy(policy: Policy, kind: ErrorKind) -> Error {
    let error = policy.validate().expect_err("it is refused");
    checked(&error, kind);
    let limiter = RateLimiter::builder().policy(policy.clone()).build();
    let limiter = limiter.expect_err("it is refused");
    assert_eq!(limiter.to_string(), error.to_string());
    let layer = refused(RateLimitLayer::builder().policy(policy.key(Global)), kind);
    assert_eq!(layer.to_string(), error.to_string());
    error
}

#[track_caller]
fn refused_quota(quota: Quota, advice: &str) {
    let policy = Policy::new("the-policy", quota);
    let error = refused_policy(policy, ErrorKind::InvalidQuota);
    says(&error, &["\"the-policy\"", advice]);
}

#[track_caller]
fn accepted(policy: Policy) {
    policy.validate().expect("it can work");
    let layer = RateLimitLayer::builder().policy(policy.key(Global));
    assert!(layer.build().is_ok());
}

#[track_caller]
fn says(error: &Error, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

/// Of this kind, and one sentence as errors are written.
#[track_caller]
fn checked(error: &Error, kind: ErrorKind) {
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    assert!(!error.is_transient(), "{message}");
    let first = message.chars().next().expect("it is not empty");
    assert!(!first.is_uppercase(), "{message}");
    assert!(!message.ends_with(['.', '!', ' ']), "{message}");
    assert!(!message.contains('\n'), "{message}");
    if let Some(source) = error.source() {
        assert!(!message.contains(&source.to_string()), "{message}");
    }
}

/// All that an error tells, by any way of printing it.
fn told(error: &Error) -> String {
    let mut told = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        write!(told, " {cause} {cause:?}").expect("a string takes all");
        source = cause.source();
    }
    told
}

const LOCAL: &str = "redis://127.0.0.1/";

#[test]
fn deadline_of_zero_is_refused_in_process_too() {
    let error = RateLimiter::builder()
        .deadline(Duration::ZERO)
        .build()
        .expect_err("zero");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}
