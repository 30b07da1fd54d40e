//! The body of an answer, whoever made it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::{
    headers::Fields,
    settling::{Tab, run},
};

/// The inner service's body, or the text of a rejection.
///
/// It is a [`Body`] whenever the inner body is one whose data can be made of [`Bytes`], which holds for axum, hyper and
/// tonic. The inner body is dropped as soon as it has ended or failed, and what the request cost is settled after that: so
/// an [`ActualCost`](super::ActualCost) that is set when the inner body is dropped still counts.
#[pin_project]
#[derive(Debug)]
pub struct ResponseBody<B> {
    #[pin]
    source: Source<B>,
}

#[pin_project(project = SourceProjection)]
#[derive(Debug)]
enum Source<B> {
    /// The order of the fields is that of their drops: the tab is settled after the body is gone.
    Inner {
        /// `None` when it has ended.
        #[pin]
        body: Option<B>,
        tab: Option<Box<Tab>>,
    },
    Rejection(Option<Bytes>),
}

impl<B> ResponseBody<B> {
    /// Returns the inner service's body; `None` when it has ended, or when this is a rejection.
    ///
    /// What the request cost is settled now, though the body goes on.
    pub fn into_inner(self) -> Option<B> {
        match self.source {
            Source::Inner { body, tab } => {
                if let Some(tab) = tab {
                    tab.note_end();
                }
                body
            }
            Source::Rejection(_) => None,
        }
    }

    pub(super) const fn inner(body: B, tab: Option<Box<Tab>>) -> Self {
        Self {
            source: Source::Inner {
                body: Some(body),
                tab,
            },
        }
    }

    pub(super) fn rejection(text: Bytes) -> Self {
        Self {
            source: Source::Rejection(Some(text).filter(|text| !text.is_empty())),
        }
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
        match self.project().source.project() {
            SourceProjection::Inner { mut body, tab } => {
                let Some(inner) = body.as_mut().as_pin_mut() else {
                    return Poll::Ready(None);
                };
                let frame = ready!(run(tab, || inner.poll_frame(context)));
                if let Some(tab) = tab {
                    note(tab, frame.as_ref());
                }
                if !matches!(frame, Some(Ok(_))) {
                    // Taken first, so that it is settled though the body panics when it is dropped.
                    let tab = tab.take();
                    body.set(None);
                    drop(tab);
                }
                Poll::Ready(frame)
            }
            SourceProjection::Rejection(text) => {
                let frame = text.take().map(|text| Frame::data(B::Data::from(text)));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Inner { body, tab } => {
                let has_ended = body.as_ref().is_none_or(Body::is_end_stream);
                if let (true, Some(tab)) = (has_ended, tab) {
                    tab.note_end();
                }
                has_ended
            }
            Source::Rejection(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Inner { body, .. } => body
                .as_ref()
                .map_or_else(|| SizeHint::with_exact(0), Body::size_hint),
            Source::Rejection(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

/// Passes on what the inner service returned, with what the layer adds to a response.
pub(super) fn answered<B, E>(
    answer: Result<Response<B>, E>,
    fields: Option<Fields>,
    mut tab: Option<Box<Tab>>,
) -> Result<Response<ResponseBody<B>>, E> {
    if let Some(tab) = &mut tab {
        tab.end(answer.as_ref().ok());
    }
    let mut response = answer?;
    if let Some(mut fields) = fields {
        fields.write(&mut response);
    }
    Ok(response.map(|body| ResponseBody::inner(body, tab)))
}

/// Notes what the body gave.
fn note<D: Buf, E>(tab: &mut Tab, frame: Option<&Result<Frame<D>, E>>) {
    match frame {
        None => tab.note_end(),
        Some(Err(_)) => tab.fail_body(),
        Some(Ok(frame)) => match frame.data_ref() {
            Some(data) => tab.send(data.remaining()),
            // Trailers are the last frame, and servers ask for no other.
            None => tab.note_end(),
        },
    }
}
