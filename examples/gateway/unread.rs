//! Ends responses that their clients do not read.
//!
//! A server asks a response for its next piece when the client has read the earlier ones. Otherwise nothing of the response
//! runs: neither its body nor the limits can end it, and it keeps its slot. So its task is dropped. Over HTTP/2 that is the
//! task of the stream, and the other streams go on. Over HTTP/1 it is the task of the connection.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::body::Body;
use hyper::rt::Executor;
use tokio::time::sleep;

use crate::{server::InFlightGuard, watched::watched};

/// Runs the task of a stream or of a connection, and drops it when its client has read nothing for this long.
pub(crate) async fn end_when_unread(timeout: Duration, task: impl Future) {
    let client = Client::default();
    tokio::select! {
        _ = CLIENT.scope(client.clone(), task) => {}
        () = client.stopped(timeout) => {}
    }
}

/// Runs the streams of HTTP/2, each with this timeout.
#[derive(Clone)]
pub(crate) struct Streams(pub(crate) Duration);

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(end_when_unread(self.0, stream));
    }
}

// === Client ===

tokio::task_local! {
    /// The client of the current task.
    static CLIENT: Client;
}

/// A client, and since when it has a piece of a response to read.
#[derive(Clone, Default)]
struct Client(Arc<Mutex<Option<Instant>>>);

impl Client {
    async fn stopped(&self, timeout: Duration) {
        loop {
            let waited = self.lock().map(|since| since.elapsed());
            if waited.is_some_and(|waited| waited >= timeout) {
                return;
            }
            sleep(timeout / 4).await;
        }
    }

    fn set_reading(&self, since: Option<Instant>) {
        *self.lock() = since;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === Reading ===

/// Returns the response body of the current task, which notes whether the client reads it.
pub(crate) fn noted(body: Body, in_flight: InFlightGuard) -> Body {
    let reading = Reading {
        client: CLIENT.with(Client::clone),
        _in_flight: in_flight,
    };
    reading.client.set_reading(Some(Instant::now()));
    watched(body, move |polled, _| {
        // While the backend is waited for, there is nothing to read.
        let since = polled.is_ready().then(Instant::now);
        reading.client.set_reading(since);
        polled
    })
}

/// A client that reads a response, until this is dropped.
struct Reading {
    client: Client,
    _in_flight: InFlightGuard,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.client.set_reading(None);
    }
}
