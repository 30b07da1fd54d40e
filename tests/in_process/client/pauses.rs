//! Responses of the API are obeyed: refusals pause the key, and limits lower the quota that is left.

use std::{
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tokio::sync::Notify;
use tollgate::{
    Policy, Quota, RateLimiter,
    acquire::AcquireErrorKind,
    client::{LimitedCall, OutgoingError, OutgoingLayer},
    clock::{Clock, Timestamp},
    extract::{ApiKey, Global, HostHeader, KeyExtractor},
    memory::MemoryStore,
};
use tower::{Layer, ServiceExt, service_fn};

use super::api::{
    Api, built, by_host, left, limiter, request, request_to, response, send, status, ten_an_hour,
    wide,
};

/// Calls an API that responds with these headers once, and returns the error of the next call.
async fn after_refusal(headers: &[(&'static str, &str)], layer: &OutgoingLayer) -> LimitedCall {
    let headers: Vec<(&str, String)> = headers
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect();
    let api = Api::new(move |_, _| {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        response(429, &headers)
    });
    assert_eq!(status(layer, &api, request(Method::GET)).await, 429);
    let next = send(layer, &api, request(Method::GET)).await;
    assert_eq!(api.calls(), 1, "the API is not called in the pause");
    let Err(OutgoingError::Limited(limited)) = next else {
        panic!("the key is paused: {next:?}");
    };
    limited
}

/// A layer whose calls fail unless they have their turn now.
fn impatient() -> OutgoingLayer {
    built(by_host().max_wait(Duration::ZERO))
}

// === Pauses ===

#[tokio::test]
async fn refusal_pauses_the_key_for_as_long_as_the_api_asks() {
    let limited = after_refusal(&[("retry-after", "42")], &impatient()).await;
    assert_eq!(limited.kind(), AcquireErrorKind::TooLong);
    let wait = limited.retry_after().expect("it is known").as_secs_f64();
    assert!((41.0..=42.0).contains(&wait), "{wait}");
}

#[tokio::test]
async fn hostile_values_pause_for_a_tenth_of_a_second_to_ten_minutes() {
    let huge = "9".repeat(400);
    for value in [
        "0",
        "-1",
        "-9223372036854775809",
        "0.0000001",
        "NaN",
        "inf",
        "1e308",
        "",
        " ",
        "soon",
        "18446744073709551616",
        "99999999999",
        "253402300800",
        "-1484742195",
        &huge,
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "\u{7f}",
    ] {
        let api_value = value.replace('\u{7f}', "");
        let (layer, started) = (impatient(), Instant::now());
        let api = Api::new(move |_, _| response(429, &[("retry-after", &api_value)]));
        assert_eq!(status(&layer, &api, request(Method::GET)).await, 429);
        let next = layer
            .limiter()
            .acquire(wide("api").charge(tollgate::Key::new("api.test")));
        let error = next.max_wait(Duration::ZERO).await;
        // A slow machine may be late for the shortest pause.
        let Err(error) = error else {
            assert!(started.elapsed() >= Duration::from_millis(100), "{value:?}");
            continue;
        };
        let wait = error.retry_after().expect("it is known");
        assert!(wait <= Duration::from_secs(600), "{value:?}: {wait:?}");
    }
}

#[tokio::test]
async fn error_shows_the_time_that_the_api_asked_for_also_beyond_the_longest_pause() {
    let layer = by_host()
        .max_wait(Duration::ZERO)
        .max_pause(Duration::from_secs(60));
    let limited = after_refusal(&[("retry-after", "86400")], &built(layer)).await;
    let asked = limited.retry_after().expect("it is known").as_secs();
    assert!((86_399..=86_400).contains(&asked), "{asked}");
    assert_eq!(limited.pause(), limited.retry_after());
    let acquire = limited.source().expect("why there was no turn");
    assert!(acquire.source().is_none());
    let text = limited.to_string();
    assert!(
        text.starts_with("the call got no turn, refused for another 86"),
        "{text}"
    );
}

#[tokio::test]
async fn refusal_without_a_time_pauses_for_a_second() {
    let limited = after_refusal(&[], &impatient()).await;
    let wait = limited.retry_after().expect("it is known").as_secs_f64();
    assert!((0.5..=1.0).contains(&wait), "{wait}");
}

#[tokio::test]
async fn calls_to_other_keys_go_on() {
    let layer = OutgoingLayer::builder(&limiter())
        .policy(wide("api").outgoing_key(HostHeader.and(ApiKey::bearer())))
        .max_wait(Duration::ZERO);
    let (layer, api) = (
        built(layer),
        Api::new(|request: &Request<Full<Bytes>>, _| {
            let token = request.headers()["authorization"].as_bytes();
            let is_refused = token == b"Bearer ada" && request.uri().host() == Some("a.test");
            response(if is_refused { 429 } else { 200 }, &[("retry-after", "60")])
        }),
    );
    let by = |host, token: &str| {
        let mut request = request_to(host, Method::GET);
        let value = format!("Bearer {token}").parse().expect("a value");
        request.headers_mut().insert("authorization", value);
        request
    };
    assert_eq!(status(&layer, &api, by("http://a.test/", "ada")).await, 429);
    assert!(
        send(&layer, &api, by("http://a.test/", "ada"))
            .await
            .is_err()
    );
    assert_eq!(status(&layer, &api, by("http://a.test/", "bob")).await, 200);
    assert_eq!(status(&layer, &api, by("http://b.test/", "ada")).await, 200);
}

#[tokio::test]
async fn rule_that_counts_several_apis_is_not_paused_if_that_is_set() {
    let layer = OutgoingLayer::builder(&limiter())
        .policy(wide("all").outgoing_key(Global).never_paused())
        .policy(wide("api").outgoing_key(HostHeader))
        .max_wait(Duration::ZERO);
    let (layer, api) = (
        built(layer),
        Api::new(|request: &Request<Full<Bytes>>, _| {
            let is_refused = request.uri().host() == Some("a.test");
            response(if is_refused { 429 } else { 200 }, &[("retry-after", "60")])
        }),
    );
    let call = |host| send(&layer, &api, request_to(host, Method::GET));
    assert!(call("http://a.test/").await.is_ok());
    assert!(call("http://a.test/").await.is_err());
    assert!(call("http://b.test/").await.is_ok());
}

#[tokio::test]
async fn success_of_an_earlier_call_does_not_end_a_pause() {
    let slow = Arc::new(Notify::new());
    let response_comes = Arc::clone(&slow);
    let client = service_fn(move |request: Request<Full<Bytes>>| {
        let slow = Arc::clone(&response_comes);
        async move {
            if request.uri().path() == "/slow" {
                slow.notified().await;
                return response(200, &[]);
            }
            response(429, &[("retry-after", "60")])
        }
    });
    let service = impatient().layer(client);
    let first = tokio::spawn(
        service
            .clone()
            .oneshot(request_to("http://api.test/slow", Method::GET)),
    );
    tokio::task::yield_now().await;
    let call = || service.clone().oneshot(request(Method::GET));
    assert_eq!(call().await.expect("a response").status(), 429);
    slow.notify_one();
    assert_eq!(
        first.await.expect("no panic").expect("a response").status(),
        200
    );
    assert!(call().await.is_err(), "the key is still paused");
}

// Reproducer: the cached response was taken for a success, and the next pause was as short as the first one.
#[tokio::test(start_paused = true)]
async fn cached_refusal_is_no_success() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = RateLimiter::builder().store(store.expect("a usable store"));
    let limiter = limiter.build().expect("a usable limiter");
    let layer = OutgoingLayer::builder(&limiter)
        .policy(wide("api").outgoing_key(Global))
        .max_wait(Duration::ZERO)
        .max_retries(0);
    let layer = built(layer);
    let api = Api::new(|_, calls| match calls {
        1 => response(429, &[("age", "5")]),
        _ => response(429, &[]),
    });
    let mut pauses = Vec::new();
    for _ in 0..3 {
        assert_eq!(status(&layer, &api, request(Method::GET)).await, 429);
        let pause = match send(&layer, &api, request(Method::GET)).await {
            Err(OutgoingError::Limited(limited)) => limited.retry_after().unwrap_or_default(),
            Err(error) => panic!("the API always responds: {error}"),
            Ok(_) => Duration::ZERO,
        };
        pauses.push(pause.as_secs_f64().round());
        clock.advance(pause);
        tokio::time::advance(pause).await;
    }
    assert_eq!(pauses, [1.0, 0.0, 2.0]);
}

#[tokio::test]
async fn no_task_calls_the_api_before_the_time_that_it_asked_for() {
    let pause = Duration::from_millis(300);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (recorded, is_refused) = (Arc::clone(&calls), AtomicBool::new(false));
    let api = Api::new(move |_, _| {
        recorded.lock().expect("no panic").push(Instant::now());
        match is_refused.swap(true, Ordering::Relaxed) {
            false => response(429, &[("retry-after-ms", "300")]),
            true => response(200, &[]),
        }
    });
    let layer = built(by_host());
    let first = tokio::spawn({
        let (layer, api) = (layer.clone(), api.clone());
        async move { status(&layer, &api, request(Method::POST)).await }
    });
    while api.calls() == 0 {
        tokio::task::yield_now().await;
    }
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (layer, api) = (layer.clone(), api.clone());
            tokio::spawn(async move { status(&layer, &api, request(Method::POST)).await })
        })
        .collect();
    for task in tasks.into_iter().chain([first]) {
        assert_eq!(task.await.expect("no panic"), 200);
    }
    let calls = calls.lock().expect("no panic");
    assert_eq!(calls.len(), 22);
    let early = calls[1..].iter().filter(|call| **call - calls[0] < pause);
    assert_eq!(early.count(), 0, "{calls:?}");
}

