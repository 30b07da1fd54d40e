//! Keys from API keys and tokens, which never leave in clear.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, StatusCode, header::AUTHORIZATION, request::Parts};

use crate::{
    error::Error,
    key::{HashKey, Key},
};

use super::{extractor::KeyExtractor, header, named::Name, query};

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
    /// The API key in this header, named in any case. One that is empty or comes more than once is missing. What cannot
    /// be a header's name is reported when the layer is built.
    #[must_use]
    pub fn header(name: impl AsRef<str>) -> Self {
        Self::at(Place::Header(header::parsed(name.as_ref())))
    }

    /// The token in `Authorization: Bearer <token>`.
    #[must_use]
    pub const fn bearer() -> Self {
        Self::at(Place::Bearer)
    }

    /// The API key in this parameter of the query, read as [`Query`](super::Query) does.
    #[must_use]
    pub fn query(name: impl AsRef<str>) -> Self {
        Self::at(Place::Query(query::named(name.as_ref())))
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
            Place::Header(name) => {
                let name = name.as_ref().ok()?;
                Cow::Borrowed(header::single(&parts.headers, name)?)
            }
            Place::Query(name) => query::single(&parts.uri, name)?,
        };
        Some(hashed(self.hash_key.as_ref(), &secret))
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

    fn is_ambiguous(&self, parts: &Parts) -> bool {
        match &self.place {
            Place::Bearer => header::is_repeated(&parts.headers, &AUTHORIZATION),
            Place::Header(name) => {
                let name = name.as_ref();
                name.is_ok_and(|name| header::is_repeated(&parts.headers, name))
            }
            Place::Query(name) => query::is_repeated(&parts.uri, name),
        }
    }

    /// 401.
    fn missing_status(&self) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }

    /// `Bearer` for a bearer token, else `ApiKey`: no register has it, and API descriptions call it so.
    fn challenge(&self) -> Option<HeaderValue> {
        let scheme = match &self.place {
            Place::Bearer => "Bearer",
            Place::Header(_) | Place::Query(_) => "ApiKey",
        };
        Some(HeaderValue::from_static(scheme))
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
    Header(Result<HeaderName, Error>),
    Query(Name),
}
