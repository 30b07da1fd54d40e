//! Addresses in forwarding headers.
//!
//! Proxies append to `X-Forwarded-For` and `Forwarded`, so the lists are parsed from right to left: the entries of your
//! own proxies come first, whatever the client has sent to their left.
//!
//! # Why is `Forwarded` parsed from the right?
//!
//! An entry may contain quoted strings with commas. In a parse from the left, a quotation mark that the client leaves open pairs
//! with the proxy's own, and swallows the proxy's entry. From the right, the proxy's entry is complete before the parser reaches
//! text of the client.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str,
};

use super::header::is_token_byte;

// === Lists ===

/// Returns the addresses in `X-Forwarded-For`, the last first. `None` for an entry that is not an address.
///
/// The lines are one list, in their order (RFC 9110, section 5.2).
pub(super) fn x_forwarded_for<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> impl Iterator<Item = Option<IpAddr>> {
    let entries = entries_from_right(lines, last_comma, MAX_X_FORWARDED_FOR_ENTRY);
    entries.map(|entry| address(entry?))
}

/// Returns the addresses in `Forwarded` (RFC 7239), the last first. `None` for an entry without an address.
pub(super) fn forwarded<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> impl Iterator<Item = Option<IpAddr>> {
    let entries = entries_from_right(lines, last_comma_outside_quotes, MAX_FORWARDED_ENTRY);
    entries.map(|entry| for_parameter(entry?))
}

/// Returns the entries of all lines, the last first. `None` for an entry that is too long.
fn entries_from_right<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
    last_comma: fn(&[u8]) -> Option<usize>,
    max_length: usize,
) -> impl Iterator<Item = Option<&'a [u8]>> {
    lines.rev().flat_map(move |line| {
        let mut rest = Some(line);
        std::iter::from_fn(move || {
            let line = rest?;
            // Bounds the work: of 100 kB without a comma, no more than this is read.
            let unread = line.len().saturating_sub(max_length + 1);
            let Some(comma) = last_comma(&line[unread..]) else {
                rest = None;
                return Some((unread == 0).then_some(line));
            };
            let comma = unread + comma;
            rest = Some(&line[..comma]);
            Some(Some(&line[comma + 1..]))
        })
    })
}

fn last_comma(line: &[u8]) -> Option<usize> {
    line.iter().rposition(|byte| *byte == b',')
}

/// Searches backwards, so that a quotation mark that a client leaves open cannot hide what proxies wrote after it.
fn last_comma_outside_quotes(line: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    for (index, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if !is_quoted => is_quoted = true,
            b'"' => is_quoted = line[..index].ends_with(b"\\"),
            b',' if !is_quoted => return Some(index),
            _ => {}
        }
    }
    None
}

// === Entries of Forwarded ===

/// Returns the address in one entry of `Forwarded`, such as `for="[2001:db8::1]:80";proto=https`.
///
/// `None` unless the whole entry is well formed and has `for` once.
fn for_parameter(entry: &[u8]) -> Option<IpAddr> {
    let mut rest = entry.trim_ascii();
    let mut found = None;
    while !rest.is_empty() {
        if let [b';', after @ ..] = rest {
            rest = after.trim_ascii();
            continue;
        }
        let (name, value, after) = parameter(rest)?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
        rest = after.trim_ascii();
        if !matches!(rest, [] | [b';', ..]) {
            return None;
        }
    }
    // A value without quotation marks has no escapes.
    address(unescaped(found?, &mut [0; MAX_ADDRESS])?)
}

