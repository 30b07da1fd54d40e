//! The service.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, request::Parts};
use tower::Service;

use crate::{decision::Decision, error::Error};

use super::{
    body::ResponseBody,
    future::ResponseFuture,
    layer::{Asking, Charged, Shared, Step},
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
        let (parts, body) = request.into_parts();
        let asking = match self.shared.decide(&parts) {
            Ok(asking) => asking,
            Err(rejection) => return self.reject(rejection, &parts),
        };
        let request = Request::from_parts(parts, body);
        self.ask(request, asking)
    }
}

impl<S: Clone> RateLimit<S> {
    /// As a call, when keys or tiers must be found first.
    fn find<A, B>(&mut self, request: Request<A>) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        let (parts, body) = request.into_parts();
        let step = self.shared.begin(&parts);
        let request = Request::from_parts(parts, body);
        match step {
            Ok(Step::Decide(asking)) => self.ask(request, asking),
            Ok(Step::Find(stage)) => {
                let shared = Arc::clone(&self.shared);
                ResponseFuture::finding(stage, self.take_ready(), request, shared)
            }
            Err(rejection) => self.reject(rejection, &request.into_parts().0),
        }
    }

    /// Goes on with what the store answers, now or later.
    #[inline]
    fn ask<A, B>(
        &mut self,
        mut request: Request<A>,
        asking: Option<Asking>,
    ) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        let Some(Asking { answer, charged }) = asking else {
            self.shared.pass(&mut request);
            return ResponseFuture::calling(self.inner.call(request), None, None);
        };
        match answer.now_or_later() {
            Ok(decided) => self.go_on(request, decided, charged),
            Err(answer) => {
                let asking = Asking { answer, charged };
                let shared = Arc::clone(&self.shared);
                ResponseFuture::deciding(asking, self.take_ready(), request, shared)
            }
        }
    }

    /// Calls the inner service, or answers, with a decision that was there at once.
    #[inline]
    fn go_on<A, B>(
        &mut self,
        mut request: Request<A>,
        decided: Result<Decision, Error>,
        charged: Charged,
    ) -> ResponseFuture<S, A, B>
    where
        S: Service<Request<A>, Response = Response<B>>,
    {
        match self.shared.admit(decided, charged, &mut request) {
            Ok(admitted) if admitted.delay.is_some() => {
                ResponseFuture::waiting(self.take_ready(), request, admitted)
            }
            Ok(admitted) => {
                let tab = start(admitted.tab, &mut request);
                ResponseFuture::calling(self.inner.call(request), admitted.fields, tab)
            }
            Err(rejection) => self.reject(rejection, &request.into_parts().0),
        }
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
