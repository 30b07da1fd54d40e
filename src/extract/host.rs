//! Which host a request is for.

use std::net::{IpAddr, Ipv6Addr};

use http::{header::HOST, request::Parts};

use crate::key::Key;

use super::{extractor::KeyExtractor, header};

/// The host that the request is for: one count per virtual host or tenant domain.
///
/// It is the authority of the URI, which HTTP/2 calls `:authority`, else the `Host` header when there is exactly one
/// (RFC 9112, section 3.2). `X-Forwarded-Host` is not looked at. Lower-cased, without port, user and a dot at the end;
/// an IPv6 address in its usual notation without brackets, and one that stands for an IPv4 address as that address. What
/// is no host name of letters, digits, `-`, `_` and `.`, or longer than 253, is missing.
///
/// Clients may write any host that the server does not refuse: let unknown ones go to one count.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, extract::{Host, KeyExtractor}};
///
/// let known = ["example.com", "api.example.com"].map(Key::new);
/// let by_host = Host.map(move |host| match known.contains(&host) {
///     true => host,
///     false => Key::UNIDENTIFIED,
/// });
/// # let request = http::Request::get("http://API.example.com:80/").body(()).unwrap();
/// # assert_eq!(by_host.extract(&request.into_parts().0), Some(Key::new("api.example.com")));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl KeyExtractor for Host {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        match parts.uri.host() {
            Some(host) => canonical(host.as_bytes()),
            None => canonical(without_port(header::single(&parts.headers, &HOST)?)?),
        }
    }

    fn is_ambiguous(&self, parts: &Parts) -> bool {
        parts.uri.host().is_none() && header::is_repeated(&parts.headers, &HOST)
    }

    /// No: all callers of a host are meant to share its count.
    fn tells_callers_apart(&self) -> bool {
        false
    }

    fn label(&self) -> &str {
        "host"
    }
}

/// The host of `host` or `host:port`. An IPv6 address has colons of its own, and stands in brackets.
fn without_port(value: &[u8]) -> Option<&[u8]> {
    let end_of_address = value.iter().position(|byte| *byte == b']');
    let from = end_of_address.unwrap_or(0);
    let Some(colon) = value[from..].iter().position(|byte| *byte == b':') else {
        return Some(value);
    };
    let (host, port) = value.split_at(from + colon);
    port[1..].iter().all(u8::is_ascii_digit).then_some(host)
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
