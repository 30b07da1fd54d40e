//! Responses to requests that a layer or a handler rejects, with their headers.

use std::{mem, sync::LazyLock};

use bytes::Bytes;
use http::{Request, header::RETRY_AFTER, response::Parts};

use crate::{
    headers::{HeaderWriter, PolicyTerms},
    rejection::{MakeRejection, Rejection},
    request::RequestHead,
};

/// Returns the head and the body of the response to a rejected request. The rejection is in its extensions.
// Inlined into its callers, which would move the response once more.
#[inline(always)]
pub(super) fn respond<A>(
    rejection: Rejection,
    format: &dyn MakeRejection,
    (headers, terms): (&HeaderWriter, Option<&[PolicyTerms]>),
    mut request: Request<A>,
) -> (Parts, Bytes) {
    let response = rejection.respond(format, &RequestHead::from(&request));
    let (mut parts, text) = response.into_parts();
    // The request's map serves the response: a new one would take two allocations.
    let extensions = request.extensions_mut();
    extensions.clear();
    extensions.extend(mem::take(&mut parts.extensions));
    mem::swap(extensions, &mut parts.extensions);
    if let Some(decision) = rejection.decision() {
        let wait = (decision, rejection.retry_after_secs());
        headers.write_rejection(wait, terms, &mut parts);
    }
    let reason = || (rejection.code(), rejection.reason().policy());
    headers.write_reason(reason, &mut parts.headers);
    parts.extensions.insert(rejection);
    (parts, text)
}

/// Returns the head and the body of the response to a request that is rejected without a decision, with its `Retry-After`.
#[cold]
pub(crate) fn respond_plainly<A>(
    rejection: Rejection,
    format: &dyn MakeRejection,
    request: Request<A>,
) -> (Parts, Bytes) {
    static HEADERS: LazyLock<HeaderWriter> = LazyLock::new(HeaderWriter::default);

    let wait = rejection.retry_after_secs();
    let (mut parts, text) = respond(rejection, format, (&HEADERS, None), request);
    if let Some(seconds) = wait {
        let entry = parts.headers.entry(RETRY_AFTER);
        entry.or_insert_with(|| seconds.into());
    }
    (parts, text)
}

/// The response of a layer with the default settings:
/// [`RejectionFormat::json`](crate::rejection::RejectionFormat::json) with `Retry-After`, `Cache-Control: no-store` and
/// [`Headers::legacy`](crate::headers::Headers::legacy).
///
/// So a handler returns `Result<_, Rejection>`, and `?` responds with 429 or 503. The rejection is in the extensions of
/// the response. A layer around the handler leaves its headers as they are. It is JSON for gRPC clients too, since the
/// request is not known here.
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        use crate::rejection::RejectionFormat;

        let format = RejectionFormat::json();
        let (parts, text) = respond_plainly(self, &format, Request::new(()));
        axum::response::Response::from_parts(parts, text.into())
    }
}
