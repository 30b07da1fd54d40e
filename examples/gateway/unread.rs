//! Ends responses that their clients do not read.
//!
//! A server asks a response for its next piece when the client has read the earlier ones. Otherwise nothing of the response
//! runs: neither its body nor the limits can end it, and it keeps its slot. So its task is dropped: of HTTP/2 the task of
//! the stream, which resets that stream alone, and of HTTP/1 the task of the connection.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::sleep;

use crate::server::InFlightGuard;

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

// === Watched ===

/// The body of a response, which notes whether its client reads.
pub(crate) struct Watched {
    body: Body,
    client: Client,
    _in_flight: InFlightGuard,
}

impl Watched {
    /// Watches the response of the current task.
    pub(crate) fn new(body: Body, in_flight: InFlightGuard) -> Self {
        let client = CLIENT.with(Client::clone);
        client.set_reading(Some(Instant::now()));
        Self {
            body,
            client,
            _in_flight: in_flight,
        }
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // While the backend is waited for, there is nothing to read.
        self.client.set_reading(frame.is_ready().then(Instant::now));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.client.set_reading(None);
    }
}
