//! The contract with Tower and axum: who is called, when, with what, and what comes back.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt::Debug,
    future::{self, Future},
    panic,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt;
use proptest::prelude::*;
use tokio::time;
use tollgate::{
    Charge, Decision, Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    RequestHead,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, PolicyState, Retry, Usage},
    extract::{Global, Header},
    headers::Headers,
    middleware::ResponseBody,
    rejection::{Reason, Rejection},
    rules::OnMissingKey,
    store::{Store, StoreFuture},
    testing::{PendingDecision, ScriptedStore},
};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    buffer::{Buffer, BufferLayer},
    limit::{ConcurrencyLimit, ConcurrencyLimitLayer},
    load_shed::{LoadShed, LoadShedLayer},
    service_fn,
    timeout::{Timeout, TimeoutLayer, error::Elapsed},
};
use tower_test::mock::{self, Handle, Mock, SendResponse};

// === Readiness ===

// Reproducer for the way of most peers: clone the inner service, call the clone.
#[tokio::test]
async fn inner_service_that_was_polled_ready_is_the_one_called() {
    for pace in PACES {
        let (inner, mut handle) = mock();
        let mut service = scripted(Verdict::Allow, pace).layer(inner);
        for _ in 0..3 {
            assert!(poll_ready(&mut service).is_ready());
            let mut future = pin!(service.call(request()));
            let (_, answer) = called_by(future.as_mut(), &mut handle);
            answer.send_response(Response::new(Opaque::text("inner")));
            let response = future.await.expect("it answers");
            assert_eq!(text(response).await, "inner");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn middleware_that_reserves_when_ready_can_stand_inside() {
    for pace in PACES {
        let layer = scripted(Verdict::Allow, pace);
        assert_eq!(
            answer_of(layer.layer(ConcurrencyLimit::new(Echo, 1))).await,
            "echo"
        );
        assert_eq!(answer_of(layer.layer(Buffer::new(Echo, 1))).await, "echo");
        // an unready clone would shed: no error, no permit, just 503 for ever
        assert_eq!(
            answer_of(layer.layer(LoadShed::new(ConcurrencyLimit::new(Echo, 1)))).await,
            "echo"
        );
        assert_eq!(
            answer_of(layer.layer(Timeout::new(Echo, PATIENCE))).await,
            "echo"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn layer_can_stand_inside_of_other_middleware() {
    for pace in PACES {
        for (verdict, status) in [
            (Verdict::Allow, StatusCode::OK),
            (Verdict::Deny, StatusCode::TOO_MANY_REQUESTS),
        ] {
            let service = ServiceBuilder::new()
                .layer(BufferLayer::new(4))
                .layer(LoadShedLayer::new())
                .layer(ConcurrencyLimitLayer::new(1))
                .layer(TimeoutLayer::new(PATIENCE))
                .layer(scripted(verdict, pace))
                .service(Echo);
            for _ in 0..3 {
                let response = in_time(service.clone().oneshot(request())).await;
                assert_eq!(response.expect("it answers").status(), status);
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_charged_while_the_inner_service_is_not_ready() {
    let (inner, mut handle) = mock();
    let layer = everybody(Quota::per_minute(1));
    let mut service = layer.layer(inner);
    handle.allow(0);
    assert!(poll_ready(&mut service).is_pending());
    assert_eq!(remaining(&layer, &everybody_policy(1)).await, 1);
    handle.allow(1);
    assert!(poll_ready(&mut service).is_ready());
}

#[test]
fn two_requests_can_wait_for_decisions_at_once_and_end_in_any_order() {
    let store = ScriptedStore::pending();
    let (inner, mut handle) = mock();
    let mut service = over(store.clone()).layer(inner);

    assert!(poll_ready(&mut service).is_ready());
    let mut first = pin!(service.call(request_for("first")));
    assert!(poll_ready(&mut service).is_ready());
    let mut second = pin!(service.call(request_for("second")));
    let (first_verdict, second_verdict) = (question(&store), question(&store));

    give(second_verdict, Verdict::Allow);
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(called_for(&mut handle), Some("second".to_owned()));
    give(first_verdict, Verdict::Allow);
    assert!(poll(first.as_mut()).is_pending());
    assert_eq!(called_for(&mut handle), Some("first".to_owned()));
}

// === Before the decision ===

#[test]
fn inner_service_is_not_called_before_the_decision_is_there() {
    let store = ScriptedStore::pending();
    let (inner, mut handle) = mock();
    let mut service = over(store.clone()).layer(inner);
    assert!(poll_ready(&mut service).is_ready());
    let mut future = pin!(service.call(request()));
    for _ in 0..3 {
        assert!(poll(future.as_mut()).is_pending());
        assert_eq!(called_for(&mut handle), None);
    }
    give(question(&store), Verdict::Allow);
    assert!(poll(future.as_mut()).is_pending());
    assert!(handle.poll_request().is_ready());
}

#[test]
fn future_is_woken_by_the_decision_and_then_by_the_inner_service() {
    let alarm = Arc::new(Alarm::default());
    let waker = Waker::from(Arc::clone(&alarm));
    let context = &mut Context::from_waker(&waker);
    let store = ScriptedStore::pending();
    let (inner, mut handle) = mock();
    let mut service = over(store.clone()).layer(inner);
    assert!(poll_ready(&mut service).is_ready());
    let mut future = pin!(service.call(request()));

    assert!(future.as_mut().poll(context).is_pending());
    assert!(!alarm.rang());
    give(question(&store), Verdict::Allow);
    assert!(alarm.rang());
    assert!(future.as_mut().poll(context).is_pending());
    let Poll::Ready(Some((_, answer))) = handle.poll_request() else {
        panic!("it is called");
    };
    assert!(!alarm.rang());
    answer.send_response(Response::new(Opaque::text("inner")));
    assert!(alarm.rang());
    assert!(future.as_mut().poll(context).is_ready());
}

/// Tells whether it was woken since it was last asked.
#[derive(Default)]
struct Alarm(AtomicBool);

impl Alarm {
    fn rang(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_around_ends_a_decision_that_never_comes() {
    let store = ScriptedStore::pending();
    let (inner, mut handle) = mock();
    let limited = over(store.clone()).layer(ConcurrencyLimit::new(inner, 1));
    let mut other = limited.clone();
    let error = Timeout::new(limited, PATIENCE)
        .oneshot(request())
        .await
        .err()
        .expect("it takes too long");
    assert!(error.is::<Elapsed>());
    assert!(question(&store).is_abandoned());
    assert!(poll_ready(&mut other).is_ready());
    assert_eq!(called_for(&mut handle), None);
}

#[tokio::test(start_paused = true)]
async fn timeout_inside_passes_its_error_on() {
    for pace in PACES {
        let (inner, mut handle) = mock();
        let mut service = scripted(Verdict::Allow, pace).layer(Timeout::new(inner, PATIENCE));
        assert!(poll_ready(&mut service).is_ready());
        let answered = service.call(request()).await;
        let error = answered.err().expect("nobody answers");
        assert!(error.is::<Elapsed>());
        assert!(handle.poll_request().is_ready());
    }
}

// === Denials ===

#[test]
fn denied_request_does_not_reach_the_inner_service() {
    for pace in PACES {
        for verdict in REFUSALS {
            let (inner, mut handle) = mock();
            let response = answer(&mut scripted(verdict, pace).layer(inner), request());
            assert_eq!(response.status(), verdict.status(), "{verdict:?} {pace:?}");
            assert_eq!(called_for(&mut handle), None, "{verdict:?} {pace:?}");
        }
    }
}

#[test]
fn denial_gives_back_the_permit_of_a_concurrency_limit() {
    for pace in PACES {
        for verdict in REFUSALS {
            let (inner, _handle) = mock();
            let mut service = scripted(verdict, pace).layer(ConcurrencyLimit::new(inner, 1));
            let mut other = service.clone();
            assert!(poll_ready(&mut service).is_ready());
            assert!(poll_ready(&mut other).is_pending());
            let response = answer(&mut service, request());
            assert_eq!(response.status(), verdict.status());
            assert!(poll_ready(&mut other).is_ready(), "{verdict:?} {pace:?}");
        }
    }
}

#[tokio::test]
async fn denial_gives_back_the_place_in_a_buffer() {
    for pace in PACES {
        for verdict in REFUSALS {
            let (inner, _handle) = mock();
            let mut service = scripted(verdict, pace).layer(Buffer::new(inner, 1));
            let mut other = service.clone();
            assert!(poll_ready(&mut service).is_ready());
            assert!(poll_ready(&mut other).is_pending());
            let response = answer(&mut service, request());
            assert_eq!(response.status(), verdict.status());
            assert!(poll_ready(&mut other).is_ready(), "{verdict:?} {pace:?}");
        }
    }
}

#[test]
fn missing_key_gives_back_what_was_reserved() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("tenant", Quota::per_minute(1)).key(Header::new("x-tenant")))
        .build()
        .expect("it is well set up");
    let (inner, mut handle) = mock();
    let mut service = layer.layer(ConcurrencyLimit::new(inner, 1));
    let mut other = service.clone();
    assert!(poll_ready(&mut service).is_ready());
    let response = answer(&mut service, request());
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(poll_ready(&mut other).is_ready());
    assert_eq!(called_for(&mut handle), None);
}

#[test]
fn service_can_be_used_again_after_a_denial() {
    for pace in PACES {
        let (inner, _handle) = mock();
        let mut service = scripted(Verdict::Deny, pace).layer(ConcurrencyLimit::new(inner, 1));
        for _ in 0..3 {
            assert!(poll_ready(&mut service).is_ready(), "{pace:?}");
            let response = answer(&mut service, request());
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        }
    }
}

// === Cancellation ===

#[test]
fn future_dropped_before_its_first_poll_leaks_no_permit() {
    for pace in PACES {
        for verdict in [Verdict::Allow, Verdict::Deny] {
            let (inner, _handle) = mock();
            let mut service = scripted(verdict, pace).layer(ConcurrencyLimit::new(inner, 1));
            let mut other = service.clone();
            assert!(poll_ready(&mut service).is_ready());
            drop(service.call(request()));
            assert!(poll_ready(&mut other).is_ready(), "{verdict:?} {pace:?}");
        }
    }
}

#[test]
fn future_dropped_while_deciding_does_not_call_the_service_or_leak_a_permit() {
    let store = ScriptedStore::pending();
    let (inner, mut handle) = mock();
    let mut service = over(store.clone()).layer(ConcurrencyLimit::new(inner, 1));
    let mut other = service.clone();
    assert!(poll_ready(&mut service).is_ready());
    let mut future = Box::pin(service.call(request()));
    assert!(poll(future.as_mut()).is_pending());
    assert!(poll_ready(&mut other).is_pending());
    drop(future);
    assert!(poll_ready(&mut other).is_ready());
    assert_eq!(called_for(&mut handle), None);
    // and the store knows that nobody waits for it
    assert!(question(&store).is_abandoned());
}

#[test]
fn future_dropped_while_the_inner_service_works_leaks_no_permit() {
    for pace in PACES {
        let (inner, mut handle) = mock();
        let mut service = scripted(Verdict::Allow, pace).layer(ConcurrencyLimit::new(inner, 1));
        let mut other = service.clone();
        assert!(poll_ready(&mut service).is_ready());
        let mut future = Box::pin(service.call(request()));
        let _called = called_by(future.as_mut(), &mut handle);
        assert!(poll_ready(&mut other).is_pending());
        drop(future);
        assert!(poll_ready(&mut other).is_ready(), "{pace:?}");
    }
}

// === Panics ===

#[tokio::test]
async fn panic_in_the_handler_leaves_the_limit_at_work() {
    let app = Router::new()
        .route("/", get(async || "fine"))
        .route("/broken", get(async || -> () { panic!("on purpose") }))
        .layer(everybody(Quota::per_minute(3)));
    assert!(panics(app.clone().oneshot(path("/broken"))).await);
    let response = app.clone().oneshot(path("/")).await.expect("infallible");
    assert_eq!(limits(&response), limited(3, 1, 1_700_000_041, None));
}

#[tokio::test]
async fn panic_in_an_extractor_leaves_the_limit_at_work() {
    let layer = RateLimitLayer::builder()
        .policy(everybody_policy(3).key(|head: &RequestHead| {
            assert_ne!(head.uri.path(), "/broken", "on purpose");
            Some(Key::GLOBAL)
        }))
        .clock(stopped())
        .build()
        .expect("it is well set up");
    let app = ok().layer(layer);
    assert!(panics(app.clone().oneshot(path("/broken"))).await);
    let response = app.oneshot(path("/")).await.expect("infallible");
    assert_eq!(limits(&response), limited(3, 2, 1_700_000_021, None));
}

#[tokio::test]
async fn panic_in_the_rejection_leaves_the_limit_at_work() {
    let calls = AtomicUsize::new(0);
    let layer = RateLimitLayer::builder()
        .policy(everybody_policy(1).key(Global))
        .on_rejection(move |_: &Rejection| {
            assert_ne!(calls.fetch_add(1, Ordering::Relaxed), 0, "on purpose");
            Response::new("second")
        })
        .build()
        .expect("it is well set up");
    let app = ok().layer(layer);
    assert_eq!(statuses(&app, &["/"]).await, [200]);
    assert!(panics(app.clone().oneshot(path("/"))).await);
    let response = app.oneshot(path("/")).await.expect("infallible");
    assert_eq!(text(response).await, "second");
}

// === Errors of the inner service ===

/// Neither `Debug` nor an error.
struct Broken(u8);

#[derive(Clone)]
struct Breaking {
    when_polled: bool,
}

impl Service<Request<Opaque>> for Breaking {
    type Response = Response<Opaque>;
    type Error = Broken;
    type Future = future::Ready<Result<Self::Response, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(if self.when_polled {
            Err(Broken(1))
        } else {
            Ok(())
        })
    }

    fn call(&mut self, _: Request<Opaque>) -> Self::Future {
        future::ready(Err(Broken(2)))
    }
}

#[tokio::test]
async fn inner_error_passes_unchanged_in_type_and_value() {
    for pace in PACES {
        for (when_polled, code) in [(true, 1), (false, 2)] {
            let service = scripted(Verdict::Allow, pace).layer(Breaking { when_polled });
            let failed = service.oneshot(request()).await.err();
            let Broken(found) = failed.expect("it fails");
            assert_eq!(found, code);
        }
    }
}

#[tokio::test]
async fn denial_is_a_response_even_when_the_inner_service_only_fails() {
    for pace in PACES {
        let service = scripted(Verdict::Deny, pace).layer(Breaking { when_polled: false });
        let response = service.oneshot(request()).await.ok();
        assert_eq!(
            response.expect("it answers").status(),
            StatusCode::TOO_MANY_REQUESTS
        );
    }
}

// === One count for all ===

#[tokio::test]
async fn clones_of_layer_and_service_share_one_count() {
    let layer = everybody(Quota::per_minute(3));
    let first = layer.layer(Echo);
    let second = layer.clone().layer(Echo);
    let third = first.clone();
    drop(layer);
    let mut codes = Vec::new();
    for service in [&first, &second, &third, &first, &second, &third] {
        let response = service.clone().oneshot(request()).await;
        codes.push(response.expect("it answers").status().as_u16());
    }
    assert_eq!(codes, [200, 200, 200, 429, 429, 429]);
}

// axum #2634, tower #794: a layer applied twice was two limits
#[tokio::test]
async fn routes_share_one_count_however_the_layer_is_applied() {
    type Apply = fn(RateLimitLayer) -> Router;
    let ways: [(&str, Apply); 6] = [
        ("router", |limit| {
            let app = Router::new().route("/a", get(fine)).route("/b", get(fine));
            app.layer(limit)
        }),
        ("route_layer", |limit| {
            let app = Router::new().route("/a", get(fine)).route("/b", get(fine));
            app.route_layer(limit)
        }),
        ("each method router", |limit| {
            Router::new()
                .route("/a", get(fine).layer(limit.clone()))
                .route("/b", get(fine).layer(limit))
        }),
        ("nested routers", |limit| {
            let inner = Router::new().route("/", get(fine)).layer(limit.clone());
            Router::new()
                .nest("/a", inner)
                .route("/b", get(fine).layer(limit))
        }),
        ("merged routers", |limit| {
            let a = Router::new().route("/a", get(fine)).layer(limit.clone());
            a.merge(Router::new().route("/b", get(fine)).route_layer(limit))
        }),
        ("service builder", |limit| {
            let app = Router::new().route("/a", get(fine)).route("/b", get(fine));
            app.layer(ServiceBuilder::new().layer(limit))
        }),
    ];
    for (way, apply) in ways {
        let app = apply(everybody(Quota::per_minute(3)));
        let codes = statuses(&app, &["/a", "/b", "/a", "/b", "/a"]).await;
        assert_eq!(codes, [200, 200, 200, 429, 429], "{way}");
    }
}

#[tokio::test]
async fn layers_over_one_limiter_share_the_count_of_one_policy() {
    let limiter = RateLimiter::builder().build().expect("it is well set up");
    let layer = || {
        RateLimitLayer::builder()
            .policy(everybody_policy(3).key(Global))
            .limiter(&limiter)
            .build()
            .expect("it is well set up")
    };
    let app = Router::new()
        .route("/a", get(fine).layer(layer()))
        .route("/b", get(fine).layer(layer()));
    let codes = statuses(&app, &["/a", "/b", "/a", "/b", "/a"]).await;
    assert_eq!(codes, [200, 200, 200, 429, 429]);
}

#[tokio::test]
async fn layers_built_apart_count_apart() {
    let app = Router::new()
        .route("/a", get(fine).layer(everybody(Quota::per_minute(1))))
        .route("/b", get(fine).layer(everybody(Quota::per_minute(1))));
    assert_eq!(
        statuses(&app, &["/a", "/b", "/a", "/b"]).await,
        [200, 200, 429, 429]
    );
}

// === Types ===

#[test]
fn layer_fits_in_a_struct_field() {
    struct App {
        limit: RateLimitLayer,
    }
    let app = App {
        limit: everybody(Quota::per_minute(1)),
    };
    let _: Router = ok().layer(app.limit);
}

#[test]
fn layer_service_and_future_can_go_to_another_thread() {
    fn is_shareable<T: Send + Sync + Clone + Debug + 'static>(_: &T) {}
    fn is_send<T: Send + 'static>(_: &T) {}

    let layer = everybody(Quota::per_minute(1));
    is_shareable(&layer);
    let mut service = layer.layer(Breaking { when_polled: false });
    is_send(&service);
    is_send(&service.call(request()));
    is_shareable(&layer.layer(Echo));
}

#[test]
fn future_is_debug_with_every_body() {
    let mut service = over(ScriptedStore::pending()).layer(Breaking { when_polled: false });
    let future = service.call(request());
    assert!(format!("{future:?}").contains("decision"));
}

#[test]
fn debug_of_the_layer_names_its_policies_and_keys() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("per-tenant", Quota::per_minute(1)).key(Header::new("x-tenant")))
        .build()
        .expect("it is well set up");
    let shown = format!("{layer:?}");
    assert!(shown.contains("per-tenant") && shown.contains("x-tenant"));
}

// Reproducer: it showed all tables with all that is counted, and the key under which they are hashed.
#[tokio::test]
async fn debug_of_the_layer_does_not_grow_with_what_is_counted() {
    let layer = everybody(Quota::per_minute(1_000));
    let shown = format!("{layer:#?}");
    assert!(shown.contains("MemoryStore"), "{shown}");
    assert!(
        shown.lines().count() < 45,
        "{} lines",
        shown.lines().count()
    );
    assert!(!shown.contains("hasher"), "{shown}");
    statuses(&ok().layer(layer.clone()), &["/"; 3]).await;
    let later = format!("{layer:#?}");
    assert_eq!(later.lines().count(), shown.lines().count());
}

// === Bodies ===

#[tokio::test]
async fn request_body_reaches_the_inner_service_untouched() {
    for pace in PACES {
        let inner = service_fn(async |request: Request<Opaque>| {
            Ok::<_, Infallible>(Response::new(request.into_body()))
        });
        let service = scripted(Verdict::Allow, pace).layer(inner);
        let response = service.oneshot(request_for("as it was")).await;
        assert_eq!(text(response.expect("infallible")).await, "as it was");
    }
}

#[tokio::test]
async fn response_body_keeps_its_size_and_its_trailers() {
    let inner = service_fn(async |_: Request<()>| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let frames = VecDeque::from([
            Frame::data(Bytes::from("four")),
            Frame::data(Bytes::from("score")),
            Frame::trailers(trailers),
        ]);
        Ok::<_, Infallible>(Response::new(Opaque { frames }))
    });
    let service = everybody(Quota::per_minute(1)).layer(inner);
    let response = service.oneshot(Request::new(())).await.expect("infallible");
    let body = response.into_body();
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(9));
    assert!(!http_body::Body::is_end_stream(&body));
    let collected = body.collect().await.expect("infallible");
    let trailers = collected.trailers().expect("they came last").clone();
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(collected.to_bytes(), "fourscore");
}

#[tokio::test]
async fn body_of_a_rejection_is_one_piece_of_known_size() {
    let service = scripted(Verdict::Fail, Pace::AtOnce).layer(Echo);
    let response = service.oneshot(request()).await.expect("it answers");
    let mut body = response.into_body();
    let size = http_body::Body::size_hint(&body).exact();
    let frame = body.frame().await.expect("not empty").expect("infallible");
    let data = frame.data_ref().expect("no trailers");
    assert_eq!(size, Some(data.len() as u64));
    assert!(http_body::Body::is_end_stream(&body));
    assert!(body.frame().await.is_none());
}

#[test]
fn empty_rejection_ends_at_once() {
    let layer = RateLimitLayer::builder()
        .policy(everybody_policy(1).key(Global))
        .store(Verdict::Deny.store(Pace::AtOnce))
        .on_rejection(|_: &Rejection| Response::new(""))
        .build()
        .expect("it is well set up");
    let response = answer(&mut layer.layer(Echo), request());
    let body = response.into_body();
    assert!(http_body::Body::is_end_stream(&body));
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(0));
}

// === What handlers see ===

#[tokio::test]
async fn handler_sees_the_decision() {
    for pace in PACES {
        let inner = service_fn(async |request: Request<Opaque>| {
            let decision = request.extensions().get::<Decision>().cloned();
            let decision = decision.expect("it is in the extensions");
            assert!(decision.is_allowed());
            assert_eq!(decision.states().len(), 1);
            assert_eq!(decision.states()[0].policy().as_str(), "everybody");
            assert_eq!(decision.counted_by(), CountedBy::Shared);
            Ok::<_, Infallible>(Response::new(Opaque::text("seen")))
        });
        let service = scripted(Verdict::Allow, pace).layer(inner);
        assert_eq!(answer_of(service).await, "seen");
    }
}

#[tokio::test]
async fn rejection_is_in_the_extensions_of_the_response() {
    for pace in PACES {
        let service = scripted(Verdict::Deny, pace).layer(Echo);
        let response = service.oneshot(request()).await.expect("it answers");
        let rejection = response.extensions().get::<Rejection>();
        let rejection = rejection.expect("it is in the extensions");
        let Reason::Limited { policy } = rejection.reason() else {
            panic!("over the limit, and not {:?}", rejection.reason());
        };
        assert_eq!(policy.as_str(), "everybody");
        assert_eq!(rejection.retry_after_secs(), Some(6));
        let decision = rejection.decision().expect("one was made");
        assert_eq!(decision.retry_after(), Some(Duration::from_secs(6)));
    }
}

#[tokio::test]
async fn allowed_response_carries_no_rejection() {
    let service = everybody(Quota::per_minute(1)).layer(Echo);
    let response = service.oneshot(request()).await.expect("it answers");
    assert!(response.extensions().get::<Rejection>().is_none());
}

#[tokio::test]
async fn uncounted_request_passes_without_decision_and_headers() {
    let layer = RateLimitLayer::builder()
        .policy(
            Policy::new("tenant", Quota::per_minute(1))
                .key(Header::new("x-tenant"))
                .on_missing_key(OnMissingKey::Skip),
        )
        .build()
        .expect("it is well set up");
    let inner = service_fn(async |request: Request<Opaque>| {
        assert!(request.extensions().get::<Decision>().is_none());
        Ok::<_, Infallible>(Response::new(Opaque::text("passed")))
    });
    let service = layer.layer(inner);
    for _ in 0..3 {
        let response = service.clone().oneshot(request()).await;
        let response = response.expect("infallible");
        assert_eq!(limits(&response), Limits::default());
        assert_eq!(text(response).await, "passed");
    }
}

// === Headers ===

#[test]
fn headers_contain_limit_remaining_reset_and_wait_to_the_second() {
    let clock = stopped();
    let layer = RateLimitLayer::builder()
        .policy(everybody_policy(10).key(Global))
        .clock(clock.clone())
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    let mut ask = || limits(&answer(&mut service, request()));
    // the clock stands a quarter of a second past the second, and each request owes 6
    for taken in 1..=10 {
        let reset = 1_700_000_000 + 6 * taken + 1;
        assert_eq!(ask(), limited(10, 10 - taken, reset, None));
    }
    assert_eq!(ask(), limited(10, 0, 1_700_000_061, Some(6)));
    clock.advance(Duration::from_millis(500));
    assert_eq!(ask(), limited(10, 0, 1_700_000_061, Some(6)));
    clock.advance(Duration::from_millis(5_499));
    assert_eq!(ask(), limited(10, 0, 1_700_000_061, Some(1)));
    clock.advance(Duration::from_millis(1));
    assert_eq!(ask(), limited(10, 0, 1_700_000_067, None));
    // everything is back
    clock.advance(Duration::from_secs(60));
    assert_eq!(ask(), limited(10, 9, 1_700_000_073, None));
}

#[test]
fn wait_that_is_over_is_reported_as_one_second() {
    for pace in PACES {
        let response = answer(
            &mut scripted(Verdict::DenyForNow, pace).layer(Echo),
            request(),
        );
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(limits(&response).retry_after.as_deref(), Some("1"));
    }
}

#[test]
fn headers_count_units_and_not_requests() {
    let layer = RateLimitLayer::builder()
        .policy(
            Policy::new("units", Quota::per_minute(60).burst(20))
                .cost(5)
                .key(Global),
        )
        .clock(stopped())
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    let mut ask = || limits(&answer(&mut service, request()));
    assert_eq!(ask(), limited(20, 15, 1_700_000_006, None));
    for _ in 0..2 {
        ask();
    }
    assert_eq!(ask(), limited(20, 0, 1_700_000_021, None));
    assert_eq!(ask(), limited(20, 0, 1_700_000_021, Some(5)));
}

#[test]
fn header_that_the_inner_service_set_stays() {
    let inner = service_fn(async |_: Request<Opaque>| {
        let response = Response::builder()
            .header("x-ratelimit-limit", "7")
            .header("x-ratelimit-reset", "never")
            .header("retry-after", "120")
            .status(StatusCode::SERVICE_UNAVAILABLE)
            .body(Opaque::text("busy"));
        Ok::<_, Infallible>(response.expect("it is well formed"))
    });
    for pace in PACES {
        let mut service = scripted(Verdict::Allow, pace).layer(inner);
        let response = answer(&mut service, request());
        assert_eq!(
            limits(&response),
            Limits {
                limit: Some("7".to_owned()),
                // Ours would describe another limit.
                remaining: None,
                reset: Some("never".to_owned()),
                retry_after: Some("120".to_owned()),
            }
        );
    }
}

#[test]
fn headers_of_the_inner_service_that_are_not_ours_stay() {
    let inner = service_fn(async |_: Request<Opaque>| {
        let response = Response::builder()
            .header("x-custom", "a")
            .header("x-custom", "b")
            .body(Opaque::text(""));
        Ok::<_, Infallible>(response.expect("it is well formed"))
    });
    let response = answer(&mut everybody(Quota::per_minute(1)).layer(inner), request());
    let values: Vec<_> = response.headers().get_all("x-custom").iter().collect();
    assert_eq!(values, ["a", "b"]);
}

#[tokio::test]
async fn headers_can_be_switched_off() {
    let layer = RateLimitLayer::builder()
        .policy(everybody_policy(10).cost(10).key(Global))
        .headers(Headers::none())
        .clock(stopped())
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    let allowed = answer(&mut service, request());
    assert_eq!(allowed.status(), StatusCode::OK);
    assert_eq!(limits(&allowed), Limits::default());
    let denied = answer(&mut service, request());
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let only_the_wait = Limits {
        retry_after: Some("60".to_owned()),
        ..Limits::default()
    };
    assert_eq!(limits(&denied), only_the_wait);
    assert!(text(denied).await.contains("\"retry_after\":60"));
}

#[test]
fn headers_are_omitted_when_nothing_was_counted() {
    for pace in PACES {
        for verdict in [Verdict::Fail, Verdict::Refuse, Verdict::AllowUncounted] {
            let response = answer(&mut scripted(verdict, pace).layer(Echo), request());
            assert_eq!(limits(&response), Limits::default(), "{verdict:?}");
        }
    }
}

// === Rejections ===

#[tokio::test]
async fn denial_is_json_with_the_wait() {
    for (advanced, body) in [
        (
            0,
            r#"{"error":"rate_limited","message":"rate limit everybody exceeded, retry in 6 seconds","retry_after":6}"#,
        ),
        (
            5_500,
            r#"{"error":"rate_limited","message":"rate limit everybody exceeded, retry in 1 second","retry_after":1}"#,
        ),
    ] {
        let clock = stopped();
        let layer = RateLimitLayer::builder()
            .policy(Policy::new("everybody", Quota::per_minute(10).burst(1)).key(Global))
            .clock(clock.clone())
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        answer(&mut service, request());
        clock.advance(Duration::from_millis(advanced));
        let response = answer(&mut service, request());
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        assert_eq!(text(response).await, body);
    }
}

#[tokio::test]
async fn permanent_denial_has_no_wait() {
    for pace in PACES {
        let mut service = scripted(Verdict::Never, pace).layer(Echo);
        let response = answer(&mut service, request());
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(limits(&response).retry_after, None);
        assert_eq!(limits(&response).limit.as_deref(), Some("10"));
        assert_eq!(
            text(response).await,
            r#"{"error":"rate_limited","message":"this request costs more than rate limit everybody ever allows","retry_after":null}"#
        );
    }
}

#[tokio::test]
async fn store_that_cannot_decide_is_503() {
    for pace in PACES {
        for verdict in [Verdict::Fail, Verdict::Refuse] {
            let mut service = scripted(verdict, pace).layer(Echo);
            let response = answer(&mut service, request());
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let rejection = response.extensions().get::<Rejection>();
            let rejection = rejection.expect("it is in the extensions");
            assert_eq!(rejection.reason(), &Reason::Unavailable);
            assert_eq!(rejection.decision().is_some(), verdict == Verdict::Refuse);
            // the store's own words are for logs, and not for the client
            let error = rejection.error().map(ToString::to_string);
            let told = (verdict == Verdict::Fail).then_some("it was told to fail");
            assert_eq!(error.as_deref(), told);
            assert_eq!(
                text(response).await,
                r#"{"error":"unavailable","message":"the service is temporarily unavailable","retry_after":null}"#
            );
        }
    }
}

#[test]
fn one_policy_that_refuses_makes_it_503_even_beside_a_denial() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("first", Quota::per_minute(10)).key(Global))
        .policy(Policy::new("second", Quota::per_minute(10)).key(Global))
        .store(ScriptedStore::new(|charges| {
            let [denied, refused] = charges else {
                panic!("two policies");
            };
            let states = [Verdict::Deny.state(denied), Verdict::Refuse.state(refused)];
            StoreFuture::ready(Ok(Decision::new(CountedBy::Fallback, START, states)))
        }))
        .build()
        .expect("it is well set up");
    let response = answer(&mut layer.layer(Echo), request());
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(limits(&response), Limits::default());
}

#[tokio::test]
async fn custom_rejection_is_sent_with_our_headers_unless_it_has_its_own() {
    let own = Limits {
        limit: Some("secret".to_owned()),
        remaining: None,
        reset: None,
        retry_after: Some("6".to_owned()),
    };
    let ours = limited(10, 0, 1_700_000_061, Some(6));
    for (pace, header, expected) in PACES
        .into_iter()
        .flat_map(|pace| [(pace, "x-other", &ours), (pace, "x-ratelimit-limit", &own)])
    {
        let layer = RateLimitLayer::builder()
            .policy(everybody_policy(10).key(Global))
            .store(Verdict::Deny.store(pace))
            .on_rejection(move |rejection: &Rejection| {
                let seconds = rejection.retry_after_secs().expect("it is known");
                Response::builder()
                    .status(StatusCode::IM_A_TEAPOT)
                    .header("x-custom", "yes")
                    .header(header, "secret")
                    .body(format!("{} {seconds}", rejection.code()))
                    .expect("it is well formed")
            })
            .build()
            .expect("it is well set up");
        let response = answer(&mut layer.layer(Echo), request());
        assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
        assert_eq!(response.headers()["x-custom"], "yes");
        assert!(response.extensions().get::<Rejection>().is_some());
        assert_eq!(limits(&response), *expected);
        assert_eq!(text(response).await, "rate_limited 6");
    }
}

#[tokio::test]
async fn custom_rejection_may_be_text_or_bytes() {
    let layer = || {
        RateLimitLayer::builder()
            .policy(everybody_policy(10).key(Global))
            .store(Verdict::Deny.store(Pace::AtOnce))
    };
    let borrowed = layer().on_rejection(|_: &Rejection| Response::new("text"));
    let owned = layer().on_rejection(|_: &Rejection| Response::new("text".to_owned()));
    let vector = layer().on_rejection(|_: &Rejection| Response::new(b"text".to_vec()));
    let bytes = layer().on_rejection(|_: &Rejection| Response::new(Bytes::from("text")));
    for builder in [borrowed, owned, vector, bytes] {
        let layer = builder.build().expect("it is well set up");
        let response = answer(&mut layer.layer(Echo), request());
        assert_eq!(text(response).await, "text");
    }
}

// === Several policies ===

#[tokio::test]
async fn denial_by_one_policy_charges_none_of_the_others() {
    let wide = Policy::new("wide", Quota::per_minute(100));
    let narrow = Policy::new("narrow", Quota::per_minute(1));
    let orders = [
        [wide.clone(), narrow.clone()],
        [narrow.clone(), wide.clone()],
    ];
    for [first, second] in orders {
        let layer = RateLimitLayer::builder()
            .policy(first.key(Global))
            .policy(second.key(Global))
            .clock(stopped())
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        assert_eq!(answer(&mut service, request()).status(), StatusCode::OK);
        for _ in 0..3 {
            let denied = answer(&mut service, request());
            assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        }
        assert_eq!(remaining(&layer, &wide).await, 99);
        assert_eq!(remaining(&layer, &narrow).await, 0);
    }
}

#[test]
fn decision_finds_each_policy_by_its_name() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("first", Quota::per_minute(10)).key(Global))
        .policy(Policy::new("second", Quota::per_minute(20)).key(Global))
        .build()
        .expect("it is well set up");
    let inner = service_fn(async |request: Request<Opaque>| {
        let decision = request.extensions().get::<Decision>();
        let decision = decision.expect("it is in the extensions");
        let remaining = |name| Some(decision.state(name)?.usage()?.remaining);
        assert_eq!(remaining("first"), Some(9));
        assert_eq!(remaining("second"), Some(19));
        assert_eq!(remaining("third"), None);
        Ok::<_, Infallible>(Response::new(Opaque::text("seen")))
    });
    answer(&mut layer.layer(inner), request());
}

