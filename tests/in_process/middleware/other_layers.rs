//! Every layer of tower-http, and those of tower and axum, outside and inside of the limit in one `ServiceBuilder`.

use std::{
    convert::Infallible,
    fmt,
    future::{self, Future, Ready},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    error_handling::HandleErrorLayer,
    extract::{DefaultBodyLimit, Request, State},
    handler::Handler,
    http::{HeaderName, HeaderValue, Method, Response, StatusCode, header},
    middleware::{self, Next},
    routing::{get, post},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use tollgate::{
    Policy, Quota, RateLimitLayer, extract::Global, middleware::ResponseBody, rules::RuleMode,
};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    balance::p2c::Balance,
    buffer::BufferLayer,
    discover::ServiceList,
    filter::{AsyncFilterLayer, FilterLayer},
    hedge::{self, Hedge},
    layer::layer_fn,
    limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer, RateLimitLayer as TowerRateLimit},
    load::{CompleteOnResponse, PendingRequests},
    load_shed::LoadShedLayer,
    retry::{self, RetryLayer},
    spawn_ready::SpawnReadyLayer,
    timeout::TimeoutLayer as TowerTimeoutLayer,
    util::{
        AndThenLayer, BoxCloneServiceLayer, BoxCloneSyncServiceLayer, BoxLayer, BoxService,
        MapErrLayer, MapFutureLayer, MapRequestLayer, MapResponseLayer, MapResultLayer, ThenLayer,
        option_layer,
    },
};
use tower_http::{
    add_extension::AddExtensionLayer,
    auth::{AddAuthorizationLayer, AsyncRequireAuthorizationLayer},
    catch_panic::CatchPanicLayer,
    compression::{CompressionLayer, predicate::SizeAbove},
    cors::CorsLayer,
    decompression::{DecompressionLayer, RequestDecompressionLayer},
    follow_redirect::FollowRedirectLayer,
    limit::RequestBodyLimitLayer,
    map_request_body::MapRequestBodyLayer,
    map_response_body::MapResponseBodyLayer,
    metrics::{InFlightRequestsLayer, in_flight_requests::InFlightRequestsCounter},
    normalize_path::NormalizePathLayer,
    on_early_drop::OnEarlyDropLayer,
    propagate_header::PropagateHeaderLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    sensitive_headers::{
        SetSensitiveHeadersLayer, SetSensitiveRequestHeadersLayer, SetSensitiveResponseHeadersLayer,
    },
    services::{Redirect, ServeDir, ServeFile},
    set_header::{SetRequestHeaderLayer, SetResponseHeaderLayer},
    set_status::SetStatusLayer,
    timeout::{RequestBodyTimeoutLayer, ResponseBodyTimeoutLayer, TimeoutLayer},
    trace::TraceLayer,
    validate_request::ValidateRequestHeaderLayer,
};

/// Builds a row of the table from a layer, or from one for each place: inside of the limit a service must be `Clone`.
macro_rules! row {
    ($name:literal, $layer:expr) => {
        row!($name, outside: $layer, inside: $layer)
    };
    ($name:literal, outside: $outside:expr, inside: $inside:expr) => {
        Row {
            name: $name,
            outside: boxed(ServiceBuilder::new().layer($outside).layer(limit()).service(Echo)),
            inside: boxed(ServiceBuilder::new().layer(limit()).layer($inside).service(Echo)),
        }
    };
}

