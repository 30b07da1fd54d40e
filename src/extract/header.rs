//! Keys from one header.

use http::{HeaderMap, HeaderName, request::Parts};

use crate::key::Key;

use super::extractor::KeyExtractor;

/// The value of one header, in clear.
///
/// Clients choose their headers: use it for what a trusted gateway sets, or for what the client gains nothing by
/// varying. A header that is empty or comes more than once is missing; space around the value is no part of it. For
/// secrets use [`ApiKey`](super::ApiKey).
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

    fn is_ambiguous(&self, parts: &Parts) -> bool {
        is_repeated(&parts.headers, &self.name)
    }
}

/// Whether the header is there more than once.
pub(super) fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().nth(1).is_some()
}

/// The header's value when it is there once and not empty, without the space around it (RFC 9110, section 5.5): only
/// HTTP/1 parsers strip that.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.as_bytes().trim_ascii();
    (values.next().is_none() && !value.is_empty()).then_some(value)
}
