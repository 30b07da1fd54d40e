//! The entries of list headers, from right to left.

use std::net::IpAddr;

use super::node;

/// What the entries of `X-Forwarded-For` say, the last first. `None` is an entry that is no address.
///
/// The lines are one list, in their order (RFC 9110, section 5.2).
pub(super) fn forwarded_for<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> impl Iterator<Item = Option<IpAddr>> {
    entries(lines, last_comma, FORWARDED_FOR_LENGTH).map(|entry| node::address(entry?))
}

/// What the entries of `Forwarded` (RFC 7239) say, the last first. `None` is an entry that is no address.
pub(super) fn forwarded<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> impl Iterator<Item = Option<IpAddr>> {
    entries(lines, last_comma_outside_quotes, FORWARDED_LENGTH).map(|entry| forwarding(entry?))
}

/// The entries of lists, the last first. `None` is one that is too long to be read.
fn entries<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
    last_comma: fn(&[u8]) -> Option<usize>,
    max_length: usize,
) -> impl Iterator<Item = Option<&'a [u8]>> {
    lines.rev().flat_map(move |line| {
        let mut rest = Some(line);
        std::iter::from_fn(move || {
            let line = rest?;
            // Whoever sends 100 kB without a comma has no more than this read of it.
            let unseen = line.len().saturating_sub(max_length + 1);
            let Some(comma) = last_comma(&line[unseen..]) else {
                rest = None;
                return Some((unseen == 0).then_some(line));
            };
            let comma = unseen + comma;
            rest = Some(&line[..comma]);
            Some(Some(&line[comma + 1..]))
        })
    })
}

fn last_comma(line: &[u8]) -> Option<usize> {
    line.iter().rposition(|byte| *byte == b',')
}

/// Reads backwards, so that a quotation mark that a client leaves open cannot swallow what proxies wrote behind it.
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

/// The address in one entry of `Forwarded`, such as `for="[2001:db8::1]:80";proto=https`.
///
/// `None` unless the whole entry is well formed and has `for` once.
fn forwarding(entry: &[u8]) -> Option<IpAddr> {
    let mut rest = node::trimmed(entry);
    let mut found = None;
    while !rest.is_empty() {
        if let [b';', behind @ ..] = rest {
            rest = node::trimmed(behind);
            continue;
        }
        let (name, value, behind) = pair(rest)?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
        rest = node::trimmed(behind);
        if !matches!(rest, [] | [b';', ..]) {
            return None;
        }
    }
    match found? {
        Value::Plain(text) => node::address(text),
        Value::Quoted(text) => node::address(unescaped(text, &mut [0; node::MAX_LENGTH])?),
    }
}

enum Value<'a> {
    Plain(&'a [u8]),
    /// What stands between the quotation marks, escapes and all.
    Quoted(&'a [u8]),
}

/// Name, value, and what stands behind.
fn pair(text: &[u8]) -> Option<(&[u8], Value<'_>, &[u8])> {
    let equals = text.iter().position(|byte| *byte == b'=')?;
    let (name, text) = (&text[..equals], &text[equals + 1..]);
    if name.is_empty() || !name.iter().all(is_token) {
        return None;
    }
    if let [b'"', text @ ..] = text {
        let end = closing_quote(text)?;
        return Some((name, Value::Quoted(&text[..end]), &text[end + 1..]));
    }
    let is_end = |byte: &u8| matches!(byte, b';' | b' ' | b'\t');
    let end = text.iter().position(is_end).unwrap_or(text.len());
    let (value, behind) = text.split_at(end);
    // RFC 7239 asks for quotes around colons and brackets; proxies forget them.
    let is_plain = |byte: &u8| is_token(byte) || b":[]".contains(byte);
    (!value.is_empty() && value.iter().all(is_plain)).then_some((name, Value::Plain(value), behind))
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

/// The text without the backslashes that escape. `None` when it is longer than any address.
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

/// RFC 9110, section 5.6.2.
fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// The longest entry of `X-Forwarded-For` that is read: several times an address.
const FORWARDED_FOR_LENGTH: usize = 512;
/// The longest entry of `Forwarded` that is read. Proxies copy the client's `Host` into it, so it takes what servers
/// usually take as a header line: with less, a long one would hide its sender.
const FORWARDED_LENGTH: usize = 8_192;