// Reproducer: requests without a required key were free, so any number of them got an answer of 400 or 401.
#[tokio::test]
async fn request_without_a_key_is_charged_by_the_other_policies_and_denied_by_them_first() {
    for tenant_comes_first in [false, true] {
        let everybody = everybody_policy(5);
        let tenant = Policy::new("tenant", Quota::per_minute(100));
        let mut rules = vec![
            everybody.clone().key(Global),
            tenant.clone().key(Header::new("x-tenant")),
        ];
        if tenant_comes_first {
            rules.reverse();
        }
        let builder = RateLimitLayer::builder();
        let builder = rules
            .into_iter()
            .fold(builder, RateLimitLayerBuilder::policy);
        let layer = builder.build().expect("it is well set up");
        let mut statuses = Vec::new();
        for left in [Some(4), Some(3), Some(2), Some(1), Some(0), None, None] {
            let response = answer(&mut layer.layer(Echo), request());
            statuses.push(response.status().as_u16());
            let rejection = response.extensions().get::<Rejection>().expect("why");
            assert_eq!(rejection.code() == "key_missing", left.is_some());
            let decision = rejection.decision().expect("on the other policy");
            assert_eq!(decision.states().len(), 1, "the missing one is not asked");
            let remaining = response.headers().get("x-ratelimit-remaining");
            let expected = left.unwrap_or(0).to_string();
            assert_eq!(remaining.expect("of the other policy"), expected.as_str());
        }
        assert_eq!(statuses, [400, 400, 400, 400, 400, 429, 429]);
        assert_eq!(remaining(&layer, &everybody).await, 0);
    }
}

