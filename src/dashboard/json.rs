//! JSON in responses.

use axum::{body::Body, response::Response};
use http::{HeaderValue, header::CONTENT_TYPE};
use serde::Serialize;

/// Returns a response with this value as JSON.
pub(super) fn response(value: &impl Serialize) -> Response {
    response_of(text(value))
}

/// Returns a response with this JSON text.
pub(super) fn response_of(text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Returns the value as JSON text.
pub(super) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("values of the API have text keys and finite numbers")
}
