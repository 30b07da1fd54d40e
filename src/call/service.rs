//! The service.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use tower::Service;

use crate::middleware::{CloneService, future::LimitFuture};

use super::admission::CallAdmission;

/// A service whose calls are limited. Made by [`CallLimitLayer`](super::CallLimitLayer).
pub struct CallLimit<S, R, T, E> {
    inner: S,
    admission: Arc<CallAdmission<R, T, E>>,
}

/// Future of [`CallLimit`].
pub type CallFuture<S, R, T, E> = LimitFuture<S, R, Arc<CallAdmission<R, T, E>>>;

impl<S, R, T, E> CallLimit<S, R, T, E> {
    pub(super) fn new(inner: S, admission: Arc<CallAdmission<R, T, E>>) -> Self {
        Self { inner, admission }
    }
}

impl<S, R, T, E> Service<R> for CallLimit<S, R, T, E>
where
    S: Service<R, Response = T, Error = E> + CloneService,
{
    type Response = T;
    type Error = E;
    type Future = CallFuture<S, R, T, E>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        LimitFuture::begin(&mut self.inner, request, &self.admission)
    }
}

// Not derived: a derive would require the same of `R`, `T` and `E`.
impl<S: CloneService, R, T, E> Clone for CallLimit<S, R, T, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            admission: Arc::clone(&self.admission),
        }
    }
}

impl<S: fmt::Debug, R, T, E> fmt::Debug for CallLimit<S, R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLimit")
            .field("inner", &self.inner)
            .field("admission", &self.admission)
            .finish()
    }
}
