//! The service.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::Service;

use super::{
    admission::Admission, body::ResponseBody, current_rules::CurrentRules, future::LimitFuture,
};

/// A service whose requests are limited. Made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    rules: CurrentRules,
}

/// Future of [`RateLimit`].
pub type ResponseFuture<S, A> = LimitFuture<S, Request<A>, Arc<Admission>>;

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, rules: CurrentRules) -> Self {
        Self { inner, rules }
    }
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, A>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<A>) -> Self::Future {
        LimitFuture::begin(&mut self.inner, request, &self.rules.load())
    }
}
