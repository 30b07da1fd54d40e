//! A body that is watched while it passes through the gateway.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};

/// The next piece of a body, once it is there.
pub(crate) type Polled = Poll<Option<Result<Frame<Bytes>, axum::Error>>>;

/// Returns a body whose pieces go through a function, which is dropped with the body.
pub(crate) fn watched(
    body: Body,
    watch: impl FnMut(Polled, &mut Context<'_>) -> Polled + Send + Unpin + 'static,
) -> Body {
    Body::new(Watched { body, watch })
}

struct Watched<F> {
    body: Body,
    watch: F,
}

impl<F> http_body::Body for Watched<F>
where
    F: FnMut(Polled, &mut Context<'_>) -> Polled + Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        (this.watch)(polled, context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
