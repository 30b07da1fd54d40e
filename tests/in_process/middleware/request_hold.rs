//! Slots that are held beyond the response, such as for a WebSocket.

use std::{
    convert::Infallible,
    net::SocketAddr,
    panic,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::WebSocketUpgrade, response::Response, routing::any};
use futures_util::FutureExt;
use http::{Method, Request, StatusCode};
use tokio::{net::TcpStream, sync::oneshot, time};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter,
    diagnosis::Warning,
    extract::{Global, PeerIp},
    middleware::{ActualCost, RequestHold},
    rules::{CompletedRequest, RequestOutcome, Rule, RuleMode},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::sockets::{open_socket, send, serve};

fn slots() -> Policy {
    Policy::concurrency("slots", 2)
}

fn layer(rule: impl Into<Rule>) -> RateLimitLayer {
    let layer = RateLimitLayer::builder().policy(rule).build();
    layer.expect("it is well set up")
}

/// Slots that are free.
async fn free(limiter: &RateLimiter) -> u64 {
    let policy = slots();
    let peeked = limiter.peek(policy.charge(Key::GLOBAL)).await;
    let remaining = peeked.expect("it is in process").remaining();
    remaining.expect("it is counted")
}

/// Waits until so many slots are free.
async fn until_free(limiter: &RateLimiter, count: u64) {
    let waiting = async {
        while free(limiter).await != count {
            tokio::task::yield_now().await;
        }
    };
    let in_time = time::timeout(Duration::from_secs(10), waiting).await;
    in_time.expect("the slot is released");
}

// === WebSockets ===

/// A server whose sockets hold a slot per client.
async fn sockets() -> (SocketAddr, RateLimitLayer) {
    async fn connect(upgrade: WebSocketUpgrade, hold: RequestHold) -> Response {
        upgrade.on_upgrade(async move |mut socket| {
            while let Some(Ok(_)) = socket.recv().await {}
            drop(hold);
        })
    }
    let layer = layer(Policy::concurrency("sockets", 2).key(PeerIp));
    let app = Router::new().route("/", any(connect)).layer(layer.clone());
    (serve(app).await, layer)
}

async fn until_admitted(server: SocketAddr) -> TcpStream {
    let waiting = async {
        loop {
            let (status, socket) = open_socket(server).await;
            if status == "101" {
                return socket;
            }
            assert_eq!(status, "429");
        }
    };
    let in_time = time::timeout(Duration::from_secs(10), waiting).await;
    in_time.expect("a slot is released")
}

#[tokio::test]
async fn open_sockets_hold_their_slots_and_the_third_gets_429() {
    let (server, layer) = sockets().await;
    let (first, closing) = open_socket(server).await;
    let (second, vanishing) = open_socket(server).await;
    assert_eq!([first.as_str(), &second], ["101", "101"]);
    for _ in 0..3 {
        assert_eq!(open_socket(server).await.0, "429");
    }
    // The client closes: a masked close frame without a reason.
    let mut closing = closing;
    send(&mut closing, "\u{8}").await;
    drop(closing);
    let third = until_admitted(server).await;
    assert_eq!(open_socket(server).await.0, "429");
    // It vanishes: its connection is reset.
    vanishing.set_zero_linger().expect("it is open");
    drop(vanishing);
    let fourth = until_admitted(server).await;
    assert_eq!(open_socket(server).await.0, "429");
    drop((third, fourth));
    assert_eq!(layer.warnings().iter().map(Warning::code).count(), 0);
}

