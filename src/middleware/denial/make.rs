//! What makes an answer.

use bytes::Bytes;
use http::{Response, request::Parts};

use crate::middleware::rejection::Rejection;

/// Makes the answer to a request that may not go on.
///
/// Implemented for [`Denial`](super::Denial), and for closures `Fn(&Rejection) -> Response<T>` where `T` is text or
/// bytes. The rate limit headers and `Retry-After` are added afterwards, unless the answer has them. A body made for a
/// HEAD request is not sent: servers leave it away.
pub trait MakeRejection: Send + Sync + 'static {
    /// The answer to the request with this head.
    fn make(&self, rejection: &Rejection, request: &Parts) -> Response<Bytes>;
}

impl<F, T> MakeRejection for F
where
    F: Fn(&Rejection) -> Response<T> + Send + Sync + 'static,
    T: Into<Bytes>,
{
    fn make(&self, rejection: &Rejection, _: &Parts) -> Response<Bytes> {
        self(rejection).map(Into::into)
    }
}
