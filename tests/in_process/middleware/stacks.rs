//! The stacks that the layer stands in: what their handlers and outer layers see, and that it fits.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    middleware::{from_fn, map_response},
    routing::get,
};
use http::{Request, Response, StatusCode};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::net::TcpListener;
use tollgate::{
    Decision, Policy, Quota, RateLimitLayer, RateLimiter,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, PolicyState},
    extract::{Global, Header, PeerIp, Route},
    matching::PathPattern,
    middleware::{ActualCost, RateLimit, RateLimitInfo, ResponseBody, ResponseFuture},
    rejection::{Reason, Rejection},
    rules::{CompletedRequest, OnMissingKey},
    store::StoreFuture,
    testing::ScriptedStore,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::trace::TraceLayer;

use crate::support::{Client, logged};

// === RateLimitInfo ===

#[tokio::test]
async fn handler_reads_what_is_left() {
    let app = Router::new()
        .route("/", get(tell))
        .layer(limit("p", 10, Global));
    assert_eq!(
        text(&app, "/").await,
        (
            200,
            "limit 10, remaining 9, by InProcess, degraded false".to_owned()
        )
    );
}

async fn tell(info: RateLimitInfo) -> String {
    assert!(info.reset_at() > Some(Timestamp::from_micros(0)));
    let after = info.reset_after().expect("it is counted");
    assert!(after.as_secs() <= 6 && !after.is_zero(), "{after:?}");
    assert_eq!(info.states().count(), 1);
    assert_eq!(info.state("p"), info.narrowest());
    assert_eq!(info.state("q"), None);
    format!(
        "limit {}, remaining {}, by {:?}, degraded {}",
        info.limit().expect("it is counted"),
        info.remaining().expect("it is counted"),
        info.counted_by().expect("it is counted"),
        info.is_degraded()
    )
}

#[tokio::test]
async fn decision_that_is_not_exposed_is_in_no_extension_and_limits_all_the_same() {
    let info = async |request: Request<Body>| {
        let (parts, _) = request.into_parts();
        assert!(parts.extensions.get::<Decision>().is_none());
        let info = RateLimitInfo::from_extensions(&parts.extensions);
        assert_eq!(info, None);
    };
    let limit = RateLimitLayer::builder()
        .policy(Policy::new("p", Quota::per_minute(1)).key(Global))
        .skip(PathPattern::new("/skipped"))
        .expose_decision(false);
    let app = Router::new().fallback(info);
    let app = app.layer(limit.build().expect("it is well set up"));
    assert_eq!(text(&app, "/").await.0, 200);
    assert_eq!(text(&app, "/").await.0, 429);
    assert_eq!(text(&app, "/skipped").await.0, 200);
}

#[tokio::test]
async fn handler_without_a_layer_responds_500_and_logs_the_remedy() {
    logged();
    let app = Router::new().route("/", get(async |_: RateLimitInfo| "never"));
    let said = "no RateLimitLayer around this route exposes its decision: add one, or extract Option<RateLimitInfo>";
    for _ in 0..3 {
        let answer = text(&app, "/").await;
        assert_eq!(answer, (500, INTERNAL_ERROR.to_owned()));
    }
    let lines = logged();
    let [line] = lines.as_slice() else {
        panic!("it is said once: {lines:?}");
    };
    assert!(line.contains("WARN") && line.contains(said), "{line}");
}

// Regression: the response named a type of this crate.
#[tokio::test]
async fn handler_that_sets_a_cost_without_a_settling_rule_is_500_and_the_log_names_the_remedy() {
    logged();
    let handler = get(async |_: ActualCost| "never");
    let around = Router::new()
        .route("/", handler.clone())
        .layer(limit("p", 10, Global));
    for app in [Router::new().route("/", handler), around] {
        let answer = text(&app, "/").await;
        assert_eq!(answer, (500, INTERNAL_ERROR.to_owned()));
    }
    let lines = logged();
    let [line] = lines.as_slice() else {
        panic!("it is logged once: {lines:?}");
    };
    assert!(
        line.contains("WARN") && line.contains("settle_by_handler()"),
        "{line}"
    );
}

