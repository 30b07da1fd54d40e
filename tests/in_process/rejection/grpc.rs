//! Rejections for gRPC clients: the response byte by byte, and a real client with a real server.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE, uri::PathAndQuery};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::{net::TcpListener, time};
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    extract::{ApiKey, Global, Header, PeerIp},
    headers::Headers,
    rejection::{Rejection, RejectionFormat},
    testing::ScriptedStore,
};
use tonic::{
    Code, Status,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{self, NamedService},
    service::{InterceptorLayer, LayerExt, Routes, interceptor::InterceptedService},
    transport::{
        Channel, Server,
        server::{Router, TcpConnectInfo, TcpIncoming},
    },
};
use tonic_types::StatusExt;
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::MapRequestLayer,
};
use tower_http::{timeout::TimeoutLayer, trace::TraceLayer};

// === A real client and server ===

#[tokio::test]
async fn tonic_client_receives_the_limit_and_the_time_to_retry() {
    let clock = stopped();
    let server = serve(two_policies(&clock)).await;
    let mut client = connect(server).await;
    for _ in 0..2 {
        let reply = send(&mut client).await.expect("it is within the limit");
        assert_eq!(reply.get_ref(), "hello");
        assert_eq!(
            reply.metadata().get("x-ratelimit-limit").expect("metadata"),
            "2"
        );
    }
    let status = send(&mut client).await.expect_err("it is over the limit");
    println!("{status:?}\n{:?}", status.get_error_details());
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.message(),
        "rate limit minute exceeded, retry in 30 seconds"
    );

    let details = status.check_error_details().expect("they are well formed");
    let retry = details.retry_info().expect("waiting helps");
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(30)));
    let failure = details.quota_failure().expect("a limit is exceeded");
    let violations: Vec<_> = failure
        .violations
        .iter()
        .map(|violation| (violation.subject.as_str(), violation.description.as_str()))
        .collect();
    assert_eq!(violations, [("minute", "rate limit minute exceeded")]);

    // the headers are metadata
    assert_eq!(
        status.metadata().get("retry-after").expect("metadata"),
        "30"
    );
    assert_eq!(
        status
            .metadata()
            .get("x-ratelimit-remaining")
            .expect("metadata"),
        "0"
    );

    clock.advance(Duration::from_secs(30));
    send(&mut client).await.expect("the wait was not too short");
}

#[tokio::test]
async fn tonic_client_receives_the_wait_to_the_microsecond() {
    let clock = stopped();
    let server = serve(two_policies(&clock)).await;
    let mut client = connect(server).await;
    for _ in 0..2 {
        send(&mut client).await.expect("it is within the limit");
    }
    clock.advance(Duration::from_micros(29_999_999));
    let status = send(&mut client)
        .await
        .expect_err("it is a moment too early");
    let retry = status.get_details_retry_info().expect("waiting helps");
    assert_eq!(retry.retry_delay, Some(Duration::from_micros(1)));
    clock.advance(Duration::from_micros(1));
    send(&mut client).await.expect("the wait was not too short");
}

#[tokio::test]
async fn limit_stands_in_every_place_of_a_tonic_server() {
    let layer = || builder().build().expect("the settings are valid");
    let pass = |request: tonic::Request<()>| Ok(request);
    let intercepted = || InterceptedService::new(Echo, pass);
    let stack = || {
        let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, PATIENCE);
        ServiceBuilder::new()
            .layer(InterceptorLayer::new(pass))
            .layer(TraceLayer::new_for_grpc())
            .layer(timeout)
            .layer(layer())
    };
    let inside = InterceptedService::new(layer().named_layer(Echo), pass);
    for (place, routes) in [
        ("a service", Routes::new(layer().named_layer(Echo))),
        (
            "outside of an interceptor",
            Routes::new(layer().named_layer(intercepted())),
        ),
        ("inside of an interceptor", Routes::new(inside)),
        (
            "below other layers of a service",
            Routes::new(stack().named_layer(Echo)),
        ),
    ] {
        assert_limited(place, listen(Server::builder().add_routes(routes)).await).await;
    }
    let app = Server::builder().layer(stack()).add_service(intercepted());
    assert_limited("below other layers of the server", listen(app).await).await;
}

