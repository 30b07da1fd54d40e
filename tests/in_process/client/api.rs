//! An API in process, which responds as a test wants, and the requests to it.

use std::{
    future::{Ready, ready},
    io,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tollgate::{
    Key, Policy, Quota, RateLimiter,
    client::{OutgoingBody, OutgoingError, OutgoingLayer, OutgoingLayerBuilder},
    clock::{Clock, Timestamp},
    extract::HostHeader,
};
use tower::{Layer, Service, ServiceExt};

/// An API that responds by a closure. Clones share its calls.
pub(super) struct Api<B = Full<Bytes>> {
    respond: Arc<Respond<B>>,
    calls: Arc<Mutex<Vec<Method>>>,
}

type Respond<B> = dyn Fn(&Request<B>, usize) -> Outcome + Send + Sync;

pub(super) type Outcome = Result<Response<Full<Bytes>>, io::Error>;

impl<B> Api<B> {
    /// The closure gets the request, and the number of calls before it.
    pub fn new(respond: impl Fn(&Request<B>, usize) -> Outcome + Send + Sync + 'static) -> Self {
        Self {
            respond: Arc::new(respond),
            calls: Arc::default(),
        }
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.len()
    }
}

// Not derived: `B` need not be `Clone`.
impl<B> Clone for Api<B> {
    fn clone(&self) -> Self {
        Self {
            respond: Arc::clone(&self.respond),
            calls: Arc::clone(&self.calls),
        }
    }
}

impl<B> Service<Request<B>> for Api<B> {
    type Response = Response<Full<Bytes>>;
    type Error = io::Error;
    type Future = Ready<Outcome>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let number = calls.len();
        calls.push(request.method().clone());
        drop(calls);
        ready((self.respond)(&request, number))
    }
}

/// Returns a response with a status and headers.
pub(super) fn response(status: u16, headers: &[(&str, &str)]) -> Outcome {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Ok(response.body(Full::from("body")).expect("a valid response"))
}

/// Returns a refusal whose pause is the shortest.
pub(super) fn refused() -> Outcome {
    response(429, &[("retry-after", "0")])
}

/// Returns a request to `http://api.test/`.
pub(super) fn request(method: Method) -> Request<Full<Bytes>> {
    request_to("http://api.test/", method)
}

pub(super) fn request_to(uri: &str, method: Method) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(uri);
    request.body(Full::from("sent")).expect("a valid request")
}

/// A policy that never denies in these tests.
pub(super) fn wide(name: &str) -> Policy {
    Policy::new(name, Quota::per_second(100_000))
}

pub(super) fn limiter() -> RateLimiter {
    RateLimiter::builder().build().expect("it is well set up")
}

/// Returns a policy of ten units an hour, and a limiter whose time stands still.
pub(super) fn ten_an_hour() -> (Policy, RateLimiter) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let limiter = RateLimiter::builder().clock(clock).build();
    let limiter = limiter.expect("it is well set up");
    (Policy::new("api", Quota::per_hour(10)), limiter)
}

/// Returns what a policy has left for all requests together.
pub(super) async fn left(limiter: &RateLimiter, policy: &Policy) -> u64 {
    let peek = limiter.peek(&[policy.charge(Key::GLOBAL)]).await;
    let state = peek.expect("a decision").states()[0];
    state.usage().expect("it is counted").remaining
}

/// Returns a layer with one wide policy by host.
pub(super) fn by_host() -> OutgoingLayerBuilder {
    OutgoingLayer::builder(&limiter()).policy(wide("api").outgoing_key(HostHeader))
}

pub(super) fn built(builder: OutgoingLayerBuilder) -> OutgoingLayer {
    builder.build().expect("it is well set up")
}

/// Sends a request through a layer.
pub(super) async fn send<B: 'static>(
    layer: &OutgoingLayer,
    api: &Api<B>,
    request: Request<B>,
) -> Result<Response<OutgoingBody<Full<Bytes>>>, OutgoingError<io::Error>> {
    layer.layer(api.clone()).oneshot(request).await
}

/// Sends a request that gets a response. Returns its status.
pub(super) async fn status<B: 'static>(
    layer: &OutgoingLayer,
    api: &Api<B>,
    request: Request<B>,
) -> u16 {
    let response = send(layer, api, request).await;
    response.expect("the API responds").status().as_u16()
}