#[test]
fn policy_whose_key_is_missing_may_be_skipped_while_the_others_count() {
    let layer = RateLimitLayer::builder()
        .policy(
            Policy::new("tenant", Quota::per_minute(1))
                .key(Header::new("x-tenant"))
                .on_missing_key(OnMissingKey::Skip),
        )
        .policy(everybody_policy(2).key(Global))
        .clock(stopped())
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    let mut ask = || answer(&mut service, request()).status().as_u16();
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
}

#[test]
fn headers_describe_the_policy_with_the_least_left_or_the_longest_wait() {
    let clock = stopped();
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("slow", Quota::per_hour(2)).key(Global))
        .policy(Policy::new("fast", Quota::per_second(1)).key(Global))
        .policy(Policy::new("wide", Quota::per_minute(100)).key(Global))
        .clock(clock.clone())
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    let mut ask = || limits(&answer(&mut service, request()));
    assert_eq!(ask(), limited(1, 0, 1_700_000_002, None));
    assert_eq!(ask(), limited(1, 0, 1_700_000_002, Some(1)));
    clock.advance(Duration::from_secs(1));
    // both have nothing left: the first one in order tells
    assert_eq!(ask(), limited(2, 0, 1_700_003_601, None));
    // both deny: the longer wait tells
    assert_eq!(ask(), limited(2, 0, 1_700_003_601, Some(1_799)));
}

