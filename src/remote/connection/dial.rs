//! Asking the pool for a connection, so that others can call it off.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use deadpool_redis::{Connection, Pool, PoolError, Timeouts};
use tokio::time::timeout;

use crate::{
    error::{Error, ErrorKind, Phase},
    sync::Mutex,
};

use super::classify;

/// What asks the pool for a connection.
///
/// It has a place in the pool, so it lies where it can be dropped even if nobody drives the task that polls it: with
/// that place taken for good, the pool would make no other connection.
#[derive(Clone)]
pub(in crate::remote) struct Attempt {
    asking: Arc<Mutex<Option<Asking>>>,
}

type Asking = Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>;

impl Attempt {
    /// One timeout over all phases: a pool that the application made may have no timer of its own.
    pub(in crate::remote) fn new(pool: Pool, connect_timeout: Duration) -> Self {
        let asking = async move {
            let phases = Timeouts::new();
            match timeout(connect_timeout, pool.timeout_get(&phases)).await {
                Ok(result) => result.map_err(failure_to_dial),
                Err(late) => Err(late_dial().with_source(late)),
            }
        };
        Self {
            asking: Arc::new(Mutex::new(Some(Box::pin(asking)))),
        }
    }

    /// Waits for the connection.
    pub(in crate::remote) async fn finish(&self) -> Result<Connection, Error> {
        poll_fn(|context| match self.asking.lock().as_mut() {
            Some(asking) => asking.as_mut().poll(context),
            None => Poll::Ready(Err(late_dial())),
        })
        .await
    }

    /// Ends it, and gives its place in the pool back.
    pub(in crate::remote) fn call_off(&self) {
        let asking = self.asking.lock().take();
        // Not under the lock: it wakes whoever waits for that place.
        drop(asking);
    }
}

fn late_dial() -> Error {
    Error::new(
        ErrorKind::Timeout(Phase::Connect),
        "no connection to redis within the connect timeout",
    )
}

fn failure_to_dial(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => classify::classify(error),
        error => Error::new(ErrorKind::Connect, "the pool gave no connection to redis")
            .with_source(error),
    }
}
