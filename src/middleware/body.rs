//! The body of a response, from the inner service or the layer.
//!
//! # Why `ResponseBody`?
//!
//! The body of a rejection must have the type of the inner body. A bound such as `B: From<String>` or `B: Default` excludes some
//! bodies, and spreads to everything that names the layer. Boxing makes all responses pay for the few rejections.
//! `ResponseBody<B>` is either the inner body or the rejection, and costs nothing. It requires only that the data of `B` can be
//! made from `Bytes`.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use crate::headers::PendingHeaders;

use super::settle::PendingSettlement;

/// The inner service's body, or the bytes of a rejection.
///
/// Implements [`Body`] if the inner body's data can be made from [`Bytes`], as in axum, hyper and tonic. The inner body
/// is dropped when it has ended or failed, and the request is settled after that: an [`ActualCost`](super::ActualCost)
/// that is set during the drop still counts.
///
/// If the compiler expects a response with this body and finds one with the inner body, as for `option_layer`, use
/// [`boxed_body`](crate::RateLimitLayer::boxed_body).
///
/// Layers outside of the limit make bodies of this type for their own responses: the [`Default`] is empty, whatever the
/// inner body is, and [`From`] takes an inner body.
#[pin_project]
#[derive(Debug)]
pub struct ResponseBody<B> {
    #[pin]
    content: Content<B>,
}

#[pin_project(project = ContentProjection)]
#[derive(Debug)]
enum Content<B> {
    /// Fields drop in this order: the request is settled after the body is gone.
    Inner {
        /// `None` when it has ended.
        #[pin]
        body: Option<B>,
        settlement: Option<Box<PendingSettlement>>,
    },
    /// `None` when it has ended, or if it is empty.
    Rejection(Option<Bytes>),
}

impl<B> ResponseBody<B> {
    /// Returns the inner service's body; `None` if it has ended, or if this is a rejection or the default.
    ///
    /// The request is settled now, before the body has ended.
    pub fn into_inner(self) -> Option<B> {
        match self.content {
            Content::Inner { body, settlement } => {
                if let Some(settlement) = settlement {
                    settlement.note_end();
                }
                body
            }
            Content::Rejection(_) => None,
        }
    }

    /// Returns the inner service's body if nothing is settled at its end.
    ///
    /// # Errors
    ///
    /// This body, unchanged.
    #[cfg(feature = "axum")]
    pub(super) fn unsettled(self) -> Result<B, Self> {
        match self.content {
            Content::Inner {
                body: Some(body),
                settlement: None,
            } => Ok(body),
            content => Err(Self { content }),
        }
    }

    pub(super) const fn inner(body: B, settlement: Option<Box<PendingSettlement>>) -> Self {
        Self {
            content: Content::Inner {
                body: Some(body),
                settlement,
            },
        }
    }

    pub(crate) fn rejection(text: Bytes) -> Self {
        Self {
            content: Content::Rejection(Some(text).filter(|text| !text.is_empty())),
        }
    }
}

// Not derived: `B` need not have a default.
impl<B> Default for ResponseBody<B> {
    /// Creates an empty body.
    fn default() -> Self {
        Self {
            content: Content::Rejection(None),
        }
    }
}

impl<B> From<B> for ResponseBody<B> {
    /// Takes over a body that belongs to no limited request.
    fn from(body: B) -> Self {
        Self::inner(body, None)
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().content.project() {
            ContentProjection::Inner {
                mut body,
                settlement,
            } => {
                let Some(inner) = body.as_mut().as_pin_mut() else {
                    return Poll::Ready(None);
                };
                let frame = match settlement {
                    None => ready!(inner.poll_frame(context)),
                    Some(settlement) => {
                        let frame = settlement.held.run(|| inner.poll_frame(context));
                        let frame = ready!(frame);
                        note(settlement, frame.as_ref());
                        frame
                    }
                };
                if !matches!(frame, Some(Ok(_))) {
                    // Taken first, so that the request is settled even if the body's drop panics.
                    let settlement = settlement.take();
                    body.set(None);
                    drop(settlement);
                }
                Poll::Ready(frame)
            }
            ContentProjection::Rejection(text) => {
                let frame = text.take().map(|text| Frame::data(B::Data::from(text)));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Inner { body, settlement } => {
                let has_ended = body.as_ref().is_none_or(Body::is_end_stream);
                if let (true, Some(settlement)) = (has_ended, settlement) {
                    settlement.note_end();
                }
                has_ended
            }
            Content::Rejection(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Inner { body, .. } => body
                .as_ref()
                .map_or_else(|| SizeHint::with_exact(0), Body::size_hint),
            Content::Rejection(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

/// Returns the inner service's outcome, with headers and settlement added to a response.
#[inline(always)]
pub(super) fn finish<B, E>(
    outcome: Result<Response<B>, E>,
    headers: Option<PendingHeaders>,
    mut settlement: Option<Box<PendingSettlement>>,
) -> Result<Response<ResponseBody<B>>, E> {
    if let Some(settlement) = &mut settlement {
        settlement.end(outcome.as_ref().ok());
    }
    match outcome {
        // Taken apart at once: a response that is changed as a whole is moved once more.
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            if let Some(mut headers) = headers {
                headers.write(&mut parts);
            }
            Ok(Response::from_parts(
                parts,
                ResponseBody::inner(body, settlement),
            ))
        }
        Err(error) => Err(error),
    }
}

/// Notes a frame of the body.
fn note<D: Buf, E>(settlement: &mut PendingSettlement, frame: Option<&Result<Frame<D>, E>>) {
    match frame {
        None => settlement.note_end(),
        Some(Err(_)) => settlement.note_body_failed(),
        Some(Ok(frame)) => match frame.data_ref() {
            Some(data) => settlement.note_sent(data.remaining()),
            // Trailers are the last frame: servers do not poll for another.
            None => settlement.note_end(),
        },
    }
}
