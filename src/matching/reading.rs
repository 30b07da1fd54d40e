//! The ways in which a server might read a path.

use smallvec::SmallVec;

/// How a path is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// As it is meant: no escapes, and nothing that could be read in two ways.
    Plainly,
    /// With escapes where a path needs them, and otherwise plainly.
    WithEscapes,
    /// In a way that servers read in different ways.
    Oddly,
}

/// A segment, as a part of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    start: u16,
    end: u16,
}

impl Span {
    pub(super) fn of(self, path: &[u8]) -> &[u8] {
        &path[usize::from(self.start)..usize::from(self.end)]
    }
}

/// Says how a path is written.
pub(super) fn written(path: &[u8]) -> Written {
    let is_plain = |pair: &[u8]| !matches!(pair, [b'/', b'/' | b'.'] | [b'%' | b'\\' | b';', _]);
    let ends_plainly = !path.ends_with(b"%") && !path.ends_with(b"\\") && !path.ends_with(b";");
    let is_absolute = path.is_empty() || path.starts_with(b"/");
    if is_absolute && ends_plainly && path.windows(2).all(is_plain) {
        return Written::Plainly;
    }
    let mut segments = path
        .strip_suffix(b"/")
        .unwrap_or(path)
        .split(|byte| *byte == b'/');
    let begins = segments.next().is_some_and(<[u8]>::is_empty);
    if begins && segments.all(is_clean) {
        return Written::WithEscapes;
    }
    Written::Oddly
}

/// Whether a segment has one reading, and no escape that it could do without.
fn is_clean(segment: &[u8]) -> bool {
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

/// Calls `fits` with the segments of each reading until one fits: `None` for a path of too many segments. A path of at
/// most 65,535 bytes.
pub(super) fn each(path: &[u8], mut fits: impl FnMut(Option<&[Span]>) -> bool) -> bool {
    let oddities = Oddities::of(path);
    Reading::ALL
        .iter()
        .filter(|reading| oddities.make_a_difference_to(**reading))
        .any(|reading| match reading.segments(path) {
            Some(segments) => fits(Some(&segments)),
            None => fits(None),
        })
}

/// Whether a segment could be meant to be this text.
pub(super) fn resembles(segment: &[u8], text: &[u8]) -> bool {
    let mut rest = segment;
    for expected in text {
        match decode(rest) {
            Some((byte, length)) if byte.eq_ignore_ascii_case(expected) => rest = &rest[length..],
            _ => return false,
        }
    }
    decode(rest).is_none_or(|(byte, _)| is_end(byte))
}

/// Whether a segment is this text, its escapes decoded.
pub(super) fn equals(segment: &[u8], text: &[u8]) -> bool {
    let mut rest = segment;
    for expected in text {
        match decode_once(rest) {
            Some((byte, length)) if byte == *expected => rest = &rest[length..],
            _ => return false,
        }
    }
    rest.is_empty()
}

/// The first byte, decoded if it is escaped, and how long it is as written.
pub(super) fn decode_once(rest: &[u8]) -> Option<(u8, usize)> {
    let first = *rest.first()?;
    if let (b'%', Some([high, low])) = (first, rest.get(1..3))
        && let (Some(high), Some(low)) = (digit(*high), digit(*low))
    {
        return Some((high << 4 | low, 3));
    }
    Some((first, 1))
}

/// As [`decode_once`], as often as it goes: `%256C` is `%6C` is `l`.
fn decode(rest: &[u8]) -> Option<(u8, usize)> {
    let (mut byte, mut length) = decode_once(rest)?;
    while byte == b'%' && length > 1 {
        let Some([high, low]) = rest.get(length..length + 2) else {
            break;
        };
        let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
            break;
        };
        (byte, length) = (high << 4 | low, length + 2);
    }
    Some((byte, length))
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// What needs no escape anywhere (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// What some servers end a segment's name by.
fn is_end(byte: u8) -> bool {
    matches!(byte, b';' | 0)
}

// === Oddities ===

/// What in a path is read in different ways.
#[derive(Clone, Copy, Debug, Default)]
struct Oddities {
    dots: bool,
    empties: bool,
    /// Slashes that are escaped, and backslashes.
    hidden_slashes: bool,
}

impl Oddities {
    fn of(path: &[u8]) -> Self {
        let mut oddities = Self::default();
        let mut rest = path;
        let mut former = if path.starts_with(b"/") { 0 } else { b'/' };
        while let Some((byte, length)) = decode(rest) {
            let is_slash = matches!(byte, b'/' | b'\\');
            oddities.hidden_slashes |= is_slash && (length > 1 || byte == b'\\');
            oddities.empties |= is_slash && former == b'/';
            oddities.dots |= byte == b'.' && former == b'/';
            former = if is_slash { b'/' } else { byte };
            rest = &rest[length..];
        }
        oddities
    }

    /// Whether a reading is another one than that which leaves everything as it is.
    fn make_a_difference_to(self, reading: Reading) -> bool {
        (self.dots || !reading.resolves_dots)
            && (self.empties || !reading.drops_empties)
            && (self.hidden_slashes || !reading.sees_hidden_slashes)
    }
}

// === Reading ===

/// One way to read a path.
#[derive(Clone, Copy, Debug)]
struct Reading {
    drops_empties: bool,
    resolves_dots: bool,
    sees_hidden_slashes: bool,
}

impl Reading {
    const ALL: [Self; 8] = {
        let mut all = [Self {
            drops_empties: false,
            resolves_dots: false,
            sees_hidden_slashes: false,
        }; 8];
        let mut number = 0;
        while number < 8 {
            all[number].drops_empties = number & 1 != 0;
            all[number].resolves_dots = number & 2 != 0;
            all[number].sees_hidden_slashes = number & 4 != 0;
            number += 1;
        }
        all
    };

    /// The segments, without the slash at the end if there is one; `None` when there are too many.
    fn segments(self, path: &[u8]) -> Option<SmallVec<[Span; MOST]>> {
        let mut segments = SmallVec::new();
        let mut at = usize::from(path.first() == Some(&b'/'));
        let mut start = at;
        while let Some((byte, length)) = path.get(at..).and_then(decode) {
            let is_slash = match byte {
                b'/' if length == 1 => true,
                b'/' | b'\\' => self.sees_hidden_slashes,
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
        segments: &mut SmallVec<[Span; MOST]>,
        path: &[u8],
        start: usize,
        end: usize,
    ) -> Option<()> {
        let segment = &path[start..end];
        if self.drops_empties && segment.is_empty()
            || self.resolves_dots && resembles(segment, b".")
        {
            return Some(());
        }
        if self.resolves_dots && resembles(segment, b"..") {
            segments.pop();
            return Some(());
        }
        if segments.len() == MOST {
            return None;
        }
        let start = u16::try_from(start).ok()?;
        let end = u16::try_from(end).ok()?;
        segments.push(Span { start, end });
        Some(())
    }
}

/// The most segments of a path that are looked into.
const MOST: usize = 128;
