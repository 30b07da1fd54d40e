//! Keys from API keys and tokens, which never leave in clear.

use std::borrow::Cow;

use http::{HeaderName, StatusCode, header::AUTHORIZATION, request::Parts};

use crate::key::{HashKey, Key};

use super::{extractor::KeyExtractor, header, query};

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
    hash_key: Option<HashKey>,
}

impl ApiKey {
    /// The API key in this header. One that is empty or comes more than once is missing.
    ///
    /// # Panics
    ///
    /// Panics when a header cannot have this name, or when it is not in lower case.
    #[must_use]
    pub const fn header(name: &'static str) -> Self {
        Self::at(Place::Header(HeaderName::from_static(name)))
    }

    /// The token in `Authorization: Bearer <token>`.
    #[must_use]
    pub const fn bearer() -> Self {
        Self::at(Place::Bearer)
    }

    /// The API key in this parameter of the query, read as [`Query`](super::Query) does.
    #[must_use]
    pub fn query(name: impl Into<Cow<'static, str>>) -> Self {
        Self::at(Place::Query(name.into()))
    }

    /// Sets the fleet's own hash key, the same on every instance.
    ///
    /// Default: tollgate's constant, which hides keys that cannot be guessed.
    #[must_use]
    pub const fn hash_key(mut self, key: HashKey) -> Self {
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
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let secret = match &self.place {
            Place::Bearer => {
                let value = header::single(&parts.headers, &AUTHORIZATION)?;
                Cow::Borrowed(bearer_token(value)?)
            }
            Place::Header(name) => Cow::Borrowed(header::single(&parts.headers, name)?),
            Place::Query(name) => query::single(&parts.uri, name)?,
        };
        Some(hashed(self.hash_key.as_ref(), &secret))
    }

    fn label(&self) -> &str {
        match &self.place {
            Place::Bearer => AUTHORIZATION.as_str(),
            Place::Header(name) => name.as_str(),
            Place::Query(name) => name,
        }
    }

    fn is_ambiguous(&self, parts: &Parts) -> bool {
        match &self.place {
            Place::Bearer => header::is_repeated(&parts.headers, &AUTHORIZATION),
            Place::Header(name) => header::is_repeated(&parts.headers, name),
            Place::Query(name) => query::is_repeated(&parts.uri, name),
        }
    }

    /// 401.
    fn missing_status(&self) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }
}

/// The key of a secret, under the fleet's hash key when it has one.
pub(super) fn hashed(hash_key: Option<&HashKey>, secret: &[u8]) -> Key {
    match hash_key {
        Some(hash_key) => Key::secret_with(hash_key, secret),
        None => Key::secret(secret),
    }
}

/// The token behind `Bearer`, in any case, with one space or more between (RFC 9110, section 11.4).
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("Bearer ".len())?;
    let token = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

// === Place ===

/// Where the secret stands.
#[derive(Clone, Debug)]
enum Place {
    Bearer,
    Header(HeaderName),
    Query(Cow<'static, str>),
}
