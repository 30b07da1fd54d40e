//! What a path pattern fits, said as plainly as can be: every reading of a path is written out.

/// A path with all its readings.
pub(crate) struct Written {
    /// It is written in the one way that has no other reading.
    is_clean: bool,
    is_too_long: bool,
    ends_in_slash: bool,
    /// Eight, the first of which leaves all as it is; `None` where there are too many segments.
    readings: Vec<Option<Vec<Vec<u8>>>>,
}

impl Written {
    pub(crate) fn new(path: &str) -> Self {
        let path = path.as_bytes();
        let is_plain = is_plain(path);
        let limit = if is_plain { usize::MAX } else { 128 };
        let bytes = unescaped(path, true);
        let reading = |number| reading(&bytes, path.starts_with(b"/"), number, limit);
        let readings: Vec<_> = (0..8).map(reading).collect();
        Self {
            is_clean: is_clean(path, readings[0].as_deref().unwrap_or_default()),
            is_too_long: !is_plain && path.len() > 2_048,
            ends_in_slash: path.len() > 1 && path.ends_with(b"/"),
            readings,
        }
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
            let bytes = unescaped(text.as_bytes(), false);
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
        let as_it_is = path.readings[0].as_ref();
        let is_exact = path.is_clean && (self.more || self.slash == path.ends_in_slash);
        if is_exact && as_it_is.is_some_and(|segments| self.is(segments)) {
            return 2;
        }
        let fits = |reading: &Option<Vec<_>>| reading.as_ref().is_none_or(|found| self.fits(found));
        u8::from(path.readings.iter().any(fits))
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
            segment
                .as_ref()
                .is_none_or(|text| text.eq_ignore_ascii_case(name(found)))
        };
        self.has_length_of(found.len()) && self.segments.iter().zip(found).all(like)
    }
}

/// Whether nothing in a path needs a second look.
fn is_plain(path: &[u8]) -> bool {
    let odd = |pair: &[u8]| pair == b"//" || pair == b"/.";
    let is_absolute = path.is_empty() || path.starts_with(b"/");
    is_absolute
        && !path.iter().any(|byte| matches!(byte, b'%' | b'\\' | b';'))
        && !path.windows(2).any(odd)
}

/// Whether a path is written in the one way that has no other reading.
fn is_clean(path: &[u8], segments: &[Vec<u8>]) -> bool {
    let plain = |(byte, escaped): &(u8, bool)| match byte {
        b'\\' | b'%' | b';' => false,
        b'/' | b'-' | b'.' | b'_' | b'~' => !escaped,
        byte if byte.is_ascii_alphanumeric() || byte.is_ascii_control() => !escaped,
        _ => true,
    };
    let is_odd = |segment: &Vec<u8>| matches!(&segment[..], b"" | b"." | b"..");
    let is_absolute = path.is_empty() || path.starts_with(b"/");
    is_absolute && unescaped(path, false).iter().all(plain) && !segments.iter().any(is_odd)
}

/// A segment up to what some servers cut off.
fn name(segment: &[u8]) -> &[u8] {
    let end = segment.iter().position(|byte| matches!(byte, b';' | 0));
    &segment[..end.unwrap_or(segment.len())]
}

/// The bytes of a path with escapes decoded, and whether each was escaped; as often as it goes if `again`.
fn unescaped(path: &[u8], again: bool) -> Vec<(u8, bool)> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut found = Vec::with_capacity(path.len());
    let mut rest: Vec<u8> = path.iter().rev().copied().collect();
    while let Some(byte) = rest.pop() {
        let (mut byte, mut escaped) = (u32::from(byte), false);
        while byte == u32::from(b'%') && (again || !escaped) {
            let [.., low, high] = &rest[..] else { break };
            let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                break;
            };
            rest.truncate(rest.len() - 2);
            (byte, escaped) = (16 * high + low, true);
        }
        found.push((u8::try_from(byte).expect("two digits"), escaped));
    }
    found
}

/// One of eight readings, or `None` when it has more than `limit` segments.
fn reading(
    bytes: &[(u8, bool)],
    is_absolute: bool,
    number: u8,
    limit: usize,
) -> Option<Vec<Vec<u8>>> {
    let drops_empties = number & 1 != 0;
    let resolves_dots = number & 2 != 0;
    let sees_hidden_slashes = number & 4 != 0;
    let mut segments = vec![Vec::new()];
    for (byte, escaped) in bytes {
        let is_slash = match byte {
            b'/' => !escaped || sees_hidden_slashes,
            b'\\' => sees_hidden_slashes,
            _ => false,
        };
        match segments.last_mut() {
            Some(last) if !is_slash => last.push(*byte),
            _ => segments.push(Vec::new()),
        }
    }
    if is_absolute {
        segments.remove(0);
    }
    if segments.last().is_some_and(Vec::is_empty) {
        segments.pop();
    }
    let mut read: Vec<Vec<u8>> = Vec::new();
    for segment in segments {
        match name(&segment) {
            _ if drops_empties && segment.is_empty() => {}
            b"." if resolves_dots => {}
            b".." if resolves_dots => drop(read.pop()),
            _ if read.len() == limit => return None,
            _ => read.push(segment),
        }
    }
    Some(read)
}
