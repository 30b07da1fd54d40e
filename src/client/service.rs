//! The service around a client.
//!
//! # Why is the client polled ready only after the turn?
//!
//! A client that is ready may have reserved something: a permit of `ConcurrencyLimit`, or a place in the buffer of tonic's
//! channel. Calls in the line wait for seconds. With a reservation each, they would keep the client from calls to other APIs,
//! which have their turn now. So [`Outgoing`] is always ready, each call takes a clone of the client, and polls it when its turn
//! has come. It calls the same clone that was polled, so nothing needs to be replaced by `mem::replace`.

use std::task::{Context, Poll};

use http::{Request, Response};
use tower::Service;

use crate::middleware::CloneService;

use super::{
    body::OutgoingBody, current::CurrentSettings, error::OutgoingError, future::OutgoingFuture,
};

/// A client whose calls wait for their turn. Made by [`OutgoingLayer`](super::OutgoingLayer).
#[derive(Clone, Debug)]
pub struct Outgoing<S> {
    client: S,
    settings: CurrentSettings,
}

impl<S> Outgoing<S> {
    pub(super) fn new(client: S, settings: CurrentSettings) -> Self {
        Self { client, settings }
    }
}

impl<S, B, R> Service<Request<B>> for Outgoing<S>
where
    S: Service<Request<B>, Response = Response<R>> + CloneService,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<OutgoingBody<R>>;
    type Error = OutgoingError<S::Error>;
    type Future = OutgoingFuture<S, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        OutgoingFuture::new(self.client.clone(), self.settings.load(), request)
    }
}
