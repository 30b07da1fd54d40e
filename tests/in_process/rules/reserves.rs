//! A reserve in a layer: who may use it, what the others see, and which settings it cannot have.

use std::time::Duration;

use axum::{Extension, Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use tollgate::{
    Consistency, Decision, ErrorKind, Key, Percent, Policy, Quota, RateLimitLayer, RateLimiter,
    algorithm::{Algorithm, QueueLimits, WindowStart},
    builder::RateLimitLayerBuilder,
    call::CallLimitLayer,
    clock::{Clock, Timestamp},
    extract::{Global, Header},
    headers::Headers,
    middleware::ActualCost,
    overload::{Overload, Priority},
    policy::{Backoff, Penalty},
    rules::{Rule, RuleMode},
    tiers::Tier,
};
use tower::ServiceExt;

fn fifth() -> Percent {
    Percent::new(20.0)
}

/// 10 an hour, of which 2 are for critical requests.
fn api() -> Policy {
    Policy::new("api", Quota::per_hour(10)).reserve(Priority::Critical, fifth())
}

/// Classes by the first segment of the path.
fn classes() -> Overload {
    let overload = Overload::adaptive()
        .priority_when("/pay/*", Priority::Critical)
        .priority_when("/export/*", Priority::Sheddable);
    overload.build().expect("well set up")
}

/// A service with the limits of these rules, inside of the layer that finds the classes.
fn app(rules: impl IntoIterator<Item = Rule>, overload: Overload) -> Router {
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let limit = RateLimitLayer::builder()
        .headers(Headers::draft11())
        .clock(Clock::manual(start));
    let limit = rules.into_iter().fold(limit, RateLimitLayerBuilder::policy);
    let handler = async |Extension(decision): Extension<Decision>| {
        let left = |state: &tollgate::decision::PolicyState| {
            let left = state.usage().map_or(0, |usage| usage.remaining);
            format!("{} {left}", state.policy())
        };
        let states: Vec<_> = decision.states().iter().map(left).collect();
        states.join(", ")
    };
    Router::new()
        .fallback(get(handler))
        .layer(limit.build().expect("well set up"))
        .layer(overload)
}

async fn ask(app: &Router, path: &str) -> Response<Body> {
    let request = Request::get(path).header("x-user", "ada");
    let request = request.body(Body::empty()).expect("a request");
    app.clone().oneshot(request).await.expect("a response")
}

async fn status(app: &Router, path: &str) -> StatusCode {
    ask(app, path).await.status()
}

/// Sends requests until one is denied: how many passed.
async fn passed(app: &Router, path: &str) -> u64 {
    let mut passed = 0;
    while status(app, path).await == StatusCode::OK {
        passed += 1;
    }
    passed
}

#[tokio::test]
async fn other_classes_share_the_rest_and_the_class_has_its_part() {
    let app = app([api().key(Global)], classes());
    assert_eq!(passed(&app, "/").await, 8);
    assert_eq!(
        status(&app, "/export/7").await,
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(passed(&app, "/pay/7").await, 2);
}

#[tokio::test]
async fn headers_and_the_handler_see_the_rest_of_requests_that_it_counts() {
    let app = app([api().key(Global)], classes());
    let normal = ask(&app, "/").await;
    let policies = &normal.headers()["ratelimit-policy"];
    assert_eq!(
        policies,
        r#""api";q=10;w=3600, "api.unreserved";q=8;w=3600"#
    );
    let body = axum::body::to_bytes(normal.into_body(), 100).await;
    assert_eq!(body.expect("a body"), "api 9, api.unreserved 7");
    let critical = ask(&app, "/pay/7").await;
    assert_eq!(
        critical.headers()["ratelimit-policy"],
        r#""api";q=10;w=3600"#
    );
    let body = axum::body::to_bytes(critical.into_body(), 100).await;
    assert_eq!(body.expect("a body"), "api 8");
}

// Of 40, a twentieth is 2.
#[tokio::test]
async fn lent_reserve_goes_to_other_classes_but_for_a_twentieth() {
    let policy = Policy::new("api", Quota::per_hour(40)).reserve(Priority::Critical, fifth());
    let hour = Duration::from_hours(1);
    let app = app([policy.key(Global).lend(hour)], classes());
    assert_eq!(status(&app, "/pay/7").await, StatusCode::OK);
    let normal = ask(&app, "/").await;
    let policies = &normal.headers()["ratelimit-policy"];
    assert_eq!(policies, r#""api";q=40;w=3600"#);
    let body = axum::body::to_bytes(normal.into_body(), 100).await;
    assert_eq!(body.expect("a body"), "api 36");
    assert_eq!(passed(&app, "/").await, 36);
    let denied = ask(&app, "/export/7").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "90");
    assert_eq!(passed(&app, "/pay/7").await, 2);
}

#[tokio::test]
async fn lent_reserve_of_a_tier_is_that_of_its_quota() {
    let pro = Tier::new("pro", Quota::per_hour(100)).expect("a tier");
    let rule = api().lend(Duration::from_hours(1));
    let rule = rule
        .key(Header::new("x-user"))
        .tier_fn(move |_, _| Some(pro.clone()));
    let app = app([rule], classes());
    assert_eq!(passed(&app, "/").await, 95);
    assert_eq!(passed(&app, "/pay/7").await, 5);
}

#[tokio::test]
async fn slots_are_lent_and_come_back() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let limiter = RateLimiter::builder().clock(clock.clone()).build();
    let limiter = limiter.expect("well set up");
    let fleet = Policy::concurrency("fleet", 20).reserve(Priority::Critical, fifth());
    let fleet = fleet.lend(Duration::from_secs(1));
    let enter = async |priority| limiter.enforce(&fleet.charges(Key::GLOBAL, priority)).await;
    let mut others = Vec::new();
    while let Ok(permit) = enter(Priority::Normal).await {
        others.push(permit);
    }
    assert_eq!(others.len(), 19);
    let critical = enter(Priority::Critical).await.expect("one is kept free");
    drop(others.pop());
    assert!(enter(Priority::Normal).await.is_err());
    let second = enter(Priority::Critical).await.expect("what came back");
    drop((critical, second));
    others.truncate(17);
    assert!(
        enter(Priority::Normal).await.is_err(),
        "two more may be needed"
    );
    clock.advance(Duration::from_secs(20));
    assert!(
        enter(Priority::Normal).await.is_err(),
        "nobody has looked since"
    );
    for _ in 0..2 {
        others.push(enter(Priority::Normal).await.expect("they are lent again"));
    }
    assert!(enter(Priority::Normal).await.is_err());
}

/// 100 slots, of which all but 5 may be lent.
fn lent_half(name: &str, percent: f64) -> Policy {
    let policy = Policy::concurrency(name, 100);
    let policy = policy.reserve(Priority::Critical, Percent::new(percent));
    policy.lend(Duration::from_secs(1))
}

#[tokio::test]
async fn slots_that_the_class_had_are_kept_in_each_policy_of_a_request() {
    let limiter = RateLimiter::builder().build().expect("well set up");
    let (first, second) = (lent_half("first", 50.0), lent_half("second", 50.0));
    let mut charges = first.charges(Key::GLOBAL, Priority::Normal);
    charges.extend(second.charges(Key::GLOBAL, Priority::Normal));
    let mut critical = Vec::new();
    for _ in 0..20 {
        let charges = second.charges(Key::GLOBAL, Priority::Critical);
        critical.push(limiter.enforce(&charges).await.expect("a slot"));
    }
    let seen = limiter.peek(&charges).await.expect("a decision");
    assert!(seen.is_allowed());
    drop(critical);
    let charges = || {
        let mut charges = first.charges(Key::GLOBAL, Priority::Normal);
        charges.extend(second.charges(Key::GLOBAL, Priority::Normal));
        charges
    };
    let mut others = Vec::new();
    while let Ok(permit) = limiter.enforce(&charges()).await {
        others.push(permit);
    }
    assert!(others.len() <= 65, "{}", others.len());
}

#[tokio::test]
async fn slots_that_are_needed_now_may_be_had_later() {
    let limiter = RateLimiter::builder().build().expect("well set up");
    let policy = lent_half("fleet", 99.9);
    let mut critical = Vec::new();
    for _ in 0..70 {
        let charges = policy.charges(Key::GLOBAL, Priority::Critical);
        critical.push(limiter.enforce(&charges).await.expect("a slot"));
    }
    let ask = async |cost| {
        let charges = policy.charges(Key::GLOBAL, Priority::Normal);
        let charges: Vec<_> = charges.iter().map(|charge| charge.cost(cost)).collect();
        limiter.check(&charges).await.expect("a decision")
    };
    assert!(ask(1).await.is_allowed(), "nobody has looked before");
    drop(critical);
    let denied = ask(95).await;
    assert!(!denied.is_allowed());
    assert!(denied.retry_after().is_some(), "{denied:?}");
    assert!(ask(96).await.retry_after().is_none());
}

#[tokio::test]
async fn class_counts_also_without_shedding_and_for_requests_that_are_not_shed() {
    for overload in [
        Overload::adaptive().mode(RuleMode::Off),
        Overload::adaptive().mode(RuleMode::Shadow),
        Overload::adaptive().skip("/pay/*"),
    ] {
        let overload = overload.priority_when("/pay/*", Priority::Critical);
        let app = app([api().key(Global)], overload.build().expect("well set up"));
        assert_eq!(passed(&app, "/").await, 8);
        assert_eq!(passed(&app, "/pay/7").await, 2);
    }
}

#[tokio::test]
async fn request_is_normal_unless_a_layer_gives_it_a_class() {
    let limit = RateLimitLayer::builder().policy(api().key(Global));
    let limit = limit.build().expect("well set up");
    let bare = Router::new()
        .route("/", get(async || "served"))
        .layer(limit);
    assert_eq!(passed(&bare, "/").await, 8);
    let critical = bare.layer(Extension(Priority::Critical));
    assert_eq!(passed(&critical, "/").await, 2);
}

#[tokio::test]
async fn several_classes_may_have_one_reserve() {
    let paid = Priority::Named("paid");
    let policy =
        Policy::new("api", Quota::per_hour(10)).reserve([Priority::Critical, paid], fifth());
    let overload = Overload::adaptive()
        .classes([Priority::Critical, paid, Priority::Normal])
        .priority_when("/pay/*", Priority::Critical)
        .priority_when("/paid", paid);
    let app = app([policy.key(Global)], overload.build().expect("well set up"));
    assert_eq!(passed(&app, "/").await, 8);
    assert_eq!(status(&app, "/paid").await, StatusCode::OK);
    assert_eq!(passed(&app, "/pay/7").await, 1);
}

#[tokio::test]
async fn tier_has_the_reserve_of_its_own_quota() {
    let pro = Tier::new("pro", Quota::per_hour(100)).expect("a tier");
    let rule = api()
        .key(Header::new("x-user"))
        .tier_fn(move |_, _| Some(pro.clone()));
    let app = app([rule], classes());
    assert_eq!(passed(&app, "/").await, 80);
    assert_eq!(passed(&app, "/pay/7").await, 20);
}

#[tokio::test]
async fn settings_after_the_reserve_hold_for_the_rest_too() {
    let weighed = api().cost(2).key(Global);
    assert_eq!(passed(&app([weighed], classes()), "/").await, 4);
    let window = Algorithm::FixedWindow(WindowStart::Clock);
    let costs = api().key(Global).algorithm(window).cost_when("/", 4);
    assert_eq!(passed(&app([costs], classes()), "/").await, 2);
}

#[tokio::test]
async fn rest_is_only_counted_in_shadow_and_tried_in_a_candidate() {
    let shadow = api().key(Global).mode(RuleMode::Shadow);
    let shadow = app([shadow], classes());
    for _ in 0..20 {
        assert_eq!(status(&shadow, "/").await, StatusCode::OK);
    }
    let rule = api().key(Global).candidate(Quota::per_hour(5));
    let tried = app([rule], classes());
    let response = ask(&tried, "/").await;
    let body = axum::body::to_bytes(response.into_body(), 200).await;
    assert_eq!(
        body.expect("a body"),
        "api 9, api.candidate 4, api.unreserved 7"
    );
    assert_eq!(passed(&tried, "/").await, 7);
    assert_eq!(passed(&tried, "/pay/7").await, 2);
}

#[tokio::test]
async fn both_are_settled_by_the_actual_cost() {
    let tokens = Policy::new("tokens", Quota::per_hour(100)).cost(50);
    let tokens = tokens.reserve(Priority::Critical, fifth());
    let limit = RateLimitLayer::builder().policy(tokens.key(Global).settle_by_handler());
    let limit = limit.build().expect("well set up");
    let handler = async |cost: ActualCost| cost.set("tokens", 1);
    let app = Router::new().route("/", get(handler)).layer(limit);
    // After 31 tokens, 49 of the 80 that are not reserved are left.
    assert_eq!(passed(&app, "/").await, 31);
    let critical = app.layer(Extension(Priority::Critical));
    assert_eq!(passed(&critical, "/").await, 20);
}

#[test]
fn reserves_that_cannot_work_are_refused() {
    let (minute, day) = (Duration::from_secs(60), Duration::from_hours(24));
    let small = |units| Policy::new("api", Quota::per_hour(units));
    let reserved = |percent| small(10).reserve(Priority::Critical, Percent::new(percent));
    let queue = Algorithm::LeakyQueue(QueueLimits::new(10, Duration::from_secs(5)));
    for (policy, reason) in [
        (reserved(0.0), "is from 0.1 to 99.9 %"),
        (reserved(100.0), "is from 0.1 to 99.9 %"),
        (reserved(100.1), "is from 0.1 to 99.9 %"),
        (reserved(f64::NAN), "is from 0.1 to 99.9 %"),
        (reserved(95.0), "leaves nothing"),
        (
            small(1).reserve(Priority::Critical, fifth()),
            "leaves nothing",
        ),
        (small(10).reserve([], fifth()), "for no class"),
        (api().algorithm(queue), "a queue serves in order"),
        (api().count_denied(true), "remove count_denied()"),
        (api().penalty(Penalty::after(3, minute)), "remove penalty()"),
        (
            api().backoff(Backoff::doubling(minute, minute)),
            "remove penalty()",
        ),
        (api().cost(9), "a request costs 9"),
        (api().consistency(Consistency::Leased), "set a burst of 16"),
        (small(10).lend(minute), "add reserve()"),
        (api().lend(Duration::ZERO), "within no time"),
        (api().lend(minute), "takes 360s to come back"),
        (
            small(100)
                .reserve(Priority::Critical, Percent::new(5.0))
                .lend(day),
            "lends nothing",
        ),
        (
            api().algorithm(Algorithm::SlidingWindow).lend(day),
            "use a token bucket",
        ),
        (
            Policy::new("api", Quota::per_hour(100))
                .reserve(Priority::Critical, fifth())
                .consistency(Consistency::Leased)
                .lend(day),
            "remove lend() or consistency()",
        ),
        (api().lend(day).count_denied(true), "remove count_denied()"),
        (api().lend(day).cost(2), "only 1 are kept free"),
        (
            Policy::new("a".repeat(29), Quota::per_hour(10)).reserve(Priority::Critical, fifth()),
            "use at most 28 characters",
        ),
    ] {
        let error = policy.validate().expect_err(reason);
        assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
        assert!(error.to_string().contains(reason), "{error}");
    }
    for percent in [0.1, 20.0, 90.0] {
        reserved(percent).validate().expect("it leaves some");
    }
    let lent = reserved(99.9).lend(day);
    lent.validate().expect("others get it while it is free");
    let in_any_order = small(10).lend(day).reserve(Priority::Critical, fifth());
    in_any_order.validate().expect("the order does not matter");
    assert_eq!(
        format!("{in_any_order:?}"),
        format!("{:?}", api().lend(day))
    );
    let name = "a".repeat(39);
    let long = Policy::new(&name, Quota::per_hour(10)).reserve(Priority::Critical, fifth());
    long.lend(day).validate().expect("no second name is needed");
    let slots = Policy::concurrency(&name, 100).reserve(Priority::Critical, fifth());
    let error = slots.lend(minute).validate().expect_err("slots need one");
    assert!(error.to_string().contains("use at most 28 characters"));
}

// Regression: only layers had the rest among their policies.
#[test]
fn limiter_knows_the_rest_and_refuses_another_policy_of_its_name() {
    let limiter = RateLimiter::builder().policy(api()).build();
    let rest = limiter.expect("well set up").policy("api.unreserved");
    assert_eq!(rest.expect("it is known").quota(), Quota::per_hour(8));
    let other = || Policy::new("api.unreserved", Quota::per_hour(8));
    let limiter = RateLimiter::builder().policy(api()).policy(other());
    let error = limiter.build().expect_err("two of one name");
    assert_eq!(error.kind(), ErrorKind::DuplicatePolicy);
    let layer = RateLimitLayer::builder()
        .policy(other().key(Global))
        .policy(api().key(Global));
    let error = layer.build().expect_err("two of one name");
    assert_eq!(error.kind(), ErrorKind::DuplicatePolicy);
}

#[tokio::test]
async fn success_clears_the_rest_too() {
    let rule = api().key(Global).count_failures().clear_on_success();
    let limit = RateLimitLayer::builder().policy(rule).build();
    let fails = get(async || StatusCode::UNAUTHORIZED).post(async || "well done");
    let app = Router::new()
        .route("/", fails)
        .layer(limit.expect("well set up"));
    let send = async |method: &str| {
        let request = Request::builder()
            .method(method)
            .uri("/")
            .body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await;
        let response = response.expect("a response");
        let status = response.status().as_u16();
        // What a request cost is known at the end of its body.
        let _ = axum::body::to_bytes(response.into_body(), 1_000).await;
        status
    };
    for _ in 0..2 {
        for _ in 0..7 {
            assert_eq!(send("GET").await, 401);
        }
        assert_eq!(send("POST").await, 200);
    }
    for _ in 0..8 {
        assert_eq!(send("GET").await, 401);
    }
    assert_eq!(send("POST").await, 429);
}

// A call has no class, so it would never use the reserve, and its charge would leave out the rest.
#[test]
fn layers_for_calls_refuse_a_reserve() {
    let limiter = RateLimiter::builder().build().expect("well set up");
    let calls = CallLimitLayer::<(), (), ()>::builder(&limiter, |(), _| Err(()))
        .policy(api().key_of(|()| Key::GLOBAL));
    let error = calls.build().expect_err("refused").to_string();
    assert!(
        error.contains("\"api\"") && error.contains("RateLimitLayer"),
        "{error}"
    );
}

#[cfg(feature = "client")]
#[test]
fn layers_for_calls_that_go_out_refuse_a_reserve() {
    use tollgate::client::OutgoingLayer;

    let limiter = RateLimiter::builder().build().expect("well set up");
    let calls = OutgoingLayer::builder(&limiter).policy(api().outgoing_key(Global));
    let error = calls.build().expect_err("refused").to_string();
    assert!(
        error.contains("\"api\"") && error.contains("RateLimitLayer"),
        "{error}"
    );
}