async fn assert_limited(place: &str, server: SocketAddr) {
    let mut client = connect(server).await;
    for _ in 0..2 {
        let reply = send(&mut client).await;
        assert_eq!(reply.expect(place).get_ref(), "hello", "{place}");
    }
    let status = send(&mut client).await.expect_err(place);
    assert_eq!(status.code(), Code::ResourceExhausted, "{place}");
}

#[tokio::test]
async fn tonic_client_can_be_limited() {
    let server = listen(Server::builder().add_service(Echo)).await;
    let layer = builder().build().expect("the settings are valid");
    let mut client = client::Grpc::new(layer.layer(channel(server).await));
    for _ in 0..2 {
        let reply = send(&mut client).await.expect("it is within the limit");
        assert_eq!(reply.get_ref(), "hello");
    }
    let status = send(&mut client).await.expect_err("it is over the limit");
    assert_eq!(status.code(), Code::ResourceExhausted);
}

// Regression: RetryInfo was that of the policy that denies, and not of the one whose last unit the denial took.
#[tokio::test]
async fn tonic_client_receives_the_wait_of_a_policy_that_its_denial_uses_up() {
    let clock = stopped();
    let hour = Policy::new("hour", Quota::per_hour(3)).count_denied(true);
    let server = serve(builder().policy(hour.key(Global)).clock(clock.clone())).await;
    let mut client = connect(server).await;
    for _ in 0..2 {
        send(&mut client).await.expect("it is within the limit");
    }
    let status = send(&mut client).await.expect_err("it is over the limit");
    assert_eq!(
        status.message(),
        "rate limit minute exceeded, retry in 1200 seconds"
    );
    let retry = status.get_details_retry_info().expect("waiting helps");
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(1_200)));
    clock.advance(Duration::from_secs(1_200));
    send(&mut client).await.expect("the wait was not too short");
}

// Regression: the documented setup for tonic counted each IPv6 address of a network separately.
#[tokio::test]
async fn peer_addresses_of_tonic_are_counted_by_network() {
    let tell_peer = |mut request: Request<String>| {
        let connection = request.extensions().get::<TcpConnectInfo>();
        if let Some(peer) = connection.and_then(TcpConnectInfo::remote_addr) {
            request.extensions_mut().insert::<SocketAddr>(peer);
        }
        request
    };
    let rule = Policy::new("per-ip", Quota::per_minute(2)).key(PeerIp);
    let limited = service(RateLimitLayer::builder().policy(rule));
    let app = MapRequestLayer::new(tell_peer).layer(limited);
    for (address, is_denied) in [
        ("[2001:db8:0:1::1]:1", false),
        ("[2001:db8:0:1::2]:2", false),
        ("[2001:db8:0:1:ffff::3]:3", true),
        ("[2001:db8:0:2::1]:1", false),
        ("192.0.2.1:1", false),
    ] {
        let mut request = request("application/grpc");
        request.extensions_mut().insert(TcpConnectInfo {
            local_addr: None,
            remote_addr: Some(address.parse().expect("an address")),
        });
        let response = app.clone().oneshot(request).await.expect("infallible");
        let status = response.headers().contains_key("grpc-status");
        assert_eq!(status, is_denied, "{address}");
    }
}

#[tokio::test]
async fn tonic_client_sees_an_outage_as_unavailable() {
    let broken = ScriptedStore::failing(ErrorKind::Unavailable, "the test makes it fail");
    let server = serve(builder().store(broken)).await;
    let status = send(&mut connect(server).await)
        .await
        .expect_err("nobody decides");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "the service is temporarily unavailable");
    assert!(status.get_details_retry_info().is_none());
    assert_eq!(status.metadata().get("retry-after"), None);
}

// === On the wire ===

#[tokio::test]
async fn response_is_a_status_in_the_headers_without_a_body() {
    let (status, headers, body) = denied(two_policies(&stopped()), "application/grpc").await;
    assert_eq!(status, 200);
    assert_eq!(headers[CONTENT_TYPE], "application/grpc");
    assert_eq!(headers["grpc-status"], "8");
    let message = "rate limit minute exceeded, retry in 30 seconds";
    assert_eq!(headers["grpc-message"], message);
    assert!(!headers.contains_key("grpc-retry-pushback-ms"));
    // the stream is a single frame of headers
    assert!(body.is_end_stream());
    assert_eq!(body.collect().await.expect("infallible").to_bytes(), "");
}