#[expect(
    clippy::result_large_err,
    reason = "tower-http asks for responses as errors"
)]
#[tokio::test]
async fn every_layer_of_tower_http_fits_outside_and_inside_of_the_limit() {
    let name = HeaderName::from_static("x-other");
    let value = HeaderValue::from_static("value");
    let gzip = || {
        let compression = CompressionLayer::new().compress_when(SizeAbove::new(0));
        ServiceBuilder::new()
            .layer(DecompressionLayer::new())
            .layer(compression)
    };
    let set_request_header = SetRequestHeaderLayer::overriding(name.clone(), value.clone());
    let set_response_header = SetResponseHeaderLayer::overriding(name.clone(), value.clone());
    let in_flight = InFlightRequestsLayer::new(InFlightRequestsCounter::new());
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, PATIENCE);
    check([
        row!("AddAuthorizationLayer", AddAuthorizationLayer::bearer("token")),
        row!("AddExtensionLayer", AddExtensionLayer::new(1_u8)),
        row!(
            "AsyncRequireAuthorizationLayer",
            outside: AsyncRequireAuthorizationLayer::new(async |request| Ok(request)),
            inside: AsyncRequireAuthorizationLayer::new(async |request| Ok(request))
        ),
        row!("CatchPanicLayer", CatchPanicLayer::new()),
        row!("CompressionLayer, DecompressionLayer", gzip()),
        row!("CorsLayer", CorsLayer::permissive()),
        row!("FollowRedirectLayer", FollowRedirectLayer::new()),
        row!("InFlightRequestsLayer", in_flight.clone()),
        row!("MapRequestBodyLayer", MapRequestBodyLayer::new(Body::new)),
        row!("MapResponseBodyLayer", MapResponseBodyLayer::new(Body::new)),
        row!("NormalizePathLayer", NormalizePathLayer::trim_trailing_slash()),
        row!("OnEarlyDropLayer", OnEarlyDropLayer::builder()),
        row!("PropagateHeaderLayer", PropagateHeaderLayer::new(name.clone())),
        row!("PropagateRequestIdLayer", PropagateRequestIdLayer::x_request_id()),
        row!("RequestBodyLimitLayer", RequestBodyLimitLayer::new(100)),
        row!("RequestBodyTimeoutLayer", RequestBodyTimeoutLayer::new(PATIENCE)),
        row!("RequestDecompressionLayer", RequestDecompressionLayer::new()),
        row!("ResponseBodyTimeoutLayer", ResponseBodyTimeoutLayer::new(PATIENCE)),
        row!("SetRequestHeaderLayer", set_request_header.clone()),
        row!("SetRequestIdLayer", SetRequestIdLayer::x_request_id(MakeRequestUuid)),
        row!("SetResponseHeaderLayer", set_response_header.clone()),
        row!("SetSensitiveHeadersLayer", SetSensitiveHeadersLayer::new([name.clone()])),
        row!(
            "SetSensitiveRequestHeadersLayer",
            SetSensitiveRequestHeadersLayer::new([name.clone()])
        ),
        row!(
            "SetSensitiveResponseHeadersLayer",
            SetSensitiveResponseHeadersLayer::new([name.clone()])
        ),
        row!("SetStatusLayer", SetStatusLayer::new(StatusCode::OK)),
        row!("TimeoutLayer", timeout),
        row!("TraceLayer::new_for_grpc", TraceLayer::new_for_grpc()),
        row!("TraceLayer::new_for_http", TraceLayer::new_for_http()),
        row!(
            "ValidateRequestHeaderLayer::accept",
            ValidateRequestHeaderLayer::accept("text/plain")
        ),
        row!(
            "ValidateRequestHeaderLayer::bearer",
            outside: bearer(),
            inside: bearer()
        ),
        row!(
            "ValidateRequestHeaderLayer::custom",
            outside: ValidateRequestHeaderLayer::custom(
                |_: &mut Request| Ok::<_, Response<ResponseBody<Body>>>(())
            ),
            inside: ValidateRequestHeaderLayer::custom(|_: &mut Request| Ok::<_, Response<Body>>(()))
        ),
    ])
    .await;
}

