//! The ways in which servers normalize a path.
//!
//! Which paths reach one handler depends on the inner service: a router may compare bytes, a file server resolves dot
//! segments, a proxy may decode `%2F`. A path that fits a pattern under any of these normalizations is a possible match:
//!
//! ```text
//! /login         plain: one normalization, compared in place
//! /caf%C3%A9     escaped where a path needs it: one normalization, compared after decoding
//! //login        ambiguous: /login if the server merges slashes
//! /x/../login    ambiguous: /login if the server resolves dot segments
//! /x%2F..%5Clogin  ambiguous: as above, if the server also decodes slashes first
//! ```
//!
//! There are three steps that a server may or may not take, so at most eight normalizations are tried.

use smallvec::SmallVec;

/// How a path is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Without escapes, and with a single normalization.
    Plain,
    /// With escapes only where a path needs them, and with a single normalization.
    Escaped,
    /// With several normalizations, or with needless escapes.
    Ambiguous,
}

impl Spelling {
    pub(super) fn of(path: &[u8]) -> Self {
        let is_plain =
            |pair: &[u8]| !matches!(pair, [b'/', b'/' | b'.'] | [b'%' | b'\\' | b';', _]);
        let ends_plainly = !path.ends_with(b"%") && !path.ends_with(b"\\") && !path.ends_with(b";");
        let is_absolute = path.is_empty() || path.starts_with(b"/");
        if is_absolute && ends_plainly && path.windows(2).all(is_plain) {
            return Self::Plain;
        }
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let mut segments = path.split(|byte| *byte == b'/');
        let is_absolute = segments.next().is_some_and(<[u8]>::is_empty);
        if is_absolute && segments.all(is_unambiguous) {
            return Self::Escaped;
        }
        Self::Ambiguous
    }
}

/// Returns whether a segment has a single normalization and no needless escape.
fn is_unambiguous(segment: &[u8]) -> bool {
    let mut rest = segment;
    while let Some((byte, length)) = decode_once(rest) {
        let is_special = matches!(byte, b'/' | b'\\' | b'%' | b';');
        let is_needless = length > 1 && (is_unreserved(byte) || byte.is_ascii_control());
        if is_special || is_needless {
            return false;
        }
        rest = &rest[length..];
    }
    !matches!(segment, b"" | b"." | b"..")
}

/// Returns whether `fits` returns true for the segments of any normalization, or for `None` if there are too many. The path
/// must have at most 65,535 bytes.
pub(super) fn any_fits(path: &[u8], mut fits: impl FnMut(Option<&[Segment]>) -> bool) -> bool {
    let steps = Steps::that_change(path);
    let normalizations = Steps::ALL.iter().filter(|own| own.are_among(steps));
    normalizations
        .map(|own| own.segments(path))
        .any(|segments| fits(segments.as_deref()))
}

/// Returns whether a server might read a segment as this text: decoded as often as possible, in any case, and cut off
/// after `;` or a zero byte.
pub(super) fn may_equal(segment: &[u8], text: &[u8]) -> bool {
    let mut rest = segment;
    for expected in text {
        match decode_fully(rest) {
            Some((byte, length)) if byte.eq_ignore_ascii_case(expected) => rest = &rest[length..],
            _ => return false,
        }
    }
    decode_fully(rest).is_none_or(|(byte, _)| matches!(byte, b';' | 0))
}

/// Returns whether a segment equals this text once its escapes are decoded.
pub(super) fn equals_decoded(segment: &[u8], text: &[u8]) -> bool {
    let mut rest = segment;
    for expected in text {
        match decode_once(rest) {
            Some((byte, length)) if byte == *expected => rest = &rest[length..],
            _ => return false,
        }
    }
    rest.is_empty()
}

/// Returns the first byte, decoded if it is escaped, and its length as written.
pub(super) fn decode_once(rest: &[u8]) -> Option<(u8, usize)> {
    let first = *rest.first()?;
    if let (b'%', Some([high, low])) = (first, rest.get(1..3))
        && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
    {
        return Some((high << 4 | low, 3));
    }
    Some((first, 1))
}