#[tokio::test]
async fn content_type_selects_grpc() {
    for (kind, content_type) in [
        ("application/grpc", Some("application/grpc")),
        ("application/grpc+proto", Some("application/grpc")),
        ("application/grpc+json", Some("application/grpc")),
        ("application/grpc;charset=utf-8", Some("application/grpc")),
        ("APPLICATION/gRPC", Some("application/grpc")),
        ("application/grpc-web", Some("application/grpc-web+proto")),
        (
            "application/grpc-web+proto",
            Some("application/grpc-web+proto"),
        ),
        (
            "application/grpc-web-text",
            Some("application/grpc-web-text+proto"),
        ),
        (
            "application/grpc-web-text+proto",
            Some("application/grpc-web-text+proto"),
        ),
        ("application/grpcish", None),
        ("application/grpc-webby", None),
        ("application/grp", None),
        ("application/json", None),
        ("", None),
    ] {
        let (status, headers, _) = denied(two_policies(&stopped()), kind).await;
        let found = headers[CONTENT_TYPE].to_str().expect("it is text");
        assert_eq!(
            (status, found),
            match content_type {
                Some(content_type) => (200, content_type),
                None => (429, "application/json"),
            },
            "{kind}"
        );
        assert_eq!(
            headers.contains_key("grpc-status"),
            content_type.is_some(),
            "{kind}"
        );
    }
}

// Regression: a denied GET with this content type got status 200.
#[tokio::test]
async fn only_a_post_is_grpc() {
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc-web",
        "application/grpc-web-text",
    ] {
        for method in ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "post"] {
            let mut service = service(two_policies(&stopped()));
            for _ in 0..2 {
                pass(&mut service).await;
            }
            let request = Request::builder()
                .method(method)
                .header(CONTENT_TYPE, kind)
                .body(String::new());
            let response = service.oneshot(request.expect("it is well formed")).await;
            let response = response.expect("infallible");
            assert_eq!(response.status(), 429, "{method} {kind}");
            assert!(
                !response.headers().contains_key("grpc-status"),
                "{method} {kind}"
            );
        }
    }
}

#[tokio::test]
async fn every_ready_made_format_responds_to_grpc_as_grpc() {
    for denial in [
        RejectionFormat::by(|_, _| Response::new("")),
        RejectionFormat::json(),
        RejectionFormat::negotiated(),
        RejectionFormat::problem_json(),
        RejectionFormat::text(),
    ] {
        let builder = two_policies(&stopped()).on_rejection(denial);
        let (_, headers, _) = denied(builder, "application/grpc").await;
        assert_eq!(headers["grpc-status"], "8");
    }
    // a closure makes all responses
    let own = two_policies(&stopped()).on_rejection(|_: &Rejection| Response::new(""));
    let (_, headers, _) = denied(own, "application/grpc").await;
    assert!(!headers.contains_key("grpc-status"));
}

#[tokio::test]
async fn pushback_is_whole_milliseconds_rounded_up() {
    for (advance, millis) in [
        (Duration::ZERO, "30000"),
        (Duration::from_micros(1), "30000"),
        (Duration::from_micros(999), "30000"),
        (Duration::from_micros(1_000), "29999"),
        (Duration::from_micros(29_999_999), "1"),
    ] {
        let clock = stopped();
        let builder =
            two_policies(&clock).on_rejection(RejectionFormat::json().grpc_pushback(true));
        let mut service = service(builder);
        for _ in 0..2 {
            pass(&mut service).await;
        }
        clock.advance(advance);
        let response = service.oneshot(request("application/grpc")).await;
        let response = response.expect("infallible");
        assert_eq!(response.headers()["grpc-retry-pushback-ms"], millis);
    }
}

#[tokio::test]
async fn pushback_over_24_days_is_capped() {
    let builder = RateLimitLayer::builder()
        .policy(Policy::new("year", Quota::new(1, Duration::from_secs(31_536_000))).key(Global))
        .headers(Headers::none())
        .on_rejection(RejectionFormat::json().grpc_pushback(true))
        .clock(stopped());
    let (_, headers, _) = denied(builder, "application/grpc").await;
    assert_eq!(headers["grpc-retry-pushback-ms"], "2147483647");
}

