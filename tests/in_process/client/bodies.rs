//! Real connections: how long slots are held, which requests are sent twice, and what is left of a closed connection.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::State, routing::any};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{io::AsyncReadExt, net::TcpListener, sync::mpsc};
use tollgate::{
    Policy, RateLimiter,
    client::{CallFailure, Outgoing, OutgoingError, OutgoingLayer},
    extract::{Global, HostHeader},
};
use tower::{Layer, ServiceExt};

use super::api::{built, limiter, wide};

type HyperClient<B> = Client<HttpConnector, B>;

fn client<B>() -> HyperClient<B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    Client::builder(TokioExecutor::new()).build_http()
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn to(address: SocketAddr, method: Method) -> Request<Full<Bytes>> {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{address}/"));
    request.body(Full::from("sent")).expect("a valid request")
}

fn classified(limiter: &RateLimiter) -> OutgoingLayer {
    let layer = OutgoingLayer::builder(limiter)
        .policy(wide("api").outgoing_key(HostHeader))
        .classify_errors(|error: &Error| match error.is_connect() {
            true => CallFailure::NotSent,
            false => CallFailure::Transient,
        });
    built(layer)
}

// === Slots ===

/// A client with one slot for all calls.
fn one_slot(limiter: &RateLimiter) -> Outgoing<HyperClient<Full<Bytes>>> {
    let layer = OutgoingLayer::builder(limiter)
        .policy(Policy::concurrency("slots", 1).outgoing_key(Global))
        .max_wait(Duration::ZERO);
    built(layer).layer(client())
}

/// A server whose responses have one chunk for each message, and end with the sender.
async fn chunks() -> (SocketAddr, mpsc::UnboundedSender<&'static str>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
    let app = Router::new().route(
        "/",
        any(async move || {
            let receiver = receiver.lock_owned().await;
            Body::from_stream(stream::unfold(receiver, async |mut receiver| {
                let chunk: &str = receiver.recv().await?;
                Some((Ok::<_, Infallible>(chunk), receiver))
            }))
        }),
    );
    (serve(app).await, sender)
}

#[tokio::test]
async fn slot_is_held_until_the_body_has_ended() {
    let limiter = limiter();
    let (client, (address, sender)) = (one_slot(&limiter), chunks().await);
    let call = || client.clone().oneshot(to(address, Method::GET));
    let mut body = call().await.expect("a response").into_body();
    sender.send("one").expect("the server reads");
    let frame = body.frame().await.expect("a frame").expect("no error");
    assert_eq!(frame.into_data().expect("data"), "one");
    let limited = call().await.expect_err("the slot is taken");
    assert!(limited.limited().is_some(), "{limited}");
    drop(sender);
    assert!(body.frame().await.is_none());
    assert!(
        call().await.is_ok(),
        "the body has ended, though it still exists"
    );
    drop(body);
}

#[tokio::test]
async fn slot_is_released_if_the_body_is_dropped_or_taken() {
    let limiter = limiter();
    let app = Router::new().route("/", any(async || "body"));
    let (client, address) = (one_slot(&limiter), serve(app).await);
    let call = || client.clone().oneshot(to(address, Method::GET));
    drop(call().await.expect("a response"));
    let response = call().await.expect("the slot is free");
    let inner = response.into_body().into_inner();
    assert!(call().await.is_ok(), "the slot is free");
    assert!(!inner.is_end_stream());
}

#[tokio::test]
async fn call_that_is_dropped_in_flight_releases_its_slot() {
    let limiter = limiter();
    let (client, address) = (one_slot(&limiter), silent().await);
    let call = || client.clone().oneshot(to(address, Method::GET));
    tokio::select! {
        biased;
        _ = call() => panic!("the server is silent"),
        () = tokio::task::yield_now() => {}
    }
    let free = limiter.try_acquire(Policy::concurrency("slots", 1).charge(tollgate::Key::GLOBAL));
    assert!(free.await.is_ok());
}

/// A server that reads and never responds.
async fn silent() -> SocketAddr {
    serve(Router::new().route("/", any(std::future::pending::<()>))).await
}

// === Connections ===

/// A server that closes each connection once a request has come, but responds on those after `closed`.
async fn closing(closed: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, requests) = (listener.local_addr(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = [0; 1_024];
            let read = socket.read(&mut head).await.unwrap_or(0);
            if read > 0 && counted.fetch_add(1, Ordering::Relaxed) >= closed {
                let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = tokio::io::AsyncWriteExt::write_all(&mut socket, response).await;
            }
        }
    });
    (address.expect("an address"), requests)
}

#[tokio::test]
async fn closed_connection_is_retried_only_if_the_request_is_safe() {
    let limiter = limiter();
    for (method, requests, is_ok) in [(Method::GET, 2, true), (Method::POST, 1, false)] {
        let (address, seen) = closing(1).await;
        let call = classified(&limiter)
            .layer(client())
            .oneshot(to(address, method));
        let outcome = call.await;
        assert_eq!(outcome.is_ok(), is_ok, "{outcome:?}");
        assert_eq!(seen.load(Ordering::Relaxed), requests);
        if let Err(error) = outcome {
            assert!(matches!(error, OutgoingError::Inner(_)), "{error}");
        }
    }
}

#[tokio::test]
async fn refused_connection_is_retried_with_any_method() {
    let limiter = limiter();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let client = tower::service_fn(move |request| {
        counted.fetch_add(1, Ordering::Relaxed);
        client::<Full<Bytes>>().request(request)
    });
    let call = classified(&limiter)
        .layer(client)
        .oneshot(to(address, Method::POST));
    let error = call
        .await
        .expect_err("nobody listens")
        .into_inner()
        .expect("the client's");
    assert!(error.is_connect());
    assert_eq!(attempts.load(Ordering::Relaxed), 3);
}

// === Streams ===

#[tokio::test]
async fn streamed_body_is_sent_once_and_complete() {
    let limiter = limiter();
    let calls = Arc::new(AtomicUsize::new(0));
    let app = Router::new()
        .route(
            "/",
            any(async |State(calls): State<Arc<AtomicUsize>>, body: Bytes| {
                calls.fetch_add(1, Ordering::Relaxed);
                assert_eq!(body, "onetwo");
                let refusal = Response::builder().status(429).header("retry-after", "0");
                refusal.body(Body::empty()).expect("a valid response")
            }),
        )
        .with_state(Arc::clone(&calls));
    let address = serve(app).await;
    let chunks =
        ["one", "two"].map(|chunk| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(chunk))));
    let body = StreamBody::new(stream::iter(chunks));
    let request = Request::put(format!("http://{address}/")).body(body);
    let call = classified(&limiter)
        .layer(client())
        .oneshot(request.expect("a valid request"));
    let response = call.await.expect("a response");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn refused_call_is_retried_over_a_real_connection() {
    let limiter = limiter();
    let calls = Arc::new(AtomicUsize::new(0));
    let app = Router::new()
        .route(
            "/",
            any(async |State(calls): State<Arc<AtomicUsize>>, body: Bytes| {
                assert_eq!(body, "sent");
                let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
                let response = Response::builder().status(if is_first { 429 } else { 200 });
                response
                    .header("retry-after", "0")
                    .body(Body::from("done"))
                    .expect("a valid response")
            }),
        )
        .with_state(Arc::clone(&calls));
    let address = serve(app).await;
    let call = classified(&limiter)
        .layer(client())
        .oneshot(to(address, Method::POST));
    let body = call.await.expect("a response").into_body().collect().await;
    assert_eq!(body.expect("a body").to_bytes(), "done");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