#[tokio::test]
async fn handler_may_do_without_a_settling_rule() {
    let seen = async |cost: Option<ActualCost>| format!("{}", cost.is_some());
    let rule = Policy::new("p", Quota::per_minute(10)).key(Global);
    let settled = RateLimitLayer::builder()
        .policy(rule.settle(|request: &CompletedRequest<'_>| request.charged));
    let app = Router::new()
        .route("/settled", get(seen))
        .route_layer(settled.build().expect("it is well set up"))
        .route("/other", get(seen));
    assert_eq!(text(&app, "/settled").await, (200, "true".to_owned()));
    assert_eq!(text(&app, "/other").await, (200, "false".to_owned()));
}

#[tokio::test]
async fn handler_may_do_without_a_layer() {
    let seen = async |info: Option<RateLimitInfo>| format!("{}", info.is_some());
    let app = Router::new()
        .route("/limited", get(seen))
        .route_layer(limit("p", 10, Global))
        .route("/free", get(seen));
    assert_eq!(text(&app, "/limited").await, (200, "true".to_owned()));
    assert_eq!(text(&app, "/free").await, (200, "false".to_owned()));
}

#[tokio::test]
async fn handler_whose_request_no_rule_counted_gets_an_empty_info() {
    let rule = Policy::new("p", Quota::per_minute(1)).key(Header::new("x-tenant"));
    let layer = RateLimitLayer::builder().policy(rule.on_missing_key(OnMissingKey::Skip));
    let layer = layer.build().expect("it is well set up");
    let seen = async |info: RateLimitInfo| {
        assert_eq!(info.decisions(), []);
        assert_eq!((info.limit(), info.remaining()), (None, None));
        assert_eq!((info.reset_at(), info.reset_after()), (None, None));
        assert_eq!(info.counted_by(), None);
        assert!(!info.is_degraded());
        "uncounted"
    };
    let app = Router::new().route("/", get(seen)).layer(layer);
    assert_eq!(text(&app, "/").await, (200, "uncounted".to_owned()));
}

#[tokio::test]
async fn handler_sees_the_decisions_of_all_layers_and_the_narrowest_policy() {
    let seen = async |info: RateLimitInfo| {
        let names: Vec<_> = info.states().map(|state| state.policy().as_str()).collect();
        let narrowest = info.narrowest().expect("it is counted");
        format!("{names:?} {} {:?}", narrowest.policy(), info.remaining())
    };
    let app = Router::new()
        .route("/", get(seen))
        .layer(limit("inner", 30, Global))
        .layer(limit("between", 10, Global))
        .layer(limit("outer", 20, Global));
    let said = r#"["inner", "between", "outer"] between Some(9)"#;
    assert_eq!(text(&app, "/").await, (200, said.to_owned()));
}

#[tokio::test]
async fn handler_sees_the_rate_before_the_free_slots() {
    let slots = RateLimitLayer::builder().policy(Policy::concurrency("slots", 2).key(Global));
    let seen = async |info: RateLimitInfo| format!("{:?} of {:?}", info.remaining(), info.limit());
    let app = Router::new()
        .route("/", get(seen))
        .layer(slots.build().expect("it is well set up"))
        .layer(limit("outer", 60, Global));
    assert_eq!(
        text(&app, "/").await,
        (200, "Some(59) of Some(60)".to_owned())
    );
}

#[tokio::test]
async fn inner_layer_that_does_not_count_leaves_the_outer_decision() {
    let rule = Policy::new("inner", Quota::per_minute(1)).key(Header::new("x-tenant"));
    let inner = RateLimitLayer::builder().policy(rule.on_missing_key(OnMissingKey::Skip));
    let app = Router::new()
        .route(
            "/",
            get(async |info: RateLimitInfo| format!("{:?}", info.remaining())),
        )
        .layer(inner.build().expect("it is well set up"))
        .layer(limit("outer", 20, Global));
    assert_eq!(text(&app, "/").await, (200, "Some(19)".to_owned()));
}

#[tokio::test]
async fn handler_sees_that_the_shared_store_is_away() {
    for (counted_by, is_degraded) in [
        (CountedBy::Fallback, true),
        (CountedBy::Uncounted, true),
        (CountedBy::Shared, false),
    ] {
        let store = ScriptedStore::new(move |charges| {
            let names = charges.iter().map(|charge| *charge.policy().name());
            let states = names.map(|name| PolicyState::uncounted(name, Outcome::Allowed));
            let now = Timestamp::from_micros(1_700_000_000_000_000);
            StoreFuture::ready(Ok(Decision::new(counted_by, now, states)))
        });
        let limiter = RateLimiter::new(store, []).expect("it is well set up");
        let layer = RateLimitLayer::builder()
            .policy(Policy::new("p", Quota::per_minute(1)).key(Global))
            .limiter(&limiter);
        let layer = layer.build().expect("it is well set up");
        let seen = async |info: RateLimitInfo| {
            assert_eq!(info.limit(), None, "nothing is made up");
            format!("{:?} {}", info.counted_by(), info.is_degraded())
        };
        let app = Router::new().route("/", get(seen)).layer(layer);
        let said = format!("Some({counted_by:?}) {is_degraded}");
        assert_eq!(text(&app, "/").await, (200, said));
    }
}

#[tokio::test]
async fn info_is_there_without_axum() {
    let inner = service_fn(async |request: Request<Bare>| {
        let info = RateLimitInfo::from_extensions(request.extensions());
        assert_eq!(info.and_then(|info| info.remaining()), Some(4));
        Ok::<_, Infallible>(Response::new(Bare))
    });
    let service = limit("p", 5, Global).layer(inner);
    let answer = service.oneshot(Request::new(Bare)).await;
    assert_eq!(answer.map(|answer| answer.status()), Ok(StatusCode::OK));
    assert_eq!(
        RateLimitInfo::from_extensions(&http::Extensions::new()),
        None
    );
}

// === Rejections ===

#[tokio::test]
async fn layers_around_see_who_was_refused_and_why() {
    let traced = Arc::new(Mutex::new(Vec::new()));
    let mapped = Arc::clone(&traced);
    let tracing = Arc::clone(&traced);
    let note = move |seen: &Mutex<Vec<String>>, who: &str, extensions: &http::Extensions| {
        let rejection = extensions.get::<Rejection>();
        let reason = rejection.map(|rejection| match rejection.reason() {
            Reason::Limited { policy } => policy.to_string(),
            other => format!("{other:?}"),
        });
        let reason = reason.unwrap_or_else(|| "passed".to_owned());
        seen.lock()
            .expect("no panic")
            .push(format!("{who}: {reason}"));
    };
    let trace = TraceLayer::new_for_http().on_response(
        move |response: &Response<Body>, _: std::time::Duration, _: &tracing::Span| {
            note(&tracing, "trace", response.extensions());
        },
    );
    let app = Router::new()
        .route("/", get(async || "fine"))
        .layer(limit("p", 1, Global))
        .layer(trace)
        .layer(map_response(move |response: Response<Body>| {
            note(&mapped, "map", response.extensions());
            async { response }
        }));
    assert_eq!(text(&app, "/").await.0, 200);
    assert_eq!(text(&app, "/").await.0, 429);
    let seen = traced.lock().expect("no panic");
    assert_eq!(
        *seen,
        ["trace: passed", "map: passed", "trace: p", "map: p"]
    );
}

// === Servers ===

#[tokio::test]
async fn nested_routers_route_layers_and_service_builders_over_a_socket() {
    let admin = Router::new()
        .route("/users/{id}", get(async || "user"))
        .route_layer(limit("admin", 2, Route))
        .route("/open", get(async || "open"));
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(limit("per-ip", 6, PeerIp))
        .layer(from_fn(async |request, next: axum::middleware::Next| {
            next.run(request).await
        }));
    let app = Router::new()
        .nest("/admin", admin)
        .layer(stack)
        .route("/health", get(async || "health"));
    let listener = TcpListener::bind(LOOPBACK).await.expect("a free port");
    let server = listener.local_addr().expect("it is bound");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, service).into_future());

    let mut client = Client::connect(server).await;
    let mut statuses = Vec::new();
    for path in [
        "/admin/users/1",
        "/admin/users/2",
        "/admin/users/3", // the route's third
        "/admin/open",
        "/admin/nowhere", // counted by address, not by the route layer
        "/admin/open",
        "/admin/open", // the address' seventh
        "/health",
    ] {
        statuses.push(client.get(path).await.status);
    }
    assert_eq!(statuses, [200, 200, 429, 200, 404, 200, 429, 200]);
}

