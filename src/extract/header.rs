//! Keys from one header.

use http::{HeaderMap, HeaderName, StatusCode, header::AUTHORIZATION, request::Parts};

use crate::key::{HashKey, Key};

use super::extractor::KeyExtractor;

/// The value of one header, in clear.
///
/// Clients choose their headers: use it for what a trusted gateway sets, or for what the client gains nothing by
/// varying. A header that is empty or comes more than once is missing. For secrets use [`ApiKey`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
}

impl Header {
    /// The header of this name.
    ///
    /// # Panics
    ///
    /// Panics when a header cannot have this name, or when it is not in lower case.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name: HeaderName::from_static(name),
        }
    }
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        Self { name }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        single(&parts.headers, &self.name).map(Key::new)
    }

    fn label(&self) -> &str {
        self.name.as_str()
    }
}

// === ApiKey ===

/// An API key or bearer token, hashed: the secret itself never reaches a store, a log or a table.
///
/// It is not checked: put the layer behind authentication, or count by address beside it, when made-up keys must not
/// get a quota each.
#[derive(Clone, Debug)]
pub struct ApiKey {
    header: HeaderName,
    is_bearer: bool,
    hash_key: Option<HashKey>,
}

impl ApiKey {
    /// The API key in this header.
    ///
    /// # Panics
    ///
    /// Panics when a header cannot have this name, or when it is not in lower case.
    #[must_use]
    pub const fn header(name: &'static str) -> Self {
        Self {
            header: HeaderName::from_static(name),
            is_bearer: false,
            hash_key: None,
        }
    }

    /// The token in `Authorization: Bearer <token>`.
    #[must_use]
    pub const fn bearer() -> Self {
        Self {
            header: AUTHORIZATION,
            is_bearer: true,
            hash_key: None,
        }
    }

    /// Sets the fleet's own hash key, the same on every instance.
    ///
    /// Default: tollgate's constant, which hides keys that cannot be guessed.
    #[must_use]
    pub const fn hash_key(mut self, key: HashKey) -> Self {
        self.hash_key = Some(key);
        self
    }
}

impl KeyExtractor for ApiKey {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let value = single(&parts.headers, &self.header)?;
        let secret = if self.is_bearer {
            bearer_token(value)?
        } else {
            value
        };
        Some(match &self.hash_key {
            Some(hash_key) => Key::secret_with(hash_key, secret),
            None => Key::secret(secret),
        })
    }

    fn label(&self) -> &str {
        self.header.as_str()
    }

    /// 401.
    fn missing_status(&self) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }
}

/// The header's value when it is there once and not empty.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.as_bytes();
    (values.next().is_none() && !value.is_empty()).then_some(value)
}

/// The token behind `Bearer`, in any case, with one space or more between (RFC 9110, section 11.4).
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("Bearer ".len())?;
    let token = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}
