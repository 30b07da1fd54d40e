//! The host that a browser has asked for, also behind proxies.

use http::{HeaderMap, HeaderName, StatusCode, Uri, header::HOST, request::Parts, uri::Authority};

use crate::{
    error::{Error, ErrorKind},
    extract::{ClientIp, KeyExtractor},
    matching::{HostPattern, Match, Matcher},
};

use super::api_error::ApiError;

/// The proxies that may name a host, and the hosts that the dashboard has.
#[derive(Debug)]
pub(super) struct Hosts {
    proxies: ClientIp,
    /// `None` for any.
    allowed: Option<Vec<HostPattern>>,
}

impl Hosts {
    /// # Errors
    ///
    /// The faults of the proxies and of the patterns, and for a list without any.
    pub fn new(proxies: ClientIp, allowed: Option<Vec<String>>) -> Result<Self, Error> {
        proxies.validate()?;
        let allowed: Option<Vec<_>> =
            allowed.map(|hosts| hosts.into_iter().map(HostPattern::new).collect());
        for host in allowed.iter().flatten() {
            host.validate()?;
        }
        if allowed.as_ref().is_some_and(Vec::is_empty) {
            let fault = "allowed_hosts() without a host refuses every request: name the hosts of the dashboard";
            return Err(Error::new(ErrorKind::InvalidConfig, fault));
        }
        Ok(Self { proxies, allowed })
    }

    /// # Errors
    ///
    /// A response for a request to a host that the dashboard does not have.
    pub fn check(&self, request: &Parts) -> Result<(), ApiError> {
        let Some(allowed) = &self.allowed else {
            return Ok(());
        };
        let requested = self.requested(request);
        let is_allowed = requested.is_some_and(|requested| {
            let authority = requested.authority.as_str().as_bytes();
            let mut hosts = allowed.iter();
            hosts.any(|host| host.matches_authority(authority) == Match::Exact)
        });
        if is_allowed {
            return Ok(());
        }
        Err(ApiError::new(
            StatusCode::MISDIRECTED_REQUEST,
            "unknown_host",
            "the dashboard is not reached by this host name: allowed_hosts(..) lists its names",
        ))
    }

    /// Returns whether the origin of a page is the one that the request was sent to.
    ///
    /// Only a proxy knows the scheme. Without one, `http` and `https` are the same.
    pub fn is_origin_of(&self, origin: &[u8], request: &Parts) -> bool {
        // "null" has no scheme.
        let origin = Uri::try_from(origin).unwrap_or_default();
        let (Some(scheme), Some(authority)) = (origin.scheme_str(), origin.authority()) else {
            return false;
        };
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        self.requested(request).is_some_and(|requested| {
            let port = authority.port_u16().unwrap_or(default_port);
            requested.scheme.is_none_or(|it| it == scheme)
                && requested
                    .authority
                    .host()
                    .eq_ignore_ascii_case(authority.host())
                && requested.port.unwrap_or(default_port) == port
        })
    }

    /// `None` for a request without a host, or with one that is read in several ways.
    fn requested<'a>(&self, request: &'a Parts) -> Option<Requested<'a>> {
        let is_forwarded = self.proxies.trusts_peer_of(&request.into());
        let forwarded = |name| last_of(&request.headers, &name).filter(|_| is_forwarded);
        let authority = match forwarded(X_FORWARDED_HOST) {
            Some(host) => authority(host.as_bytes()),
            None => authority_of(request),
        }?;
        let port = match authority.port() {
            Some(port) => Some(port.as_u16()),
            None => forwarded(X_FORWARDED_PORT).and_then(|port| port.parse().ok()),
        };
        let scheme = forwarded(X_FORWARDED_PROTO).filter(|it| matches!(*it, "http" | "https"));
        Some(Requested {
            scheme,
            authority,
            port,
        })
    }
}

/// The host and the scheme that a browser has asked for.
struct Requested<'a> {
    /// `None` if it is not known.
    scheme: Option<&'a str>,
    authority: Authority,
    /// `None` for the default of the scheme.
    port: Option<u16>,
}

/// Returns the host that the connection was asked for.
fn authority_of(request: &Parts) -> Option<Authority> {
    if let Some(authority) = request.uri.authority() {
        return self::authority(authority.as_str().as_bytes());
    }
    let mut lines = request.headers.get_all(HOST).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => authority(line.as_bytes().trim_ascii()),
        _ => None,
    }
}

/// Returns a host with its port; `None` for text that is not one, or has a user name.
fn authority(text: &[u8]) -> Option<Authority> {
    let authority = Authority::try_from(text).ok()?;
    let has_port = authority.port().is_some();
    let length =
        authority.host().len() + authority.port().map_or(0, |port| port.as_str().len() + 1);
    // Whatever is beside both, such as a second port, makes it ambiguous.
    (length == text.len() && (!has_port || authority.port_u16().is_some())).then_some(authority)
}

/// Returns the last item of a list, which the nearest proxy wrote: clients may have written the others.
fn last_of<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let line = headers.get_all(name).iter().next_back()?;
    let last = line.to_str().ok()?.rsplit(',').next()?;
    Some(last.trim()).filter(|last| !last.is_empty())
}

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
