//! The body of an answer, whoever made it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::settling::Tab;

/// The inner service's body, or the text of a rejection.
///
/// It is a [`Body`] whenever the inner body is one whose data can be made of [`Bytes`], which holds for axum, hyper and
/// tonic.
#[pin_project]
#[derive(Debug)]
pub struct ResponseBody<B> {
    #[pin]
    source: Source<B>,
}

#[pin_project(project = SourceProjection)]
#[derive(Debug)]
enum Source<B> {
    /// The tab is settled when the body has ended or is dropped.
    Inner(#[pin] B, Option<Box<Tab>>),
    Rejection(Option<Bytes>),
}

impl<B> ResponseBody<B> {
    /// The inner service's body, or `None` when this is a rejection. What the request cost is settled now.
    pub fn into_inner(self) -> Option<B> {
        match self.source {
            Source::Inner(body, _) => Some(body),
            Source::Rejection(_) => None,
        }
    }

    pub(super) const fn inner(body: B, tab: Option<Box<Tab>>) -> Self {
        Self {
            source: Source::Inner(body, tab),
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
            SourceProjection::Inner(body, tab) => {
                let frame = ready!(body.poll_frame(context));
                if !matches!(frame, Some(Ok(_))) {
                    drop(tab.take());
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
            Source::Inner(body, _) => body.is_end_stream(),
            Source::Rejection(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Inner(body, _) => body.size_hint(),
            Source::Rejection(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}
