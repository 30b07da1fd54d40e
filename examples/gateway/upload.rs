//! The body of a request on its way to the backend, and how it ended.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// Returns the body with an end to each wait for its next piece, and a view of it.
pub(crate) fn watched(body: Body, timeout: Duration) -> (Body, Upload) {
    let upload = Upload::default();
    let watched = WatchedUpload {
        body,
        timeout,
        wait: None,
        upload: upload.clone(),
    };
    (Body::new(watched), upload)
}

/// How an upload is going.
#[derive(Clone, Default)]
pub(crate) struct Upload(Arc<Mutex<State>>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The client has sent something that is not HTTP, or has left.
    Broken,
    /// The backend is not waiting for the client.
    #[default]
    Sent,
    /// The client has sent nothing for too long.
    Stopped,
    /// The backend waits for the client.
    WaitsForClient,
}

impl Upload {
    pub(crate) fn state(&self) -> State {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

// === WatchedUpload ===

struct WatchedUpload {
    body: Body,
    timeout: Duration,
    /// For the next piece.
    wait: Option<Pin<Box<Sleep>>>,
    upload: Upload,
}

impl http_body::Body for WatchedUpload {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.wait = None;
            let is_fault = matches!(frame, Some(Err(_)));
            this.upload
                .set(if is_fault { State::Broken } else { State::Sent });
            return Poll::Ready(frame);
        }
        this.upload.set(State::WaitsForClient);
        let timeout = this.timeout;
        let wait = this.wait.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(wait.as_mut().poll(context));
        this.upload.set(State::Stopped);
        let error = io::Error::from(io::ErrorKind::TimedOut);
        Poll::Ready(Some(Err(axum::Error::new(error))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
