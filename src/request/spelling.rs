//! The spelling of a path: how servers may decode it, and where they may split or cut it.
//!
//! Which paths reach one handler depends on the inner service: a router may compare bytes, a file server resolves dot
//! segments, a proxy may decode `%2F`. So a path has several readings:
//!
//! ```text
//! /login           plain: one reading, compared in place
//! /caf%C3%A9       escaped where a path needs it: one reading, split and compared after decoding
//! //login          /login if the server merges slashes
//! /x/../login      /login if the server resolves dot segments
//! /x%2F..%5Clogin  /login if the server also decodes slashes first
//! /login;a%2Fb     /login if the server cuts off parameters first; /login/b if it decodes first
//! ```
//!
//! An ambiguous path is decoded as often as possible, and split at everything that a server might read as a slash, or as the
//! end of the path. Each [`Piece`] is a segment, or a part of one. [`Readings`] tries the steps of servers on the pieces.

use smallvec::SmallVec;

use super::readings::{Border, MAX_PIECES, Piece, Readings, TEXT, is_dropped_at_end};

/// How a path is spelled.
#[derive(Debug)]
pub enum Spelling {
    /// Short, without escapes, and with a single reading.
    Plain,
    /// With a single reading, which is long or has escapes.
    Segments(Segments),
    /// With several readings, or with needless escapes.
    Ambiguous(Readings),
    /// With too many readings to compare.
    TooLong,
}

impl Spelling {
    pub fn of(path: &[u8]) -> Self {
        if is_plain(path) {
            return if path.len() > LONG {
                Self::Segments(Segments::new(SmallVec::from_slice(path)))
            } else {
                Self::Plain
            };
        }
        if path.len() > MAX_LENGTH {
            return Self::TooLong;
        }
        let text = decode_fully(path);
        if !is_unambiguous(path) {
            return readings(text).map_or(Self::TooLong, Self::Ambiguous);
        }
        let segments = Segments::new(text);
        if segments.ends.len() > MAX_PIECES {
            return Self::TooLong;
        }
        Self::Segments(segments)
    }
}

/// Returns whether a path has no escapes and a single reading.
fn is_plain(path: &[u8]) -> bool {
    let is_plain = |pair: &[u8]| match pair {
        [b'/', next] => *next != b'/' && !is_dropped_at_end(*next) && !is_special(*next),
        _ => !is_special(pair[0]),
    };
    let ends_plainly = path.last().is_none_or(|last| !is_special(*last));
    let is_absolute = path.is_empty() || path.starts_with(b"/");
    is_absolute && ends_plainly && path.windows(2).all(is_plain)
}

/// Returns whether a byte may start an escape, split a segment or end it.
fn is_special(byte: u8) -> bool {
    matches!(byte, b'%' | b'\\' | b';' | b'?' | b'#' | 0)
}

/// Returns the first byte, decoded if it is escaped, and its length as written.
pub fn decode_once(rest: &[u8]) -> Option<(u8, usize)> {
    let first = *rest.first()?;
    if let [b'%', high, low, ..] = rest
        && let Some(byte) = hex_byte(*high, *low)
    {
        return Some((byte, 3));
    }
    Some((first, 1))
}

/// Splits a decoded path at everything that may be a slash, or the end of the path. `None` if there are too many pieces.
fn readings(text: SmallVec<[u8; TEXT]>) -> Option<Readings> {
    let mut pieces = SmallVec::new();
    let mut start = usize::from(text.first() == Some(&b'/'));
    let mut cut = None;
    for (at, byte) in text.iter().copied().enumerate().skip(start) {
        let border = match byte {
            b'/' => Border::Slash,
            b'\\' => Border::PossibleSlash,
            b'?' | b'#' | 0 => Border::PossibleEnd,
            b';' => {
                cut.get_or_insert(at);
                continue;
            }
            _ => continue,
        };
        // A zero byte ends the path for some servers, and the segment for others.
        if byte == 0 {
            cut.get_or_insert(at);
        }
        pieces.push(Piece::new(start..at, cut.take(), border)?);
        start = at + 1;
    }
    pieces.push(Piece::new(start..text.len(), cut, Border::End)?);
    Readings::new(text, pieces)
}

