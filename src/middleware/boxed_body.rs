//! A limit whose responses have axum's body, for stacks with or without it.
//!
//! # Why a layer of its own?
//!
//! `ResponseBody<B>` depends on the inner body, so a stack with the limit has another type than one without. A box would make all
//! users pay for those few. So only who asks gets axum's `Body`. An inner body that is axum's already, and with nothing to settle,
//! is unwrapped and not boxed.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{BoxError, body::Body as AxumBody};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tower::{Layer, Service};

use super::{
    body::ResponseBody,
    clone_service::CloneService,
    layer::RateLimitLayer,
    service::{RateLimit, ResponseFuture},
};

/// A [`RateLimitLayer`] whose responses have axum's `Body`. Made by [`RateLimitLayer::boxed_body`].
#[derive(Clone, Debug)]
pub struct BoxedBodyLayer {
    limit: RateLimitLayer,
}

impl RateLimitLayer {
    /// Returns the layer with axum's `Body` as the body of its responses, whatever the inner one is.
    ///
    /// For `option_layer`, `Either` and boxed services, whose responses must have one type with and without the limit. Errors and
    /// readiness are unchanged. A body that is axum's already is boxed only if something is to be settled when it ends: slots, queues
    /// and [costs](crate::rules::Rule::settle).
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::Router;
    /// use tollgate::RateLimitLayer;
    /// use tower::util::option_layer;
    ///
    /// fn with_limit(app: Router, limit: Option<RateLimitLayer>) -> Router {
    ///     app.layer(option_layer(limit.map(RateLimitLayer::boxed_body)))
    /// }
    /// ```
    #[must_use]
    pub fn boxed_body(self) -> BoxedBodyLayer {
        BoxedBodyLayer { limit: self }
    }
}

impl<S: CloneService> Layer<S> for BoxedBodyLayer {
    type Service = BoxedBody<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BoxedBody {
            limited: self.limit.layer(inner),
        }
    }
}

// === BoxedBody ===

/// A limited service whose responses have axum's `Body`. Made by [`BoxedBodyLayer`].
#[derive(Clone, Debug)]
pub struct BoxedBody<S> {
    limited: RateLimit<S>,
}

impl<S, A: 'static, B> Service<Request<A>> for BoxedBody<S>
where
    S: Service<Request<A>, Response = Response<B>> + CloneService,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AxumBody>;
    type Error = S::Error;
    type Future = BoxedBodyFuture<ResponseFuture<S, A>>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.limited.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<A>) -> Self::Future {
        BoxedBodyFuture {
            response: self.limited.call(request),
        }
    }
}

// === BoxedBodyFuture ===

/// Future of [`BoxedBody`], around the future of the limited service.
#[pin_project]
#[derive(Debug)]
pub struct BoxedBodyFuture<F> {
    #[pin]
    response: F,
}

impl<F, B, E> Future for BoxedBodyFuture<F>
where
    F: Future<Output = Result<Response<ResponseBody<B>>, E>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<AxumBody>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.project().response.poll(context));
        Poll::Ready(response.map(|response| response.map(boxed)))
    }
}

fn boxed<B>(body: ResponseBody<B>) -> AxumBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    match body.unsettled() {
        Ok(inner) => AxumBody::new(inner),
        Err(body) => AxumBody::new(body),
    }
}
