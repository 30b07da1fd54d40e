//! gRPC: statuses in the head are refusals, and statuses in the trailers pause the key once the caller has read them.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::net::TcpListener;
use tollgate::{Policy, Quota, client::OutgoingLayer, extract::Global};
use tonic::{
    Code, Status,
    client::GrpcService,
    server::NamedService,
    service::Routes,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::api::{Api, built, left, limiter, refused, status, wide};

/// Calls a server whose response ends with these trailers, and returns whether the next call has its turn at once.
async fn is_admitted_after(trailers: &[(&'static str, &'static str)]) -> bool {
    let layer = OutgoingLayer::builder(&limiter())
        .policy(wide("grpc").outgoing_key(Global))
        .max_wait(Duration::ZERO);
    let layer = built(layer);
    let response = call(&layer, trailers).await.expect("it has its turn");
    assert_eq!(response.status(), 200);
    let response = response.into_body();
    assert!(
        call(&layer, &[]).await.is_ok(),
        "the trailers were not read yet"
    );
    let body = response.collect().await.expect("a body");
    assert_eq!(body.trailers().map(HeaderMap::len), Some(trailers.len()));
    call(&layer, &[]).await.is_ok()
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn call(
    layer: &OutgoingLayer,
    trailers: &[(&'static str, &'static str)],
) -> Result<
    Response<tollgate::client::OutgoingBody<Body>>,
    tollgate::client::OutgoingError<Infallible>,
> {
    let mut map = HeaderMap::new();
    for (name, value) in trailers {
        map.insert(*name, value.parse().expect("a value"));
    }
    let client = service_fn(move |_: Request<Full<Bytes>>| {
        let frames = vec![
            Ok(Frame::data(Bytes::from("hello"))),
            Ok(Frame::trailers(map.clone())),
        ];
        let response = Response::builder().header("content-type", "application/grpc");
        ready(Ok(response
            .body(StreamBody::new(stream::iter(frames)))
            .expect("a response")))
    });
    let request = Request::post("/test.Greeter/Greet").body(Full::from("hi"));
    layer
        .layer(client)
        .oneshot(request.expect("a request"))
        .await
}

#[tokio::test]
async fn trailers_that_refuse_pause_the_key() {
    for (trailers, is_admitted) in [
        (&[("grpc-status", "0")][..], true),
        (&[("grpc-status", "5")], true),
        (&[("grpc-status", "8")], false),
        (
            &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "60000")],
            false,
        ),
        (
            &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "60000")],
            false,
        ),
    ] {
        assert_eq!(
            is_admitted_after(trailers).await,
            is_admitted,
            "{trailers:?}"
        );
    }
}

#[tokio::test]
async fn trailers_that_show_a_limit_lower_what_is_left() {
    let (limiter, policy) = (limiter(), Policy::new("grpc", Quota::per_hour(10)));
    let layer = OutgoingLayer::builder(&limiter).policy(policy.clone().outgoing_key(Global));
    let layer = built(layer);
    let trailers = [("grpc-status", "0"), ("x-ratelimit-remaining", "3")];
    let response = call(&layer, &trailers).await.expect("it has its turn");
    assert_eq!(left(&limiter, &policy).await, 9);
    response.into_body().collect().await.expect("a body");
    assert_eq!(left(&limiter, &policy).await, 3);
}

#[tokio::test(start_paused = true)]
async fn refusal_in_the_head_is_retried_and_unavailability_only_if_safe() {
    for (code, safe, calls) in [
        ("8", false, 3),
        ("14", false, 1),
        ("14", true, 3),
        ("5", true, 1),
    ] {
        let mut layer =
            OutgoingLayer::builder(&limiter()).policy(wide("grpc").outgoing_key(Global));
        if safe {
            layer = layer.safe_when(|_: &tollgate::RequestHead<'_>| true);
        }
        let api = Api::new(move |_: &Request<Full<Bytes>>, _| {
            let mut response = refused()?;
            *response.status_mut() = http::StatusCode::OK;
            let headers = response.headers_mut();
            headers.remove("retry-after");
            headers.insert("content-type", "application/grpc".parse().expect("a value"));
            headers.insert("grpc-status", code.parse().expect("a value"));
            headers.insert("grpc-retry-pushback-ms", "0".parse().expect("a value"));
            if code == "14" {
                headers.remove("grpc-retry-pushback-ms");
            }
            Ok(response)
        });
        let request = Request::post("/test.Greeter/Greet").body(Full::from("hi"));
        status(&built(layer), &api, request.expect("a request")).await;
        assert_eq!(api.calls(), calls, "{code} {safe}");
    }
}

// === A real client and server ===

/// A service that refuses the first call, and all that follow respond that they are not implemented.
#[derive(Clone)]
struct Refusing {
    calls: Arc<AtomicUsize>,
    has_pushback: bool,
}

impl NamedService for Refusing {
    const NAME: &'static str = "test.Greeter";
}

impl Service<Request<tonic::body::Body>> for Refusing {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<tonic::body::Body>) -> Self::Future {
        let mut status = match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => Status::resource_exhausted("slow down"),
            _ => Status::unimplemented("done"),
        };
        if self.has_pushback {
            let pushback = status.metadata_mut();
            pushback.insert("grpc-retry-pushback-ms", "5".parse().expect("a number"));
        }
        ready(Ok(status.into_http()))
    }
}

async fn serve(service: Refusing) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let routes = Routes::new(service);
    let server = Server::builder().add_routes(routes);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

#[tokio::test]
async fn channel_of_tonic_works_inside_the_layer_and_its_refused_call_is_retried() {
    assert_eq!(call_refused(true).await, (Code::Unimplemented, 2));
}

// Regression: a call was sent again after a reply that was too large for the server, so after the work.
#[tokio::test]
async fn exhausted_resource_without_a_wait_is_no_refusal_before_the_work() {
    assert_eq!(call_refused(false).await, (Code::ResourceExhausted, 1));
}

/// Calls a service that refuses the first attempt. Returns the status and the number of attempts.
async fn call_refused(has_pushback: bool) -> (Code, usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    let service = Refusing {
        calls: Arc::clone(&calls),
        has_pushback,
    };
    let address = serve(service).await;
    let endpoint = Endpoint::try_from(format!("http://{address}")).expect("a valid address");
    let channel: Channel = endpoint.connect_lazy();
    let layer = OutgoingLayer::builder(&limiter())
        .policy(wide("grpc").outgoing_key(Global))
        .copy_bodies(|_: &tonic::body::Body| Some(tonic::body::Body::empty()));
    let channel = built(layer).layer(channel);
    is_grpc_service(&channel);
    let request = Request::post("/test.Greeter/Greet").body(tonic::body::Body::empty());
    let response = channel
        .oneshot(request.expect("a request"))
        .await
        .expect("a response");
    let status = Status::from_header_map(response.headers()).expect("a status");
    (status.code(), calls.load(Ordering::Relaxed))
}

/// A generated client takes it.
fn is_grpc_service<T>(_: &T)
where
    T: GrpcService<tonic::body::Body>,
    T::Error: Into<tower::BoxError>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<tower::BoxError> + Send,
{
}