#[test]
fn policy_that_costs_nothing_only_reports() {
    let layer = RateLimitLayer::builder()
        .policy(everybody_policy(1).cost(0).key(Global))
        .clock(stopped())
        .build()
        .expect("it is well set up");
    let mut service = layer.layer(Echo);
    for _ in 0..3 {
        let response = answer(&mut service, request());
        assert_eq!(limits(&response), limited(1, 1, 1_700_000_001, None));
    }
}

// === Properties ===

#[derive(Clone, Debug)]
struct Traffic {
    count: u64,
    micros: u64,
    burst: u64,
    cost: u64,
    start: u64,
    /// Thousandths of the interval between two requests.
    gaps: Vec<u64>,
}

impl Traffic {
    fn any() -> impl Strategy<Value = Self> {
        let rate = (1_u64..=1_000, 0_u32..=40)
            .prop_flat_map(|(count, scale)| (Just(count), count..=(count << scale)));
        let burst = (1_u64..=12).prop_flat_map(|burst| (Just(burst), 1..=burst));
        let gaps = proptest::collection::vec(0_u64..=3_000, 0..8);
        (rate, burst, 0_u64..1 << 50, gaps).prop_map(
            |((count, micros), (burst, cost), start, gaps)| Self {
                count,
                micros,
                burst,
                cost,
                start,
                gaps,
            },
        )
    }

