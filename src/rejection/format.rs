//! The response to a rejected request.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY, WWW_AUTHENTICATE},
};

use crate::request::RequestHead;
use smallvec::SmallVec;

use super::{
    accept,
    body::RejectionBody,
    reason::{Reason, Rejection},
    recent_bodies::recent_body,
};

#[cfg(feature = "grpc")]
use super::grpc;

/// Makes the response to a rejected request.
///
/// Implemented for [`RejectionFormat`], and for closures `Fn(&Rejection) -> Response<T>` where `T` is text, bytes, or axum's own
/// body: see [`RejectionBody`]. The layer then adds the rate limit headers, `Retry-After`, `Cache-Control: no-store`, and the
/// `WWW-Authenticate` of a 401, unless the response has them. A server does not send the body of a response to `HEAD`.
///
/// # Examples
///
/// With axum, anything that is `IntoResponse`:
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
    message = "`{Self}` does not make the response to a rejected request",
    label = "not a `RejectionFormat` and not a suitable closure",
    note = "take `RejectionFormat::json()` or another of its formats",
    note = "or a closure: `.on_rejection_fn(|rejection| rejection.response(rejection.message()))`, or with a type `.on_rejection(|rejection: &Rejection| ..)`"
)]
pub trait MakeRejection: Send + Sync + 'static {
    /// Returns the response to the request with this head.
    fn make(&self, rejection: &Rejection, request: &RequestHead<'_>) -> Response<Bytes>;
}

impl<F, T> MakeRejection for F
where
    F: Fn(&Rejection) -> Response<T> + Send + Sync + 'static,
    T: RejectionBody,
{
    fn make(&self, rejection: &Rejection, _: &RequestHead<'_>) -> Response<Bytes> {
        with_bytes(self(rejection), rejection)
    }
}

impl Rejection {
    /// Returns a response with this body and the [status](Self::status).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .on_rejection_fn(|rejection| rejection.response(rejection.message()));
    /// ```
    pub fn response<T>(&self, body: T) -> Response<T> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        response
    }

    /// Returns the response that `format` makes, with the headers that all rejections have.
    // Inlined into its one caller, which would move the response once more.
    #[inline]
    pub(crate) fn respond(
        &self,
        format: &dyn MakeRejection,
        request: &RequestHead<'_>,
    ) -> Response<Bytes> {
        let mut response = format.make(self, request);
        let status = response.status();
        let headers = response.headers_mut();
        if !headers.contains_key(CACHE_CONTROL) {
            // No cache may send it to other clients, or to this one later.
            headers.insert(CACHE_CONTROL, NO_STORE);
        }
        if let (StatusCode::UNAUTHORIZED, Some(challenge)) = (status, self.challenge()) {
            let authenticate = headers.entry(WWW_AUTHENTICATE);
            authenticate.or_insert_with(|| challenge.clone());
        }
        response
    }
}

// === RejectionFormat ===

/// A ready-made format of the response to a rejected request.
///
/// With the feature `grpc`, every format responds to gRPC and gRPC-Web requests as gRPC. Such a request is a `POST` with the
/// content type `application/grpc`, `application/grpc-web` or `application/grpc-web-text`, alone or with a message format
/// (`+proto`) or parameters. The response is HTTP 200 without a body, and has `grpc-status`, `grpc-message` and
/// `grpc-status-details-bin`:
///
/// | rejection | `grpc-status` |
/// |---|---|
/// | limited: 429 | `RESOURCE_EXHAUSTED`, with a `QuotaFailure`, and a `RetryInfo` unless waiting does not help |
/// | overloaded: 503 | `UNAVAILABLE`, with a `RetryInfo` |
/// | unavailable: 503 | `UNAVAILABLE` |
/// | forbidden: 403 | `PERMISSION_DENIED` |
/// | missing key: 401 | `UNAUTHENTICATED` |
/// | missing key: 403 | `PERMISSION_DENIED` |
/// | any other client error | `INVALID_ARGUMENT` |
/// | any other server error | `INTERNAL` |
///
/// It carries the rate limit headers like any response.
///
/// Every response, also one that a closure makes, carries `Cache-Control: no-store` unless it sets `Cache-Control` itself.
///
/// # Examples
///
/// ```
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp, rejection::RejectionFormat};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp))
///     .on_rejection(RejectionFormat::negotiated())
///     .build()?;
///
/// let with_path = RejectionFormat::by(|rejection, request| {
///     rejection.response(format!("{}: {}", request.uri.path(), rejection.message()))
/// });
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RejectionFormat {
    body: BodyFormat,
    #[cfg(feature = "grpc")]
    sends_pushback: bool,
}

