//! Matchers on method, host and headers.

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
/// HEAD resembles GET, since routers serve it by the same handlers.
#[derive(Clone, Debug)]
pub struct Methods {
    methods: Box<[Method]>,
}

impl Methods {
    /// These methods.
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
                "a matcher of no methods matches nothing: name at least one",
            ));
        }
        Ok(())
    }
}

// === Preflight ===

/// The preflight requests of browsers (CORS): OPTIONS with `Origin` and `Access-Control-Request-Method`.
///
/// Browsers send them on their own, and one that is answered with 429 fails the request behind it without telling why. They
/// are counted nevertheless unless the layer is told to [skip](crate::builder::RateLimitLayerBuilder::skip) them, since
/// anybody can send these two headers. Better yet, let a CORS layer outside of this one answer them. Other OPTIONS requests
/// are no preflight.
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
/// Clients choose their headers: for `skip` and `unless`, take one that a trusted gateway sets or strips.
#[derive(Clone, Debug)]
pub struct HasHeader {
    name: Result<HeaderName, Error>,
    value: Option<Box<[u8]>>,
}

impl HasHeader {
    /// The header of this name, in any case, with any value. What cannot be a name is reported when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: extract::header_name(name.as_ref()),
            value: None,
        }
    }

    /// Sets the value that it has, byte by byte but for space around it. Where the header comes more than once and not all
    /// have it, the request resembles.
    ///
    /// Default: any.
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
        agreement(values.map(|found| found.as_bytes().trim_ascii() == &**value))
    }

    fn validate(&self) -> Result<(), Error> {
        self.name.as_ref().map(drop).map_err(Clone::clone)
    }
}

// === HostPattern ===

/// Requests for this host: `api.example.com`, or `*.example.com` for all names below it.
///
/// The host is that of the URI or of the `Host` header, without its port or space around it, in any case. Where more than one is named and not
/// all are meant, the request resembles.
#[derive(Clone, Debug)]
pub struct HostPattern {
    host: String,
}

impl HostPattern {
    /// This host. What cannot be one is reported when the layer is built.
    #[must_use]
    pub fn new(host: impl Into<String>) -> Self {
        Self { host: host.into() }
    }

    fn is_meant(&self, authority: &[u8]) -> bool {
        let host = without_port(authority);
        let host = host.strip_suffix(b".").unwrap_or(host);
        let Some(parent) = self.host.strip_prefix('*') else {
            return host.eq_ignore_ascii_case(self.host.as_bytes());
        };
        host.len() > parent.len()
            && host[host.len() - parent.len()..].eq_ignore_ascii_case(parent.as_bytes())
    }
}

impl Matcher for HostPattern {
    fn matches(&self, parts: &Parts) -> Match {
        let named = parts.uri.host().map(str::as_bytes);
        let headers = parts.headers.get_all(HOST).iter();
        // Only HTTP/1 parsers strip the space around a value.
        let headers = headers.map(|host| host.as_bytes().trim_ascii());
        let hosts = named.into_iter().chain(headers);
        agreement(hosts.map(|host| self.is_meant(host)))
    }

    fn validate(&self) -> Result<(), Error> {
        let name = self.host.strip_prefix("*.").unwrap_or(&self.host);
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
                "{:?} is no host: write \"api.example.com\" or \"*.example.com\", without a port",
                self.host
            ),
        ))
    }
}

/// Whether all of them are so, some, or none.
fn agreement(found: impl Iterator<Item = bool>) -> Match {
    let (mut some, mut all) = (false, true);
    for is_so in found {
        some |= is_so;
        all &= is_so;
    }
    match (some, all) {
        (true, true) => Match::Exact,
        (true, false) => Match::Possible,
        (false, _) => Match::Miss,
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
