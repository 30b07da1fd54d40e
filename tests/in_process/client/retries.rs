//! Retries: which calls are sent again, how often, and when. No call reaches the API more often than a test counts.

use std::{
    io::{self, ErrorKind::ConnectionRefused},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::time::Instant;
use tollgate::{
    Decision,
    client::{CallFailure, OutgoingInfo, OutgoingLayer},
    extract::Global,
    matching::PathPattern,
};

use super::api::{
    Api, Outcome, built, by_host, left, limiter, refused, request, request_to, response, send,
    status, ten_an_hour, wide,
};

/// An API that fails `failures` times, then responds with 200.
fn failing(failures: usize, fail: fn() -> Outcome) -> Api {
    Api::new(move |_, number| match number < failures {
        true => fail(),
        false => response(200, &[]),
    })
}

fn server_error() -> Outcome {
    response(500, &[])
}

fn closed() -> Outcome {
    Err(io::Error::from(ConnectionRefused))
}

// === After responses ===

#[tokio::test(start_paused = true)]
async fn refused_call_is_sent_three_times_at_most_with_any_method() {
    for method in [Method::GET, Method::POST, Method::PATCH] {
        let (layer, api) = (built(by_host()), failing(usize::MAX, refused));
        let response = send(&layer, &api, request(method)).await;
        let response = response.expect("the last response is returned");
        assert_eq!((response.status().as_u16(), api.calls()), (429, 3));
        let info = response.extensions().get::<OutgoingInfo>().expect("info");
        assert_eq!(info.attempts(), 3);
        assert!(info.waited() >= Duration::from_millis(200));
        assert!(info.decision().is_some_and(Decision::is_allowed));
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), "body");
    }
}

