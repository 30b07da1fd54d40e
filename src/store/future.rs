//! The future of a store operation.
//!
//! # Why `StoreFuture` instead of an `async fn` in `Store`?
//!
//! The layer has no type parameters, so the store is a `dyn Store`, and an `async fn` in a trait cannot be called through it. A
//! boxed future per decision can, but would cost the store in process an allocation for a result that is there. A `StoreFuture`
//! is ready or boxed, and the middleware sees which before it decides what to put into its own future.
//!
//! ```rust
//! use std::sync::Arc;
//! use tollgate::{Key, Policy, Quota, memory::MemoryStore, store::Store};
//!
//! let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
//! let policy = Policy::new("logins", Quota::per_minute(5));
//! assert!(store.decide(&[policy.charge(Key::new("ada"))]).take_ready().is_some());
//! ```

use std::{
    fmt::{self, Debug},
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::error::Error;

/// The future of a store operation: ready at once, or boxed.
///
/// The in-process store returns ready futures, which need no allocation and no await. Dropping a pending future does
/// not refund the charge.
#[must_use = "futures do nothing unless they are awaited"]
pub struct StoreFuture<T> {
    state: FutureState<T>,
}

enum FutureState<T> {
    /// `None` once the result was returned.
    Ready(Option<Result<T, Error>>),
    Pending(PendingResult<T>),
}

impl<T> StoreFuture<T> {
    /// Creates a future that is ready with `result`. Does not allocate.
    #[inline]
    pub fn ready(result: Result<T, Error>) -> Self {
        Self {
            state: FutureState::Ready(Some(result)),
        }
    }

    /// Creates a future that completes later. Allocates once.
    pub fn boxed(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self {
            state: FutureState::Pending(Box::pin(future)),
        }
    }

    /// Creates a future that a store in process completes at once: it is polled here, and is ready unless it has to wait.
    pub(crate) fn polled(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        let mut future: PendingResult<T> = Box::pin(future);
        // Whoever awaits the future polls it again.
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(result) => Self::ready(result),
            Poll::Pending => Self {
                state: FutureState::Pending(future),
            },
        }
    }

    /// Takes the result if it is ready; `None` if the future must be awaited.
    ///
    /// After this method has returned a result, it returns `None`, and polling the future panics.
    #[inline]
    pub fn take_ready(&mut self) -> Option<Result<T, Error>> {
        match &mut self.state {
            FutureState::Ready(result) => result.take(),
            FutureState::Pending(_) => None,
        }
    }

    /// Returns the result if it is ready and was not taken.
    #[inline]
    pub(crate) fn as_ready(&self) -> Option<&Result<T, Error>> {
        match &self.state {
            FutureState::Ready(result) => result.as_ref(),
            FutureState::Pending(_) => None,
        }
    }

    /// Applies `f` to the result: now if it is ready, otherwise when the future completes.
    pub fn map<U>(
        mut self,
        f: impl FnOnce(Result<T, Error>) -> Result<U, Error> + Send + 'static,
    ) -> StoreFuture<U>
    where
        T: 'static,
    {
        match self.take_ready() {
            Some(result) => StoreFuture::ready(f(result)),
            None => {
                let pending = self.into_pending();
                StoreFuture::boxed(async move { f(pending.await) })
            }
        }
    }

    /// Returns the future of a result that is not ready.
    #[inline]
    pub(crate) fn into_pending(self) -> PendingResult<T> {
        match self.state {
            FutureState::Pending(future) => future,
            FutureState::Ready(_) => unreachable!("the result was ready, and was taken"),
        }
    }
}

impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            FutureState::Ready(result) => Poll::Ready(result.take().expect(NOT_TAKEN)),
            FutureState::Pending(future) => future.as_mut().poll(context),
        }
    }
}

impl<T> Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            FutureState::Ready(_) => "StoreFuture(ready)",
            FutureState::Pending(_) => "StoreFuture(pending)",
        })
    }
}

/// The future of a result that is not ready.
pub(crate) type PendingResult<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

const NOT_TAKEN: &str = "a store future is not used after it returned its result";