// === Limits that responses show ===

#[tokio::test]
async fn limit_of_the_api_lowers_what_is_left_and_never_raises_it() {
    let (policy, limiter) = ten_an_hour();
    let layer = OutgoingLayer::builder(&limiter).policy(policy.clone().outgoing_key(Global));
    let api = Api::new(|_, number| {
        let remaining = ["9", "4", "100", "x"][number];
        response(
            200,
            &[
                ("x-ratelimit-limit", "5000"),
                ("x-ratelimit-remaining", remaining),
            ],
        )
    });
    let layer = built(layer);
    for left_over in [9, 4, 3, 2] {
        status(&layer, &api, request(Method::GET)).await;
        assert_eq!(left(&limiter, &policy).await, left_over);
    }
}

#[tokio::test]
async fn smaller_limit_of_the_api_lowers_what_is_left() {
    let (policy, limiter) = ten_an_hour();
    let layer = OutgoingLayer::builder(&limiter).policy(policy.clone().outgoing_key(Global));
    let api = Api::new(|_, _| response(200, &[("x-ratelimit-limit", "6")]));
    status(&built(layer), &api, request(Method::GET)).await;
    assert_eq!(left(&limiter, &policy).await, 6);
}

#[tokio::test]
async fn policy_follows_the_limit_that_it_names() {
    let (policy, limiter) = ten_an_hour();
    let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    let layer = OutgoingLayer::builder(&limiter)
        .policy(policy.clone().outgoing_key(Global))
        .policy(
            tokens
                .clone()
                .outgoing_key(Global)
                .cost_by(|_| 100)
                .reported_as("tokens"),
        );
    let api = Api::new(|_, _| {
        response(
            200,
            &[
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-remaining-requests", "5"),
                ("x-ratelimit-limit-tokens", "150000"),
                ("x-ratelimit-remaining-tokens", "500"),
            ],
        )
    });
    status(&built(layer), &api, request(Method::GET)).await;
    assert_eq!(left(&limiter, &policy).await, 9, "it names none of two");
    assert_eq!(left(&limiter, &tokens).await, 500);
}

