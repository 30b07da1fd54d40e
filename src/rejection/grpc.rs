//! Rejections as gRPC reads them: a status without a message, in the headers ("trailers-only").

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Response, StatusCode, header::CONTENT_TYPE, request::Parts,
};

use crate::decision::Decision;

use super::{
    protobuf::Message,
    reason::{Reason, Rejection},
};

/// What is spoken on a connection of gRPC.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire {
    Native,
    Web,
    WebText,
}

/// Whether answers tell when to retry in the way of gRPC's own retry policies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pushback(pub(super) bool);

impl Wire {
    /// Returns the protocol of a request by its content type. `None` unless the method is `POST`, as every gRPC call is:
    /// the answer has status 200, which for any other method is a success.
    pub(super) fn of(request: &Parts) -> Option<Self> {
        if request.method != Method::POST {
            return None;
        }
        let kind = request.headers.get(CONTENT_TYPE)?.as_bytes();
        let (start, rest) = kind.split_at_checked(NATIVE.len())?;
        if !start.eq_ignore_ascii_case(NATIVE) {
            return None;
        }
        // `application/grpc`, then a message format or parameters.
        let ends = |rest: &[u8]| matches!(rest.first(), None | Some(b'+' | b';' | b' '));
        let lower = rest.to_ascii_lowercase();
        match lower.as_slice() {
            rest if ends(rest) => Some(Self::Native),
            rest if rest.strip_prefix(b"-web").is_some_and(ends) => Some(Self::Web),
            rest if rest.strip_prefix(b"-web-text").is_some_and(ends) => Some(Self::WebText),
            _ => None,
        }
    }

    pub(super) fn answer(self, rejection: &Rejection, pushback: Pushback) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type()));
        let mut tell = |name, text: String| {
            let value = HeaderValue::from_maybe_shared(Bytes::from(text));
            headers.insert(name, value.expect("digits, base64 and escaped text"));
        };
        let code = code(rejection);
        let message = rejection.message();
        tell(STATUS, code.to_string());
        tell(MESSAGE, Escaped(&message).to_string());
        if let Reason::Limited { .. } = rejection.reason() {
            let wait = wait(rejection);
            let status = Message::status(code, &message, &details(rejection, wait));
            tell(DETAILS, status.base64());
            if pushback.0 {
                tell(
                    PUSHBACK,
                    wait.map_or("-1".to_owned(), |wait| millis(wait).to_string()),
                );
            }
        }
        response
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Native => "application/grpc",
            Self::Web => "application/grpc-web+proto",
            Self::WebText => "application/grpc-web-text+proto",
        }
    }
}

/// As google.rpc.Code numbers them.
fn code(rejection: &Rejection) -> u8 {
    const INVALID_ARGUMENT: u8 = 3;
    const PERMISSION_DENIED: u8 = 7;
    const RESOURCE_EXHAUSTED: u8 = 8;
    const INTERNAL: u8 = 13;
    const UNAVAILABLE: u8 = 14;
    const UNAUTHENTICATED: u8 = 16;
    match (rejection.reason(), rejection.status()) {
        (Reason::Limited { .. }, _) => RESOURCE_EXHAUSTED,
        (Reason::Unavailable, _) | (_, StatusCode::SERVICE_UNAVAILABLE) => UNAVAILABLE,
        (_, StatusCode::UNAUTHORIZED) => UNAUTHENTICATED,
        (_, StatusCode::FORBIDDEN) => PERMISSION_DENIED,
        (_, status) if status.is_client_error() => INVALID_ARGUMENT,
        _ => INTERNAL,
    }
}

/// The wait to the microsecond; a second where a slot may come free at any time.
fn wait(rejection: &Rejection) -> Option<Duration> {
    let wait = rejection.decision().and_then(Decision::retry_after)?;
    Some(if wait.is_zero() {
        Duration::from_secs(1)
    } else {
        wait
    })
}

fn details(rejection: &Rejection, wait: Option<Duration>) -> Vec<Message> {
    let violations = rejection.violated().map(|state| {
        let name = state.policy().as_str();
        (name, format!("rate limit {name} exceeded"))
    });
    let failure = Message::quota_failure(violations);
    let retry = wait.map(Message::retry_info);
    retry.into_iter().chain([failure]).collect()
}

/// Whole milliseconds, rounded up, as many as gRPC can read.
fn millis(wait: Duration) -> i32 {
    i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

/// Text in a `grpc-message`: what is no visible ASCII or space is escaped, and so is the escape.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b' '..=b'~' if byte != b'%' => write!(f, "{}", char::from(byte)),
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

const NATIVE: &[u8] = b"application/grpc";
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