#[tokio::test]
async fn permanent_denial_has_a_pushback_that_forbids_retries() {
    let rule = Policy::new("upload", Quota::per_minute(5))
        .key(Global)
        .cost_by(|_| 6);
    let builder = RateLimitLayer::builder()
        .policy(rule)
        .on_rejection(RejectionFormat::json().grpc_pushback(true));
    let headers = first_headers(builder).await;
    assert_eq!(headers["grpc-status"], "8");
    assert_eq!(headers["grpc-retry-pushback-ms"], "-1");
    let status = Status::from_header_map(&headers).expect("a status");
    assert!(status.get_details_retry_info().is_none());
    assert!(status.get_details_quota_failure().is_some());
}

#[tokio::test]
async fn concurrency_denial_has_a_wait_of_a_second() {
    let builder = RateLimitLayer::builder()
        .policy(Policy::concurrency("slots", 1).key(Global))
        .on_rejection(RejectionFormat::json().grpc_pushback(true));
    let mut service = service(builder);
    let held = service
        .ready()
        .await
        .expect("infallible")
        .call(request("application/grpc"));
    let held = held.await.expect("infallible");
    let response = service.oneshot(request("application/grpc")).await;
    let response = response.expect("infallible");
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1000");
    let status = Status::from_header_map(response.headers()).expect("a status");
    let retry = status.get_details_retry_info().expect("waiting helps");
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(1)));
    drop(held);
}

#[tokio::test]
async fn status_of_a_missing_key_depends_on_who_can_correct_it() {
    let by = |rule| RateLimitLayer::builder().policy(rule);
    let policy = || Policy::new("tenant", Quota::per_minute(1));
    for (builder, code) in [
        (
            by(policy().key(Header::new("x-tenant"))),
            Code::InvalidArgument,
        ),
        (by(policy().key(ApiKey::bearer())), Code::Unauthenticated),
        (by(policy().key(PeerIp)), Code::Internal),
    ] {
        let headers =
            first_headers(builder.on_rejection(RejectionFormat::json().grpc_pushback(true))).await;
        let status = Status::from_header_map(&headers).expect("a status");
        assert_eq!(status.code(), code);
        let message = match code {
            Code::Internal => "internal server error",
            _ => "the request is missing ",
        };
        assert!(status.message().starts_with(message), "{status:?}");
        assert_eq!(status.details(), b"");
        assert!(!headers.contains_key("grpc-retry-pushback-ms"));
    }
}

#[tokio::test]
async fn message_is_percent_encoded() {
    struct Odd;

    impl tollgate::extract::KeyExtractor for Odd {
        fn extract(&self, _: &RequestHead) -> tollgate::extract::Extracted<Key> {
            tollgate::extract::Extracted::Absent
        }

        fn label(&self) -> &str {
            "50 % \u{fc}ber\n~\u{7f}"
        }
    }
    let rule = Policy::new("odd", Quota::per_minute(1)).key(Odd);
    let headers = first_headers(RateLimitLayer::builder().policy(rule)).await;
    let message = "the request is missing 50 %25 %C3%BCber%0A~%7F";
    assert_eq!(headers["grpc-message"], message);
    let status = Status::from_header_map(&headers).expect("a status");
    let message = "the request is missing 50 % \u{fc}ber\n~\u{7f}";
    assert_eq!(status.message(), message);
}

#[tokio::test]
async fn details_of_any_length_can_be_decoded() {
    // base64 ends in three ways, and lengths above 127 take two bytes
    for length in 1..=39 {
        let name = "n".repeat(length);
        let rules = (0..8).map(|index| {
            let name = format!("{index}{}", &name[..length - 1]);
            Policy::new(name, Quota::per_minute(1)).key(Global)
        });
        let builder = rules.fold(RateLimitLayer::builder(), RateLimitLayerBuilder::policy);
        let (_, headers, _) = denied(builder.clock(stopped()), "application/grpc").await;
        let text = headers["grpc-status-details-bin"]
            .to_str()
            .expect("it is text");
        assert!(!text.contains('='), "{text}");
        let status = Status::from_header_map(&headers).expect("a status");
        let details = status.check_error_details().expect("they are well formed");
        let failure = details.quota_failure().expect("limits are exceeded");
        assert_eq!(failure.violations.len(), 8);
        for (index, violation) in failure.violations.iter().enumerate() {
            assert_eq!(violation.subject, format!("{index}{}", &name[..length - 1]));
        }
        let retry = details.retry_info().expect("waiting helps");
        assert_eq!(retry.retry_delay, Some(Duration::from_secs(60)));
    }
}