    fn policy(&self) -> Policy {
        let quota = Quota::new(self.count, Duration::from_micros(self.micros)).burst(self.burst);
        Policy::new("any", quota).cost(self.cost)
    }

    fn layer(&self, clock: &Clock) -> RateLimitLayer {
        RateLimitLayer::builder()
            .policy(self.policy().key(Global))
            .clock(clock.clone())
            .build()
            .expect("it is within the limits")
    }

    /// Sends the requests, and then more until one is denied.
    fn until_denied<S>(&self, service: &mut S, clock: &Clock) -> Response<ResponseBody<Opaque>>
    where
        S: Service<Request<Opaque>, Response = Response<ResponseBody<Opaque>>>,
    {
        for gap in &self.gaps {
            clock.advance(Duration::from_micros(
                self.micros / self.count * gap / 1_000,
            ));
            answer(service, request());
        }
        // an interval that is no whole number of microseconds may let two units more pass
        (0..=self.burst + 2)
            .map(|_| answer(service, request()))
            .find(|response| response.status() == StatusCode::TOO_MANY_REQUESTS)
            .expect("the burst is spent at last")
    }
}

proptest! {
    #[test]
    fn retry_after_is_never_zero_and_never_early(traffic in Traffic::any(), in_seconds: bool) {
        let clock = Clock::manual(Timestamp::from_micros(traffic.start));
        let mut service = traffic.layer(&clock).layer(Echo);
        let denied = traffic.until_denied(&mut service, &clock);

        let seconds = limits(&denied).retry_after.expect("a denial tells the wait");
        let seconds: u64 = seconds.parse().expect("whole seconds");
        let rejection = denied.extensions().get::<Rejection>().expect("it is denied");
        let wait = rejection.decision().and_then(Decision::retry_after);
        let wait = wait.expect("a denial tells the wait");
        prop_assert!(seconds >= 1);
        prop_assert!(Duration::from_secs(seconds) >= wait);
        prop_assert!(Duration::from_secs(seconds - 1) < wait);

        clock.advance(wait - Duration::from_micros(1));
        prop_assert_eq!(answer(&mut service, request()).status().as_u16(), 429);
        clock.advance(Duration::from_micros(1));
        if in_seconds {
            clock.advance(Duration::from_secs(seconds) - wait);
        }
        prop_assert_eq!(answer(&mut service, request()).status().as_u16(), 200);
    }

    #[test]
    fn everything_is_back_at_the_reset(traffic in Traffic::any()) {
        let clock = Clock::manual(Timestamp::from_micros(traffic.start));
        let layer = traffic.layer(&clock);
        let mut service = layer.layer(Echo);
        let denied = traffic.until_denied(&mut service, &clock);

        let reset = limits(&denied).reset.expect("a denial tells the reset");
        let reset: u64 = reset.parse().expect("whole seconds");
        prop_assert!(reset * 1_000_000 > clock.now().as_micros());
        clock.set(Timestamp::from_micros(reset * 1_000_000));
        let policy = traffic.policy();
        let whole_burst = policy.charge(Key::GLOBAL).cost(traffic.burst);
        let decided = layer.limiter().check(&[whole_burst]).take_ready();
        let decided = decided.expect("it is in process").expect("it decides");
        prop_assert!(decided.is_allowed());
    }

    #[test]
    fn whole_burst_may_come_at_once_after_idling(traffic in Traffic::any()) {
        let clock = Clock::manual(Timestamp::from_micros(traffic.start));
        let traffic = Traffic { cost: 1, ..traffic };
        let mut service = traffic.layer(&clock).layer(Echo);
        for _ in 0..traffic.burst {
            prop_assert_eq!(answer(&mut service, request()).status().as_u16(), 200);
        }
    }

    #[test]
    fn no_more_than_the_burst_may_come_at_once(traffic in Traffic::any()) {
        let clock = Clock::manual(Timestamp::from_micros(traffic.start));
        // in whole microseconds, where no rounding is allowed for
        let interval = traffic.micros / traffic.count;
        let traffic = Traffic { cost: 1, micros: interval * traffic.count, ..traffic };
        let mut service = traffic.layer(&clock).layer(Echo);
        for left in (0..traffic.burst).rev() {
            let response = answer(&mut service, request());
            prop_assert_eq!(limits(&response).remaining, Some(left.to_string()));
        }
        prop_assert_eq!(answer(&mut service, request()).status().as_u16(), 429);
    }

    #[test]
    fn remaining_units_and_no_more_can_be_spent_in_one_charge(traffic in Traffic::any()) {
        let clock = Clock::manual(Timestamp::from_micros(traffic.start));
        let layer = traffic.layer(&clock);
        let mut service = layer.layer(Echo);
        for gap in &traffic.gaps {
            answer(&mut service, request());
            clock.advance(Duration::from_micros(traffic.micros / traffic.count * gap / 1_000));
        }
        let remaining = limits(&answer(&mut service, request())).remaining;
        let remaining: u64 = remaining.expect("it is counted").parse().expect("a number");
        let policy = traffic.policy();
        let admits = |units| {
            let charges = [policy.charge(Key::GLOBAL).cost(units)];
            let decided = layer.limiter().check(&charges).take_ready();
            decided.expect("it is in process").expect("it decides").is_allowed()
        };
        prop_assert!(!admits(remaining + 1));
        prop_assert!(admits(remaining));
    }
}