#[tokio::test]
async fn hyper_serves_the_layer_without_a_framework() {
    let layer = limit("per-ip", 2, PeerIp);
    let listener = TcpListener::bind(LOOPBACK).await.expect("a free port");
    let server = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<hyper::body::Incoming>| {
                    request.extensions_mut().insert::<SocketAddr>(peer);
                    request
                })
                .layer(layer.clone())
                .service(service_fn(async |_| {
                    Ok::<_, Infallible>(Response::new("fine".to_owned()))
                }));
            let service = TowerToHyperService::new(service);
            let stream = TokioIo::new(stream);
            tokio::spawn(http1::Builder::new().serve_connection(stream, service));
        }
    });
    let mut client = Client::connect(server).await;
    let first = client.get("/").await;
    assert_eq!((first.status, first.body.as_str()), (200, "fine"));
    // the count belongs to the address and not to the connection
    let mut another = Client::connect(server).await;
    assert_eq!(
        another.get("/").await.header("x-ratelimit-remaining"),
        Some("0")
    );
    let denied = client.get("/").await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("30"));
}

#[tokio::test]
async fn service_is_called_as_serverless_runtimes_do() {
    // one event at a time, by a clone of its own, not polled ready before
    let layer = limit("p", 2, Global);
    let handler = service_fn(async |_: Request<Bare>| Ok::<_, Odd>(Response::new(Bare)));
    let service = layer.layer(handler);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let answer = service.clone().call(Request::new(Bare)).await;
        statuses.push(answer.map_err(drop).map(|answer| answer.status().as_u16()));
    }
    assert_eq!(statuses, [Ok(200), Ok(200), Ok(429)]);
}

