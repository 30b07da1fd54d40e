//! The service.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::Service;

use super::{
    admission::Admission,
    body::ResponseBody,
    clone_service::CloneService,
    current_rules::CurrentRules,
    future::{LimitFuture, State},
};

/// A service whose requests are limited. Made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Debug)]
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

// Not derived: where a router asks for it, the compiler then names the service inside, and the remedy.
impl<S: CloneService> Clone for RateLimit<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            rules: self.rules.clone(),
        }
    }
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    A: 'static,
    S: Service<Request<A>, Response = Response<B>> + CloneService,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, A>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let rules = self.rules.load();
        match rules.pass_gate(&mut request) {
            // Here, and not in a function that gets the request: it would be copied once more.
            Ok(admitted) => LimitFuture {
                state: State::Running {
                    future: self.inner.call(request),
                    admitted,
                },
            },
            Err(None) => LimitFuture::begin(&mut self.inner, request, &rules),
            Err(Some(denial)) => {
                // A clone was not polled ready: what the original has reserved is released.
                self.inner = self.inner.clone();
                LimitFuture {
                    state: State::Done(Some(Ok(rules.deny(denial, request)))),
                }
            }
        }
    }
}
