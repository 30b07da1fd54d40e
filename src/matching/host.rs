//! Matchers on the host of a request.

use http::header::HOST;

use crate::{
    error::{Error, ErrorKind},
    extract::{Host, without_user},
    request::RequestHead,
};

use super::matcher::{Match, Matcher};

/// Requests for a host: `api.example.com`, or `*.example.com` for all its subdomains.
///
/// Compares the hosts in the URI and in the `Host` header, without port and surrounding whitespace, in any case. If a
/// request has several hosts and not all of them match, the match is possible. It is also possible if a host is not valid,
/// such as `api.example.com:80:80` or `u@api.example.com`, since servers handle such hosts differently: see
/// [`HostHeader`](crate::extract::HostHeader).
///
/// A request without a host, or with another one, does not match, even if the server handles unknown hosts like this one.
/// `X-Forwarded-Host` is not read.
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

    /// Compares a host, whose port may follow, with the pattern.
    pub(crate) fn matches_authority(&self, authority: &[u8]) -> Match {
        if authority.is_empty() {
            return Match::Miss;
        }
        match Host::of_authority(authority) {
            None => Match::Ambiguous,
            Some(Host::Name(name)) => self.matches_name(name).into(),
            Some(address) => (Host::parse(self.pattern.as_bytes()) == Some(address)).into(),
        }
    }

    fn matches_name(&self, name: &[u8]) -> bool {
        let Some(suffix) = self.pattern.strip_prefix('*') else {
            return name.eq_ignore_ascii_case(self.pattern.as_bytes());
        };
        name.len() > suffix.len()
            && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
    }
}

impl Matcher for HostPattern {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        let in_uri = head.uri.authority().map(without_user);
        let headers = head.headers.get_all(HOST).iter();
        // Only HTTP/1 parsers strip the whitespace around a value.
        let in_headers = headers.map(|host| host.as_bytes().trim_ascii());
        let hosts = in_uri.map(str::as_bytes).into_iter().chain(in_headers);
        Match::of_values(hosts.map(|host| self.matches_authority(host)))
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
