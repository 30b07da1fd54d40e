//! What a path pattern fits, said as plainly as can be: every reading of a path is written out.

use std::collections::BTreeSet;

/// A path with all its readings.
pub(crate) struct Written {
    /// It is written in the one way that has no other reading.
    is_clean: bool,
    is_too_long: bool,
    ends_in_slash: bool,
    /// The segments between its slashes, decoded.
    segments: Vec<Vec<u8>>,
    readings: BTreeSet<Reading>,
}

/// The names of the segments that remain.
type Reading = Vec<Vec<u8>>;

impl Written {
    /// Returns `None` for a path with more readings than anybody wants to write out.
    pub(crate) fn new(path: &str) -> Option<Self> {
        let path = path.as_bytes();
        let is_plain = is_plain(path);
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        let raw: Vec<&[u8]> = relative.split(|byte| *byte == b'/').collect();
        let segments: Vec<Vec<u8>> = raw.iter().map(|segment| decoded(segment)).collect();
        let odd = |byte: &&u8| matches!(byte, b'/' | b'\\' | b'?' | b'#' | 0);
        let odds = segments.iter().flatten().filter(odd).count();
        let is_too_long = !is_plain && (path.len() > 2_048 || raw.len() + odds > 100);
        let ends_in_slash = path.len() > 1 && path.ends_with(b"/");
        let readings = if is_too_long {
            BTreeSet::new()
        } else {
            readings(&segments)?
        };
        let named = &segments[..segments.len() - usize::from(relative.is_empty() || ends_in_slash)];
        Some(Self {
            is_clean: is_clean(path) && named.iter().all(|segment| has_name(segment)),
            is_too_long,
            ends_in_slash,
            segments: named.to_vec(),
            readings,
        })
    }
}

/// A pattern that is not refused.
pub(crate) struct Pattern {
    /// `None` is any segment.
    segments: Vec<Option<Vec<u8>>>,
    /// Whether more may follow, and whether it must.
    more: bool,
    some: bool,
    slash: bool,
}

impl Pattern {
    pub(crate) fn new(text: &str, is_prefix: bool) -> Self {
        let mut texts: Vec<&str> = text[1..].split('/').collect();
        let slash = texts.last() == Some(&"");
        if slash {
            texts.pop();
        }
        let some = texts.last().is_some_and(|last| last.starts_with("{*"));
        if some {
            texts.pop();
        }
        let literal = |text: &str| {
            let bytes = decoded_once(text.as_bytes());
            bytes.into_iter().map(|(byte, _)| byte).collect()
        };
        let segment = |text: &&str| match *text {
            "*" => None,
            text if text.starts_with('{') => None,
            text => Some(literal(text)),
        };
        Self {
            segments: texts.iter().map(segment).collect(),
            more: is_prefix || some,
            some,
            slash: slash && text != "/",
        }
    }

    /// How much a path is like it: 0 differs, 1 resembles, 2 matches.
    pub(crate) fn likeness(&self, path: &Written) -> u8 {
        if path.is_too_long {
            return 1;
        }
        let is_exact = path.is_clean && (self.more || self.slash == path.ends_in_slash);
        if is_exact && self.is(&path.segments) {
            return 2;
        }
        u8::from(path.readings.iter().any(|reading| self.fits(reading)))
    }

    fn has_length_of(&self, found: usize) -> bool {
        let length = self.segments.len();
        if self.some {
            found > length
        } else if self.more {
            found >= length
        } else {
            found == length
        }
    }

    fn is(&self, found: &[Vec<u8>]) -> bool {
        let same = |(segment, found): (&Option<Vec<u8>>, &Vec<u8>)| {
            segment.as_ref().is_none_or(|text| text == found)
        };
        self.has_length_of(found.len()) && self.segments.iter().zip(found).all(same)
    }

    fn fits(&self, found: &[Vec<u8>]) -> bool {
        let like = |(segment, found): (&Option<Vec<u8>>, &Vec<u8>)| {
            segment.as_ref().is_none_or(|text| {
                let (start, end) = found.split_at(text.len().min(found.len()));
                text.eq_ignore_ascii_case(start) && !has_name(end)
            })
        };
        self.has_length_of(found.len()) && self.segments.iter().zip(found).all(like)
    }
}

/// Whether nothing in a path needs a second look.
fn is_plain(path: &[u8]) -> bool {
    let odd = |pair: &[u8]| pair[0] == b'/' && (pair[1] == b'/' || !has_name(&pair[1..]));
    let is_absolute = path.is_empty() || path.starts_with(b"/");
    is_absolute && !path.iter().any(is_special) && !path.windows(2).any(odd)
}

/// Whether a path is written in the one way that has no other reading, if all its segments have names.
fn is_clean(path: &[u8]) -> bool {
    let plain = |(byte, escaped): &(u8, bool)| match byte {
        byte if is_special(byte) => false,
        b'/' | b'-' | b'.' | b'_' | b'~' => !escaped,
        byte if byte.is_ascii_alphanumeric() || byte.is_ascii_control() => !escaped,
        _ => true,
    };
    let is_absolute = path.is_empty() || path.starts_with(b"/");
    is_absolute && decoded_once(path).iter().all(plain)
}