#[derive(Clone)]
enum BodyFormat {
    Custom(Arc<CustomFormat>),
    Json,
    Negotiated,
    ProblemJson,
    Text,
}

type CustomFormat = dyn Fn(&Rejection, &RequestHead<'_>) -> Response<Bytes> + Send + Sync;

impl RejectionFormat {
    /// A custom format: the closure makes the response from the rejection and the request's head. The body is text,
    /// bytes, or an `axum::body::Body`.
    pub fn by<F, T>(make: F) -> Self
    where
        F: Fn(&Rejection, &RequestHead<'_>) -> Response<T> + Send + Sync + 'static,
        T: RejectionBody,
    {
        Self::of(BodyFormat::Custom(Arc::new(move |rejection, request| {
            with_bytes(make(rejection, request), rejection)
        })))
    }

    /// `{"error", "message", "retry_after"}`, with the rejection's status. This is the default.
    ///
    /// `error` is the [code](Rejection::code). `retry_after` is in whole seconds, or null if waiting does not help or the
    /// wait is unknown.
    pub fn json() -> Self {
        Self::of(BodyFormat::Json)
    }

    /// JSON, problem+json or plain text, by the request's `Accept`.
    ///
    /// JSON if there is no `Accept`, or if it contains none of the three.
    pub fn negotiated() -> Self {
        Self::of(BodyFormat::Negotiated)
    }

    /// `application/problem+json` (RFC 9457), with the rejection's status.
    ///
    /// A limited request gets the type `quota-exceeded`, with the names of the policies in `violated-policies`; an unavailable
    /// decision and an overloaded service get `temporary-reduced-capacity`, which names none. These types are from
    /// draft-ietf-httpapi-ratelimit-headers-11. Other rejections get `about:blank`, and the status as title.
    pub fn problem_json() -> Self {
        Self::of(BodyFormat::ProblemJson)
    }

    /// The rejection's [`message`](Rejection::message) in plain text, with its status.
    pub fn text() -> Self {
        Self::of(BodyFormat::Text)
    }

    /// Sets whether gRPC responses carry `grpc-retry-pushback-ms`. Clients with a retry policy then wait that long, or do not
    /// retry if waiting does not help.
    ///
    /// Default: no.
    #[cfg(feature = "grpc")]
    pub fn grpc_pushback(mut self, is_sent: bool) -> Self {
        self.sends_pushback = is_sent;
        self
    }

    fn of(body: BodyFormat) -> Self {
        Self {
            body,
            #[cfg(feature = "grpc")]
            sends_pushback: false,
        }
    }
}

impl MakeRejection for RejectionFormat {
    fn make(&self, rejection: &Rejection, request: &RequestHead<'_>) -> Response<Bytes> {
        #[cfg(feature = "grpc")]
        if let Some(content_type) = grpc::response_type(request) {
            return grpc::response(content_type, rejection, self.sends_pushback);
        }
        self.body.make(rejection, request)
    }
}

// === BodyFormat ===

impl BodyFormat {
    fn make(&self, rejection: &Rejection, request: &RequestHead<'_>) -> Response<Bytes> {
        match self {
            Self::Custom(make) => make(rejection, request),
            Self::Json => json(rejection),
            Self::ProblemJson => problem_json(rejection),
            Self::Text => text(rejection),
            Self::Negotiated => {
                let media_types = ["application/json", "application/problem+json", "text/plain"];
                let mut response = match accept::preferred(request.headers, media_types) {
                    Some(1) => problem_json(rejection),
                    Some(2) => text(rejection),
                    _ => json(rejection),
                };
                response.headers_mut().insert(VARY, ACCEPT.into());
                response
            }
        }
    }
}

impl fmt::Debug for BodyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Custom(_) => "Custom",
            Self::Json => "Json",
            Self::Negotiated => "Negotiated",
            Self::ProblemJson => "ProblemJson",
            Self::Text => "Text",
        })
    }
}

fn json(rejection: &Rejection) -> Response<Bytes> {
    let body = || json_body(rejection);
    let body = match (rejection.reason(), rejection.retry_after_secs()) {
        (Reason::Limited { policy }, Some(seconds)) => recent_body(policy, seconds, body),
        _ => body().into(),
    };
    response(rejection, JSON, body)
}

fn json_body(rejection: &Rejection) -> String {
    let (mut in_message, mut in_field) = (itoa::Buffer::new(), itoa::Buffer::new());
    let mut escaped = String::new();
    let message = json_message(rejection, &mut in_message, &mut escaped);
    let retry_after = match rejection.retry_after_secs() {
        Some(seconds) => in_field.format(seconds),
        None => "null",
    };
    let mut body = BodyParts::new();
    body.extend_from_slice(&["{\"error\":\"", rejection.code(), "\",\"message\":\""]);
    body.extend_from_slice(&message);
    body.extend_from_slice(&["\",\"retry_after\":", retry_after, "}"]);
    body.concat()
}

