//! Keys from the requested host.
//!
//! # Why is an invalid `Host` ambiguous?
//!
//! RFC 9112 requires a 400, but hyper and axum pass an invalid `Host` on, and services read `a.example:8x` or `x@a.example`
//! differently. So sending one must not be a way to have no key. The same holds for an authority that `Host` contradicts: the RFC
//! trusts the authority, and many services read the header.

use std::net::{IpAddr, Ipv6Addr};

use http::{
    header::HOST,
    uri::{Authority, Scheme},
};

use crate::{key::Key, request::RequestHead};

use super::{caller_id::CallerId, extracted::Extracted, extractor::KeyExtractor};

/// The requested host: one count per virtual host or tenant domain.
///
/// The host is the authority of the URI, which HTTP/2 calls `:authority`, or the `Host` header (RFC 9112, section 3.2).
/// `X-Forwarded-Host` is not read. The key is in lower case, without port, user name and trailing dot. An IPv6 address is
/// in its usual notation without brackets, and an IPv4-mapped one is converted to IPv4.
///
/// Without a host, or with an empty one, the key is absent. It is ambiguous in these cases, which servers handle
/// differently:
///
/// - Two `Host` lines.
/// - An authority and a `Host` with another host or port, such as `GET http://a.example/` with `Host: b.example`. The
///   default port of the URI's scheme equals no port.
/// - A host with other characters than letters, digits, `-`, `_` and `.`, or with more than 253 of them.
/// - A port that is not a number.
///
/// Clients may send any host that the server does not reject: count unknown hosts under one key.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, extract::{Extracted, HostHeader, KeyExtractor}};
///
/// let known = ["example.com", "api.example.com"].map(Key::new);
/// let by_host = HostHeader.map(move |host| if known.contains(&host) { host } else { Key::UNIDENTIFIED });
/// # let request = http::Request::get("http://API.example.com:80/").body(()).unwrap();
/// # assert_eq!(by_host.extract(&tollgate::RequestHead::from(&request)), Extracted::Found(Key::new("api.example.com")));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HostHeader;

impl KeyExtractor for HostHeader {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let lines = head.headers.get_all(HOST).iter();
        let header = Extracted::single(lines.map(|line| line.as_bytes().trim_ascii()));
        let Some(authority) = head.uri.authority() else {
            return header
                .filter(|header| !header.is_empty())
                .and_then(|header| HostPort::parse(header, head.uri.scheme()))
                .map(|header| header.host);
        };
        let authority = without_user(authority).as_bytes();
        let authority = HostPort::parse(authority, head.uri.scheme());
        match header {
            Extracted::Absent => authority.map(|authority| authority.host),
            Extracted::Found(header) if HostPort::parse(header, head.uri.scheme()) == authority => {
                authority.map(|authority| authority.host)
            }
            Extracted::Ambiguous | Extracted::Found(_) => Extracted::Ambiguous,
        }
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        match caller {
            CallerId::Text(host) => {
                let host = Host::parse(host.as_bytes());
                host.map(Host::key).into_iter().collect()
            }
            CallerId::Address(_) | CallerId::Secret { .. } => Vec::new(),
        }
    }

    /// No: all callers of a host share its count.
    fn is_per_caller(&self) -> bool {
        false
    }

    fn label(&self) -> &str {
        "host"
    }
}

/// Returns the authority of a URI without the user name before `@`. The `Host` header never has one.
pub(crate) fn without_user(authority: &Authority) -> &str {
    let authority = authority.as_str();
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

// === Host ===

/// A valid host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host<'a> {
    Ipv6(Ipv6Addr),
    /// In any case, without a trailing dot.
    Name(&'a [u8]),
}

impl<'a> Host<'a> {
    /// Returns the host of an authority. `None` if servers may read it in several ways.
    pub fn of_authority(authority: &'a [u8]) -> Option<Self> {
        let (host, port) = split_port(authority)?;
        port_number(port)?;
        Self::parse(host)
    }

    /// Parses a host without a port.
    pub fn parse(host: &'a [u8]) -> Option<Self> {
        if let [b'[', address @ .., b']'] = host {
            let address = std::str::from_utf8(address).ok()?.parse();
            return address.ok().map(Self::Ipv6);
        }
        let name = host.strip_suffix(b".").unwrap_or(host);
        let is_character =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_name = name.len() <= MAX_NAME
            && !matches!(name, [] | [.., b'.'])
            && name.iter().all(is_character);
        is_name.then_some(Self::Name(name))
    }

    fn key(self) -> Key {
        match self {
            Self::Ipv6(address) => Key::of_network(IpAddr::V6(address).to_canonical()),
            Self::Name(name) => {
                let mut buffer = [0; MAX_NAME];
                let lower = &mut buffer[..name.len()];
                lower.copy_from_slice(name);
                lower.make_ascii_lowercase();
                Key::new(lower)
            }
        }
    }
}

// === HostPort ===

/// A host and its port, normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostPort {
    host: Key,
    /// `None` for the default port of the scheme.
    port: Option<u16>,
}

impl HostPort {
    /// Parses `host` or `host:port`. Invalid text is ambiguous.
    fn parse(authority: &[u8], scheme: Option<&Scheme>) -> Extracted<Self> {
        let parsed = Self::try_parse(authority, scheme);
        parsed.map_or(Extracted::Ambiguous, Extracted::Found)
    }

    fn try_parse(authority: &[u8], scheme: Option<&Scheme>) -> Option<Self> {
        let (host, port) = split_port(authority)?;
        let port = port_number(port)?;
        let default = match scheme.map(Scheme::as_str) {
            Some("http") => Some(80),
            Some("https") => Some(443),
            _ => None,
        };
        Some(Self {
            host: Host::parse(host)?.key(),
            port: port.filter(|port| Some(*port) != default),
        })
    }
}

/// Splits an authority into its host and the digits of its port. The colons of an IPv6 address are in brackets.
fn split_port(authority: &[u8]) -> Option<(&[u8], &[u8])> {
    let end_of_address = authority.iter().position(|byte| *byte == b']');
    let from = end_of_address.unwrap_or(0);
    let Some(colon) = authority[from..].iter().position(|byte| *byte == b':') else {
        return Some((authority, b""));
    };
    let (host, port) = authority.split_at(from + colon);
    let port = &port[1..];
    port.iter().all(u8::is_ascii_digit).then_some((host, port))
}

/// Parses the digits of a port. `Some(None)` without digits, which means the default port, and `None` for a number above
/// 65,535.
fn port_number(digits: &[u8]) -> Option<Option<u16>> {
    match digits {
        [] => Some(None),
        digits => Some(Some(std::str::from_utf8(digits).ok()?.parse().ok()?)),
    }
}

/// The longest name in DNS, in bytes.
const MAX_NAME: usize = 253;
