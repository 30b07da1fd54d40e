//! Rejections as JSON.

use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, Response, header::CONTENT_TYPE};

use super::reason::{Reason, Rejection};

/// The default answer.
pub(super) fn answer(rejection: &Rejection) -> Response<Bytes> {
    typed(rejection, "application/json", plain(rejection))
}

/// An answer of this media type, with the rejection's status.
pub(super) fn typed(rejection: &Rejection, kind: &'static str, text: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// `{"error", "message", "retry_after"}`.
fn plain(rejection: &Rejection) -> String {
    format!(
        r#"{{"error":"{}","message":"{}","retry_after":{}}}"#,
        rejection.code(),
        Escaped(&rejection.message()),
        Nullable(rejection.retry_after_secs()),
    )
}

/// A problem of RFC 9457.
pub(super) fn problem(rejection: &Rejection) -> String {
    let status = rejection.status();
    let detail = rejection.message();
    let detail = Escaped(&detail);
    let (kind, title) = match rejection.reason() {
        Reason::Limited { .. } => (
            "quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        Reason::Unavailable => (
            "temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        _ => {
            let title = status.canonical_reason().unwrap_or("Request refused");
            return format!(
                r#"{{"type":"about:blank","title":"{title}","status":{},"detail":"{detail}"}}"#,
                status.as_u16()
            );
        }
    };
    format!(
        r#"{{"type":"{TYPES}{kind}","title":"{title}","status":{},"detail":"{detail}","violated-policies":[{}]}}"#,
        status.as_u16(),
        Violated(rejection),
    )
}

/// Names of policies, in quotes. They hold no character that JSON would escape.
struct Violated<'a>(&'a Rejection);

impl fmt::Display for Violated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // When nobody could decide, no limit is known to be exceeded, whatever one policy may say of itself.
        let is_over = matches!(self.0.reason(), Reason::Limited { .. });
        let violated = self.0.violated().filter(|_| is_over);
        violated.enumerate().try_for_each(|(index, state)| {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}\"{}\"", state.policy())
        })
    }
}

struct Nullable(Option<u64>);

impl fmt::Display for Nullable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("null"),
        }
    }
}

/// Text inside a JSON string (RFC 8259, section 7); an extractor's label may hold anything.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '"' | '\\' => write!(f, "\\{character}"),
            control if u32::from(control) < 0x20 => write!(f, "\\u{:04x}", u32::from(control)),
            plain => write!(f, "{plain}"),
        })
    }
}

const TYPES: &str = "https://iana.org/assignments/http-problem-types#";