fn problem_json(rejection: &Rejection) -> Response<Bytes> {
    let status = rejection.status();
    let is_at_capacity = status == StatusCode::SERVICE_UNAVAILABLE;
    let (kind, title) = match rejection.reason() {
        Reason::Limited { .. } => (
            QUOTA_EXCEEDED,
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        Reason::Overloaded { .. } | Reason::Unavailable if is_at_capacity => (
            TEMPORARY_REDUCED_CAPACITY,
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        Reason::AmbiguousKey { .. }
        | Reason::Forbidden { .. }
        | Reason::MissingKey { .. }
        | Reason::Overloaded { .. }
        | Reason::Unavailable
        | Reason::UnreadableBody { .. } => (
            "about:blank",
            status.canonical_reason().unwrap_or("Request Rejected"),
        ),
    };
    let (mut digits, mut escaped) = (itoa::Buffer::new(), String::new());
    let message = json_message(rejection, &mut digits, &mut escaped);
    let mut body = BodyParts::new();
    body.extend_from_slice(&["{\"type\":\"", kind, "\",\"title\":\"", title]);
    body.extend_from_slice(&["\",\"status\":", status.as_str(), ",\"detail\":\""]);
    body.extend_from_slice(&message);
    match rejection.reason() {
        Reason::Limited { .. } => {
            body.push("\",\"violated-policies\":[");
            for (index, state) in rejection.violated().enumerate() {
                let quote = if index > 0 { ",\"" } else { "\"" };
                // No character of a policy's name needs an escape.
                body.extend_from_slice(&[quote, state.policy().as_str(), "\""]);
            }
            body.push("]}");
        }
        // No limit is known to be exceeded, even if the state of one policy denies.
        Reason::Overloaded { .. } | Reason::Unavailable if is_at_capacity => {
            body.push("\",\"violated-policies\":[]}");
        }
        Reason::AmbiguousKey { .. }
        | Reason::Forbidden { .. }
        | Reason::MissingKey { .. }
        | Reason::Overloaded { .. }
        | Reason::Unavailable
        | Reason::UnreadableBody { .. } => {
            body.push("\"}");
        }
    }
    response(rejection, PROBLEM_JSON, body.concat().into())
}

fn text(rejection: &Rejection) -> Response<Bytes> {
    response(rejection, TEXT, rejection.message().into())
}

/// Returns a response with this body and the rejection's status.
fn response(rejection: &Rejection, content_type: HeaderValue, body: Bytes) -> Response<Bytes> {
    let mut response = rejection.response(body);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Returns a custom response with the bytes of its body, or JSON if the body is not complete.
fn with_bytes<T: RejectionBody>(response: Response<T>, rejection: &Rejection) -> Response<Bytes> {
    let (head, body) = response.into_parts();
    match body.into_bytes() {
        Some(bytes) => Response::from_parts(head, bytes),
        None => json(rejection),
    }
}

/// Parts of a body, which are copied once, into an allocation of their length.
type BodyParts<'a> = SmallVec<[&'a str; 24]>;

/// Returns the parts of the rejection's message, escaped for a JSON string.
fn json_message<'a>(
    rejection: &'a Rejection,
    digits: &'a mut itoa::Buffer,
    escaped: &'a mut String,
) -> [&'a str; 5] {
    let parts = rejection.message_parts(digits);
    match rejection.reason() {
        // An extractor's label and the name of a class may contain any character.
        Reason::AmbiguousKey { .. } | Reason::MissingKey { .. } | Reason::Overloaded { .. } => {
            parts
                .into_iter()
                .for_each(|part| push_escaped(escaped, part));
            [escaped, "", "", "", ""]
        }
        Reason::Forbidden { .. }
        | Reason::Limited { .. }
        | Reason::Unavailable
        | Reason::UnreadableBody { .. } => parts,
    }
}

/// Appends text, escaped for a JSON string (RFC 8259, section 7).
fn push_escaped(escaped: &mut String, text: &str) {
    // Nearly always, and faster: an overloaded service writes many of these.
    if !text.contains(|character| matches!(character, '"' | '\\' | '\0'..' ')) {
        escaped.push_str(text);
        return;
    }
    for character in text.chars() {
        match character {
            '"' | '\\' => escaped.extend(['\\', character]),
            '\0'..' ' => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => escaped.push(character),
        }
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