#[tokio::test(start_paused = true)]
async fn number_of_retries_is_a_setting() {
    for (retries, calls) in [(0, 1), (1, 2), (5, 6)] {
        let layer = built(by_host().max_retries(retries));
        let api = failing(usize::MAX, server_error);
        assert_eq!(status(&layer, &api, request(Method::GET)).await, 500);
        assert_eq!(api.calls(), calls);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_sends_the_same_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let bodies = Arc::clone(&seen);
    let api = Api::new(move |request: &Request<Full<Bytes>>, number| {
        let parts = (
            request.method().clone(),
            request.uri().to_string(),
            request.headers().get("x-tag").cloned(),
            request.extensions().get::<u8>().copied(),
            format!("{:?}", request.body()),
        );
        bodies.lock().expect("no panic").push(parts);
        if number < 2 {
            refused()
        } else {
            response(200, &[])
        }
    });
    let mut request = request(Method::POST);
    request
        .headers_mut()
        .insert("x-tag", "7".parse().expect("a value"));
    request.extensions_mut().insert(7_u8);
    assert_eq!(status(&built(by_host()), &api, request).await, 200);
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|parts| *parts == seen[0]), "{seen:?}");
    assert!(
        seen[0].4.contains("sent") && seen[0].3 == Some(7),
        "{seen:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn server_error_is_retried_only_if_the_request_is_safe() {
    let keyed = || {
        let mut request = request(Method::POST);
        let key = "8e03978e".parse().expect("a value");
        request.headers_mut().insert("idempotency-key", key);
        request
    };
    let find = || request_to("http://api.test/library.Books/Find", Method::POST);
    for (request, calls) in [
        (request(Method::GET), 2),
        (request(Method::HEAD), 2),
        (request(Method::OPTIONS), 2),
        (request(Method::TRACE), 2),
        (request(Method::PUT), 2),
        (request(Method::DELETE), 2),
        (request(Method::POST), 1),
        (request(Method::PATCH), 1),
        (keyed(), 2),
        (find(), 2),
    ] {
        let layer = built(by_host().safe_when(PathPattern::new("/library.Books/Find")));
        let api = failing(1, server_error);
        let what = format!("{} {}", request.method(), request.uri());
        status(&layer, &api, request).await;
        assert_eq!(api.calls(), calls, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn status_decides_whether_a_safe_request_is_retried() {
    for (code, calls) in [
        (200, 1),
        (301, 1),
        (400, 1),
        (403, 1),
        (404, 1),
        (500, 2),
        (501, 1),
        (502, 2),
        (503, 2),
        (504, 2),
        (505, 1),
        (529, 2),
    ] {
        let api = Api::new(move |_, number| response(if number == 0 { code } else { 200 }, &[]));
        status(&built(by_host()), &api, request(Method::GET)).await;
        assert_eq!(api.calls(), calls, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_calls_are_retried_only_if_safe_if_that_is_set() {
    for (method, calls) in [(Method::POST, 1), (Method::GET, 2)] {
        let api = failing(1, refused);
        status(&built(by_host().retry_only_safe()), &api, request(method)).await;
        assert_eq!(api.calls(), calls);
    }
}

#[tokio::test(start_paused = true)]
async fn api_that_forbids_retries_gets_none() {
    let api = Api::new(|_, _| response(429, &[("retry-after", "0"), ("x-should-retry", "false")]));
    assert_eq!(
        status(&built(by_host()), &api, request(Method::GET)).await,
        429
    );
    assert_eq!(api.calls(), 1);
}

// === After errors ===

#[tokio::test(start_paused = true)]
async fn error_of_unknown_type_is_not_retried_and_passes_unchanged() {
    let api = failing(usize::MAX, closed);
    let error = send(&built(by_host()), &api, request(Method::GET)).await;
    let error = error.expect_err("the client failed");
    assert_eq!(
        error.to_string(),
        io::Error::from(ConnectionRefused).to_string()
    );
    let inner = error.into_inner().expect("the client's");
    assert_eq!((inner.kind(), api.calls()), (ConnectionRefused, 1));
}

#[tokio::test(start_paused = true)]
async fn closure_decides_whether_an_error_is_retried() {
    for (failure, get, post) in [
        (CallFailure::Final, 1, 1),
        (CallFailure::Transient, 2, 1),
        (CallFailure::NotSent, 2, 2),
    ] {
        for (method, calls) in [(Method::GET, get), (Method::POST, post)] {
            let layer = by_host()
                .classify_errors(|_: &std::fmt::Error| unreachable!("another type"))
                .classify_errors(move |_: &io::Error| failure);
            let api = failing(1, closed);
            let _ = send(&built(layer), &api, request(method.clone())).await;
            assert_eq!(api.calls(), calls, "{method} {failure:?}");
        }
    }
}

#[tokio::test]
async fn attempt_that_was_not_sent_costs_no_unit() {
    for (failure, units) in [(CallFailure::NotSent, 10), (CallFailure::Final, 8)] {
        let (policy, limiter) = ten_an_hour();
        let layer = OutgoingLayer::builder(&limiter)
            .policy(policy.clone().outgoing_key(Global))
            .max_retries(0)
            .classify_errors(move |_: &io::Error| failure);
        let (layer, api) = (built(layer), failing(usize::MAX, closed));
        for _ in 0..2 {
            let error = send(&layer, &api, request(Method::GET)).await;
            assert!(error.is_err_and(|error| error.limited().is_none()));
        }
        assert_eq!(left(&limiter, &policy).await, units, "{failure:?}");
    }
}

// === Bodies ===

#[tokio::test(start_paused = true)]
async fn body_that_cannot_be_copied_is_sent_once() {
    type Stream = UnsyncBoxBody<Bytes, std::convert::Infallible>;
    let stream = || {
        let body: Stream = Full::from("sent").boxed_unsync();
        let request = Request::put("http://api.test/");
        request.body(body).expect("a valid request")
    };
    let api: Api<Stream> = Api::new(|_, _| refused());
    assert_eq!(status(&built(by_host()), &api, stream()).await, 429);
    assert_eq!(api.calls(), 1);

    let copying = by_host().copy_bodies(|_: &Stream| Some(Full::from("sent").boxed_unsync()));
    let api: Api<Stream> = Api::new(|_, _| refused());
    assert_eq!(status(&built(copying), &api, stream()).await, 429);
    assert_eq!(api.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn body_is_copied_only_if_its_request_may_be_retried() {
    let copies = Arc::new(Mutex::new(0));
    for (method, retries, copied) in [
        (Method::GET, 2, 1),
        (Method::POST, 2, 0),
        (Method::GET, 0, 0),
    ] {
        let counted = Arc::clone(&copies);
        let layer = by_host()
            .retry_only_safe()
            .max_retries(retries)
            .copy_bodies(move |body: &Full<Bytes>| {
                *counted.lock().expect("no panic") += 1;
                Some(body.clone())
            });
        let api = failing(0, refused);
        status(&built(layer), &api, request(method)).await;
        assert_eq!(
            std::mem::take(&mut *copies.lock().expect("no panic")),
            copied
        );
    }
}

// === Times ===

#[tokio::test(start_paused = true)]
async fn call_ends_within_its_longest_wait_however_many_retries_it_has() {
    let layer = by_host()
        .max_wait(Duration::from_secs(10))
        .max_retries(1_000)
        .retry_percent(1_000);
    let (layer, api) = (built(layer), failing(usize::MAX, server_error));
    let begun = Instant::now();
    assert_eq!(status(&layer, &api, request(Method::GET)).await, 500);
    assert!(
        begun.elapsed() <= Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert!(api.calls() > 4, "{}", api.calls());
}

#[tokio::test(start_paused = true)]
async fn refusal_beyond_the_longest_wait_is_returned_at_once() {
    let api = Api::new(|_, _| response(429, &[("retry-after", "31")]));
    let begun = Instant::now();
    assert_eq!(
        status(&built(by_host()), &api, request(Method::GET)).await,
        429
    );
    assert_eq!((api.calls(), begun.elapsed()), (1, Duration::ZERO));
}

// === Budget ===

#[tokio::test(start_paused = true)]
async fn storm_of_failures_adds_a_tenth_of_the_calls_and_ten() {
    let (layer, api) = (
        built(by_host()),
        Api::new(|_, number| match number % 2 {
            0 => server_error(),
            _ => response(200, &[]),
        }),
    );
    let calls = 5_000;
    let mut failed = 0;
    for _ in 0..calls {
        let status = status(&layer.clone(), &api, request(Method::GET)).await;
        failed += usize::from(status == 500);
    }
    let sent = api.calls();
    println!("{calls} calls were sent {sent} times, {failed} failed");
    assert!(sent <= calls + calls / 10 + 10, "{sent}");
    assert!(sent >= calls + calls / 10, "the budget is used: {sent}");
}

#[tokio::test(start_paused = true)]
async fn each_key_has_a_budget_that_all_clones_of_the_layer_share() {
    let layer = built(by_host().retry_percent(0).max_retries(1));
    for host in ["http://a.test/", "http://b.test/"] {
        let api = failing(usize::MAX, server_error);
        for _ in 0..15 {
            status(&layer.clone(), &api, request_to(host, Method::GET)).await;
        }
        assert_eq!(api.calls(), 15 + 10, "{host}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_no_rule_counts_share_a_budget() {
    let layer = OutgoingLayer::builder(&limiter())
        .policy(
            wide("api")
                .outgoing_key(Global)
                .when(PathPattern::new("/counted")),
        )
        .retry_percent(0)
        .max_retries(1);
    let (layer, api) = (built(layer), failing(usize::MAX, server_error));
    for _ in 0..15 {
        status(&layer, &api, request(Method::GET)).await;
    }
    assert_eq!(api.calls(), 15 + 10);
}
