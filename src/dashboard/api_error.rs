//! Responses of the API that report an error.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{
    HeaderValue, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde_json::json;

use crate::{
    clock::whole_seconds,
    error::{Error, ErrorKind},
};

/// An error of the API: a status, a code for programs, and a sentence for people.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// In seconds.
    retry_after: Option<u64>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after: (status == StatusCode::SERVICE_UNAVAILABLE).then_some(5),
        }
    }

    /// Reports that the client has to wait, since it or others have sent too many wrong tokens.
    pub fn too_many_tokens(wait: Duration) -> Self {
        let seconds = whole_seconds(wait);
        let message = format!("too many wrong tokens: wait {seconds} s");
        let code = "too_many_tokens";
        Self {
            retry_after: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, code, message)
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// Reports that no policy counts by what the operator knows.
    pub fn no_key(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "no_key", message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }
}

impl From<Error> for ApiError {
    /// Reports an error of the store or of a setting, without its causes: they may name internals of the network.
    fn from(error: Error) -> Self {
        let (status, code) = match error.kind() {
            ErrorKind::DuplicatePolicy
            | ErrorKind::InvalidConfig
            | ErrorKind::InvalidPolicy
            | ErrorKind::InvalidQuota
            | ErrorKind::InvalidUrl
            | ErrorKind::NoPolicy
            | ErrorKind::PolicyWithoutKey => (StatusCode::BAD_REQUEST, "bad_request"),
            // The store replied, and will reply the same.
            ErrorKind::ForeignValue | ErrorKind::Protocol | ErrorKind::Script => {
                (StatusCode::BAD_GATEWAY, "store_failed")
            }
            ErrorKind::Connect
            | ErrorKind::Overloaded
            | ErrorKind::Timeout(_)
            | ErrorKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "store_failed"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.code, "message": self.message });
        let json = [(CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json, body.to_string()).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"tollgate\"");
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
