//! Getting a connection from the pool, in a way that others can call off.

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

/// A request for a connection from the pool.
///
/// It occupies a place in the pool, so it is kept where it can be dropped even if nobody polls the task that waits for
/// it. Otherwise that place would be taken permanently, and the pool would make no other connection.
#[derive(Clone)]
pub(super) struct Dial {
    shared: Arc<Shared>,
}

struct Shared {
    future: Mutex<Option<DialFuture>>,
    waker: AtomicWaker,
}

type DialFuture = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

impl Dial {
    /// A dial without a timeout of its own: the lane calls it off.
    pub(super) fn new(pool: Pool) -> Self {
        let future = async move {
            let dialled = pool.timeout_get(&Timeouts::new()).await;
            dialled.map_err(failed)
        };
        Self {
            shared: Arc::new(Shared {
                future: Mutex::new(Some(Box::pin(future))),
                waker: AtomicWaker::new(),
            }),
        }
    }

    /// Waits for the connection.
    pub(super) async fn finish(&self) -> Result<Connection, Error> {
        poll_fn(|context| {
            self.shared.waker.register(context.waker());
            match self.shared.future.lock().as_mut() {
                Some(future) => future.as_mut().poll(context),
                None => Poll::Ready(Err(late())),
            }
        })
        .await
    }

    /// Ends it, and returns its place to the pool.
    pub(super) fn call_off(&self) {
        let future = self.shared.future.lock().take();
        // Not under the lock: it wakes whoever waits for that place.
        drop(future);
        self.shared.waker.wake();
    }
}

/// The error of a dial that took longer than the connect timeout.
pub(super) fn late() -> Error {
    Error::new(
        ErrorKind::Timeout(Phase::Connect),
        "no connection to redis within the connect timeout",
    )
}

fn failed(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => classify::classify(error),
        error => Error::new(ErrorKind::Connect, "the pool gave no connection to redis")
            .with_source(error),
    }
}