/// Decodes like [`decode_once`], as often as possible: `%256C` is `%6C` is `l`.
fn decode_fully(rest: &[u8]) -> Option<(u8, usize)> {
    let (mut byte, mut length) = decode_once(rest)?;
    while byte == b'%' && length > 1 {
        let Some([high, low]) = rest.get(length..length + 2) else {
            break;
        };
        let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low)) else {
            break;
        };
        (byte, length) = (high << 4 | low, length + 2);
    }
    Some((byte, length))
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Returns whether a byte needs no escape anywhere (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

// === Segment ===

/// A segment, as a range of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    start: u16,
    end: u16,
}

impl Segment {
    pub(super) fn of(self, path: &[u8]) -> &[u8] {
        &path[usize::from(self.start)..usize::from(self.end)]
    }
}

// === Steps ===

/// The steps of one normalization, or those that change a path.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    /// `//` becomes `/`.
    merges_slashes: bool,
    /// `.` and `..` are resolved.
    resolves_dots: bool,
    /// `%2F`, `%5C` and `\` become `/`.
    decodes_slashes: bool,
}

impl Steps {
    const ALL: [Self; 8] = {
        let mut all = [Self {
            merges_slashes: false,
            resolves_dots: false,
            decodes_slashes: false,
        }; 8];
        let mut number = 0;
        while number < 8 {
            all[number].merges_slashes = number & 1 != 0;
            all[number].resolves_dots = number & 2 != 0;
            all[number].decodes_slashes = number & 4 != 0;
            number += 1;
        }
        all
    };

    fn that_change(path: &[u8]) -> Self {
        let mut steps = Self::default();
        let mut rest = path;
        let mut previous = if path.starts_with(b"/") { 0 } else { b'/' };
        while let Some((byte, length)) = decode_fully(rest) {
            let is_slash = matches!(byte, b'/' | b'\\');
            steps.decodes_slashes |= is_slash && (length > 1 || byte == b'\\');
            steps.merges_slashes |= is_slash && previous == b'/';
            steps.resolves_dots |= byte == b'.' && previous == b'/';
            previous = if is_slash { b'/' } else { byte };
            rest = &rest[length..];
        }
        steps
    }

    fn are_among(self, others: Self) -> bool {
        (others.merges_slashes || !self.merges_slashes)
            && (others.resolves_dots || !self.resolves_dots)
            && (others.decodes_slashes || !self.decodes_slashes)
    }

    /// Returns the segments of a path, without a slash at the end. `None` if there are too many.
    fn segments(self, path: &[u8]) -> Option<SmallVec<[Segment; MAX_SEGMENTS]>> {
        let mut segments = SmallVec::new();
        let mut at = usize::from(path.first() == Some(&b'/'));
        let mut start = at;
        while let Some((byte, length)) = path.get(at..).and_then(decode_fully) {
            let is_slash = match byte {
                b'/' if length == 1 => true,
                b'/' | b'\\' => self.decodes_slashes,
                _ => false,
            };
            if is_slash {
                self.push(&mut segments, path, start, at)?;
                start = at + length;
            }
            at += length;
        }
        if start < path.len() {
            self.push(&mut segments, path, start, path.len())?;
        }
        Some(segments)
    }

    fn push(
        self,
        segments: &mut SmallVec<[Segment; MAX_SEGMENTS]>,
        path: &[u8],
        start: usize,
        end: usize,
    ) -> Option<()> {
        let text = &path[start..end];
        if self.merges_slashes && text.is_empty() || self.resolves_dots && may_equal(text, b".") {
            return Some(());
        }
        if self.resolves_dots && may_equal(text, b"..") {
            segments.pop();
            return Some(());
        }
        if segments.len() == MAX_SEGMENTS {
            return None;
        }
        let start = u16::try_from(start).ok()?;
        let end = u16::try_from(end).ok()?;
        segments.push(Segment { start, end });
        Some(())
    }
}

/// The most segments of a path that are compared.
const MAX_SEGMENTS: usize = 128;
