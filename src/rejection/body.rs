//! What the body of an answer may be.

use std::borrow::Cow;

use bytes::Bytes;
use http::Response;

use super::reason::Rejection;

use super::json;

/// A body of one piece that is there at once: text, bytes, nothing, or with axum its `Body`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the body of an answer to a request that is denied",
    label = "no body that is there at once",
    note = "make a `Response` of text or bytes: `|rejection: &Rejection| Response::new(rejection.message())`",
    note = "with the feature `axum` also what `into_response()` makes of text, bytes or JSON"
)]
pub trait RejectionBody {
    /// Its bytes; `None` when they are still to come, and the answer is JSON with the rejection's status in its place.
    fn into_bytes(self) -> Option<Bytes>;
}

macro_rules! whole {
    ($($body:ty)*) => {
        $(impl RejectionBody for $body {
            fn into_bytes(self) -> Option<Bytes> {
                Some(self.into())
            }
        })*
    };
}

whole!(&'static str &'static [u8] Bytes String Vec<u8> Box<[u8]>);

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

/// A stream that has to wait is no such body; text, bytes and JSON do not.
#[cfg(feature = "axum")]
impl RejectionBody for axum::body::Body {
    fn into_bytes(mut self) -> Option<Bytes> {
        use std::{
            pin::Pin,
            task::{Context, Poll, Waker},
        };

        use http_body::Body as _;

        // A stream may go on for ever, and what is there at once knows its length.
        self.size_hint().exact()?;
        let mut context = Context::from_waker(Waker::noop());
        let mut whole = bytes::BytesMut::new();
        loop {
            match Pin::new(&mut self).poll_frame(&mut context) {
                Poll::Ready(None) => return Some(whole.freeze()),
                Poll::Ready(Some(Ok(frame))) => whole.extend(frame.into_data()),
                Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
            }
        }
    }
}

/// The response with the bytes of its body; the default answer when they are not all there.
pub(super) fn whole<T: RejectionBody>(
    response: Response<T>,
    rejection: &Rejection,
) -> Response<Bytes> {
    let (head, body) = response.into_parts();
    match body.into_bytes() {
        Some(bytes) => Response::from_parts(head, bytes),
        None => json::answer(rejection),
    }
}
