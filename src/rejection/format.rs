//! Ready-made answers.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{
    Response,
    header::{ACCEPT, VARY},
    request::Parts,
};

use super::reason::Rejection;

use super::{
    accept,
    body::{self, RejectionBody},
    json,
    make::MakeRejection,
};

#[cfg(feature = "grpc")]
use super::grpc::{Pushback, Wire};

/// A ready-made answer to a request that may not go on.
///
/// With the feature `grpc`, requests of gRPC and gRPC-Web get their answer as gRPC in any of these forms. Such a request is a
/// `POST` with the content type `application/grpc`, `application/grpc-web` or `application/grpc-web-text`, alone or with a
/// message format (`+proto`) or parameters. The answer is HTTP 200 without a body, and `grpc-status` with `grpc-message` and
/// `grpc-status-details-bin`:
///
/// | rejection | `grpc-status` |
/// |---|---|
/// | over a limit | `RESOURCE_EXHAUSTED`, with a `QuotaFailure`, and a `RetryInfo` unless waiting does not help |
/// | nobody could decide | `UNAVAILABLE` |
/// | not let in | `PERMISSION_DENIED` |
/// | a key is missing: 401 | `UNAUTHENTICATED` |
/// | 403 | `PERMISSION_DENIED` |
/// | any other fault of the client's | `INVALID_ARGUMENT` |
/// | a fault of the server's | `INTERNAL` |
///
/// The rate limit headers are on it as on any answer.
///
/// Every answer, also one made by a closure, carries `Cache-Control: no-store` unless it sets `Cache-Control` itself.
///
/// # Examples
///
/// ```
/// use http::Response;
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp, rejection::RejectionFormat};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp))
///     .on_rejection(RejectionFormat::negotiated())
///     .build()?;
///
/// let with_the_path = RejectionFormat::by(|rejection, request| {
///     let mut response = Response::new(format!("{}: {}", request.uri.path(), rejection.message()));
///     *response.status_mut() = rejection.status();
///     response
/// });
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RejectionFormat {
    form: Form,
    #[cfg(feature = "grpc")]
    pushback: Pushback,
}

#[derive(Clone)]
enum Form {
    Custom(Arc<Making>),
    Json,
    Negotiated,
    Problem,
    Text,
}

type Making = dyn Fn(&Rejection, &Parts) -> Response<Bytes> + Send + Sync;

impl RejectionFormat {
    /// What the closure makes of the rejection and the request's head: text, bytes, or with axum its own body.
    pub fn by<F, T>(make: F) -> Self
    where
        F: Fn(&Rejection, &Parts) -> Response<T> + Send + Sync + 'static,
        T: RejectionBody,
    {
        Self::of(Form::Custom(Arc::new(move |rejection, request| {
            body::whole(make(rejection, request), rejection)
        })))
    }

    /// `{"error", "message", "retry_after"}`, with the rejection's status. This is the default.
    ///
    /// `retry_after` is whole seconds, or null when waiting does not help or nobody knows.
    pub fn json() -> Self {
        Self::of(Form::Json)
    }

    /// JSON, problem+json or plain text, by the request's `Accept`.
    ///
    /// JSON when there is none, or none of the three is accepted.
    pub fn negotiated() -> Self {
        Self::of(Form::Negotiated)
    }

    /// `application/problem+json` (RFC 9457), with the rejection's status.
    ///
    /// Over a limit it is of the type `quota-exceeded`, with the names of the policies in `violated-policies`; when nobody
    /// could decide, of the type `temporary-reduced-capacity`, which names none. The types are those of
    /// draft-ietf-httpapi-ratelimit-headers-11. Else it is of no type, and its title is the status.
    pub fn problem_json() -> Self {
        Self::of(Form::Problem)
    }

    /// The rejection's [`message`](Rejection::message) in plain text, with its status.
    pub fn text() -> Self {
        Self::of(Form::Text)
    }

    /// Sets whether gRPC answers carry `grpc-retry-pushback-ms`, by which clients with a retry policy wait, or, when
    /// waiting does not help, do not retry.
    ///
    /// Default: no.
    #[cfg(feature = "grpc")]
    pub fn grpc_pushback(mut self, tell: bool) -> Self {
        self.pushback = Pushback(tell);
        self
    }

    fn of(form: Form) -> Self {
        Self {
            form,
            #[cfg(feature = "grpc")]
            pushback: Pushback::default(),
        }
    }
}

impl MakeRejection for RejectionFormat {
    fn make(&self, rejection: &Rejection, request: &Parts) -> Response<Bytes> {
        #[cfg(feature = "grpc")]
        if let Some(wire) = Wire::of(request) {
            return wire.answer(rejection, self.pushback);
        }
        self.form.make(rejection, request)
    }
}

// === Form ===

impl Form {
    fn make(&self, rejection: &Rejection, request: &Parts) -> Response<Bytes> {
        match self {
            Self::Custom(make) => make(rejection, request),
            Self::Json => json::answer(rejection),
            Self::Problem => json::typed(
                rejection,
                "application/problem+json",
                json::problem(rejection),
            ),
            Self::Text => json::typed(rejection, "text/plain; charset=utf-8", rejection.message()),
            Self::Negotiated => {
                let offers = ["application/json", "application/problem+json", "text/plain"];
                let form = match accept::best(&request.headers, offers) {
                    Some(1) => Self::Problem,
                    Some(2) => Self::Text,
                    _ => Self::Json,
                };
                let mut response = form.make(rejection, request);
                response.headers_mut().insert(VARY, ACCEPT.into());
                response
            }
        }
    }
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Custom(_) => "Custom",
            Self::Json => "Json",
            Self::Negotiated => "Negotiated",
            Self::Problem => "Problem",
            Self::Text => "Text",
        })
    }
}
