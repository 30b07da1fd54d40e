//! Short forms of settings: closures without types, text as a path pattern, settings after the key, and costs from handlers.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    routing::{get, post},
};
use http::{Method, Request, Response, StatusCode};
use tollgate::{
    Consistency, ErrorKind, Key, OnOutage, Policy, Quota, RateLimitLayer, RequestHead,
    algorithm::{Algorithm, WindowStart},
    decision::PolicyState,
    extract::{Extracted, Global},
    matching::{IntoMatcher, Match, Matcher, Methods, PathPattern},
    middleware::ActualCost,
    policy::Penalty,
    rules::Rule,
    tiers::Tier,
};
use tower::ServiceExt;

// === Closures without types ===

#[tokio::test]
async fn closures_of_a_layer_need_no_types() {
    let pro = Tier::new("pro", Quota::per_minute(1_000)).expect("a tier");
    let api = Policy::new("api", Quota::per_minute(10))
        .key_fn(|head| head.headers.get("x-tenant").map(Key::new))
        .when_fn(|head| head.uri.path() != "/other")
        .unless_fn(|head| head.method == "OPTIONS")
        .cost_by(|head| if head.method == "POST" { 5 } else { 1 })
        .tier_fn(move |_, key| (key.as_str() == "acme").then(|| pro.clone()))
        .settle(|request| request.charged);
    let limit = RateLimitLayer::builder()
        .policy(api)
        .skip_fn(|head| head.uri.path() == "/health")
        .forbid_fn(|head| head.uri.query() == Some("debug"))
        .on_rejection_fn(|rejection| {
            let mut response = Response::new(rejection.code());
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            response
        });
    let app = app(limit.build().expect("it is well set up"));
    let ask = async |method: &str, path: &str, tenant: &str| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-tenant", tenant);
        let request = request.body(Body::empty()).expect("a request");
        let Ok(response) = app.clone().oneshot(request).await;
        (response.status().as_u16(), left(&response))
    };
    assert_eq!(ask("GET", "/", "globex").await, (200, Some(9)));
    assert_eq!(ask("POST", "/", "globex").await, (200, Some(4)));
    assert_eq!(ask("POST", "/", "globex").await, (418, Some(4)));
    assert_eq!(ask("GET", "/", "acme").await, (200, Some(999)));
    assert_eq!(ask("GET", "/other", "globex").await, (200, None));
    assert_eq!(ask("OPTIONS", "/", "globex").await, (200, None));
    assert_eq!(ask("GET", "/health", "globex").await, (200, None));
    assert_eq!(ask("GET", "/?debug", "globex").await, (418, None));
}

#[tokio::test]
async fn key_closure_may_return_a_key_an_option_or_an_extracted_key() {
    let policy = || Policy::new("p", Quota::per_hour(10));
    for (rule, left_after, code) in [
        (policy().key_fn(|_| Key::new("a")), Some(9), ""),
        (policy().key_fn(|_| Some("a".into())), Some(9), ""),
        (
            policy().key_fn(|_| Extracted::Found(Key::new("a"))),
            Some(9),
            "",
        ),
        (policy().key_fn(|_| None), None, "key_missing"),
        (
            policy().key_fn(|_| Extracted::Ambiguous),
            None,
            "key_ambiguous",
        ),
    ] {
        let limit = RateLimitLayer::builder().policy(rule);
        let limit = limit.on_rejection_fn(|rejection| Response::new(rejection.code()));
        let app = app(limit.build().expect("it is well set up"));
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let Ok(response) = app.oneshot(request).await;
        assert_eq!(left(&response), left_after);
        let body = to_bytes(response.into_body(), 100).await.expect("a body");
        assert!(body.ends_with(code.as_bytes()), "{body:?}");
    }
}

// === Text as a path pattern ===

#[tokio::test]
async fn text_matches_one_path_and_parameters() {
    let limit = RateLimitLayer::builder()
        .skip("/health")
        .forbid("/admin/{*rest}".to_owned())
        .policy(plan("all").unless("/login").cost_when("/reports/{id}", 5))
        .policy(plan("login").when(Methods::new([Method::POST]).and("/login")));
    let app = app(limit.build().expect("it is well set up"));
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).expect("a request");
        let Ok(response) = app.clone().oneshot(request).await;
        (response.status().as_u16(), left(&response))
    };
    assert_eq!(ask("GET", "/health").await, (200, None));
    assert_eq!(ask("GET", "/health/db").await, (200, Some(9)));
    assert_eq!(ask("GET", "/admin/users").await, (403, None));
    assert_eq!(ask("GET", "/reports/7").await, (200, Some(4)));
    assert_eq!(ask("GET", "/login").await, (200, None));
    assert_eq!(ask("POST", "/login").await, (200, Some(9)));
}

#[test]
fn text_that_is_no_path_fails_the_build_and_names_the_other_matchers() {
    for text in ["203.0.113.7", "example.com", "POST", "health", ""] {
        let limit = RateLimitLayer::builder().policy(plan("p")).forbid(text);
        let error = limit.build().expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let shown = error.to_string();
        assert!(shown.contains(&format!("{text:?}")), "{shown}");
        for matcher in ["starts with /", " AddressList", "HostPattern", "Methods"] {
            assert!(shown.contains(matcher), "{shown}");
        }
    }
    let rule = plan("p").cost_when("/users/:id", 2);
    let error = RateLimitLayer::builder().policy(rule).build();
    assert!(error.is_err(), "the syntax of another framework");
}

