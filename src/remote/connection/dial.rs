//! A request for a connection from the pool, which another thread can cancel.
//!
//! A pending request occupies a place in the pool. If its runtime ends or is never driven, nobody polls it, so the
//! place would be lost permanently and the pool would make no other connection. Therefore the future is kept in shared
//! memory, where the watchdog can drop it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use deadpool_redis::{Connection, Pool, PoolError, Timeouts};
use futures_util::task::AtomicWaker;

use crate::{
    error::{Error, ErrorKind, Phase},
    sync::Mutex,
};

use super::classify;

/// A handle on a dial. The task that polls it has one, and the lane has one to cancel it with.
#[derive(Clone)]
pub(super) struct Dial {
    pending: Arc<PendingDial>,
}

struct PendingDial {
    /// `None` once it is cancelled.
    future: Mutex<Option<DialFuture>>,
    /// Wakes the task that polls it.
    waker: AtomicWaker,
}

/// The request to the pool, which dials, authenticates and selects the database.
type DialFuture = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

impl Dial {
    /// Returns a dial without a timeout: the lane cancels it when its time is up.
    pub(super) fn new(pool: Pool) -> Self {
        let future = async move {
            let dialled = pool.timeout_get(&Timeouts::new()).await;
            dialled.map_err(pool_error)
        };
        Self {
            pending: Arc::new(PendingDial {
                future: Mutex::new(Some(Box::pin(future))),
                waker: AtomicWaker::new(),
            }),
        }
    }

    /// Waits for the connection.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] if it is cancelled, and the errors of the pool and of the server.
    pub(super) async fn finish(&self) -> Result<Connection, Error> {
        poll_fn(|context| {
            self.pending.waker.register(context.waker());
            match self.pending.future.lock().as_mut() {
                Some(future) => future.as_mut().poll(context),
                None => Poll::Ready(Err(timed_out())),
            }
        })
        .await
    }

    /// Cancels the dial and returns its place to the pool.
    pub(super) fn cancel(&self) {
        let future = self.pending.future.lock().take();
        // After the lock is released: the drop wakes a task that waits for the place.
        drop(future);
        self.pending.waker.wake();
    }
}

/// Returns the error of a dial that took longer than the connect timeout.
pub(super) fn timed_out() -> Error {
    Error::new(
        ErrorKind::Timeout(Phase::Connect),
        "no connection to redis within the connect timeout",
    )
}

/// Returns the error for an error of the pool.
fn pool_error(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => classify::classify(error),
        error => Error::new(
            ErrorKind::Connect,
            "the pool returned no connection to redis",
        )
        .with_source(error),
    }
}
