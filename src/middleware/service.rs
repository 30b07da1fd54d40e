//! The service.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Method, Request, Response, request::Parts};
use tower::Service;

use super::{
    body::ResponseBody,
    future::ResponseFuture,
    next::{Next, Refusal},
    settling::{run, start},
    shared::Shared,
};

/// A service whose requests are limited. Made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, A, B>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The request is put together once, when it is known where it goes: each time is a copy of its head.
        let (mut parts, body) = request.into_parts();
        let next = match self.shared.finds {
            false => self.shared.decide(&mut parts),
            true => self.shared.begin(&mut parts),
        };
        match next {
            Ok(Next::Go(admitted)) if admitted.delay.is_none() => {
                let is_head = parts.method == Method::HEAD;
                let mut tab = start(admitted.tab, is_head, &mut parts.extensions);
                let request = Request::from_parts(parts, body);
                let future = run(&mut tab, || self.inner.call(request));
                ResponseFuture::calling(future, admitted.fields, tab)
            }
            Ok(next) => self.wait(next, Request::from_parts(parts, body)),
            Err(refusal) => self.reject(refusal, &parts),
        }
    }
}

impl<S: Clone> RateLimit<S> {
    /// Waits for what must be there before the inner service is called.
    // Out of line: what goes on at once shall not carry it.
    #[inline(never)]
    fn wait<A, B>(&mut self, next: Next, request: Request<A>) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        let ready = self.take_ready();
        let shared = &self.shared;
        match next {
            Next::Find(stage) => ResponseFuture::finding(stage, ready, request, shared),
            Next::Wait(asking) => ResponseFuture::deciding(asking, ready, request, shared),
            Next::Go(admitted) => {
                // What the ready service had reserved is not kept from others while this one waits.
                drop(ready);
                ResponseFuture::waiting(self.inner.clone(), request, admitted)
            }
        }
    }

    #[cold]
    fn reject<A, B>(&mut self, refusal: Refusal, request: &Parts) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        // What the ready service had reserved (a permit, a place in a buffer) goes back with it.
        drop(self.take_ready());
        ResponseFuture::rejected(self.shared.reject(refusal, request))
    }

    /// The inner service that was polled ready; its clone, which was not, stays behind.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}
