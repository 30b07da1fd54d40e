//! Matchers on the method, the host and the headers of a request.

use http::{
    HeaderName, Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN},
    request::Parts,
};

use crate::{
    error::{Error, ErrorKind},
    extract,
};

use super::matcher::{Match, Matcher};

/// Requests with one of these methods.
///
/// HEAD is a possible match for GET, since routers serve both with the same handler.
#[derive(Clone, Debug)]
pub struct Methods {
    methods: Box<[Method]>,
}

impl Methods {
    /// Matches these methods.
    pub fn new(methods: impl IntoIterator<Item = Method>) -> Self {
        Self {
            methods: methods.into_iter().collect(),
        }
    }
}

impl Matcher for Methods {
    fn matches(&self, parts: &Parts) -> Match {
        if self.methods.contains(&parts.method) {
            return Match::Exact;
        }
        if parts.method == Method::HEAD && self.methods.contains(&Method::GET) {
            return Match::Possible;
        }
        Match::Miss
    }

    fn validate(&self) -> Result<(), Error> {
        if self.methods.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "a matcher without methods matches nothing: name at least one",
            ));
        }
        Ok(())
    }
}

// === Preflight ===

/// CORS preflight requests: OPTIONS with `Origin` and `Access-Control-Request-Method`. Other OPTIONS requests do not match.
///
/// Browsers send preflights automatically, and a 429 makes the request after it fail without a visible reason. They are
/// counted by default nevertheless, since any client can send the two headers:
/// [skip](crate::builder::RateLimitLayerBuilder::skip) them, or better, let a CORS layer outside of this one respond.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preflight;

impl Matcher for Preflight {
    fn matches(&self, parts: &Parts) -> Match {
        let has = |name| parts.headers.contains_key(name);
        let is_preflight =
            parts.method == Method::OPTIONS && has(&ORIGIN) && has(&ACCESS_CONTROL_REQUEST_METHOD);
        is_preflight.into()
    }
}

// === HasHeader ===

/// Requests with this header.
///
/// Clients choose their headers: for `skip` and `unless`, use a header that a trusted gateway sets or strips.
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
    fn matches(&self, parts: &Parts) -> Match {
        let Ok(name) = &self.name else {
            return Match::Possible;
        };
        let Some(value) = &self.value else {
            return parts.headers.contains_key(name).into();
        };
        let values = parts.headers.get_all(name).iter();
        all_or_some(values.map(|found| found.as_bytes().trim_ascii() == &**value))
    }

    fn validate(&self) -> Result<(), Error> {
        self.name.as_ref().map(drop).map_err(Clone::clone)
    }
}

// === HostPattern ===

/// Requests for a host: `api.example.com`, or `*.example.com` for all its subdomains.
///
/// Compares the hosts in the URI and in the `Host` header, without port and surrounding whitespace, in any case. If a
/// request has several hosts and not all of them match, the match is possible.
#[derive(Clone, Debug)]
pub struct HostPattern {
    pattern: String,
}

impl HostPattern {
    /// Matches this host. An invalid pattern fails when the layer is built.
    #[must_use]
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
        }
    }

    /// Returns whether this host, whose port may follow, is the one of the pattern.
    pub(crate) fn matches_authority(&self, authority: &[u8]) -> bool {
        let host = without_port(authority);
        let host = host.strip_suffix(b".").unwrap_or(host);
        let Some(suffix) = self.pattern.strip_prefix('*') else {
            return host.eq_ignore_ascii_case(self.pattern.as_bytes());
        };
        host.len() > suffix.len()
            && host[host.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
    }
}

impl Matcher for HostPattern {
    fn matches(&self, parts: &Parts) -> Match {
        let in_uri = parts.uri.host().map(str::as_bytes);
        let headers = parts.headers.get_all(HOST).iter();
        // Only HTTP/1 parsers strip the whitespace around a value.
        let in_headers = headers.map(|host| host.as_bytes().trim_ascii());
        let hosts = in_uri.into_iter().chain(in_headers);
        all_or_some(hosts.map(|host| self.matches_authority(host)))
    }

    fn validate(&self) -> Result<(), Error> {
        let name = self.pattern.strip_prefix("*.").unwrap_or(&self.pattern);
        let is_address = name.starts_with('[') && name.ends_with(']');
        let is_name = !name.is_empty()
            && !name.ends_with('.')
            && !name.bytes().any(|byte| b"/:*@ []".contains(&byte));
        if is_address || is_name {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "{:?} is not a host pattern: write \"api.example.com\" or \"*.example.com\", without a port",
                self.pattern
            ),
        ))
    }
}

/// An exact match if there are values and all of them match, a possible one if some do.
fn all_or_some(values: impl Iterator<Item = bool>) -> Match {
    let (mut some, mut all) = (false, true);
    for is_match in values {
        some |= is_match;
        all &= is_match;
    }
    if some && all {
        Match::Exact
    } else if some {
        Match::Possible
    } else {
        Match::Miss
    }
}

fn without_port(authority: &[u8]) -> &[u8] {
    let address = authority.iter().rposition(|byte| *byte == b']');
    let port = authority.iter().rposition(|byte| *byte == b':');
    match port {
        Some(port) if address.is_none_or(|end| port > end) => &authority[..port],
        _ => authority,
    }
}
