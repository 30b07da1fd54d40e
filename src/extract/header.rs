//! Keys from one header.

use http::{HeaderMap, HeaderName, request::Parts};

use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

use super::{extracted::Extracted, extractor::KeyExtractor};

/// The value of one header, in clear.
///
/// Clients choose their headers: use it for what a trusted gateway sets, or for what the client gains nothing by
/// varying. A header that is empty is absent, and one that comes more than once is ambiguous, whatever its values are.
/// Space around the value is not part of it; a comma is, since one value may hold one. For secrets use
/// [`ApiKey`](super::ApiKey).
#[derive(Clone, Debug)]
pub struct Header {
    name: Result<HeaderName, Error>,
}

impl Header {
    /// The header of this name, in any case. What cannot be one is reported when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: parsed(name.as_ref()),
        }
    }

    /// Returns the header's value as it was sent, for extractors that make something else of it than this key.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate::{Key, extract::Header};
    ///
    /// let tenant = Header::new("x-tenant");
    /// let by_tenant = move |parts: &Parts| {
    ///     let name = tenant.value(parts).map(<[u8]>::to_ascii_lowercase);
    ///     name.map(Key::new) // absent or ambiguous stays so
    /// };
    /// ```
    pub fn value<'a>(&self, parts: &'a Parts) -> Extracted<&'a [u8]> {
        match &self.name {
            Ok(name) => single(&parts.headers, name),
            Err(_) => Extracted::Absent,
        }
    }
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        Self { name: Ok(name) }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        self.value(parts).map(Key::new)
    }

    fn label(&self) -> &str {
        label(&self.name)
    }

    fn validate(&self) -> Result<(), Error> {
        self.name.as_ref().map(drop).map_err(Clone::clone)
    }
}

/// The name of a header, which is written in lower case from here on.
pub(crate) fn parsed(name: &str) -> Result<HeaderName, Error> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|fault| {
        let message =
            format!("{name:?} is no header name: take letters, digits and -, as in \"x-api-key\"");
        Error::new(ErrorKind::InvalidConfig, message).with_source(fault)
    })
}

/// The label of what looks at a header.
pub(super) fn label(name: &Result<HeaderName, Error>) -> &str {
    name.as_ref().map_or("header", HeaderName::as_str)
}

/// The header's value, without the space around it (RFC 9110, section 5.5): only HTTP/1 parsers strip that. An empty one is
/// absent, and two lines are ambiguous, also when one of them is empty.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Extracted<&'a [u8]> {
    let values = Extracted::only(headers.get_all(name).iter());
    let value = values.map(|value| value.as_bytes().trim_ascii());
    value.filter(|value| !value.is_empty())
}