/// Splits off one parameter: its name, its value with its escapes but without quotation marks, and the text after it.
fn parameter(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let equals = text.iter().position(|byte| *byte == b'=')?;
    let (name, text) = (&text[..equals], &text[equals + 1..]);
    if name.is_empty() || !name.iter().all(is_token_byte) {
        return None;
    }
    if let [b'"', text @ ..] = text {
        let end = closing_quote(text)?;
        return Some((name, &text[..end], &text[end + 1..]));
    }
    let is_end = |byte: &u8| matches!(byte, b';' | b' ' | b'\t');
    let end = text.iter().position(is_end).unwrap_or(text.len());
    let (value, after) = text.split_at(end);
    // RFC 7239 requires quotes around colons and brackets; some proxies leave them out.
    let is_valid = |byte: &u8| is_token_byte(byte) || b":[]".contains(byte);
    if value.is_empty() || !value.iter().all(is_valid) {
        return None;
    }
    Some((name, value, after))
}

fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut bytes = text.iter().enumerate();
    loop {
        match bytes.next()? {
            (index, b'"') => return Some(index),
            (_, b'\\') => drop(bytes.next()),
            _ => {}
        }
    }
}

/// Removes the backslashes that escape. `None` when the text is longer than any address.
fn unescaped<'a>(text: &[u8], buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut length = 0;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        let byte = if *byte == b'\\' { bytes.next()? } else { byte };
        *buffer.get_mut(length)? = *byte;
        length += 1;
    }
    Some(&buffer[..length])
}

// === Addresses ===

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80` or `fe80::1%eth0`.
///
/// `None` for anything else, `unknown` and `_hidden` included.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = text.trim_ascii();
    if text.len() > MAX_ADDRESS {
        return None;
    }
    if let Some(rest) = text.strip_prefix(b"[") {
        let end = rest.iter().position(|byte| *byte == b']')?;
        let (inside, after) = (&rest[..end], &rest[end + 1..]);
        return is_port_or_empty(after).then(|| ipv6(inside))?;
    }
    let mut colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':');
    match (colons.next(), colons.next()) {
        (None, _) => ipv4(text),
        (Some((colon, _)), None) => {
            is_port_or_empty(&text[colon..]).then(|| ipv4(&text[..colon]))?
        }
        _ => ipv6(text),
    }
}

/// Parses `192.0.2.1:80` or `2001:db8::1:80`, which always have a port and never brackets.
pub(super) fn address_with_port(text: &[u8]) -> Option<IpAddr> {
    let text = text.trim_ascii();
    let colon = text.iter().rposition(|byte| *byte == b':')?;
    let (host, port) = text.split_at(colon);
    if !is_port_or_empty(port) {
        return None;
    }
    ipv4(host).or_else(|| ipv6(host))
}

fn ipv4(text: &[u8]) -> Option<IpAddr> {
    let address: Ipv4Addr = str::from_utf8(text).ok()?.parse().ok()?;
    Some(address.into())
}

fn ipv6(text: &[u8]) -> Option<IpAddr> {
    let text = match text.iter().position(|byte| *byte == b'%') {
        // The zone names a network interface of the proxy, not a part of the address.
        Some(percent) if percent + 1 < text.len() => &text[..percent],
        Some(_) => return None,
        None => text,
    };
    let address: Ipv6Addr = str::from_utf8(text).ok()?.parse().ok()?;
    Some(IpAddr::V6(address).to_canonical())
}

/// Accepts `:80`, `:_hidden` (RFC 7239, section 6), and the empty text.
fn is_port_or_empty(text: &[u8]) -> bool {
    match text {
        [] => true,
        [b':', b'_', name @ ..] => {
            let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
            !name.is_empty() && name.iter().all(is_valid)
        }
        [b':', digits @ ..] => {
            (1..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

/// The longest text that is parsed as an address, in bytes: longer than any address with a zone and a port.
const MAX_ADDRESS: usize = 128;
/// The longest entry of `X-Forwarded-For` that is read, in bytes: several times an address.
const MAX_X_FORWARDED_FOR_ENTRY: usize = 512;
/// The longest entry of `Forwarded` that is read, in bytes. Proxies copy the client's `Host` into it, so it is as long as
/// servers usually let a header line be: with less, a client could hide behind a long `Host`.
const MAX_FORWARDED_ENTRY: usize = 8_192;
