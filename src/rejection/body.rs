//! Bodies of custom responses.

use std::borrow::Cow;

use bytes::Bytes;

/// A body that is complete when the response is made: text, bytes, nothing, or with axum its `Body`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the body of the response to a rejected request",
    label = "not a body that is complete at once",
    note = "return a `Response` of text or bytes: `|rejection: &Rejection| rejection.response(rejection.message())`",
    note = "with the feature `axum`, also the `into_response()` of text, bytes or JSON"
)]
pub trait RejectionBody {
    /// Returns the bytes of the body. `None` if some are still to come; the response is then the default JSON.
    fn into_bytes(self) -> Option<Bytes>;
}

macro_rules! impl_rejection_body {
    ($($body:ty)*) => {
        $(impl RejectionBody for $body {
            fn into_bytes(self) -> Option<Bytes> {
                Some(self.into())
            }
        })*
    };
}

impl_rejection_body!(&'static str &'static [u8] Bytes String Vec<u8> Box<[u8]>);

impl RejectionBody for Cow<'static, str> {
    fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::Borrowed(text) => text.into_bytes(),
            Self::Owned(text) => RejectionBody::into_bytes(text),
        }
    }
}

impl RejectionBody for () {
    fn into_bytes(self) -> Option<Bytes> {
        Some(Bytes::new())
    }
}

/// Bodies of text, bytes and JSON are complete. A stream that has to wait is not.
#[cfg(feature = "axum")]
impl RejectionBody for axum::body::Body {
    fn into_bytes(mut self) -> Option<Bytes> {
        use std::{
            pin::Pin,
            task::{Context, Poll, Waker},
        };

        use http_body::Body as _;

        // A stream may be endless; a complete body knows its length.
        self.size_hint().exact()?;
        let mut context = Context::from_waker(Waker::noop());
        let mut bytes = bytes::BytesMut::new();
        loop {
            match Pin::new(&mut self).poll_frame(&mut context) {
                Poll::Ready(None) => return Some(bytes.freeze()),
                Poll::Ready(Some(Ok(frame))) => bytes.extend(frame.into_data()),
                Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
            }
        }
    }
}
