//! Keys from one header.

use http::{HeaderMap, HeaderName, request::Parts};

use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

use super::extractor::KeyExtractor;

/// The value of one header, in clear.
///
/// Clients choose their headers: use it for what a trusted gateway sets, or for what the client gains nothing by
/// varying. A header that is empty or comes more than once is missing; space around the value is no part of it. For
/// secrets use [`ApiKey`](super::ApiKey).
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
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        Self { name: Ok(name) }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        single(&parts.headers, self.name.as_ref().ok()?).map(Key::new)
    }

    fn label(&self) -> &str {
        label(&self.name)
    }

    fn validate(&self) -> Result<(), Error> {
        self.name.as_ref().map(drop).map_err(Clone::clone)
    }

    fn is_ambiguous(&self, parts: &Parts) -> bool {
        let name = self.name.as_ref();
        name.is_ok_and(|name| is_repeated(&parts.headers, name))
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