// === The layer alone ===

fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(Policy::new("minute", Quota::per_minute(2)).key(Global))
}

fn two_policies(clock: &Clock) -> RateLimitLayerBuilder {
    builder()
        .policy(Policy::new("day", Quota::per_day(1_000)).key(Global))
        .clock(clock.clone())
}

type LayerBody = tollgate::middleware::ResponseBody<String>;

fn service(
    builder: RateLimitLayerBuilder,
) -> impl Service<Request<String>, Response = Response<LayerBody>, Error = Infallible, Future: Send>
+ Clone {
    let layer = builder.build().expect("the settings are valid");
    layer.layer(service_fn(|_: Request<String>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(String::from("passed"))))
    }))
}

fn request(kind: &str) -> Request<String> {
    let request = Request::post("/test.Echo/Say").header(CONTENT_TYPE, kind);
    request.body(String::new()).expect("it is well formed")
}

async fn pass<S>(service: &mut S)
where
    S: Service<Request<String>, Response = Response<LayerBody>, Error = Infallible>,
{
    let ready = service.ready().await.expect("infallible");
    let response = ready.call(request("application/grpc")).await;
    assert!(
        !response
            .expect("infallible")
            .headers()
            .contains_key("grpc-status")
    );
}

/// Returns the first response that is a denial.
async fn denied(builder: RateLimitLayerBuilder, kind: &str) -> (u16, HeaderMap, LayerBody) {
    let mut service = service(builder);
    for _ in 0..3 {
        let ready = service.ready().await.expect("infallible");
        let response = ready.call(request(kind)).await.expect("infallible");
        let is_denied = response.extensions().get::<Rejection>().is_some();
        if is_denied {
            let (head, body) = response.into_parts();
            return (head.status.as_u16(), head.headers, body);
        }
    }
    panic!("the third request is denied at the latest");
}

async fn first_headers(builder: RateLimitLayerBuilder) -> HeaderMap {
    let response = service(builder).oneshot(request("application/grpc")).await;
    let response = response.expect("infallible");
    assert!(response.extensions().get::<Rejection>().is_some());
    assert_eq!(response.status(), 200);
    response.into_parts().0.headers
}

// === Client and server ===

/// Text as bytes, without a message format.
#[derive(Clone, Copy, Debug, Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes: Bytes = buffer.copy_to_bytes(buffer.remaining());
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

/// A service that responds with the text of the request.
#[derive(Clone, Debug)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let echo = service_fn(async |request: tonic::Request<String>| {
            Ok::<_, Status>(tonic::Response::new(request.into_inner()))
        });
        Box::pin(async move { Ok(server::Grpc::new(Text).unary(echo, request).await) })
    }
}

async fn serve(builder: RateLimitLayerBuilder) -> SocketAddr {
    let layer = builder.build().expect("the settings are valid");
    listen(Server::builder().layer(layer).add_service(Echo)).await
}

async fn listen<L, B>(app: Router<L>) -> SocketAddr
where
    L: Layer<Routes> + Clone + Send + 'static,
    L::Service: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError> + Send>
        + Clone
        + Send
        + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.expect("some port is free");
    let server = listener.local_addr().expect("it is bound");
    // ends with the test's runtime
    tokio::spawn(app.serve_with_incoming(TcpIncoming::from(listener)));
    server
}

async fn connect(server: SocketAddr) -> client::Grpc<Channel> {
    client::Grpc::new(channel(server).await)
}

async fn channel(server: SocketAddr) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{server}"));
    let endpoint = endpoint.expect("it is a URL").timeout(PATIENCE);
    let channel = time::timeout(PATIENCE, endpoint.connect()).await;
    let channel = channel.expect("the server listens");
    channel.expect("the server listens")
}

async fn send<S, B>(client: &mut client::Grpc<S>) -> Result<tonic::Response<String>, Status>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError> + fmt::Debug>,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    client.ready().await.expect("the server listens");
    let path = PathAndQuery::from_static("/test.Echo/Say");
    client
        .unary(tonic::Request::new("hello".to_owned()), path, Text)
        .await
}

fn stopped() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_250_000))
}

const PATIENCE: Duration = Duration::from_secs(10);