// === Errors ===

#[tokio::test]
async fn error_of_a_retry_without_a_turn_names_attempts_and_status() {
    let (policy, limiter) = (Policy::new("api", Quota::per_hour(1)), limiter());
    let layer = OutgoingLayer::builder(&limiter).policy(policy.outgoing_key(Global));
    let api = Api::new(|_, _| response(500, &[]));
    let error = send(&built(layer), &api, request(Method::GET)).await;
    let error = error.expect_err("the retry has no turn");
    let text = "the call got no turn after 1 attempt, last status 500";
    assert_eq!(error.to_string(), text);
    let limited = error.limited().expect("it got no turn");
    assert_eq!((limited.attempts(), limited.pause()), (1, None));
    assert_eq!(
        limited.last_status().map(|status| status.as_u16()),
        Some(500)
    );
    assert!(
        limited
            .retry_after()
            .is_some_and(|wait| wait > Duration::from_secs(3_000))
    );
    assert!(error.source().is_some());
    assert_eq!(error.into_boxed().to_string(), text);
}

#[test]
fn layer_without_a_policy_or_with_impossible_settings_is_not_built() {
    let limiter: RateLimiter = limiter();
    let builder = || OutgoingLayer::builder(&limiter);
    for (builder, text) in [
        (builder(), "a layer without a policy limits nothing"),
        (
            builder()
                .policy(wide("a").outgoing_key(HostHeader))
                .retry_percent(1_001),
            "retry_percent(1001): use at most 1000",
        ),
        (
            builder().policy(wide("a").outgoing_key(ApiKey::header("no name"))),
            "header",
        ),
        (
            builder().policy(
                wide("a")
                    .outgoing_key(HostHeader)
                    .cost_when(|_: &tollgate::RequestHead<'_>| true, 200_000),
            ),
            "never has its turn",
        ),
        (
            builder()
                .policy(wide("a").outgoing_key(HostHeader))
                .policy(wide("a").outgoing_key(Global)),
            "a",
        ),
    ] {
        let error = builder.build().expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    }
}
