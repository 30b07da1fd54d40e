//! Which host a request is for.

use std::net::{IpAddr, Ipv6Addr};

use http::{header::HOST, request::Parts, uri::Scheme};

use crate::key::Key;

use super::{extracted::Extracted, extractor::KeyExtractor};

/// The host that the request is for: one count per virtual host or tenant domain.
///
/// It is the authority of the URI, which HTTP/2 calls `:authority`, or the `Host` header (RFC 9112, section 3.2).
/// `X-Forwarded-Host` is not looked at. Lower-cased, without port, user and a dot at the end; an IPv6 address in its usual
/// notation without brackets, and one that stands for an IPv4 address as that address.
///
/// A request that names no host, or an empty one, has no key. These are ambiguous, since servers differ in what they make
/// of them:
///
/// - two `Host` lines;
/// - an authority and a `Host` that differ in host or port, such as `GET http://a.example/` with `Host: b.example`. The
///   default port of the URI's scheme is the same as none;
/// - a name that is not made of letters, digits, `-`, `_` and `.`, or is longer than 253, and a port that is not a number.
///
/// Clients may write any host that the server does not refuse: let unknown ones go to one count.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, extract::{Extracted, HostHeader, KeyExtractor}};
///
/// let known = ["example.com", "api.example.com"].map(Key::new);
/// let by_host = HostHeader.map(move |host| match known.contains(&host) {
///     true => host,
///     false => Key::UNIDENTIFIED,
/// });
/// # let request = http::Request::get("http://API.example.com:80/").body(()).unwrap();
/// # assert_eq!(by_host.extract(&request.into_parts().0), Extracted::Found(Key::new("api.example.com")));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HostHeader;

impl KeyExtractor for HostHeader {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        let lines = parts.headers.get_all(HOST).iter();
        let header = Extracted::only(lines.map(|line| line.as_bytes().trim_ascii()));
        let Some(authority) = parts.uri.authority() else {
            return header
                .filter(|header| !header.is_empty())
                .and_then(|header| Place::read(header, parts.uri.scheme()))
                .map(|place| place.host);
        };
        // The user before `@` is not part of the host; in a header there is none.
        let named = authority.as_str();
        let named = named.rsplit_once('@').map_or(named, |(_, host)| host);
        let named = Place::read(named.as_bytes(), parts.uri.scheme());
        match header {
            Extracted::Absent => named.map(|place| place.host),
            Extracted::Ambiguous => Extracted::Ambiguous,
            Extracted::Found(header) => {
                let is_same = Place::read(header, parts.uri.scheme()) == named;
                let same = if is_same { named } else { Extracted::Ambiguous };
                same.map(|place| place.host)
            }
        }
    }

    /// No: all callers of a host are meant to share its count.
    fn tells_callers_apart(&self) -> bool {
        false
    }

    fn label(&self) -> &str {
        "host"
    }
}

// === Place ===

/// A host with its port, in one way to write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    host: Key,
    /// `None` for the default port of the scheme.
    port: Option<u16>,
}

impl Place {
    /// Reads `host` or `host:port`.
    fn read(authority: &[u8], scheme: Option<&Scheme>) -> Extracted<Self> {
        let place = Self::parse(authority, scheme);
        place.map_or(Extracted::Ambiguous, Extracted::Found)
    }

    fn parse(authority: &[u8], scheme: Option<&Scheme>) -> Option<Self> {
        let (host, port) = split(authority)?;
        let port = match port {
            [] => None,
            digits => Some(std::str::from_utf8(digits).ok()?.parse::<u16>().ok()?),
        };
        let default = match scheme.map(Scheme::as_str) {
            Some("http") => Some(80),
            Some("https") => Some(443),
            _ => None,
        };
        Some(Self {
            host: canonical(host)?,
            port: port.filter(|port| Some(*port) != default),
        })
    }
}

/// Splits an authority into its host and the digits of its port. The colons of an IPv6 address are in brackets.
fn split(authority: &[u8]) -> Option<(&[u8], &[u8])> {
    let end_of_address = authority.iter().position(|byte| *byte == b']');
    let from = end_of_address.unwrap_or(0);
    let Some(colon) = authority[from..].iter().position(|byte| *byte == b':') else {
        return Some((authority, b""));
    };
    let (host, port) = authority.split_at(from + colon);
    let port = &port[1..];
    port.iter().all(u8::is_ascii_digit).then_some((host, port))
}

/// One way to write each host.
fn canonical(host: &[u8]) -> Option<Key> {
    if let [b'[', address @ .., b']'] = host {
        let address: Ipv6Addr = std::str::from_utf8(address).ok()?.parse().ok()?;
        return Some(Key::from(IpAddr::V6(address)));
    }
    let name = host.strip_suffix(b".").unwrap_or(host);
    let mut buffer = [0; LONGEST];
    let lower = buffer.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let is_name = lower
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    (is_name && !matches!(lower, [] | [.., b'.'])).then(|| Key::new(lower))
}

/// The longest name that DNS can hold.
const LONGEST: usize = 253;
