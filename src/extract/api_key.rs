//! Keys from API keys and tokens, which never leave in clear.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, StatusCode, header::AUTHORIZATION, request::Parts};

use crate::{
    error::Error,
    key::{HashSecret, Key},
};

use super::{extracted::Extracted, extractor::KeyExtractor, header, named::Name, query};

/// An API key or bearer token, hashed: the secret itself never reaches a store, a log or a table.
///
/// It is not checked: put the layer behind authentication, or count by address beside it, when made-up keys must not
/// get a quota each.
///
/// # Why not in constant time?
///
/// Nothing here compares what came with a secret that the server knows. A client's own bytes are hashed under a keyed
/// hash of 128 bits, and tables look up the hash: how long that takes tells nothing about anybody else's key.
#[derive(Clone, Debug)]
pub struct ApiKey {
    place: Place,
    hash_key: Option<HashSecret>,
}

impl ApiKey {
    /// The API key in this header, named in any case. An empty header is absent, one that comes more than once is
    /// ambiguous. What cannot be a header's name is reported when the layer is built.
    #[must_use]
    pub fn header(name: impl AsRef<str>) -> Self {
        Self::at(Place::Header(header::parsed(name.as_ref())))
    }

    /// The token in `Authorization: Bearer <token>`.
    ///
    /// Another scheme, or no token, is absent. A second `Authorization` line is ambiguous, also when it is empty or of
    /// another scheme; so is a token that holds a comma or space, which no token does (RFC 6750, section 2.1): proxies
    /// join repeated lines by commas, and handlers may cut the rest off.
    #[must_use]
    pub const fn bearer() -> Self {
        Self::at(Place::Bearer)
    }

    /// The API key in this parameter of the query, read as [`QueryParam`](super::QueryParam) does.
    #[must_use]
    pub fn query(name: impl AsRef<str>) -> Self {
        Self::at(Place::Query(query::named(name.as_ref())))
    }

    /// Sets the fleet's own hash key, the same on every instance.
    ///
    /// Default: tollgate's constant, which hides keys that cannot be guessed.
    #[must_use]
    pub const fn hash_key(mut self, key: HashSecret) -> Self {
        self.hash_key = Some(key);
        self
    }

    const fn at(place: Place) -> Self {
        Self {
            place,
            hash_key: None,
        }
    }
}

impl KeyExtractor for ApiKey {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        let secret = match &self.place {
            Place::Bearer => header::single(&parts.headers, &AUTHORIZATION)
                .and_then(bearer_token)
                .map(Cow::Borrowed),
            Place::Header(Ok(name)) => header::single(&parts.headers, name).map(Cow::Borrowed),
            Place::Header(Err(_)) => Extracted::Absent,
            Place::Query(name) => query::single(&parts.uri, name),
        };
        secret.map(|secret| hashed(self.hash_key.as_ref(), &secret))
    }

    /// `bearer-token`, the header's name, or `query:` and the parameter's.
    fn label(&self) -> &str {
        match &self.place {
            Place::Bearer => "bearer-token",
            Place::Header(name) => header::label(name),
            Place::Query(name) => name.label(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        match &self.place {
            Place::Bearer => Ok(()),
            Place::Header(name) => name.as_ref().map(drop).map_err(Clone::clone),
            Place::Query(name) => query::validate(name),
        }
    }

    /// 401.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }

    /// `Bearer` for a bearer token, else `ApiKey`: no register has it, and API descriptions call it so.
    fn challenge(&self, _: &Parts) -> Option<HeaderValue> {
        let scheme = match &self.place {
            Place::Bearer => "Bearer",
            Place::Header(_) | Place::Query(_) => "ApiKey",
        };
        Some(HeaderValue::from_static(scheme))
    }
}

/// The key of a secret, under the fleet's hash key when it has one.
pub(super) fn hashed(hash_key: Option<&HashSecret>, secret: &[u8]) -> Key {
    match hash_key {
        Some(hash_key) => Key::secret_with(hash_key, secret),
        None => Key::secret(secret),
    }
}

/// Returns the token after `Bearer`, in any case, with one space or more between (RFC 9110, section 11.4).
fn bearer_token(value: &[u8]) -> Extracted<&[u8]> {
    if let Some(token) = behind_bearer(value)
        && !token.iter().any(|byte| is_separator(*byte))
    {
        return Some(token).filter(|token| !token.is_empty()).into();
    }
    // If a proxy joined several lines, each of them begins with a scheme.
    let mut lines = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    match lines.any(|line| behind_bearer(line).is_some()) {
        true => Extracted::Ambiguous,
        false => Extracted::Absent,
    }
}

/// Returns the text after `Bearer`, without the space around it. `None` for another scheme.
fn behind_bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("Bearer".len())?;
    let is_bearer =
        scheme.eq_ignore_ascii_case(b"Bearer") && rest.first().is_none_or(u8::is_ascii_whitespace);
    is_bearer.then(|| rest.trim_ascii())
}

/// Whether a byte ends the token for some parsers. No token contains it.
fn is_separator(byte: u8) -> bool {
    byte == b',' || byte.is_ascii_whitespace()
}

// === Place ===

/// Where the secret stands.
#[derive(Clone, Debug)]
enum Place {
    Bearer,
    Header(Result<HeaderName, Error>),
    Query(Name),
}
