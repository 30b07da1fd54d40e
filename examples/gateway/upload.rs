//! The body of a request on its way to the backend, and how it ended.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use tokio::time::{Sleep, sleep};

use crate::watched::{Polled, watched};

/// Returns the body with an end to each wait for its next piece, and a view of it.
pub(crate) fn with_timeout(body: Body, timeout: Duration) -> (Body, Upload) {
    let upload = Upload::default();
    let noted = upload.clone();
    // For the next piece.
    let mut wait: Option<Pin<Box<Sleep>>> = None;
    let watch = move |polled: Polled, context: &mut Context<'_>| {
        if let Poll::Ready(frame) = &polled {
            wait = None;
            let is_fault = matches!(frame, Some(Err(_)));
            noted.set(if is_fault { State::Broken } else { State::Sent });
            return polled;
        }
        noted.set(State::WaitsForClient);
        let wait = wait.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(wait.as_mut().poll(context));
        noted.set(State::Stopped);
        let error = io::Error::from(io::ErrorKind::TimedOut);
        Poll::Ready(Some(Err(axum::Error::new(error))))
    };
    (watched(body, watch), upload)
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
