//! Keys from a header.

use http::{HeaderMap, HeaderName};

use crate::{
    error::{Error, ErrorKind},
    key::Key,
    request::RequestHead,
};

use super::{caller_id::CallerId, extracted::Extracted, extractor::KeyExtractor};

/// The value of one header, readable in Redis.
///
/// Clients choose their headers: use it for headers that a trusted gateway sets, or where varying the value gains a client
/// nothing. For secrets use [`ApiKey`](super::ApiKey).
///
/// An empty header is absent. A header that comes more than once is ambiguous, whatever its values are. Whitespace around
/// the value is removed; commas are kept, since a single value may contain one.
#[derive(Clone, Debug)]
pub struct Header {
    name: Result<HeaderName, Error>,
}

impl Header {
    /// Reads the header of this name, in any case. An invalid name fails when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: parse_header_name(name.as_ref()),
        }
    }

    /// Returns the header's value as it was sent, for extractors that make another key from it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, RequestHead, extract::Header};
    ///
    /// let tenant = Header::new("x-tenant");
    /// let by_tenant = move |head: &RequestHead| {
    ///     let name = tenant.value(head).map(<[u8]>::to_ascii_lowercase);
    ///     name.map(Key::new) // absent or ambiguous stays so
    /// };
    /// ```
    pub fn value<'a>(&self, head: &RequestHead<'a>) -> Extracted<&'a [u8]> {
        match &self.name {
            Ok(name) => single(head.headers, name),
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
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        self.value(head).map(Key::new)
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        Vec::from_iter(caller.value().map(Key::new))
    }

    fn label(&self) -> &str {
        label(&self.name)
    }

    fn validate(&self) -> Result<(), Error> {
        self.name.as_ref().map(drop).map_err(Clone::clone)
    }
}

/// Parses a header name, which becomes lower case.
pub(crate) fn parse_header_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|source| {
        let message = format!(
            "{name:?} is not a header name: use letters, digits and -, as in \"x-api-key\""
        );
        Error::new(ErrorKind::InvalidConfig, message).with_source(source)
    })
}

/// Returns the label of an extractor that reads this header.
pub(super) fn label(name: &Result<HeaderName, Error>) -> &str {
    name.as_ref().map_or("header", HeaderName::as_str)
}

/// Returns whether a byte may be part of a token (RFC 9110, section 5.6.2).
pub(super) fn is_token_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// Returns the header's value. An empty value is absent, and two lines are ambiguous, also if one of them is empty.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Extracted<&'a [u8]> {
    let values = Extracted::single(headers.get_all(name).iter());
    // Only HTTP/1 parsers strip the whitespace around a value (RFC 9110, section 5.5).
    let value = values.map(|value| value.as_bytes().trim_ascii());
    value.filter(|value| !value.is_empty())
}
