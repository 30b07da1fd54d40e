//! Decides which requests reach the API.
//!
//! # Why does the dashboard use no cookie, and no `EventSource`?
//!
//! A page of another site never sends a token in the header `authorization`, so nobody can forge a request. A cookie would be
//! sent, and would need a login, a session and its own defence. `EventSource` cannot send a header, so a token would have to be
//! in the URL, where each proxy logs it. So the page reads the stream by `fetch`, in twenty lines (`assets/api.mjs`). Requests of
//! other sites are refused all the same, because an application may guard the dashboard by its session cookie.
//!
//! The page itself has no data and is public. So there is one guard, in front of the API, and a page without a token asks for
//! one.

use http::{
    HeaderMap, Method, StatusCode,
    header::{AUTHORIZATION, ORIGIN},
    request::Parts,
};

use super::{
    access::Access, api_error::ApiError, permits::PageReader, requested_host::Hosts,
    wrong_tokens::WrongTokens,
};

/// Checks the origin and the rights of requests to the API.
///
/// ```text
/// request --> known host? --> same origin? --> no parameters in the URL? --> token or extension --> Access --> may it write?
///                                                                            \-- wrong token: too many of them?
/// ```
#[derive(Debug)]
pub(super) struct ApiGuard {
    pub read_token: Option<TokenHash>,
    pub write_token: Option<TokenHash>,
    /// Whether [`Access`] in the extensions of a request counts.
    pub trusts_extension: bool,
    pub wrong_tokens: WrongTokens,
    pub hosts: Hosts,
}

impl ApiGuard {
    /// Returns the rights of a request to the API.
    ///
    /// # Errors
    ///
    /// A response for a request that comes from another site, has parameters in its URL, has no rights, or comes from a
    /// client that has sent too many wrong tokens.
    pub fn admit(&self, parts: &Parts) -> Result<Access, ApiError> {
        self.rights(parts)?.ok_or_else(|| {
            ApiError::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "a valid token is required: send it in the header authorization: Bearer <token>",
            )
        })
    }

    /// As [`admit`](Self::admit), with `None` for a request without rights.
    pub fn rights(&self, parts: &Parts) -> Result<Option<Access>, ApiError> {
        check_origin(parts, &self.hosts)?;
        if parts.uri.query().is_some() {
            // A token in a URL would be logged by every proxy.
            return Err(ApiError::bad_request(
                "the API takes no parameters in the URL",
            ));
        }
        self.access(parts)
    }

    /// Returns whose pages a request with these rights belongs to.
    pub fn reader(&self, parts: &Parts, access: &Access) -> PageReader {
        match access.operator_name() {
            Some(name) => PageReader::Operator(name.into()),
            None => PageReader::Client(self.wrong_tokens.client(parts)),
        }
    }

    /// Returns whether a token can give rights.
    pub fn accepts_tokens(&self) -> bool {
        self.read_token.is_some() || self.write_token.is_some()
    }

    fn access(&self, parts: &Parts) -> Result<Option<Access>, ApiError> {
        if self.trusts_extension
            && let Some(access) = parts.extensions.get::<Access>()
        {
            return Ok(Some(access.clone()));
        }
        let token = bearer_token(&parts.headers);
        let Some(token) = token.filter(|_| self.accepts_tokens()) else {
            return Ok(None);
        };
        let access = self.access_by(&TokenHash::of(token));
        let checked = match access {
            Some(_) => self.wrong_tokens.check(parts),
            None => self.wrong_tokens.count(parts),
        };
        checked.map(|()| access).map_err(ApiError::too_many_tokens)
    }

    fn access_by(&self, token: &TokenHash) -> Option<Access> {
        if self.write_token.as_ref() == Some(token) {
            return Some(Access::read_write());
        }
        (self.read_token.as_ref() == Some(token)).then(Access::read_only)
    }
}

// === TokenHash ===

/// The BLAKE3 hash of a token. The token itself is not kept.
///
/// Hashes are compared in constant time, so the time of a comparison shows neither the length nor a part of the token.
#[derive(PartialEq, Eq)]
pub(super) struct TokenHash(blake3::Hash);

impl TokenHash {
    pub fn of(token: &str) -> Self {
        Self(blake3::hash(token.as_bytes()))
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_start_matches(' '))
}

// === Cross-site requests ===

/// Refuses requests that a page of another site makes in the browser of an operator.
///
/// Browsers send `Sec-Fetch-Site`, and older ones `Origin`. Without both, the request does not come from a browser. Requests
/// other than GET need a header of our own too, which a form cannot send, and a script of another site only after asking.
fn check_origin(parts: &Parts, hosts: &Hosts) -> Result<(), ApiError> {
    let header = |name: &str| parts.headers.get(name).map(http::HeaderValue::as_bytes);
    let is_same = match header("sec-fetch-site") {
        Some(site) => matches!(site, b"same-origin" | b"none"),
        None => header(ORIGIN.as_str()).is_none_or(|origin| hosts.is_origin_of(origin, parts)),
    };
    if !is_same {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            "the API answers only pages of its own origin: a proxy that changes the host has to be set as a trusted one, \
             and to send x-forwarded-host",
        ));
    }
    let is_read = matches!(parts.method, Method::GET | Method::HEAD);
    if !is_read && header(HEADER) != Some(b"1") {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "header_missing",
            format!("this request needs the header {HEADER}: 1"),
        ));
    }
    Ok(())
}

/// The header that all requests other than GET need.
const HEADER: &str = "x-tollgate-dashboard";
