//! Reads the body of a request before it is decided, and gives it back as it was.
//!
//! ```text
//! take: axum's body --> poll: frames into one buffer, within the limits --> end: buffer, trailers and the rest as a new body
//!                                                                              + what was read, for the extractors
//! ```
//!
//! # Why only axum's body?
//!
//! A layer that changes the type of the request's body would fit around fewer services, and every layer would pay for it. The layer
//! takes any body, and finds out at run time whether it is one that can be replaced in place: axum's `Body` can hold any other.
//! A request with another type is rejected with 500, and the log contains the remedy.
//!
//! # Why one buffer, and not the frames as they came?
//!
//! A client can send a body of 16 KiB as 16,384 chunks of a byte. A list of them takes 50 times the memory that the limit
//! allows, and a piece of a server's buffer keeps all of that buffer. The handler gets the same bytes in one frame.

use std::{
    any::Any,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::{
    clock::Moment,
    request::{BodyFault, BodyLimits, BufferedBody},
};

/// A request body that is being read.
pub(super) struct BodyRead {
    body: Body,
    read: BytesMut,
    trailers: Option<HeaderMap>,
    /// The error of the body, which the handler gets too.
    failed: Option<axum::Error>,
    limits: BodyLimits,
    began: Moment,
    /// Time until the last frame. Lookups may take longer.
    took: Duration,
    time_left: Pin<Box<Sleep>>,
    /// Set once the body has been read, or cannot be.
    outcome: Option<Result<(), BodyFault>>,
}

impl BodyRead {
    /// Takes the body out of a request. `None` if it is of another type.
    pub fn take<A: 'static>(request: &mut Request<A>, limits: BodyLimits) -> Option<Box<Self>> {
        // A layer outside may have read another one, which a layer between has replaced.
        request.extensions_mut().remove::<BufferedBody>();
        let body: &mut dyn Any = request.body_mut();
        let body = mem::take(body.downcast_mut::<Body>()?);
        // Nothing is read of a body that states that it is too large, so that a client that asks before it sends is not asked to.
        let is_too_large = body.size_hint().lower() > limits.most_bytes() as u64;
        Some(Box::new(Self {
            body,
            read: BytesMut::new(),
            trailers: None,
            failed: None,
            limits,
            began: Moment::now(),
            took: Duration::ZERO,
            time_left: Box::pin(sleep(limits.time())),
            outcome: is_too_large.then_some(Err(BodyFault::TooLarge)),
        }))
    }

    /// Reads until the end of the body, a limit or a fault.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.outcome.is_none() {
            let outcome = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(None) => Some(Ok(())),
                Poll::Ready(Some(Err(error))) => {
                    self.failed = Some(error);
                    Some(Err(BodyFault::Incomplete))
                }
                Poll::Ready(Some(Ok(frame))) => self.add(frame),
                Poll::Pending => {
                    ready!(self.time_left.as_mut().poll(context));
                    Some(Err(BodyFault::TooSlow))
                }
            };
            self.took = self.began.elapsed();
            // A body of empty frames may always be ready, and never end.
            let is_late = self.took > self.limits.time();
            self.outcome = outcome.or_else(|| is_late.then_some(Err(BodyFault::TooSlow)));
        }
        Poll::Ready(())
    }

    /// Keeps a frame. Returns the outcome if nothing more is to be read.
    fn add(&mut self, frame: Frame<Bytes>) -> Option<Result<(), BodyFault>> {
        match frame.into_data() {
            Ok(data) => {
                self.read.extend_from_slice(&data);
                (self.read.len() > self.limits.most_bytes()).then_some(Err(BodyFault::TooLarge))
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                // Nothing comes after trailers.
                Some(Ok(()))
            }
        }
    }

    /// Gives the body back to the request, and shows the extractors what was read.
    pub fn end<A: 'static>(self, request: &mut Request<A>) {
        let read = self.read.freeze();
        let outcome = self.outcome.unwrap_or(Err(BodyFault::TooSlow));
        let seen = outcome.map(|()| read.clone());
        let buffered = BufferedBody::new(seen, self.took);
        request.extensions_mut().insert(buffered);
        let body: &mut dyn Any = request.body_mut();
        if let Some(place) = body.downcast_mut::<Body>() {
            *place = Body::new(GivenBack {
                read: (!read.is_empty()).then_some(read),
                trailers: self.trailers,
                failed: self.failed,
                rest: self.body,
            });
        }
    }
}

// === GivenBack ===

/// A body of which a part was read before.
struct GivenBack {
    read: Option<Bytes>,
    trailers: Option<HeaderMap>,
    failed: Option<axum::Error>,
    rest: Body,
}

impl HttpBody for GivenBack {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(read) = self.read.take() {
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        // A body of hyper ends after its error, and would seem to be whole.
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        Pin::new(&mut self.rest).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        let has_more = self.read.is_some() || self.trailers.is_some() || self.failed.is_some();
        !has_more && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.as_ref().map_or(0, |read| read.len() as u64);
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + read);
        }
        hint.set_lower(rest.lower() + read);
        hint
    }
}