#[tokio::test]
async fn every_layer_of_tower_fits_outside_and_inside_of_the_limit() {
    let buffer = || BufferLayer::new(8);
    let often = || TowerRateLimit::new(1_000, Duration::from_secs(1));
    let spawn = SpawnReadyLayer::new;
    let accept = |request: Request| Ok::<_, BoxError>(request);
    let async_accept = async |request: Request| Ok::<_, BoxError>(request);
    fn hedge<S>() -> impl Layer<S, Service = Hedge<S, Never>>
    where
        S: Service<Request, Error: Into<BoxError>> + Clone,
    {
        layer_fn(|inner| Hedge::new(inner, Never, 1, 0.9, PATIENCE))
    }
    check([
        row!(
            "AndThenLayer",
            AndThenLayer::new(async |response| Ok::<_, Infallible>(response))
        ),
        row!("AsyncFilterLayer", AsyncFilterLayer::new(async_accept)),
        row!(
            "BoxCloneServiceLayer",
            BoxCloneServiceLayer::new(TraceLayer::new_for_http())
        ),
        row!(
            "BoxCloneSyncServiceLayer",
            BoxCloneSyncServiceLayer::new(TraceLayer::new_for_http())
        ),
        row!(
            "BoxLayer",
            outside: BoxLayer::new(TraceLayer::new_for_http()),
            inside: ServiceBuilder::new()
                .layer(buffer())
                .layer(BoxLayer::new(TraceLayer::new_for_http()))
        ),
        row!("BufferLayer", buffer()),
        row!("ConcurrencyLimitLayer", ConcurrencyLimitLayer::new(1)),
        row!("FilterLayer", FilterLayer::new(accept)),
        row!(
            "GlobalConcurrencyLimitLayer",
            GlobalConcurrencyLimitLayer::new(1)
        ),
        row!(
            "Hedge",
            outside: hedge(),
            inside: ServiceBuilder::new().layer(buffer()).layer(hedge())
        ),
        row!("LoadShedLayer", LoadShedLayer::new()),
        row!("MapErrLayer", MapErrLayer::new(BoxError::from)),
        row!("MapFutureLayer", MapFutureLayer::new(|future| future)),
        row!(
            "MapRequestLayer",
            MapRequestLayer::new(|request: Request| request)
        ),
        row!(
            "MapResponseLayer",
            MapResponseLayer::new(|response| response)
        ),
        row!(
            "MapResultLayer",
            MapResultLayer::new(|result: Result<_, Infallible>| result)
        ),
        row!(
            "RateLimitLayer of tower",
            outside: often(),
            inside: ServiceBuilder::new().layer(buffer()).layer(often())
        ),
        row!("RetryLayer", RetryLayer::new(Never)),
        row!(
            "SpawnReadyLayer",
            outside: spawn(),
            inside: ServiceBuilder::new().layer(buffer()).layer(spawn())
        ),
        row!(
            "ThenLayer",
            ThenLayer::new(async |result: Result<_, Infallible>| result)
        ),
        row!("TimeoutLayer of tower", TowerTimeoutLayer::new(PATIENCE)),
        row!(
            "option_layer(Some(other))",
            option_layer(Some(ConcurrencyLimitLayer::new(1)))
        ),
        row!(
            "option_layer(None)",
            option_layer(None::<ConcurrencyLimitLayer>)
        ),
    ])
    .await;
}

#[tokio::test]
async fn limited_services_can_be_balanced() {
    let limited = PendingRequests::new(limit().layer(Echo), CompleteOnResponse::default());
    let balanced = Balance::new(ServiceList::new::<Request>(vec![limited]));
    check_service("Balance", boxed(balanced)).await;
}

#[tokio::test]
async fn every_layer_of_axum_fits_outside_and_inside_of_the_limit() {
    let pass = async |request: Request, next: Next| next.run(request).await;
    let with_state =
        async |State(()): State<()>, request: Request, next: Next| next.run(request).await;
    let handled = || {
        let handle = HandleErrorLayer::new(async |_: BoxError| StatusCode::GATEWAY_TIMEOUT);
        ServiceBuilder::new().layer(handle).timeout(PATIENCE)
    };
    check([
        row!("DefaultBodyLimit", DefaultBodyLimit::max(100)),
        row!("Extension", Extension(1_u8)),
        row!("HandleErrorLayer", handled()),
        row!("from_extractor", middleware::from_extractor::<Method>()),
        row!("from_fn", middleware::from_fn(pass)),
        row!("from_fn_with_state", middleware::from_fn_with_state((), with_state)),
        row!("map_request", middleware::map_request(async |request: Request| request)),
        row!(
            "map_response",
            outside: middleware::map_response(async |response: Response<ResponseBody<Body>>| response),
            inside: middleware::map_response(async |response: Response<Body>| response)
        ),
    ])
    .await;
}

#[tokio::test]
async fn limit_goes_onto_every_part_of_an_axum_router() {
    let echo = async |body: Bytes| body;
    let both = || {
        ServiceBuilder::new()
            .layer(CorsLayer::permissive())
            .layer(limit())
            .layer(TraceLayer::new_for_http())
    };
    let routers = [
        (
            "Router::layer",
            Router::new().route("/", post(echo)).layer(both()),
        ),
        (
            "Router::route_layer",
            Router::new().route("/", post(echo)).route_layer(both()),
        ),
        (
            "MethodRouter::layer",
            Router::new().route("/", post(echo).layer(both())),
        ),
        (
            "MethodRouter::route_layer",
            Router::new().route("/", post(echo).route_layer(both())),
        ),
        (
            "Handler::layer",
            Router::new().route("/", post(echo.layer(both()))),
        ),
        (
            "route_service",
            Router::new().route_service("/", both().service(Echo)),
        ),
        (
            "fallback_service",
            Router::new().fallback_service(both().service(Echo)),
        ),
        (
            "merge",
            Router::new().merge(Router::new().route("/", post(echo)).layer(both())),
        ),
    ];
    for (name, router) in routers {
        check_service(name, boxed(router)).await;
    }
    check_service(
        "around Router",
        boxed(both().service(Router::new().route("/", post(echo)))),
    )
    .await;
}

