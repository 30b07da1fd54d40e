//! Which limit of a bucket headers show: its burst, or its sustained quota.

use axum::{Router, body::Body, routing::get};
use http::{HeaderValue, Request, Response};
use tollgate::{
    Policy, Quota, RateLimitLayer,
    algorithm::{Algorithm, WindowStart},
    clock::{Clock, Timestamp},
    extract::Global,
    headers::{Headers, LegacyHeaders, ShownLimit},
    rules::Rule,
    tiers::Tier,
};
use tower::ServiceExt;

#[tokio::test]
async fn each_family_shows_the_units_of_a_period() {
    for (headers, lines) in [
        (
            Headers::legacy().into(),
            "x-ratelimit-limit: 10, x-ratelimit-remaining: 9, x-ratelimit-reset: 1700000001",
        ),
        (
            per_period().into(),
            "x-ratelimit-limit: 60, x-ratelimit-remaining: 9, x-ratelimit-reset: 1700000001",
        ),
        (
            Headers::draft11(),
            r#"ratelimit-policy: "plan";q=10;w=10, ratelimit: "plan";r=9;t=9"#,
        ),
        (
            Headers::draft11().limit(ShownLimit::PerPeriod),
            r#"ratelimit-policy: "plan";q=60;w=60, ratelimit: "plan";r=9;t=9"#,
        ),
        (
            Headers::draft06().limit(ShownLimit::PerPeriod),
            "ratelimit-limit: 60, ratelimit-policy: 60;w=60, ratelimit-remaining: 9, ratelimit-reset: 1",
        ),
        (
            Headers::from(Headers::discord()).limit(ShownLimit::PerPeriod),
            "x-ratelimit-bucket: plan, x-ratelimit-limit: 60, x-ratelimit-remaining: 9, \
             x-ratelimit-reset-after: 1.000, x-ratelimit-reset: 1700000001.000",
        ),
    ] {
        let plan = Policy::new("plan", Quota::per_minute(60).burst(10));
        let app = app(plan.key(Global), headers);
        assert_eq!(rate_limit_lines(&ask(&app).await), lines);
    }
}

#[tokio::test]
async fn remaining_is_zero_exactly_when_the_next_request_is_denied() {
    let plan = Policy::new("plan", Quota::per_minute(60).burst(3));
    let app = app(plan.key(Global), per_period());
    for (status, remaining) in [(200, "2"), (200, "1"), (200, "0"), (429, "0")] {
        let response = ask(&app).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-ratelimit-limit"], "60");
        assert_eq!(response.headers()["x-ratelimit-remaining"], remaining);
    }
}

#[tokio::test]
async fn limit_that_is_shown_is_never_below_what_remains() {
    let slots = Policy::concurrency("p", 4);
    let window = Policy::new("p", Quota::per_minute(60));
    let window = window.algorithm(Algorithm::FixedWindow(WindowStart::Clock));
    for (policy, limit) in [
        (Policy::new("p", Quota::per_minute(10).burst(100)), "100"),
        (Policy::new("p", Quota::per_minute(60)), "60"),
        (window, "60"),
        (slots, "4"),
    ] {
        let app = app(policy.key(Global), per_period());
        assert_eq!(ask(&app).await.headers()["x-ratelimit-limit"], limit);
    }
}

// The counters of the policy and of the last tier are equal: one unit a second, with a burst of 10.
#[tokio::test]
async fn tier_shows_its_own_quota() {
    for (quota, limit) in [
        (Quota::per_minute(600).burst(10), "600"),
        (Quota::per_hour(3_600).burst(10), "3600"),
    ] {
        let tier = Tier::new("pro", quota).expect("a tier");
        let plan = Policy::new("plan", Quota::per_minute(60).burst(10));
        let rule = plan.key(Global).tier_fn(move |_, _| Some(tier.clone()));
        let response = ask(&app(rule, per_period())).await;
        assert_eq!(response.headers()["x-ratelimit-limit"], limit);
        assert_eq!(response.headers()["x-ratelimit-remaining"], "9");
    }
}

#[tokio::test]
async fn limit_of_one_family_is_the_limit_of_all() {
    let plan = || Policy::new("plan", Quota::per_minute(60).burst(10)).key(Global);
    for headers in [
        per_period().with(Headers::draft11()),
        Headers::draft11().with(per_period()),
    ] {
        let response = ask(&app(plan(), headers)).await;
        assert_eq!(response.headers()["x-ratelimit-limit"], "60");
        let policies = &response.headers()["ratelimit-policy"];
        assert_eq!(policies, r#""plan";q=60;w=60"#);
    }
}

fn per_period() -> LegacyHeaders {
    Headers::legacy().limit(ShownLimit::PerPeriod)
}

fn app(rule: Rule, headers: impl Into<Headers>) -> Router {
    let limit = RateLimitLayer::builder()
        .policy(rule)
        .headers(headers)
        .clock(Clock::manual(Timestamp::from_micros(1_700_000_000_000_000)))
        .build();
    let app = Router::new().route("/", get(async || "fine"));
    app.layer(limit.expect("it is well set up"))
}

async fn ask(app: &Router) -> Response<Body> {
    let Ok(response) = app.clone().oneshot(Request::new(Body::empty())).await;
    response
}

/// The headers of the limit, sorted.
fn rate_limit_lines(response: &Response<Body>) -> String {
    let headers = response.headers().iter();
    let headers = headers.filter(|(name, _)| name.as_str().contains("ratelimit"));
    let line = |(name, value): (_, &HeaderValue)| {
        let value = value.to_str().expect("it is text");
        format!("{name}: {value}")
    };
    let mut lines: Vec<_> = headers.map(line).collect();
    lines.sort();
    lines.join(", ")
}