// Reproducer: 333,333 us past the second the first unit moves the TAT onto lattice point 2 instead of just behind
// point 1, so the three units take 1,000,001 us, one more than the span, and the third is denied.
#[test]
fn three_a_second_are_three_at_once_in_each_microsecond_of_a_second() {
    for micros in [0, 1, 333_332, 333_333, 333_334, 666_666, 666_667, 999_999] {
        let layer = RateLimitLayer::builder()
            .policy(Policy::new("three", Quota::per_second(3)).key(Global))
            .clock(Clock::manual(
                START + Duration::from_micros(750_000 + micros),
            ))
            .build()
            .expect("it is well set up");
        let mut service = layer.layer(Echo);
        let mut ask = || answer(&mut service, request()).status().as_u16();
        let codes = [ask(), ask(), ask(), ask()];
        assert_eq!(codes, [200, 200, 200, 429], "{micros} us past the second");
    }
}

// === Opaque ===

/// A body that is neither `Default` nor `Debug` nor `Clone`.
struct Opaque {
    frames: VecDeque<Frame<Bytes>>,
}

impl Opaque {
    fn text(text: &'static str) -> Self {
        Self {
            frames: VecDeque::from([Frame::data(Bytes::from(text))]),
        }
    }
}

impl http_body::Body for Opaque {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.frames.pop_front().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        let data = self.frames.iter().filter_map(Frame::data_ref);
        http_body::SizeHint::with_exact(data.map(|data| data.len() as u64).sum())
    }
}