#[tokio::test]
async fn services_of_tower_http_can_be_limited() {
    let file = limit().layer(ServeFile::new("Cargo.toml"));
    let dir = limit().layer(ServeDir::new("."));
    let redirect = limit().layer(Redirect::<Body>::temporary(http::Uri::from_static("/")));
    for (service, status) in [
        (boxed(file), 200),
        (boxed(dir), 200),
        (boxed(redirect), 307),
    ] {
        let mut service = service;
        for status in [status, 429] {
            let request = http::Request::get("/Cargo.toml").body(Body::empty());
            let response = call(&mut service, request.expect("a request")).await;
            assert_eq!(response.0, status);
        }
    }
}

#[tokio::test]
async fn limit_can_be_boxed_and_optional() {
    let boxed_layer = BoxLayer::new(limit());
    check_service("BoxLayer", boxed(boxed_layer.layer(Echo))).await;
    let boxed_layer = BoxCloneServiceLayer::new(limit());
    check_service("BoxCloneServiceLayer", boxed(boxed_layer.layer(Echo))).await;
    let builder = ServiceBuilder::new().boxed().layer(limit());
    check_service("ServiceBuilder::boxed", boxed(builder.service(Echo))).await;
    let builder = ServiceBuilder::new().boxed_clone().layer(limit());
    check_service("ServiceBuilder::boxed_clone", boxed(builder.service(Echo))).await;
    let builder = ServiceBuilder::new().layer(limit()).boxed_clone_sync();
    let mut service = builder.service(Pong);
    for status in [200, 429] {
        let service = service.ready().await.expect("it is always ready");
        let response = service.call(http::Request::new(String::new())).await;
        assert_eq!(response.expect("no error").status(), status);
    }
    // the types of both sides of `option_layer` are equal once the body is
    for limit in [Some(limit()), None] {
        let is_limited = limit.is_some();
        let app = Router::new().route("/", get(async || "fine"));
        let limit = option_layer(limit.map(RateLimitLayer::boxed_body));
        let mut app = boxed(app.layer(limit));
        for status in [200, if is_limited { 429 } else { 200 }] {
            let request = http::Request::get("/").body(Body::empty());
            assert_eq!(call(&mut app, request.expect("a request")).await.0, status);
        }
    }
    // and a layer that is off passes everything
    let off = limit();
    off.set_mode(RuleMode::Off);
    let mut app = boxed(off.layer(Echo));
    for _ in 0..2 {
        assert_eq!(
            call(&mut app, http::Request::new(Body::empty())).await.0,
            200
        );
    }
}

#[tokio::test]
async fn responses_that_outer_layers_make_are_empty_and_charge_nothing() {
    let stack = ServiceBuilder::new()
        .layer(CorsLayer::permissive())
        .layer(bearer())
        .layer(limit());
    let mut service = boxed(stack.service(Echo));
    for _ in 0..3 {
        let request = http::Request::options("/")
            .header(header::ORIGIN, "https://app.test")
            .header(header::ACCESS_CONTROL_REQUEST_METHOD, "GET");
        let (status, headers, body) = call(
            &mut service,
            request.body(Body::empty()).expect("a request"),
        )
        .await;
        assert_eq!((status, body.as_str()), (200, ""));
        assert!(
            headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN),
            "{headers:?}"
        );
        let (status, _, body) = call(&mut service, http::Request::new(Body::empty())).await;
        assert_eq!((status, body.as_str()), (401, ""));
    }
    let late = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::ZERO);
    let mut timed = boxed(
        ServiceBuilder::new()
            .layer(late)
            .layer(limit())
            .service(Hanging),
    );
    let (status, _, body) = call(&mut timed, http::Request::new(Body::empty())).await;
    assert_eq!((status, body.as_str()), (408, ""));
    check_service("after other responses", service).await;
}

