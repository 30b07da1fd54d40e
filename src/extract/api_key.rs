//! Keys from API keys and bearer tokens, always hashed.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, StatusCode, header::AUTHORIZATION};

use crate::{
    error::Error,
    key::{HashSecret, Key},
    request::RequestHead,
};

use super::{
    caller_id::CallerId, extracted::Extracted, extractor::KeyExtractor, header, param::ParamName,
    query,
};

/// An API key or bearer token, hashed: the secret itself never reaches a store or a log.
///
/// The key is not checked. To keep made-up keys from getting a quota each, put the layer inside the authentication layer,
/// or limit by address as well.
///
/// # Why not in constant time?
///
/// The client's bytes are never compared with a secret of the server. They are hashed first, and lookups compare only 128
/// bits of the hash, so the time of a lookup reveals nothing about other clients' keys.
#[derive(Clone, Debug)]
pub struct ApiKey {
    location: SecretSource,
    hash_secret: Option<HashSecret>,
}

impl ApiKey {
    /// Reads the API key from the header of this name, in any case. An empty header is absent, and one that comes more than
    /// once is ambiguous. An invalid name fails when the layer is built.
    #[must_use]
    pub fn header(name: impl AsRef<str>) -> Self {
        Self::at(SecretSource::Header(header::parse_header_name(
            name.as_ref(),
        )))
    }

    /// Reads the token from `Authorization: Bearer <token>`.
    ///
    /// With another scheme, or without a token, the key is absent. A second `Authorization` line makes it ambiguous, also if
    /// that line is empty or has another scheme. So does a comma or a space in the token: valid tokens contain neither
    /// (RFC 6750, section 2.1), but proxies join repeated lines by commas, and handlers may cut off the rest.
    #[must_use]
    pub const fn bearer() -> Self {
        Self::at(SecretSource::Bearer)
    }

    /// Reads the API key from this query parameter, as [`QueryParam`](super::QueryParam) does.
    #[must_use]
    pub fn query(name: impl AsRef<str>) -> Self {
        Self::at(SecretSource::Query(query::param_name(name.as_ref())))
    }

    /// Sets the secret to hash with, which must be the same on every instance.
    ///
    /// Default: tollgate's constant, which is enough for keys that cannot be guessed.
    #[must_use]
    pub const fn hash_secret(mut self, secret: HashSecret) -> Self {
        self.hash_secret = Some(secret);
        self
    }

    const fn at(location: SecretSource) -> Self {
        Self {
            location,
            hash_secret: None,
        }
    }
}

impl KeyExtractor for ApiKey {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let secret = match &self.location {
            SecretSource::Bearer => header::single(head.headers, &AUTHORIZATION)
                .and_then(bearer_token)
                .map(Cow::Borrowed),
            SecretSource::Header(Ok(name)) => header::single(head.headers, name).map(Cow::Borrowed),
            SecretSource::Header(Err(_)) => Extracted::Absent,
            SecretSource::Query(name) => query::single(head.uri, name),
        };
        secret.map(|secret| secret_key(self.hash_secret.as_ref(), &secret))
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        let secret = caller.value().map(str::as_bytes);
        Vec::from_iter(secret.map(|secret| secret_key(self.hash_secret.as_ref(), secret)))
    }

    /// `bearer-token`, the name of the header, or `query:` followed by the name of the parameter.
    fn label(&self) -> &str {
        match &self.location {
            SecretSource::Bearer => "bearer-token",
            SecretSource::Header(name) => header::label(name),
            SecretSource::Query(name) => name.label(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        match &self.location {
            SecretSource::Bearer => Ok(()),
            SecretSource::Header(name) => name.as_ref().map(drop).map_err(Clone::clone),
            SecretSource::Query(name) => query::validate(name),
        }
    }

    /// 401.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }

    /// `Bearer` for a bearer token, else `ApiKey`, a name from API descriptions: no scheme is registered for API keys.
    fn challenge(&self, _: &RequestHead<'_>) -> Option<HeaderValue> {
        let scheme = match &self.location {
            SecretSource::Bearer => "Bearer",
            SecretSource::Header(_) | SecretSource::Query(_) => "ApiKey",
        };
        Some(HeaderValue::from_static(scheme))
    }
}

/// Hashes a secret, with the fleet's own hash secret if there is one.
pub(super) fn secret_key(hash_secret: Option<&HashSecret>, secret: &[u8]) -> Key {
    match hash_secret {
        Some(hash_secret) => Key::secret_with(hash_secret, secret),
        None => Key::secret(secret),
    }
}

/// Returns the token after `Bearer`, in any case, with at least one space between (RFC 9110, section 11.4).
fn bearer_token(value: &[u8]) -> Extracted<&[u8]> {
    if let Some(token) = after_bearer(value)
        && !token.iter().any(|byte| is_separator(*byte))
    {
        return Some(token).filter(|token| !token.is_empty()).into();
    }
    // A proxy may have joined several `Authorization` lines; then each part starts with a scheme.
    let mut lines = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    if lines.any(|line| after_bearer(line).is_some()) {
        Extracted::Ambiguous
    } else {
        Extracted::Absent
    }
}

/// Returns the text after `Bearer`, trimmed. `None` for another scheme.
fn after_bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("Bearer".len())?;
    let is_bearer =
        scheme.eq_ignore_ascii_case(b"Bearer") && rest.first().is_none_or(u8::is_ascii_whitespace);
    is_bearer.then(|| rest.trim_ascii())
}

/// Returns whether some parsers end the token at this byte. Valid tokens do not contain it.
fn is_separator(byte: u8) -> bool {
    byte == b',' || byte.is_ascii_whitespace()
}

// === SecretSource ===

/// The part of the request that holds the secret.
#[derive(Clone, Debug)]
enum SecretSource {
    /// `Authorization: Bearer`.
    Bearer,
    Header(Result<HeaderName, Error>),
    Query(ParamName),
}
