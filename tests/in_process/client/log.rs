//! Log lines of pauses: one for each, without the key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tollgate::{
    Charge, Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    client::OutgoingLayer,
    extract::{Global, HostHeader},
    memory::MemoryStore,
    store::{Store, StoreFuture},
};
use tower::{Layer, ServiceExt, service_fn};

use super::api::{Api, built, by_host, request, request_to, response, send, status, wide};
use crate::support::logged;

/// Returns the lines since the last call that contain a text.
fn lines(text: &str) -> Vec<String> {
    let mut lines = logged();
    lines.retain(|line| line.contains(text));
    lines
}

const PAUSED: &str = "an API refused a call, so its key is paused";

#[tokio::test]
async fn refusal_is_one_line_with_its_policy_length_status_and_header_and_without_the_key() {
    lines(PAUSED);
    let layer = built(by_host().max_wait(Duration::ZERO));
    let api = Api::new(|_, _| response(429, &[("retry-after-ms", "2500")]));
    assert_eq!(status(&layer, &api, request(Method::GET)).await, 429);
    assert!(send(&layer, &api, request(Method::GET)).await.is_err());
    let lines = lines(PAUSED);
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    let fields = "policy=api pause_secs=2.5 status=429 refusal=limited wait_from=retry-after-ms unlogged_pauses=0";
    assert!(line.contains("WARN"), "{line}");
    assert!(line.ends_with(fields), "{line}");
    assert!(!line.contains("api.test"), "{line}");
}

#[tokio::test]
async fn source_of_the_wait_is_named() {
    for (headers, source) in [
        (&[][..], "none"),
        (&[("retry-after", "3")], "retry-after"),
        (&[("retry-after", "soon")], "none"),
        (
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")],
            "exhausted limit",
        ),
    ] {
        lines(PAUSED);
        let api = Api::new(move |_, _| response(429, headers));
        let layer = built(by_host().max_wait(Duration::ZERO));
        status(&layer, &api, request(Method::GET)).await;
        let lines = lines(PAUSED);
        let field = format!("wait_from={source} ");
        assert!(lines.len() == 1 && lines[0].contains(&field), "{lines:?}");
    }
}

#[tokio::test]
async fn calls_in_flight_that_are_refused_together_are_one_line() {
    lines(PAUSED);
    let go = Arc::new(tokio::sync::Barrier::new(5));
    let client = service_fn(move |_: Request<Full<Bytes>>| {
        let go = Arc::clone(&go);
        async move {
            go.wait().await;
            response(429, &[("retry-after", "60")])
        }
    });
    let service = built(by_host().max_wait(Duration::ZERO)).layer(client);
    let calls = (0..5).map(|_| service.clone().oneshot(request(Method::POST)));
    for called in futures_util::future::join_all(calls).await {
        assert_eq!(called.expect("a response").status(), 429);
    }
    assert_eq!(lines(PAUSED).len(), 1);
}

#[tokio::test]
async fn many_keys_that_are_refused_at_once_are_ten_lines() {
    lines(PAUSED);
    let layer = built(by_host().max_wait(Duration::ZERO));
    let api = Api::new(|_, _| response(429, &[("retry-after", "60")]));
    for host in 0..50 {
        let host = format!("http://host-{host}.test/");
        assert_eq!(
            status(&layer, &api, request_to(&host, Method::GET)).await,
            429
        );
    }
    assert_eq!(lines(PAUSED).len(), 10);
}

#[tokio::test]
async fn rule_that_is_never_paused_has_no_line() {
    lines(PAUSED);
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let layer = OutgoingLayer::builder(&limiter)
        .policy(wide("all").outgoing_key(Global).never_paused())
        .max_wait(Duration::ZERO);
    let api = Api::new(|_, _| response(429, &[("retry-after", "60")]));
    status(&built(layer), &api, request(Method::GET)).await;
    assert!(lines(PAUSED).is_empty());
}

/// A store whose pauses fail as long as it is down, at once or over a network.
#[derive(Debug)]
struct Failing {
    store: MemoryStore,
    is_down: Arc<AtomicBool>,
    is_late: bool,
}

impl Store for Failing {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.store.decide(charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.store.reset(policy, key)
    }

    fn pause(&self, _: &Charge<'_>, _: Duration) -> StoreFuture<()> {
        let paused = match self.is_down.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Unavailable, "the store is down")),
            false => Ok(()),
        };
        match self.is_late {
            true => StoreFuture::boxed(async {
                tokio::task::yield_now().await;
                paused
            }),
            false => StoreFuture::ready(paused),
        }
    }
}

#[tokio::test]
async fn pauses_that_are_not_stored_are_one_line_until_one_is_stored() {
    const FAILED: &str = "what an API asked for could not be stored";
    for is_late in [false, true] {
        let is_down = Arc::new(AtomicBool::new(true));
        let store = Failing {
            store: MemoryStore::builder().build().expect("a store"),
            is_down: Arc::clone(&is_down),
            is_late,
        };
        let policy = Policy::new("api", Quota::per_second(100_000));
        let limiter = RateLimiter::new(store, []).expect("a limiter");
        let layer = OutgoingLayer::builder(&limiter).policy(policy.outgoing_key(HostHeader));
        let layer = built(layer.max_retries(0));
        let api = Api::new(|_, _| response(429, &[("retry-after", "0")]));
        let refused = async || {
            status(&layer, &api, request(Method::POST)).await;
            // What is stored in the background comes to its end.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        lines(FAILED);
        refused().await;
        refused().await;
        let first = lines(FAILED);
        let [line] = first.as_slice() else {
            panic!("{first:?}");
        };
        let fields = "policy=api change=pause error=the store is down";
        assert!(line.ends_with(fields), "{line}");
        is_down.store(false, Ordering::Relaxed);
        refused().await;
        is_down.store(true, Ordering::Relaxed);
        refused().await;
        assert_eq!(lines(FAILED).len(), 1, "it failed anew");
    }
}
