//! Matchers on the headers of a request.

use http::{HeaderName, HeaderValue};

use crate::{error::Error, extract, request::RequestHead};

use super::matcher::{Match, Matcher};

/// Requests with this header.
///
/// Clients choose their headers: for `skip` and `unless`, use a header that a trusted gateway sets or strips. `x_name` is
/// another header than `x-name` here, but not in CGI and WSGI applications.
#[derive(Clone, Debug)]
pub struct HasHeader {
    name: Result<HeaderName, Error>,
    value: Option<Box<[u8]>>,
}

impl HasHeader {
    /// Matches any value of the header of this name, in any case. An invalid name fails when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: extract::parse_header_name(name.as_ref()),
            value: None,
        }
    }

    /// Sets the value to match, compared byte by byte without surrounding whitespace. If the header comes more than once and
    /// not every value is equal, the match is possible.
    ///
    /// Default: any value.
    #[must_use]
    pub fn equal_to(mut self, value: impl AsRef<[u8]>) -> Self {
        self.value = Some(value.as_ref().trim_ascii().into());
        self
    }
}

impl Matcher for HasHeader {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        let Ok(name) = &self.name else {
            return Match::Ambiguous;
        };
        let Some(value) = &self.value else {
            return head.headers.contains_key(name).into();
        };
        let values = head.headers.get_all(name).iter();
        let is_equal = |found: &HeaderValue| found.as_bytes().trim_ascii() == &**value;
        Match::of_values(values.map(|found| is_equal(found).into()))
    }

    fn validate(&self) -> Result<(), Error> {
        self.name.as_ref().map(drop).map_err(Clone::clone)
    }
}