/// Decodes a path as often as possible: `%256C` is `%6C` is `l`. A slash that was escaped becomes `\`, since both may be
/// read as a slash.
fn decode_fully(path: &[u8]) -> SmallVec<[u8; TEXT]> {
    let mut text = SmallVec::with_capacity(path.len());
    for byte in path {
        text.push(*byte);
        // The decoded character may complete another escape: `%2%46` is `%2F`.
        while let Some(length) = decode_end(&mut text) {
            text.truncate(length);
        }
    }
    text
}

/// Decodes an escape at the end of the text in place. Returns the new length, or `None` if there is no escape.
fn decode_end(text: &mut [u8]) -> Option<usize> {
    let slash_as_backslash = |byte| if byte == b'/' { b'\\' } else { byte };
    if let [.., b'%', high, low] = *text
        && let Some(byte) = hex_byte(high, low)
    {
        let at = text.len() - 3;
        text[at] = slash_as_backslash(byte);
        return Some(at + 1);
    }
    // `%u006C`, which Jetty and IIS decode.
    let at = text.len().checked_sub(6)?;
    let [b'%', b'u' | b'U', digits @ ..] = &text[at..] else {
        return None;
    };
    let add = |code: u32, digit: &u8| Some(code << 4 | char::from(*digit).to_digit(16)?);
    let code = digits.iter().try_fold(0, add)?;
    let mut bytes = [0; 4];
    let encoded = char::from_u32(code)?.encode_utf8(&mut bytes).as_bytes();
    text[at..at + encoded.len()].copy_from_slice(encoded);
    text[at] = slash_as_backslash(text[at]);
    Some(at + encoded.len())
}

/// Returns whether a path has a single reading and no needless escape.
fn is_unambiguous(path: &[u8]) -> bool {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let mut segments = path.split(|byte| *byte == b'/');
    let is_absolute = segments.next().is_some_and(<[u8]>::is_empty);
    is_absolute && segments.all(is_unambiguous_segment)
}

fn is_unambiguous_segment(segment: &[u8]) -> bool {
    let mut rest = segment;
    let mut has_name = false;
    while let Some((byte, length)) = decode_once(rest) {
        let is_needless = length > 1 && (is_unreserved(byte) || byte.is_ascii_control());
        if byte == b'/' || is_special(byte) || is_needless {
            return false;
        }
        has_name |= !is_dropped_at_end(byte);
        rest = &rest[length..];
    }
    has_name
}

/// Returns whether a byte needs no escape anywhere (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

// === Segments ===

/// The segments of a path with a single reading, found once for all patterns.
#[derive(Debug)]
pub struct Segments {
    text: SmallVec<[u8; TEXT]>,
    /// Where the first segments end, without more than can be compared with a pattern.
    ends: SmallVec<[(usize, usize); 8]>,
}

impl Segments {
    fn new(text: SmallVec<[u8; TEXT]>) -> Self {
        let mut segments = Self {
            text,
            ends: SmallVec::new(),
        };
        let path = segments.path();
        let found = path.split(|byte| *byte == b'/').take(MOST_SEGMENTS);
        let start = segments.text.len() - usize::from(segments.ends_in_slash()) - path.len();
        let mut at = start;
        let ends = found.map(|segment| {
            let dropped = segment
                .iter()
                .rev()
                .take_while(|byte| is_dropped_at_end(**byte));
            let name = segment.len() - dropped.count();
            let first = at;
            at += segment.len() + 1;
            // A long end that may be dropped would be compared with each pattern.
            (first, first + segment.len().min(name + MAX_LENGTH))
        });
        segments.ends = ends.collect();
        segments
    }

    /// Returns the first segments: all of them, or more than a pattern of [`MOST_SEGMENTS`] has.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.ends
            .iter()
            .map(|(start, end)| &self.text[*start..*end])
    }

    pub fn ends_in_slash(&self) -> bool {
        self.text.ends_with(b"/")
    }

    /// Returns the path without the slashes around it.
    fn path(&self) -> &[u8] {
        let path = self.text.strip_prefix(b"/").unwrap_or(&self.text);
        path.strip_suffix(b"/").unwrap_or(path)
    }
}

/// Returns the byte of two hexadecimal digits.
pub fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(16 * digit(high)? + digit(low)?).ok()
}

/// A plain path that is longer, in bytes, is split once, and not by each pattern.
const LONG: usize = 256;
/// The longest path with several readings that is examined, in bytes.
const MAX_LENGTH: usize = 2_048;
/// The most segments that are found in advance.
pub const MOST_SEGMENTS: usize = 128;