// === Echo ===

/// An inner service that is always ready and answers at once.
#[derive(Clone, Debug)]
struct Echo;

impl Service<Request<Opaque>> for Echo {
    type Response = Response<Opaque>;
    type Error = Infallible;
    type Future = future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Opaque>) -> Self::Future {
        future::ready(Ok(Response::new(Opaque::text("echo"))))
    }
}

// === Verdict ===

/// What a store of the tests says about every charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    AllowUncounted,
    Deny,
    DenyForNow,
    Fail,
    Never,
    Refuse,
}

impl Verdict {
    /// Returns a store that decides everything like this.
    fn store(self, pace: Pace) -> ScriptedStore {
        let store = ScriptedStore::new(move |charges| StoreFuture::ready(self.on(charges)));
        match pace {
            Pace::AtOnce => store,
            Pace::Later => store.later(),
        }
    }

    fn on(self, charges: &[Charge<'_>]) -> Result<Decision, Error> {
        if self == Self::Fail {
            return Err(Error::new(ErrorKind::Unavailable, "it was told to fail"));
        }
        let states = charges.iter().map(|charge| self.state(charge));
        Ok(Decision::new(CountedBy::Shared, START, states))
    }

    fn state(self, charge: &Charge<'_>) -> PolicyState {
        let name = *charge.policy().name();
        let quota = charge.policy().quota();
        let span = quota.period() * u32::try_from(quota.capacity()).expect("a small quota")
            / u32::try_from(quota.count()).expect("a small quota");
        let limit = charge.policy().quota().capacity();
        let spent = Usage::new(limit, 0, START + span);
        let full = Usage::new(limit, limit, START);
        match self {
            Self::Allow => PolicyState::counted(name, full, Retry::Now),
            Self::AllowUncounted => PolicyState::uncounted(name, Outcome::Allowed),
            Self::Deny => {
                PolicyState::counted(name, spent, Retry::At(START + Duration::from_secs(6)))
            }
            Self::DenyForNow => PolicyState::counted(name, spent, Retry::At(START)),
            Self::Never => PolicyState::counted(name, full, Retry::Never),
            Self::Fail | Self::Refuse => PolicyState::uncounted(name, Outcome::Unavailable),
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::Allow | Self::AllowUncounted => StatusCode::OK,
            Self::Deny | Self::DenyForNow | Self::Never => StatusCode::TOO_MANY_REQUESTS,
            Self::Fail | Self::Refuse => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Whether a store knows the answer when it is asked, or has to be awaited.
#[derive(Clone, Copy, Debug)]
enum Pace {
    AtOnce,
    Later,
}

// === Limits ===

/// The headers that the layer may write, each at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Limits {
    limit: Option<String>,
    remaining: Option<String>,
    reset: Option<String>,
    retry_after: Option<String>,
}

fn limits<B>(response: &Response<B>) -> Limits {
    let text = |name: HeaderName| {
        let mut values = response.headers().get_all(name).iter();
        let value = values.next()?.to_str().expect("it is text");
        assert!(values.next().is_none(), "it comes once");
        Some(value.to_owned())
    };
    Limits {
        limit: text(HeaderName::from_static("x-ratelimit-limit")),
        remaining: text(HeaderName::from_static("x-ratelimit-remaining")),
        reset: text(HeaderName::from_static("x-ratelimit-reset")),
        retry_after: text(header::RETRY_AFTER),
    }
}

fn limited(limit: u64, remaining: u64, reset: u64, retry_after: Option<u64>) -> Limits {
    Limits {
        limit: Some(limit.to_string()),
        remaining: Some(remaining.to_string()),
        reset: Some(reset.to_string()),
        retry_after: retry_after.map(|seconds| seconds.to_string()),
    }
}

// === Layers ===

fn stopped() -> Clock {
    Clock::manual(START)
}

fn everybody_policy(count: u64) -> Policy {
    Policy::new("everybody", Quota::per_minute(count))
}

fn everybody(quota: Quota) -> RateLimitLayer {
    RateLimitLayer::builder()
        .policy(Policy::new("everybody", quota).key(Global))
        .clock(stopped())
        .build()
        .expect("it is well set up")
}

/// A layer of ten a minute over this store.
fn over(store: impl Store) -> RateLimitLayer {
    RateLimitLayer::builder()
        .policy(everybody_policy(10).key(Global))
        .store(store)
        .build()
        .expect("it is well set up")
}

fn scripted(verdict: Verdict, pace: Pace) -> RateLimitLayer {
    over(verdict.store(pace))
}

/// Returns the next decision that waits for the test.
#[track_caller]
fn question(store: &ScriptedStore) -> PendingDecision {
    let next = store.next_pending().now_or_never();
    next.expect("the store was asked")
}

fn give(question: PendingDecision, verdict: Verdict) {
    assert!(!question.is_abandoned(), "somebody waits for it");
    question.complete(|charges| verdict.on(charges));
}

async fn remaining(layer: &RateLimitLayer, policy: &Policy) -> u64 {
    let charges = [policy.charge(Key::GLOBAL)];
    let decision = layer.limiter().peek(&charges).await.expect("it answers");
    let usage = decision.states()[0].usage();
    usage.expect("it is counted").remaining
}

// === Requests and answers ===

fn request() -> Request<Opaque> {
    request_for("request")
}

fn request_for(body: &'static str) -> Request<Opaque> {
    Request::new(Opaque::text(body))
}

fn path(path: &str) -> Request<Body> {
    let request = Request::get(path).body(Body::empty());
    request.expect("it is well formed")
}

/// An inner service that panics when it is called without having been polled ready.
fn mock() -> (Inner, InnerHandle) {
    mock::pair()
}

type Inner = Mock<Request<Opaque>, Response<Opaque>>;
type InnerHandle = Handle<Request<Opaque>, Response<Opaque>>;

/// The request with which the future calls the inner service, now or after a few polls.
#[track_caller]
fn called_by<F: Future>(
    mut future: Pin<&mut F>,
    handle: &mut InnerHandle,
) -> (Request<Opaque>, SendResponse<Response<Opaque>>) {
    for _ in 0..4 {
        assert!(poll(future.as_mut()).is_pending());
        if let Poll::Ready(Some(called)) = handle.poll_request() {
            return called;
        }
    }
    panic!("it does not call the inner service");
}

fn called_for(handle: &mut InnerHandle) -> Option<String> {
    let Poll::Ready(Some((request, _))) = handle.poll_request() else {
        return None;
    };
    let frame = request.into_body().frames.pop_front()?;
    let data = frame.into_data().ok()?;
    String::from_utf8(data.to_vec()).ok()
}

fn ok() -> Router {
    Router::new().fallback(fine)
}

async fn fine() -> &'static str {
    "fine"
}

async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Error: Debug>,
{
    let collected = response.into_body().collect().await;
    let bytes = collected.expect("the body is whole").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("the body is text")
}

async fn answer_of<S>(service: S) -> String
where
    S: Service<Request<Opaque>, Response = Response<ResponseBody<Opaque>>, Error: Into<BoxError>>,
{
    let response = in_time(service.oneshot(request())).await;
    text(response.map_err(Into::into).expect("it answers")).await
}

/// Sends a request through a service that needs no runtime.
#[track_caller]
fn answer<S>(service: &mut S, request: Request<Opaque>) -> S::Response
where
    S: Service<Request<Opaque>>,
{
    assert!(matches!(poll_ready(service), Poll::Ready(Ok(()))));
    let mut future = pin!(service.call(request));
    for _ in 0..4 {
        if let Poll::Ready(answered) = poll(future.as_mut()) {
            return answered.ok().expect("it does not fail");
        }
    }
    panic!("it does not answer");
}

/// Fails the test instead of hanging it; the time may be paused.
async fn in_time<T>(event: impl Future<Output = T>) -> T {
    let event = time::timeout(PATIENCE, event).await;
    event.expect("it happens in time")
}

async fn statuses(app: &Router, paths: &[&str]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for wanted in paths {
        let response = app.clone().oneshot(path(wanted)).await.expect("infallible");
        statuses.push(response.status().as_u16());
    }
    statuses
}

async fn panics<F>(future: F) -> bool
where
    F: Future<Output: Send> + Send + 'static,
{
    let ended = tokio::spawn(future).await;
    ended.is_err_and(|error| error.is_panic())
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn poll_ready<S: Service<Request<Opaque>>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

const PACES: [Pace; 2] = [Pace::AtOnce, Pace::Later];
const REFUSALS: [Verdict; 4] = [
    Verdict::Deny,
    Verdict::Fail,
    Verdict::Never,
    Verdict::Refuse,
];
/// A quarter of a second past a second, so that rounding shows.
const START: Timestamp = Timestamp::from_micros(1_700_000_000_250_000);
const PATIENCE: Duration = Duration::from_secs(10);
