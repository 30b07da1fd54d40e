//! Assertions about responses and decisions, and what they print when they fail.

use std::{panic, time::Duration};

use http::{Request, Response, StatusCode};
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter, assert_allowed, assert_limited,
    assert_remaining, assert_unavailable,
    builder::RateLimitLayerBuilder,
    clock::Clock,
    extract::{ApiKey, Global, Header},
    headers::Headers,
    middleware::ResponseBody,
    testing::ScriptedStore,
};
use tower::{Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

/// The layer of two policies: five a minute and three an hour.
fn limits() -> RateLimitLayerBuilder {
    RateLimitLayer::builder()
        .policy(Policy::new("login", Quota::per_minute(5)).key(Global))
        .policy(Policy::new("hourly", Quota::per_hour(30)).key(Global))
}

async fn ask(layer: &RateLimitLayer) -> Response<ResponseBody<String>> {
    let handler =
        service_fn(async |_: Request<()>| Ok::<_, ErrorKind>(Response::new(String::new())));
    let response = layer.layer(handler).oneshot(Request::new(())).await;
    response.expect("a response")
}

/// Returns the message of an assertion that fails.
fn message(assertion: impl FnOnce()) -> String {
    let failed = panic::catch_unwind(panic::AssertUnwindSafe(assertion));
    let message = failed.expect_err("the assertion fails");
    *message.downcast().expect("a message with values")
}

#[tokio::test(start_paused = true)]
async fn assertions_about_responses_hold_and_fail() {
    let layer = limits().clock(Clock::tokio()).build().expect("a layer");
    for left in (0..5).rev() {
        let response = ask(&layer).await;
        assert_allowed!(response);
        assert_remaining!(response, left);
        message(|| assert_remaining!(response, left + 1));
        message(|| assert_limited!(response));
        message(|| assert_unavailable!(response));
    }
    let response = ask(&layer).await;
    assert_limited!(response);
    assert_limited!(response, "login");
    assert_limited!(response, "login", 12);
    assert_limited!(response, "login", 12_u64);
    assert_limited!(&response, "login", 12 * SECOND);
    assert_remaining!(response, "login", 0);
    assert_remaining!(response, "hourly", 25);
    message(|| assert_allowed!(response));
    message(|| assert_unavailable!(response));
    message(|| assert_limited!(response, "hourly"));
    message(|| assert_limited!(response, "login", 11));
    message(|| assert_limited!(response, "login", -12));
    message(|| assert_limited!(response, "login", Duration::from_micros(11_999_999)));
    tokio::time::advance(Duration::from_millis(500)).await;
    let response = ask(&layer).await;
    assert_limited!(response, "login", 12);
    assert_limited!(response, "login", Duration::from_millis(11_500));
}

#[tokio::test(start_paused = true)]
async fn failure_lists_what_was_found() {
    let layer = limits().clock(Clock::tokio()).build().expect("a layer");
    for _ in 0..5 {
        ask(&layer).await;
    }
    let response = ask(&layer).await;
    let message = message(|| assert_limited!(response, "hourly", 3));
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(
        lines[0],
        "expected a request that is limited by policy hourly, to retry in 3 s, found:"
    );
    for line in [
        "  status: 429 Too Many Requests",
        "  reason: Limited { policy: \"login\" }",
        "  retry after: 12s",
        "  policy login: limited, 0 of 5 left",
        "  policy hourly: allowed, 25 of 30 left",
        "  header retry-after: 12",
        "  header content-type: application/json",
    ] {
        assert!(lines.contains(&line), "{line:?} is not in {message}");
    }
}

#[tokio::test]
async fn units_left_of_a_policy_are_found_by_its_name_in_the_draft() {
    let layer = limits().headers(Headers::draft11()).build();
    let layer = layer.expect("a layer");
    let response = ask(&layer).await;
    assert_remaining!(response, "login", 4);
    assert_remaining!(response, "hourly", 29);
    assert_remaining!(response, 4);
    message(|| assert_remaining!(response, "daily", 4));
    let layer = limits().headers(Headers::draft06()).build();
    assert_remaining!(ask(&layer.expect("a layer")).await, 4);
    let layer = limits().headers(Headers::none()).build();
    let response = ask(&layer.expect("a layer")).await;
    message(|| assert_remaining!(response, 4));
}

#[tokio::test]
async fn rejection_for_another_reason_is_neither_allowed_nor_limited() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("keys", Quota::per_hour(5)).key(ApiKey::header("x-api-key")))
        .policy(Policy::new("tenants", Quota::per_hour(5)).key(Header::new("x-tenant")));
    let response = ask(&layer.build().expect("a layer")).await;
    let message_of = message(|| assert_allowed!(response));
    assert!(message_of.contains("reason: MissingKey"), "{message_of}");
    message(|| assert_limited!(response));
    message(|| assert_unavailable!(response));
}

#[tokio::test]
async fn store_that_fails_is_unavailable() {
    let store = ScriptedStore::allowing();
    let layer = limits().store(store.clone()).build().expect("a layer");
    assert_allowed!(ask(&layer).await);
    store.fail(ErrorKind::Connect);
    let response = ask(&layer).await;
    assert_unavailable!(response);
    let message_of = message(|| assert_allowed!(response));
    assert!(message_of.contains("error: the test makes"), "{message_of}");
}

#[tokio::test(start_paused = true)]
async fn assertions_take_decisions() {
    let limiter = RateLimiter::builder().clock(Clock::tokio()).build();
    let limiter = limiter.expect("a limiter");
    let policy = Policy::new("api", Quota::per_minute(1));
    let charge = policy.charge(Key::new("ada"));
    let decision = limiter.check(&[charge]).await.expect("a decision");
    assert_allowed!(decision);
    assert_remaining!(decision, "api", 0);
    message(|| assert_limited!(decision));
    let decision = limiter.check(&[charge]).await.expect("a decision");
    assert_limited!(&decision, "api", 60);
    assert_limited!(decision, "api", 60 * SECOND);
    let found = message(|| assert_allowed!(decision));
    assert!(
        found.contains("policy api: limited, 0 of 1 left"),
        "{found}"
    );
    message(|| assert_limited!(decision, "other"));
}

#[test]
fn response_from_a_network_shows_status_and_headers_alone() {
    let response = |status, wait: &str| {
        let response = Response::builder().status(status);
        response
            .header("retry-after", wait)
            .body(())
            .expect("a response")
    };
    let limited = response(StatusCode::TOO_MANY_REQUESTS, "7");
    let check = |wait: u64| {
        tollgate::testing::Findings::of(&limited).assert_limited(None, Some(wait.into()));
    };
    check(7);
    message(|| check(8));
    assert_limited!(limited);
    message(|| assert_limited!(limited, "login"));
    message(|| assert_allowed!(limited));
    assert_unavailable!(response(StatusCode::SERVICE_UNAVAILABLE, "1"));
    assert_allowed!(response(StatusCode::INTERNAL_SERVER_ERROR, "1"));
}

#[test]
fn failure_is_reported_where_the_assertion_stands() {
    let hook = panic::take_hook();
    let (sender, places) = std::sync::mpsc::channel();
    let thread = std::thread::current().id();
    panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == thread {
            let place = info
                .location()
                .map(|place| (place.file().to_owned(), place.line()));
            sender.send(place).expect("the test listens");
        }
    }));
    let line = line!() + 1;
    message(|| assert_limited!(Response::new(()), "login", 3));
    panic::set_hook(hook);
    assert_eq!(
        places.recv().expect("it panicked"),
        Some((file!().to_owned(), line))
    );
}
