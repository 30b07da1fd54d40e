//! JSON in bodies of requests and responses.

use axum::{
    body::{Body, to_bytes},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, Request, StatusCode, header::CONTENT_TYPE};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::error::Category;

use super::api_error::ApiError;

/// The object in the body of a request.
pub(super) trait RequestBody: DeserializeOwned {
    /// For a client that sends something else.
    const EXAMPLE: &str;
}

/// Returns a response with this value as JSON.
pub(super) fn response(value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value);
    let text = text.expect("values of the API have text keys and finite numbers");
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

/// Reads the body of a request, of at most [`MAX_BODY`] bytes.
pub(super) async fn read_json<T: RequestBody>(request: Request<Body>) -> Result<T, ApiError> {
    read_json_up_to(MAX_BODY, request).await
}

/// As [`read_json`], with another limit.
pub(super) async fn read_json_up_to<T: RequestBody>(
    max: usize,
    request: Request<Body>,
) -> Result<T, ApiError> {
    if !is_json(request.headers()) {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_json",
            "send JSON with the header content-type: application/json",
        ));
    }
    let bytes = to_bytes(request.into_body(), max).await;
    let bytes = bytes.map_err(|_| {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            format!("a body has at most {max} bytes"),
        )
    })?;
    read_object(&bytes).map_err(ApiError::bad_request)
}

/// Returns the fault if there is no such object.
fn read_object<T: RequestBody>(bytes: &[u8]) -> Result<T, String> {
    let is_object = bytes.trim_ascii_start().starts_with(b"{");
    if !is_object {
        // A list of the values of its fields would be read as an object.
        serde_json::from_slice::<IgnoredAny>(bytes).map_err(|error| describe(&error))?;
        let example = T::EXAMPLE;
        return Err(format!(
            "the body is not an object: send one such as {example}"
        ));
    }
    serde_json::from_slice(bytes).map_err(|error| describe(&error))
}

/// Returns the fault and its place, such as ``missing field `seconds` (line 1, column 13)``.
///
/// Values that the client sent are left out, since they may be secret keys. Names of fields and values of the API remain.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (text, _) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
    let is_own = text.starts_with("missing field") || text.starts_with("duplicate field");
    let fault = match error.classify() {
        Category::Data if is_own => text.to_owned(),
        Category::Data => {
            let is_unknown = text.starts_with("unknown field");
            let fault = if is_unknown {
                "a field is unknown"
            } else {
                "a field has a value that is not allowed"
            };
            // The last of them: the client's text, which comes before it, may contain the same words.
            let expected = text
                .rsplit_once(", expected ")
                .map(|(_, expected)| expected);
            expected.map_or(fault.to_owned(), |expected| {
                format!("{fault}: expected {}", in_words(expected))
            })
        }
        _ => "the body is not valid JSON".to_owned(),
    };
    format!("{fault} (line {}, column {})", error.line(), error.column())
}

/// Returns the name of a type of Rust in words.
fn in_words(expected: &str) -> &str {
    match expected {
        "f64" => "a number",
        "u64" => "a whole number, at least 0",
        other => other,
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|value| value.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

/// The longest body of a request, in bytes.
const MAX_BODY: usize = 16 * 1024;
/// The longest body with rules: a rule file has at most 1 MiB, and JSON escapes it.
#[cfg(feature = "reload")]
pub(super) const MAX_RULES: usize = 2 * 1024 * 1024;
