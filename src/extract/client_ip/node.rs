//! One address as proxies write it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str,
};

/// The address in an entry such as `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80` or `fe80::1%eth0`.
///
/// `None` for all that is no address: nothing, `unknown`, `_hidden`, or anything else.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = trimmed(text);
    if text.len() > MAX_LENGTH {
        return None;
    }
    if let Some(rest) = text.strip_prefix(b"[") {
        let end = rest.iter().position(|byte| *byte == b']')?;
        let (inside, behind) = (&rest[..end], &rest[end + 1..]);
        return is_port_or_nothing(behind).then(|| ipv6(inside))?;
    }
    let mut colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':');
    match (colons.next(), colons.next()) {
        (None, _) => ipv4(text),
        (Some((colon, _)), None) => {
            is_port_or_nothing(&text[colon..]).then(|| ipv4(&text[..colon]))?
        }
        _ => ipv6(text),
    }
}

/// The address in `192.0.2.1:80` or `2001:db8::1:80`: the port is there always, and there are no brackets.
pub(super) fn address_before_port(text: &[u8]) -> Option<IpAddr> {
    let text = trimmed(text);
    let colon = text.iter().rposition(|byte| *byte == b':')?;
    let (host, port) = text.split_at(colon);
    if !is_port_or_nothing(port) {
        return None;
    }
    ipv4(host).or_else(|| ipv6(host))
}

/// Without the spaces and tabs around it.
pub(super) fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn ipv4(text: &[u8]) -> Option<IpAddr> {
    let address: Ipv4Addr = str::from_utf8(text).ok()?.parse().ok()?;
    Some(address.into())
}

fn ipv6(text: &[u8]) -> Option<IpAddr> {
    let text = match text.iter().position(|byte| *byte == b'%') {
        // The zone names a network card of the proxy's.
        Some(sign) if sign + 1 < text.len() => &text[..sign],
        Some(_) => return None,
        None => text,
    };
    let address: Ipv6Addr = str::from_utf8(text).ok()?.parse().ok()?;
    Some(IpAddr::V6(address).to_canonical())
}

/// `:80`, `:_hidden` (RFC 7239, section 6), or nothing.
fn is_port_or_nothing(text: &[u8]) -> bool {
    match text {
        [] => true,
        [b':', b'_', name @ ..] => {
            let is_named = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
            !name.is_empty() && name.iter().all(is_named)
        }
        [b':', digits @ ..] => {
            (1..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

/// More than an address, a zone and a port take. What is longer is none of them.
pub(super) const MAX_LENGTH: usize = 128;