#[tokio::test]
async fn tunnel_by_connect_holds_its_slot() {
    let layer = layer(slots().key(Global));
    let held = Arc::new(Mutex::new(None));
    let holding = Arc::clone(&held);
    let service = layer.layer(service_fn(move |request: Request<Body>| {
        let hold = RequestHold::from_extensions(request.extensions());
        *holding.lock().expect("nobody panics with it") = hold;
        async { Ok::<_, Infallible>(Response::new(Body::empty())) }
    }));
    let request = Request::builder().method(Method::CONNECT).uri("test:443");
    let request = request.body(Body::empty()).expect("a request");
    let Ok(response) = service.oneshot(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    assert_eq!(free(layer.limiter()).await, 1);
    assert!(layer.warnings().is_empty(), "{:?}", layer.warnings());
    *held.lock().expect("nobody panics with it") = None;
    until_free(layer.limiter(), 2).await;
}

// === What a handler does with it ===

/// Sends a request to a handler that gets the hold. Returns the response.
async fn ask<F>(layer: &RateLimitLayer, handler: F) -> http::Response<impl http_body::Body>
where
    F: Fn(RequestHold) -> Response + Clone,
{
    let service = layer.layer(service_fn(move |request: Request<Body>| {
        let hold = RequestHold::from_extensions(request.extensions());
        let response = handler(hold.expect("the layer has slots"));
        async { Ok::<_, Infallible>(response) }
    }));
    let Ok(response) = service.oneshot(Request::new(Body::empty())).await;
    response
}

fn empty() -> Response {
    Response::new(Body::empty())
}

#[tokio::test]
async fn slot_is_held_until_the_last_clone_is_dropped() {
    let layer = layer(slots().key(Global));
    let (keep, mut kept) = oneshot::channel();
    let keep = Arc::new(Mutex::new(Some(keep)));
    let response = ask(&layer, move |hold| {
        let keep = keep.lock().expect("nobody panics with it").take();
        assert!(
            keep.expect("one request")
                .send((hold.clone(), hold))
                .is_ok()
        );
        empty()
    });
    drop(response.await);
    let (hold, clone) = kept.try_recv().expect("the handler has run");
    assert_eq!(free(layer.limiter()).await, 1);
    drop(hold);
    assert_eq!(free(layer.limiter()).await, 1);
    drop(clone);
    until_free(layer.limiter(), 2).await;
}

#[tokio::test]
async fn hold_that_is_dropped_before_the_response_ends_changes_nothing() {
    let layer = layer(slots().key(Global));
    let response = ask(&layer, |hold| {
        drop(hold);
        empty()
    });
    let response = response.await;
    assert_eq!(free(layer.limiter()).await, 1, "the body has not ended");
    drop(response);
    until_free(layer.limiter(), 2).await;
}

#[tokio::test]
async fn request_that_is_kept_holds_nothing() {
    let layer = layer(slots().key(Global));
    let kept = Arc::new(Mutex::new(None));
    let keeping = Arc::clone(&kept);
    let service = layer.layer(service_fn(move |request: Request<Body>| {
        *keeping.lock().expect("nobody panics with it") = Some(request);
        async { Ok::<_, Infallible>(empty()) }
    }));
    let Ok(response) = service.oneshot(Request::new(Body::empty())).await;
    drop(response);
    until_free(layer.limiter(), 2).await;
    let request = kept.lock().expect("nobody panics with it").take();
    let late = RequestHold::from_extensions(request.expect("kept").extensions());
    assert!(late.is_some());
    assert_eq!(free(layer.limiter()).await, 2, "it comes too late");
}

#[tokio::test]
async fn handler_that_panics_with_it_releases_the_slot() {
    let layer = layer(slots().key(Global));
    let service = layer.layer(service_fn(|request: Request<Body>| async move {
        let _hold = RequestHold::from_extensions(request.extensions());
        panic::resume_unwind(Box::new("it fails"));
        #[expect(unreachable_code, reason = "it is the type of the response")]
        Ok::<_, Infallible>(empty())
    }));
    let asked = service.oneshot(Request::new(Body::empty()));
    let panicked = panic::AssertUnwindSafe(asked).catch_unwind().await;
    assert!(panicked.is_err());
    until_free(layer.limiter(), 2).await;
}

#[tokio::test]
async fn task_that_panics_with_it_releases_the_slot() {
    let layer = layer(slots().key(Global));
    let (end, ended) = oneshot::channel::<()>();
    let ended = Arc::new(Mutex::new(Some(ended)));
    let response = ask(&layer, move |hold| {
        let ended = ended.lock().expect("nobody panics with it").take();
        tokio::spawn(async move {
            let _hold = hold;
            let _ = ended.expect("one request").await;
            panic::resume_unwind(Box::new("it fails"));
        });
        empty()
    });
    drop(response.await);
    assert_eq!(free(layer.limiter()).await, 1);
    drop(end);
    until_free(layer.limiter(), 2).await;
}

#[tokio::test]
async fn client_that_leaves_does_not_end_what_a_task_holds() {
    let layer = layer(slots().key(Global));
    let kept = Arc::new(Mutex::new(None));
    let keeping = Arc::clone(&kept);
    let mut service = layer.layer(service_fn(move |request: Request<Body>| {
        *keeping.lock().expect("nobody panics with it") =
            RequestHold::from_extensions(request.extensions());
        std::future::pending::<Result<Response, Infallible>>()
    }));
    let mut asked = Box::pin(service.call(Request::new(Body::empty())));
    assert!(asked.as_mut().now_or_never().is_none());
    drop(asked);
    assert_eq!(free(layer.limiter()).await, 1);
    drop(kept.lock().expect("nobody panics with it").take());
    until_free(layer.limiter(), 2).await;
}

// === Several layers, closures and costs ===

#[tokio::test]
async fn slots_of_all_layers_are_held() {
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let of = |name| {
        let rule = Policy::concurrency(name, 2).key(Global);
        let builder = RateLimitLayer::builder().limiter(&limiter);
        builder.policy(rule).build().expect("it is well set up")
    };
    let free = async |name| {
        let policy = Policy::concurrency(name, 2);
        let peeked = limiter.peek(policy.charge(Key::GLOBAL)).await;
        peeked.expect("it is in process").remaining()
    };
    let kept = Arc::new(Mutex::new(None));
    let keeping = Arc::clone(&kept);
    let inner = service_fn(move |request: Request<Body>| {
        *keeping.lock().expect("nobody panics with it") =
            RequestHold::from_extensions(request.extensions());
        async { Ok::<_, Infallible>(empty()) }
    });
    let service = of("outer").layer(of("inner").layer(inner));
    let Ok(response) = service.oneshot(Request::new(Body::empty())).await;
    drop(response);
    assert_eq!(
        [free("outer").await, free("inner").await],
        [Some(1), Some(1)]
    );
    drop(kept.lock().expect("nobody panics with it").take());
    assert_eq!(
        [free("outer").await, free("inner").await],
        [Some(2), Some(2)]
    );
}

#[tokio::test]
async fn closure_is_called_once_and_with_the_cost_that_was_set_at_the_end() {
    let called = Arc::new(AtomicU32::new(0));
    let calling = Arc::clone(&called);
    let bytes = Policy::new("bytes", Quota::per_hour(1_000));
    let rule = bytes.clone().cost(100).key(Global);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&outcomes);
    let other = Policy::new("other", Quota::per_hour(1_000)).key(Global);
    let layer = RateLimitLayer::builder()
        .policy(slots().key(Global))
        .policy(rule.settle(|request: &CompletedRequest<'_>| request.charged))
        .policy(other.settle(move |request: &CompletedRequest<'_>| {
            calling.fetch_add(1, Ordering::Relaxed);
            if let RequestOutcome::Responded { status, .. } = request.outcome {
                seen.lock().expect("nobody panics with it").push(status);
            }
            request.charged
        }))
        .build()
        .expect("it is well set up");
    let kept = Arc::new(Mutex::new(None));
    let keeping = Arc::clone(&kept);
    let service = layer.layer(service_fn(move |request: Request<Body>| {
        let extensions = request.extensions();
        let hold = RequestHold::from_extensions(extensions);
        *keeping.lock().expect("nobody panics with it") =
            Some((hold, ActualCost::from_extensions(extensions)));
        let mut response = empty();
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        async { Ok::<_, Infallible>(response) }
    }));
    let Ok(response) = service.oneshot(Request::new(Body::empty())).await;
    drop(response);
    let remaining = async || {
        let peeked = layer.limiter().peek(bytes.charge(Key::GLOBAL)).await;
        peeked.expect("it is in process").remaining()
    };
    assert_eq!(
        (called.load(Ordering::Relaxed), remaining().await),
        (0, Some(900))
    );
    let (hold, cost) = kept
        .lock()
        .expect("nobody panics with it")
        .take()
        .expect("the handler has run");
    cost.expect("a rule settles").set("bytes", 7);
    drop(hold);
    assert_eq!(
        (called.load(Ordering::Relaxed), remaining().await),
        (1, Some(993))
    );
    let outcomes = outcomes.lock().expect("nobody panics with it");
    assert_eq!(*outcomes, [StatusCode::SWITCHING_PROTOCOLS]);
    assert!(layer.warnings().is_empty(), "{:?}", layer.warnings());
}

#[tokio::test]
async fn hold_is_there_although_no_rule_counts_the_request() {
    let layer = layer(
        slots()
            .key(Global)
            .when(|_: &tollgate::RequestHead<'_>| false),
    );
    assert_eq!(drop(ask(&layer, |_| empty()).await), ());
    layer.set_mode(RuleMode::Off);
    assert_eq!(drop(ask(&layer, |_| empty()).await), ());
    let rate = Policy::new("rate", Quota::per_minute(9));
    let without = RateLimitLayer::builder().policy(rate.key(Global)).build();
    let without = without.expect("it is well set up");
    let service = without.layer(service_fn(async |request: Request<Body>| {
        assert!(RequestHold::from_extensions(request.extensions()).is_none());
        Ok::<_, Infallible>(empty())
    }));
    let Ok(response) = service.oneshot(Request::new(Body::empty())).await;
    assert_eq!(response.status(), StatusCode::OK);
}