#[test]
fn matcher_behind_a_pointer_keeps_its_checks() {
    let pointers: [fn(PathPattern) -> Box<dyn Matcher>; 3] = [
        |pattern| Box::new(pattern),
        |pattern| Box::new(Box::new(pattern) as Box<dyn Matcher>),
        |pattern| Box::new(Arc::new(pattern) as Arc<dyn Matcher>),
    ];
    let request = Request::get("/health").body(()).expect("a request");
    for pointer in pointers {
        let matcher = pointer(PathPattern::new("/health")).and("/{any}");
        let head = RequestHead::from(&request);
        assert_eq!(matcher.matches(&head), Match::Exact);
        let faulty = pointer(PathPattern::new("health")).into_matcher();
        assert!(faulty.validate().is_err());
    }
}

// === Settings of the policy after its key ===

#[test]
fn settings_of_the_policy_are_equal_before_and_after_the_key() {
    let algorithm = Algorithm::FixedWindow(WindowStart::Clock);
    let penalty = Penalty::after(3, Duration::from_secs(60));
    let new = || Policy::new("p", Quota::per_minute(100));
    let pairs: [(Policy, Rule); 7] = [
        (
            new().algorithm(algorithm),
            new().key(Global).algorithm(algorithm),
        ),
        (
            new().consistency(Consistency::Leased),
            new().key(Global).consistency(Consistency::Leased),
        ),
        (new().cost(3), new().key(Global).cost(3)),
        (
            new().count_denied(true),
            new().key(Global).count_denied(true),
        ),
        (
            new().on_outage(OnOutage::Deny),
            new().key(Global).on_outage(OnOutage::Deny),
        ),
        (new().penalty(penalty), new().key(Global).penalty(penalty)),
        (new().unit("tokens"), new().key(Global).unit("tokens")),
    ];
    for (before, after) in pairs {
        let shown = format!("{before:?}");
        assert_eq!(shown, format!("{:?}", after.policy()));
        assert_ne!(shown, format!("{:?}", new()));
    }
}

#[tokio::test]
async fn candidate_has_the_settings_that_are_made_after_it() {
    let rule = plan("p").candidate(Quota::per_minute(4)).cost(3);
    let limit = RateLimitLayer::builder().policy(rule);
    let limit = limit.build().expect("it is well set up");
    let app = app(limit.clone());
    for _ in 0..2 {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let Ok(response) = app.clone().oneshot(request).await;
        assert_eq!(response.status(), 200);
    }
    // One request of 3 units fits into 4, the second does not.
    let candidate = Policy::new("p.candidate", Quota::per_minute(4));
    assert_eq!(remaining(&limit, &candidate).await, 1);
}

// === Costs from handlers ===

#[tokio::test]
async fn handler_sets_the_cost_and_4xx_that_nobody_priced_are_refunded() {
    let tokens = Policy::new("tokens", Quota::per_hour(10));
    let rule = tokens.clone().cost(4).key(Global).settle_by_handler();
    let limit = RateLimitLayer::builder().policy(rule);
    let limit = limit.build().expect("it is well set up");
    let routes = Router::new()
        .route(
            "/priced",
            get(async |cost: ActualCost| cost.set("tokens", 1)),
        )
        .route("/unpriced", get(async |_: ActualCost| "done"))
        .route("/broken", get(async || StatusCode::BAD_GATEWAY))
        .route("/body", post(async |Json(()): Json<()>| "done"))
        .route(
            "/gone",
            get(async |cost: ActualCost| {
                cost.set("tokens", 2);
                StatusCode::GONE
            }),
        )
        .layer(limit.clone());
    for (method, path, status, units) in [
        ("GET", "/priced", 200, 1),
        ("GET", "/unpriced", 200, 4),
        ("GET", "/broken", 502, 4),
        ("GET", "/missing", 404, 0),
        ("POST", "/body", 415, 0),
        ("GET", "/gone", 410, 2),
    ] {
        let reset = limit.limiter().reset(&tokens, &Key::GLOBAL);
        reset.await.expect("in process");
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).expect("a request");
        let Ok(response) = routes.clone().oneshot(request).await;
        assert_eq!(response.status(), status, "{path}");
        drop(response);
        assert_eq!(remaining(&limit, &tokens).await, 10 - units, "{path}");
    }
}

async fn remaining(limit: &RateLimitLayer, policy: &Policy) -> u64 {
    let peek = limit.limiter().peek(&[policy.charge(Key::GLOBAL)]);
    let decision = peek.await.expect("in process");
    let usage = decision.narrowest().and_then(PolicyState::usage);
    usage.expect("it is counted").remaining
}

fn plan(name: &str) -> Rule {
    Policy::new(name, Quota::per_hour(10)).key(Global)
}

fn app(limit: RateLimitLayer) -> Router {
    Router::new().fallback(async || "fine").layer(limit)
}

/// Units that the headers show as left.
fn left<B>(response: &Response<B>) -> Option<u64> {
    let left = response.headers().get("x-ratelimit-remaining")?;
    left.to_str().ok()?.parse().ok()
}