// === Time ===

#[tokio::test(start_paused = true)]
async fn paused_time_of_tokio_moves_no_limit_and_a_manual_clock_does() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let policy = || Policy::new("p", Quota::per_minute(1)).key(Global);
    let manual = RateLimitLayer::builder()
        .policy(policy())
        .clock(clock.clone());
    let manual = manual.build().expect("it is well set up");
    let app = |layer| Router::new().route("/", get(async || "fine")).layer(layer);
    let (system, manual) = (app(limit("p", 1, Global)), app(manual));
    for app in [&system, &manual] {
        assert_eq!(text(app, "/").await.0, 200);
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(text(app, "/").await.0, 429);
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(text(&system, "/").await.0, 429);
    assert_eq!(text(&manual, "/").await.0, 200);
}

// === Types ===

/// A body that is nothing else: no `Default`, no `Debug`, no `Clone`.
struct Bare;

/// An error that is no `Error`, and stays on its thread.
struct Odd(#[expect(dead_code, reason = "it makes the type what it is")] *const u8);

struct Application {
    layer: RateLimitLayer,
    service: RateLimit<Router>,
}

#[test]
fn layer_and_service_can_be_struct_fields_without_parameters() {
    let layer = limit("p", 1, Global);
    let service = layer.layer(Router::new());
    let application = Application { layer, service };
    assert!(!format!("{:?}", application.layer).is_empty());
    assert!(!format!("{:?}", application.service).is_empty());
}

#[test]
fn service_asks_nothing_of_bodies_and_errors() {
    fn is_service<
        S: Service<Request<Bare>, Response = Response<ResponseBody<Bare>>, Error = Odd>,
    >(
        _: &S,
    ) {
    }
    fn is_debug<T: std::fmt::Debug>(_: &T) {}
    let handler = service_fn(|_: Request<Bare>| {
        std::future::ready(Err::<Response<Bare>, _>(Odd(std::ptr::null())))
    });
    let mut service = limit("p", 1, Global).layer(handler);
    is_service(&service);
    let future = service.call(Request::new(Bare));
    is_debug(&future);
    let mut future = pin!(future);
    let polled = future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(Odd(_)))));
}

#[test]
fn future_can_go_to_another_thread_when_what_it_holds_can() {
    fn is_send<T: Send>() {}
    is_send::<ResponseFuture<Router, Body>>();
    is_send::<RateLimitLayer>();
    is_send::<RateLimitInfo>();
}

// === Helpers ===

fn limit(name: &str, count: u64, key: impl tollgate::extract::KeyExtractor) -> RateLimitLayer {
    let layer =
        RateLimitLayer::builder().policy(Policy::new(name, Quota::per_minute(count)).key(key));
    layer.build().expect("it is well set up")
}

async fn text(app: &Router, path: &str) -> (u16, String) {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let Ok(response) = app.clone().oneshot(request).await;
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 10_000).await;
    let body = body.expect("it has a body").to_vec();
    (status, String::from_utf8(body).expect("it is text"))
}

const LOOPBACK: (&str, u16) = ("127.0.0.1", 0);

const INTERNAL_ERROR: &str =
    r#"{"error":"internal_error","message":"internal server error","retry_after":null}"#;
