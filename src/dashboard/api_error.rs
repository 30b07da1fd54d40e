//! Responses of the API that report an error.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header::RETRY_AFTER, header::WWW_AUTHENTICATE};
use serde::Serialize;

use crate::error::{Error, ErrorKind};

use super::json;

/// An error of the API: a status, a code for programs, and a sentence for people.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

#[derive(Serialize)]
struct Body<'a> {
    error: &'a str,
    message: &'a str,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }
}

impl From<Error> for ApiError {
    /// Reports an error of the store or of a setting. Its causes stay out, which may name internals of the network.
    fn from(error: Error) -> Self {
        let (status, code) = match error.kind() {
            ErrorKind::InvalidConfig | ErrorKind::InvalidPolicy | ErrorKind::InvalidQuota => {
                (StatusCode::BAD_REQUEST, "bad_request")
            }
            _ => (StatusCode::SERVICE_UNAVAILABLE, "store_failed"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Body {
            error: self.code,
            message: &self.message,
        };
        let mut response = json::response(&body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let challenge = HeaderValue::from_static("Bearer realm=\"tollgate\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
            }
            _ => {}
        }
        response
    }
}
