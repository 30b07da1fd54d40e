//! The layer whose responses have axum's body.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    response::Response as AxumResponse,
    routing::get,
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, decision::PolicyState, extract::Global,
    middleware::BoxedBodyLayer,
};
use tower::{
    Layer, Service, ServiceExt, service_fn,
    util::{BoxCloneService, BoxCloneServiceLayer, BoxCloneSyncService, Either},
};

#[tokio::test]
async fn services_with_and_without_the_limit_have_one_type() {
    type Boxed = BoxCloneService<Request<Body>, AxumResponse, Infallible>;
    let app = || Router::new().route("/", get(async || "fine"));
    let limited: Boxed = BoxCloneService::new(limit(1).layer(app()));
    let by_layer: BoxCloneServiceLayer<Router, Request<Body>, AxumResponse, Infallible> =
        BoxCloneServiceLayer::new(limit(1));
    let sync: BoxCloneSyncService<Request<Body>, AxumResponse, Infallible> =
        BoxCloneSyncService::new(limit(1).layer(app()));
    let either = Either::<_, Router>::Left(limit(1).layer(app()));
    let unlimited: Boxed = BoxCloneService::new(app());
    for (service, second) in [
        (limited, 429),
        (by_layer.layer(app()), 429),
        (BoxCloneService::new(sync), 429),
        (BoxCloneService::new(either), 429),
        (unlimited, 200),
    ] {
        let (status, text) = ask(&service).await;
        assert_eq!((status, text.as_str()), (200, "fine"));
        let (status, text) = ask(&service).await;
        assert_eq!(status, second);
        assert_eq!(text.contains("rate limit"), second == 429, "{text}");
    }
}

#[tokio::test]
async fn errors_and_readiness_are_those_of_the_inner_service() {
    let failing = service_fn(async |_: Request<Body>| Err::<Response<Body>, _>("broken"));
    let mut service = limit(2).layer(failing);
    let service = service.ready().await.expect("it is ready");
    let answer = service.call(Request::new(Body::empty())).await;
    assert_eq!(answer.expect_err("it fails"), "broken");
    let mut unready = limit(1).layer(Unready);
    let mut context = Context::from_waker(std::task::Waker::noop());
    let readiness = Service::<Request<Body>>::poll_ready(&mut unready, &mut context);
    assert_eq!(readiness, Poll::Ready(Err("not ready")));
}

#[tokio::test]
async fn slot_is_held_until_the_boxed_body_ends() {
    let slots = Policy::concurrency("slots", 1);
    let layer = RateLimitLayer::builder().policy(slots.clone().key(Global));
    let layer = layer.build().expect("it is well set up");
    let free = async || {
        let peek = layer.limiter().peek(&[slots.charge(Key::GLOBAL)]).await;
        let decision = peek.expect("in process");
        let usage = decision.narrowest().and_then(PolicyState::usage);
        usage.expect("it is counted").remaining
    };
    let app = Router::new().route("/", get(async || "fine"));
    let app = layer.clone().boxed_body().layer(app);
    let Ok(response) = app.oneshot(Request::new(Body::empty())).await;
    assert_eq!(free().await, 0);
    let text = to_bytes(response.into_body(), 100).await.expect("a body");
    assert_eq!(&text[..], b"fine");
    assert_eq!(free().await, 1);
}

#[tokio::test]
async fn body_of_another_type_is_sent_as_it_is() {
    let is_dropped = Arc::new(AtomicBool::new(false));
    let handed = Arc::clone(&is_dropped);
    let inner = service_fn(move |_: Request<Body>| {
        let body = Once(Some(Bytes::from_static(b"once")), Arc::clone(&handed));
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let response = limit(1).layer(inner).oneshot(Request::new(Body::empty()));
    let Ok(response) = response.await;
    assert_eq!(response.status(), StatusCode::OK);
    let text = to_bytes(response.into_body(), 100).await.expect("a body");
    assert_eq!(&text[..], b"once");
    assert!(is_dropped.load(Ordering::Relaxed));
}

/// A body of one frame, which notes its drop.
struct Once(Option<Bytes>, Arc<AtomicBool>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|text| Ok(Frame::data(text))))
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// A service that is never ready.
#[derive(Clone)]
struct Unready;

impl Service<Request<Body>> for Unready {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Err("not ready"))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        unreachable!("it is never ready")
    }
}

async fn ask(service: &BoxCloneService<Request<Body>, AxumResponse, Infallible>) -> (u16, String) {
    let Ok(response) = service.clone().oneshot(Request::new(Body::empty())).await;
    let status = response.status().as_u16();
    let text = to_bytes(response.into_body(), 1_000).await.expect("a body");
    (status, String::from_utf8_lossy(&text).to_lowercase())
}

fn limit(count: u64) -> BoxedBodyLayer {
    let policy = Policy::new("p", Quota::per_hour(count)).key(Global);
    let layer = RateLimitLayer::builder().policy(policy).build();
    layer.expect("it is well set up").boxed_body()
}