fn is_special(byte: &u8) -> bool {
    matches!(byte, b'%' | b'\\' | b';' | b'?' | b'#' | 0)
}

/// Whether something is left of a segment when what may be dropped at its end is dropped.
fn has_name(segment: &[u8]) -> bool {
    let is_dropped = |byte: &u8| matches!(byte, b'.' | b' ') || byte.is_ascii_control();
    !segment.iter().all(is_dropped)
}

/// A segment with its escapes decoded again and again, until none is left.
fn decoded(segment: &[u8]) -> Vec<u8> {
    let mut bytes = segment.to_vec();
    loop {
        let next: Vec<u8> = decoded_once(&bytes)
            .into_iter()
            .map(|(byte, _)| byte)
            .collect();
        let next = without_code_points(&next);
        if next == bytes {
            return bytes;
        }
        bytes = next;
    }
}

/// The bytes of a text with escapes decoded, and whether each was escaped.
fn decoded_once(text: &[u8]) -> Vec<(u8, bool)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        let number = match rest {
            [b'%', digits @ ..] => number(digits, 2).and_then(|number| u8::try_from(number).ok()),
            _ => None,
        };
        found.push((number.unwrap_or(*byte), number.is_some()));
        rest = if number.is_some() { &rest[3..] } else { after };
    }
    found
}

/// Decodes escapes such as `%u006C`.
fn without_code_points(text: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        let character = match rest {
            [b'%', b'u' | b'U', digits @ ..] => number(digits, 4).and_then(char::from_u32),
            _ => None,
        };
        match character {
            Some(character) => found.extend(character.to_string().into_bytes()),
            None => found.push(*byte),
        }
        rest = if character.is_some() {
            &rest[6..]
        } else {
            after
        };
    }
    found
}

/// The number that a text begins with, in as many hexadecimal digits.
fn number(text: &[u8], digits: usize) -> Option<u32> {
    let digits = std::str::from_utf8(text.get(..digits)?).ok()?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(digits, 16).ok())?
}

/// All readings of a path: also those of what is left of it where it may be cut off.
fn readings(segments: &[Vec<u8>]) -> Option<BTreeSet<Reading>> {
    let mut all = readings_to_the_end(segments)?;
    for (number, segment) in segments.iter().enumerate() {
        for (at, byte) in segment.iter().enumerate() {
            if matches!(byte, b'?' | b'#' | 0) {
                let mut cut = segments[..=number].to_vec();
                cut[number].truncate(at);
                all.extend(readings_to_the_end(&cut)?);
            }
        }
    }
    Some(all)
}

fn readings_to_the_end(segments: &[Vec<u8>]) -> Option<BTreeSet<Reading>> {
    let mut readings = BTreeSet::from([Reading::new()]);
    for (number, segment) in segments.iter().enumerate() {
        let is_last = number + 1 == segments.len();
        let mut next = BTreeSet::new();
        for pieces in splits(segment)? {
            let mut with_pieces = readings.clone();
            for (piece_number, piece) in pieces.iter().enumerate() {
                let ends_the_path = is_last && piece_number + 1 == pieces.len();
                with_pieces = after(&with_pieces, piece, ends_the_path);
            }
            next.extend(with_pieces);
        }
        if next.len() > MANY {
            return None;
        }
        readings = next;
    }
    Some(readings)
}

/// The ways to split a segment at slashes that were hidden.
fn splits(segment: &[u8]) -> Option<Vec<Vec<Vec<u8>>>> {
    let mut splits = vec![vec![Vec::new()]];
    for byte in segment {
        let mut more = Vec::new();
        for split in &mut splits {
            if matches!(byte, b'/' | b'\\') {
                let mut ended = split.clone();
                ended.push(Vec::new());
                more.push(ended);
            }
            split.last_mut()?.push(*byte);
        }
        splits.extend(more);
        if splits.len() > MANY {
            return None;
        }
    }
    Some(splits)
}

/// The readings after one more segment.
fn after(readings: &BTreeSet<Reading>, piece: &[u8], ends_the_path: bool) -> BTreeSet<Reading> {
    let cut = piece.iter().position(|byte| matches!(byte, b';' | 0));
    let name = &piece[..cut.unwrap_or(piece.len())];
    let mut after = BTreeSet::new();
    for reading in readings {
        if !has_name(name) {
            after.insert(reading.clone());
        }
        if !has_name(name) && name.starts_with(b"..") {
            after.insert(reading[..reading.len().saturating_sub(1)].to_vec());
        }
        // A slash at the end begins no segment.
        if !(ends_the_path && piece.is_empty()) {
            let mut longer = reading.clone();
            longer.push(name.to_vec());
            after.insert(longer);
        }
    }
    after
}

const MANY: usize = 2_000;
