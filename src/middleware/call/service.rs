//! The service.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use tower::Service;

use crate::middleware::Rejection;

use super::{
    future::CallFuture,
    layer::{Asking, Shared},
    slip::{Slip, run},
};

/// A service whose calls are limited. Made by [`CallLimitLayer`](super::CallLimitLayer).
pub struct CallLimit<S, R, T, E> {
    inner: S,
    shared: Arc<Shared<R, T, E>>,
}

impl<S, R, T, E> CallLimit<S, R, T, E> {
    pub(super) fn new(inner: S, shared: Arc<Shared<R, T, E>>) -> Self {
        Self { inner, shared }
    }
}

impl<S, R, T, E> Service<R> for CallLimit<S, R, T, E>
where
    S: Service<R, Response = T, Error = E> + Clone,
{
    type Response = T;
    type Error = E;
    type Future = CallFuture<S, R, T, E>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, mut request: R) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        let Asking { answer, charged } = match shared.decide(&request) {
            Ok(Some(asking)) => asking,
            Ok(None) => return CallFuture::calling(self.inner.call(request), None, shared),
            Err(rejection) => return self.deny(request, &rejection),
        };
        let decided = match answer.try_ready() {
            Ok(decided) => decided,
            Err(answer) => {
                let asking = Asking { answer, charged };
                return CallFuture::deciding(asking, (self.take_ready(), request), shared);
            }
        };
        match shared.admit(decided, charged, &mut request) {
            Ok(admitted) if admitted.delay.is_some() => {
                // What the ready service had reserved is not kept from others while this one waits.
                drop(self.take_ready());
                CallFuture::waiting((self.inner.clone(), request), admitted, shared)
            }
            Ok(admitted) => {
                let mut slip = admitted.slip.map(Slip::start);
                let future = run(&mut slip, || self.inner.call(request));
                CallFuture::calling(future, slip, shared)
            }
            Err(rejection) => self.deny(request, &rejection),
        }
    }
}

impl<S, R, T, E> CallLimit<S, R, T, E>
where
    S: Service<R, Response = T, Error = E> + Clone,
{
    #[cold]
    fn deny(&mut self, request: R, rejection: &Rejection) -> CallFuture<S, R, T, E> {
        // What the ready service had reserved goes back with it.
        drop(self.take_ready());
        CallFuture::denied(self.shared.deny(request, rejection), &self.shared)
    }

    /// The inner service that was polled ready; its clone, which was not, stays behind.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}

// By hand: a derive would ask the same of the types that are only named.
impl<S: Clone, R, T, E> Clone for CallLimit<S, R, T, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, R, T, E> fmt::Debug for CallLimit<S, R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLimit")
            .field("inner", &self.inner)
            .field("shared", &self.shared)
            .finish()
    }
}
