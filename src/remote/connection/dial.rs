//! The making of a connection, which another thread can cancel.
//!
//! A pending dial holds a socket, or a place in the application's pool. If its runtime ends or is never driven, nobody
//! polls it, so these would be lost permanently. Therefore the future is kept in shared memory, where the watchdog can
//! drop it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use futures_util::task::AtomicWaker;

use crate::{
    error::{Error, ErrorKind, Phase},
    task::Mutex,
};

use super::{endpoint::Endpoint, multiplexed::Connection};

/// A handle on a dial. The task that polls it has one, and the lane has one to cancel it with.
#[derive(Clone)]
pub(super) struct Dial {
    pending: Arc<PendingDial>,
}

struct PendingDial {
    endpoint: Endpoint,
    /// `None` once it is dropped.
    future: Mutex<Option<DialFuture>>,
    is_cancelled: AtomicBool,
    /// Wakes the task that polls it.
    waker: AtomicWaker,
}

type DialFuture = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

impl Dial {
    /// Returns a dial without a timeout: the lane cancels it when its time is up.
    pub fn new(endpoint: Endpoint) -> Self {
        let dialled = endpoint.clone();
        let future = async move { dialled.connect().await };
        Self {
            pending: Arc::new(PendingDial {
                endpoint,
                future: Mutex::new(Some(Box::pin(future))),
                is_cancelled: AtomicBool::new(false),
                waker: AtomicWaker::new(),
            }),
        }
    }

    /// Waits for the connection.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] if it is cancelled, and the errors of [`Endpoint::connect`].
    pub async fn finish(&self) -> Result<Connection, Error> {
        poll_fn(|context| {
            self.pending.waker.register(context.waker());
            let polled = match self.pending.future.lock().as_mut() {
                Some(future) if !self.is_cancelled() => future.as_mut().poll(context),
                _ => Poll::Ready(Err(timed_out(&self.pending.endpoint))),
            };
            if polled.is_pending() && self.is_cancelled() {
                // It was cancelled during the poll.
                self.drop_future();
                return Poll::Ready(Err(timed_out(&self.pending.endpoint)));
            }
            polled
        })
        .await
    }

    /// Cancels the dial, which closes its socket or returns its place to the pool.
    ///
    /// Does not wait for a poll: a credentials provider may block its thread. The task that polls ends the dial then.
    pub fn cancel(&self) {
        self.pending.is_cancelled.store(true, Ordering::SeqCst);
        self.drop_future();
        self.pending.waker.wake();
    }

    pub fn is_cancelled(&self) -> bool {
        self.pending.is_cancelled.load(Ordering::SeqCst)
    }

    /// Drops the future, unless it is being polled.
    fn drop_future(&self) {
        let future = self.pending.future.try_lock();
        let future = future.and_then(|mut future| future.take());
        // After the lock is released: the drop wakes a task that waits for the place.
        drop(future);
    }
}

/// Returns the error of a dial that took longer than the connect timeout.
pub(super) fn timed_out(endpoint: &Endpoint) -> Error {
    Error::new(
        ErrorKind::Timeout(Phase::Connect),
        format!(
            "no connection to {endpoint} within the connect timeout{}",
            endpoint.advice()
        ),
    )
}
