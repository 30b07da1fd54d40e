//! What makes an answer.

use bytes::Bytes;
use http::{Response, request::Parts};

use super::reason::Rejection;

use super::body::{self, RejectionBody};

/// Makes the answer to a request that may not go on.
///
/// Implemented for [`RejectionFormat`](super::RejectionFormat), and for closures `Fn(&Rejection) -> Response<T>` where `T` is text, bytes, or axum's own
/// body: see [`RejectionBody`]. The rate limit headers, `Retry-After` and `Cache-Control: no-store` are added afterwards, unless
/// the answer has them, and so is the `WWW-Authenticate` of a 401. A body made for a HEAD request is not sent: servers leave it away.
///
/// # Examples
///
/// With axum, whatever can be a response:
///
/// ```
/// # #[cfg(feature = "axum")]
/// # {
/// use axum::response::{Html, IntoResponse};
/// use tollgate::{RateLimitLayer, rejection::Rejection};
///
/// let layer = RateLimitLayer::builder().on_rejection(|rejection: &Rejection| {
///     (rejection.status(), Html(format!("<p>{}</p>", rejection.message()))).into_response()
/// });
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make an answer to a request that is denied",
    label = "no maker of answers",
    note = "take `RejectionFormat::json()` or another of its kind, or a closure that names its argument's type: `|rejection: &Rejection| Response::new(rejection.message())`"
)]
pub trait MakeRejection: Send + Sync + 'static {
    /// The answer to the request with this head.
    fn make(&self, rejection: &Rejection, request: &Parts) -> Response<Bytes>;
}

impl<F, T> MakeRejection for F
where
    F: Fn(&Rejection) -> Response<T> + Send + Sync + 'static,
    T: RejectionBody,
{
    fn make(&self, rejection: &Rejection, _: &Parts) -> Response<Bytes> {
        body::whole(self(rejection), rejection)
    }
}
