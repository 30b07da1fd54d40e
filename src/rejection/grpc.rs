//! Rejections for gRPC clients: a status without a message, in the headers ("trailers-only").
//!
//! # Why does a feature change the responses to gRPC clients?
//!
//! A feature should add and not change. But a gRPC client can read neither our JSON nor a 429, which it takes for `UNAVAILABLE`,
//! a server that is down. A closure given to `on_rejection` still makes the response to every request. The four Protocol Buffers
//! messages are 60 lines by hand, where a code generator with its runtime is several crates. The rate limit headers are there as
//! metadata.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header::CONTENT_TYPE};

use crate::request::RequestHead;

use super::{
    protobuf::Message,
    reason::{Reason, Rejection},
};

/// Returns the content type of the response to a gRPC request, which follows from the request's own. `None` unless the method
/// is `POST`, as of every gRPC call: the response has status 200, which for any other method is a success.
pub(super) fn response_type(request: &RequestHead<'_>) -> Option<&'static str> {
    if request.method != Method::POST {
        return None;
    }
    let content_type = request.headers.get(CONTENT_TYPE)?.as_bytes();
    let (start, rest) = content_type.split_at_checked(APPLICATION_GRPC.len())?;
    if !start.eq_ignore_ascii_case(APPLICATION_GRPC) {
        return None;
    }
    // A message format or parameters may follow.
    let ends = |rest: &[u8]| matches!(rest.first(), None | Some(b'+' | b';' | b' '));
    let lower = rest.to_ascii_lowercase();
    match lower.as_slice() {
        rest if ends(rest) => Some("application/grpc"),
        rest if rest.strip_prefix(b"-web").is_some_and(ends) => Some("application/grpc-web+proto"),
        rest if rest.strip_prefix(b"-web-text").is_some_and(ends) => {
            Some("application/grpc-web-text+proto")
        }
        _ => None,
    }
}

/// Returns a response with this content type. With `sends_pushback`, the header `grpc-retry-pushback-ms` has the wait.
pub(super) fn response(
    content_type: &'static str,
    rejection: &Rejection,
    sends_pushback: bool,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    let mut insert = |name, text: String| {
        let value = HeaderValue::from_maybe_shared(Bytes::from(text));
        headers.insert(name, value.expect("digits, base64 and escaped text"));
    };
    let code = code(rejection);
    let message = rejection.message();
    insert(STATUS, code.to_string());
    insert(MESSAGE, percent_encoded(&message));
    if let Reason::Limited { .. } | Reason::Overloaded { .. } = rejection.reason() {
        let wait = rejection.wait();
        let status = Message::status(code, &message, &details(rejection, wait));
        insert(DETAILS, status.base64());
        if sends_pushback {
            let pushback = wait.map_or("-1".to_owned(), |wait| millis(wait).to_string());
            insert(PUSHBACK, pushback);
        }
    }
    response
}

/// Returns the number of google.rpc.Code.
fn code(rejection: &Rejection) -> u8 {
    const INVALID_ARGUMENT: u8 = 3;
    const PERMISSION_DENIED: u8 = 7;
    const RESOURCE_EXHAUSTED: u8 = 8;
    const INTERNAL: u8 = 13;
    const UNAVAILABLE: u8 = 14;
    const UNAUTHENTICATED: u8 = 16;
    match (rejection.reason(), rejection.status()) {
        (Reason::Limited { .. }, _) => RESOURCE_EXHAUSTED,
        (_, StatusCode::SERVICE_UNAVAILABLE) => UNAVAILABLE,
        (_, StatusCode::UNAUTHORIZED) => UNAUTHENTICATED,
        (_, StatusCode::FORBIDDEN) => PERMISSION_DENIED,
        (_, status) if status.is_client_error() => INVALID_ARGUMENT,
        _ => INTERNAL,
    }
}

fn details(rejection: &Rejection, wait: Option<Duration>) -> Vec<Message> {
    let violations = rejection.violated().map(|state| {
        let name = state.policy().as_str();
        (name, format!("rate limit {name} exceeded"))
    });
    let is_limited = matches!(rejection.reason(), Reason::Limited { .. });
    let failure = is_limited.then(|| Message::quota_failure(violations));
    let retry = wait.map(Message::retry_info);
    retry.into_iter().chain(failure).collect()
}

/// Returns whole milliseconds, rounded up, at most what gRPC can parse.
fn millis(wait: Duration) -> i32 {
    i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

/// Encodes text for `grpc-message`: every byte except visible ASCII and space is escaped, and so is `%`.
fn percent_encoded(text: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => {
                let digits = [byte >> 4, byte & 0xF];
                let digits = digits.map(|digit| char::from(DIGITS[usize::from(digit)]));
                encoded.extend(['%'].into_iter().chain(digits));
            }
        }
    }
    encoded
}

const APPLICATION_GRPC: &[u8] = b"application/grpc";
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
