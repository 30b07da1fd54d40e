//! The body of a response.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use crate::acquire::Permit;

use super::sent::SentCall;

/// The client's body. Holds the slots of the call until it has ended or is dropped.
///
/// A refusal in the trailers of gRPC pauses the key as one in the head does. It cannot cause a retry, since the caller has the
/// response already.
#[pin_project]
#[derive(Debug)]
pub struct OutgoingBody<B> {
    #[pin]
    body: B,
    /// `None` once the body has ended.
    tail: Option<Box<Tail>>,
}

/// The permit and the call, until the body has ended.
#[derive(Debug)]
pub(super) struct Tail {
    pub permit: Option<Permit>,
    /// The call, if its trailers show how it ended.
    pub trailers: Option<SentCall>,
}

impl Tail {
    /// Obeys the trailers.
    fn obey(&self, trailers: &HeaderMap) {
        if let Some(call) = &self.trailers {
            call.obey(trailers, self.permit.as_ref().map(Permit::decision));
        }
    }
}

impl<B> OutgoingBody<B> {
    pub(super) fn new(body: B, tail: Tail) -> Self {
        let has_tail = tail.permit.is_some() || tail.trailers.is_some();
        Self {
            body,
            tail: has_tail.then(|| Box::new(tail)),
        }
    }

    /// Returns the client's body. The slots of the call are released now.
    pub fn into_inner(self) -> B {
        self.body
    }
}

impl<B: Default> Default for OutgoingBody<B> {
    /// Creates a body that belongs to no call.
    fn default() -> Self {
        Self {
            body: B::default(),
            tail: None,
        }
    }
}

impl<B: Body> Body for OutgoingBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(context));
        if let (Some(Ok(frame)), Some(tail)) = (&frame, this.tail.as_ref())
            && let Some(trailers) = frame.trailers_ref()
        {
            tail.obey(trailers);
        }
        // Readers need not poll again if the body reports its end.
        if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
            *this.tail = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether only the trailers show how the call ended: it is one of gRPC, and has no status in its head.
pub(super) fn ends_with_trailers(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
        && !headers.contains_key("grpc-status")
}
