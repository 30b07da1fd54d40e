//! The stacks that the layer stands in.

use std::{
    future::{Future, Ready},
    io,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use tollgate::{
    Key, Policy,
    acquire::{AcquireErrorKind, Priority},
    client::{
        LimitedCall, Outgoing, OutgoingBody, OutgoingError, OutgoingFuture, OutgoingInfo,
        OutgoingLayer, OutgoingLayerBuilder, OutgoingRule,
    },
    extract::{Global, HostHeader},
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit};

use super::api::{Api, built, by_host, limiter, request, request_to, response, wide};

#[tokio::test]
async fn layer_works_under_a_buffer_and_a_concurrency_limit_and_around_them() {
    let api = Api::new(|_, _| response(200, &[]));
    let outside = ServiceBuilder::new()
        .buffer(8)
        .concurrency_limit(4)
        .layer(built(by_host()))
        .service(api.clone());
    let response = outside.oneshot(request(Method::GET)).await;
    assert_eq!(response.expect("a response").status(), 200);

    let inside = ServiceBuilder::new()
        .layer(built(by_host()))
        .buffer(8)
        .concurrency_limit(4)
        .service(api.clone());
    let response = inside.oneshot(request(Method::GET)).await;
    let response = response.map_err(OutgoingError::<BoxError>::into_boxed);
    assert_eq!(response.expect("a response").status(), 200);
    assert_eq!(api.calls(), 2);
}

#[tokio::test]
async fn call_in_the_line_takes_no_permit_of_the_client() {
    let api = Api::new(|request: &Request<Full<Bytes>>, _| {
        let is_refused = request.uri().host() == Some("a.test");
        response(if is_refused { 429 } else { 200 }, &[("retry-after", "20")])
    });
    let layer = built(by_host().max_retries(0));
    let client = layer.layer(ConcurrencyLimit::new(api, 1));
    let call = |host| client.clone().oneshot(request_to(host, Method::GET));
    assert_eq!(
        call("http://a.test/").await.expect("a response").status(),
        429
    );
    let mut waiting = pin!(call("http://a.test/"));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(
        call("http://b.test/").await.expect("a response").status(),
        200
    );
}

// Regression: a call whose client was not ready waited without a bound, and kept its slots.
#[tokio::test(start_paused = true)]
async fn client_that_is_not_ready_in_time_fails_the_call() {
    #[derive(Clone)]
    struct Busy;
    impl Service<Request<Full<Bytes>>> for Busy {
        type Response = Response<Full<Bytes>>;
        type Error = io::Error;
        type Future = Ready<Result<Self::Response, io::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
            unreachable!("it is never ready")
        }
    }
    let slots = Policy::concurrency("slots", 1);
    let limiter = limiter();
    let layer = OutgoingLayer::builder(&limiter)
        .policy(slots.clone().outgoing_key(Global))
        .max_wait(Duration::from_secs(5));
    let result = built(layer).layer(Busy).oneshot(request(Method::GET)).await;
    let Err(OutgoingError::Limited(limited)) = result else {
        panic!("it was sent");
    };
    assert_eq!(limited.kind(), AcquireErrorKind::TooLong);
    assert_eq!(limited.attempts(), 0);
    let free = limiter.try_acquire(slots.charge(Key::GLOBAL));
    drop(free.await.expect("the slot is free"));
}

#[tokio::test]
async fn client_that_fails_to_get_ready_fails_the_call() {
    #[derive(Clone)]
    struct Broken;
    impl Service<Request<Full<Bytes>>> for Broken {
        type Response = Response<Full<Bytes>>;
        type Error = io::Error;
        type Future = Ready<Result<Self::Response, io::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::Error::other("broken")))
        }

        fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
            unreachable!("it was never ready")
        }
    }
    let error = built(by_host())
        .layer(Broken)
        .oneshot(request(Method::GET))
        .await;
    assert_eq!(error.expect_err("it is broken").to_string(), "broken");
}

#[tokio::test]
async fn service_is_ready_at_once_and_its_clones_share_the_counts() {
    let api = Api::new(|_, _| response(429, &[("retry-after", "60")]));
    let layer = built(by_host().max_wait(Duration::ZERO));
    let (mut one, mut other) = (layer.layer(api.clone()), layer.clone().layer(api));
    let status = one
        .ready()
        .await
        .expect("ready")
        .call(request(Method::GET))
        .await;
    assert_eq!(status.expect("a response").status(), 429);
    let ready = other.ready().await.expect("ready in a pause too");
    assert!(ready.call(request(Method::GET)).await.is_err());
}

#[tokio::test]
async fn priority_is_a_function_of_the_request() {
    let layer = OutgoingLayer::builder(&limiter())
        .policy(wide("api").outgoing_key(HostHeader))
        .priority_by(|head: &tollgate::RequestHead<'_>| match head.uri.path() {
            "/" => Priority::High,
            other => panic!("{other}"),
        });
    let api = Api::new(|_, _| response(200, &[]));
    let response = built(layer).layer(api).oneshot(request(Method::GET)).await;
    assert!(response.is_ok());
}

#[test]
fn types_are_send_sync_and_clone_as_far_as_their_parts_are() {
    type HyperClient = Client<HttpConnector, Full<Bytes>>;
    fn is_service<S: Service<Request<Full<Bytes>>> + Clone + Send + Sync>() {}
    fn is_send_sync<T: Send + Sync>() {}
    fn is_send<T: Send>() {}
    is_service::<Outgoing<HyperClient>>();
    is_send::<OutgoingFuture<HyperClient, Full<Bytes>>>();
    is_send_sync::<(
        OutgoingLayer,
        OutgoingLayerBuilder,
        OutgoingRule,
        OutgoingInfo,
    )>();
    is_send_sync::<(OutgoingError<io::Error>, LimitedCall)>();
    is_send_sync::<OutgoingBody<Full<Bytes>>>();
}
