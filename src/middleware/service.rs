//! The service.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, request::Parts};
use tower::Service;

use crate::{decision::Decision, store::Answer};

use super::{
    body::ResponseBody,
    future::ResponseFuture,
    layer::{Admitted, Asking, Charged, Shared, Step},
    rejection::Rejection,
    settling::start,
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
        if self.shared.finds {
            return self.find(request);
        }
        // The request is put together once, when it is known where it goes: each time is a copy of its head.
        let (parts, body) = request.into_parts();
        let asking = match self.shared.decide(&parts) {
            Ok(Some(asking)) => asking,
            Ok(None) => return self.pass(parts, body),
            Err(rejection) => return self.reject(rejection, &parts),
        };
        self.ask(asking, (parts, body))
    }
}

impl<S: Clone> RateLimit<S> {
    /// As a call, when keys or tiers must be found first.
    #[inline(never)]
    fn find<A, B>(&mut self, request: Request<A>) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        let (parts, body) = request.into_parts();
        let asking = match self.shared.begin(&parts) {
            Ok(Step::Decide(Some(asking))) => asking,
            Ok(Step::Decide(None)) => return self.pass(parts, body),
            Ok(Step::Find(stage)) => {
                let shared = Arc::clone(&self.shared);
                let request = Request::from_parts(parts, body);
                return ResponseFuture::finding(stage, self.take_ready(), request, shared);
            }
            Err(rejection) => return self.reject(rejection, &parts),
        };
        self.ask(asking, (parts, body))
    }

    /// Calls the inner service with a request that no rule counts.
    #[inline(never)]
    fn pass<A, B>(&mut self, mut parts: Parts, body: A) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        self.shared.pass(&mut parts.extensions);
        let request = Request::from_parts(parts, body);
        ResponseFuture::calling(self.inner.call(request), None, None)
    }

    /// Goes on with what the store answers, now or later.
    #[inline]
    fn ask<A, B>(
        &mut self,
        asking: Asking,
        (mut parts, body): (Parts, A),
    ) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        let decided = match asking.answer.now_or_later() {
            Ok(decided) => decided,
            Err(answer) => return self.wait(answer, asking.charged, (parts, body)),
        };
        let admitted = self
            .shared
            .admit(decided, asking.charged, &mut parts.extensions);
        match admitted {
            Ok(admitted) => self.go_on(admitted, (parts, body)),
            Err(rejection) => self.reject(rejection, &parts),
        }
    }

    /// Waits for the store's answer.
    #[inline(never)]
    fn wait<A, B>(
        &mut self,
        answer: Answer<Decision>,
        charged: Charged,
        (parts, body): (Parts, A),
    ) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        let asking = Asking { answer, charged };
        let shared = Arc::clone(&self.shared);
        let request = Request::from_parts(parts, body);
        ResponseFuture::deciding(asking, self.take_ready(), request, shared)
    }

    /// Calls the inner service, now or when its turn has come.
    #[inline]
    fn go_on<A, B>(
        &mut self,
        admitted: Admitted,
        (mut parts, body): (Parts, A),
    ) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        if admitted.delay.is_some() {
            let request = Request::from_parts(parts, body);
            // What the ready service had reserved is not kept from others while this one waits.
            drop(self.take_ready());
            return ResponseFuture::waiting(self.inner.clone(), request, admitted);
        }
        let tab = start(admitted.tab, &mut parts.extensions);
        let request = Request::from_parts(parts, body);
        ResponseFuture::calling(self.inner.call(request), admitted.fields, tab)
    }

    #[cold]
    fn reject<A, B>(&mut self, rejection: Rejection, request: &Parts) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        // What the ready service had reserved (a permit, a place in a buffer) goes back with it.
        drop(self.take_ready());
        ResponseFuture::rejected(self.shared.reject(rejection, request))
    }

    /// The inner service that was polled ready; its clone, which was not, stays behind.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}