#[tokio::test]
async fn empty_body_and_converted_body_keep_their_content() {
    let empty = ResponseBody::<Body>::default();
    assert!(http_body::Body::is_end_stream(&empty));
    assert_eq!(http_body::Body::size_hint(&empty).exact(), Some(0));
    assert!(empty.into_inner().is_none());
    // also of an inner body that has no default
    drop(ResponseBody::<hyper::body::Incoming>::default());
    let text = ResponseBody::from(Body::from("no"));
    assert_eq!(http_body::Body::size_hint(&text).exact(), Some(2));
    let text = text.collect().await.expect("it has no error");
    assert_eq!(text.to_bytes(), "no");
}

#[test]
fn body_has_the_auto_traits_of_the_inner_body() {
    fn is<T: Send + Sync + Unpin + fmt::Debug>() {}
    is::<ResponseBody<http_body_util::Full<Bytes>>>();
}

// === Rows ===

/// A layer around the limit, and within it.
struct Row {
    name: &'static str,
    outside: Stack,
    inside: Stack,
}

type Stack = BoxService<Request, Response<Body>, BoxError>;

async fn check<const N: usize>(rows: [Row; N]) {
    for row in rows {
        println!("{:<44} outside  inside", row.name);
        check_service(&format!("{} outside", row.name), row.outside).await;
        check_service(&format!("{} inside", row.name), row.inside).await;
    }
}

/// The first request reaches the handler with its body, and the second one is denied.
async fn check_service(name: &str, mut service: Stack) {
    let request = || {
        let request = http::Request::post("/").header(header::AUTHORIZATION, "Bearer token");
        request.body(Body::from("ping")).expect("a request")
    };
    let (status, headers, body) = call(&mut service, request()).await;
    assert_eq!((status, body.as_str()), (200, "ping"), "{name}: allowed");
    assert_eq!(headers["x-ratelimit-remaining"], "0", "{name}: allowed");
    let (status, headers, body) = call(&mut service, request()).await;
    let denied = if name == "SetStatusLayer outside" {
        200
    } else {
        429
    };
    assert_eq!(status, denied, "{name}: denied");
    assert_eq!(headers[header::RETRY_AFTER], "60", "{name}: denied");
    assert!(
        body.starts_with(r#"{"error":"rate_limited""#),
        "{name}: {body}"
    );
}

async fn call(service: &mut Stack, request: Request) -> (u16, http::HeaderMap, String) {
    let service = service.ready().await.expect("it becomes ready");
    let response = service.call(request).await.expect("it responds");
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 1_000_000)
        .await
        .expect("it has a body")
        .to_vec();
    let body = String::from_utf8(body).expect("it is text");
    (parts.status.as_u16(), parts.headers, body)
}

fn boxed<S, B>(service: S) -> Stack
where
    S: Service<Request, Response = Response<B>> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = service.map_response(|response: Response<B>| response.map(Body::new));
    service.map_err(Into::into).boxed()
}

#[expect(deprecated, reason = "applications use it")]
fn bearer<B: Default>()
-> ValidateRequestHeaderLayer<tower_http::auth::require_authorization::Bearer<B>> {
    ValidateRequestHeaderLayer::bearer("token")
}

fn limit() -> RateLimitLayer {
    let policy = Policy::new("p", Quota::per_minute(1)).key(Global);
    let layer = RateLimitLayer::builder().policy(policy);
    layer.build().expect("it is well set up")
}

// === Services ===

/// Responds with the request's body, of any type.
#[derive(Clone, Debug)]
struct Echo;

impl<B> Service<http::Request<B>> for Echo
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: fmt::Debug,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async {
            let body = request.into_body().collect().await;
            Ok(Response::new(Body::from(
                body.expect("it arrives").to_bytes(),
            )))
        })
    }
}

/// Responds at once, with a future and bodies that are `Sync`.
#[derive(Clone, Debug)]
struct Pong;

impl Service<http::Request<String>> for Pong {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<String>) -> Self::Future {
        future::ready(Ok(Response::new("pong".to_owned())))
    }
}

/// Never responds.
#[derive(Clone, Debug)]
struct Hanging;

impl Service<Request> for Hanging {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = future::Pending<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        future::pending()
    }
}

/// Never sends a request again.
#[derive(Clone, Debug)]
struct Never;

impl<R, T, E> retry::Policy<R, T, E> for Never {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut R, _: &mut Result<T, E>) -> Option<Self::Future> {
        None
    }

    fn clone_request(&mut self, _: &R) -> Option<R> {
        None
    }
}

impl<R> hedge::Policy<R> for Never {
    fn clone_request(&self, _: &R) -> Option<R> {
        None
    }

    fn can_retry(&self, _: &R) -> bool {
        false
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
