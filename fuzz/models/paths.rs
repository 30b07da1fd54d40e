//! What a path pattern fits, said as plainly as can be: every reading of a path is written out.

/// How much a path is like a pattern: 0 differs, 1 resembles, 2 matches. The pattern is one that is not refused.
pub(crate) fn likeness(pattern: &str, is_prefix: bool, path: &str) -> u8 {
    let pattern = Pattern::parse(pattern, is_prefix);
    let path = path.as_bytes();
    let is_plain = is_plain(path);
    if !is_plain && path.len() > 2_048 {
        return 1;
    }
    let limit = if is_plain { usize::MAX } else { 128 };
    let ends_alike = pattern.more || pattern.slash == ends_in_slash(path);
    let as_it_is = reading(path, 0, limit).filter(|_| is_clean(path) && ends_alike);
    if as_it_is.is_some_and(|segments| pattern.is(&segments)) {
        return 2;
    }
    let fits =
        |reading: Option<Vec<Vec<u8>>>| reading.is_none_or(|segments| pattern.fits(&segments));
    u8::from((0..8).any(|number| fits(reading(path, number, limit))))
}

/// Whether nothing in a path needs a second look.
fn is_plain(path: &[u8]) -> bool {
    let odd = |pair: &[u8]| pair == b"//" || pair == b"/.";
    let is_absolute = path.is_empty() || path.starts_with(b"/");
    is_absolute
        && !path.iter().any(|byte| matches!(byte, b'%' | b'\\' | b';'))
        && !path.windows(2).any(odd)
}

struct Pattern {
    /// `None` is any segment.
    segments: Vec<Option<Vec<u8>>>,
    /// Whether more may follow, and whether it must.
    more: bool,
    some: bool,
    slash: bool,
}

impl Pattern {
    fn parse(text: &str, is_prefix: bool) -> Self {
        let mut texts: Vec<&str> = text[1..].split('/').collect();
        let slash = texts.last() == Some(&"");
        if slash {
            texts.pop();
        }
        let some = texts.last().is_some_and(|last| last.starts_with("{*"));
        if some {
            texts.pop();
        }
        let segment = |text: &&str| match *text {
            "*" => None,
            text if text.starts_with('{') => None,
            text => Some(
                unescaped(text.as_bytes(), false)
                    .into_iter()
                    .map(|(byte, _)| byte)
                    .collect(),
            ),
        };
        Self {
            segments: texts.iter().map(segment).collect(),
            more: is_prefix || some,
            some,
            slash: slash && text != "/",
        }
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

/// A segment up to what some servers cut off.
fn name(segment: &[u8]) -> &[u8] {
    let end = segment.iter().position(|byte| matches!(byte, b';' | 0));
    &segment[..end.unwrap_or(segment.len())]
}

/// The bytes of a path with escapes decoded, and whether each was escaped; as often as it goes if `again`.
fn unescaped(path: &[u8], again: bool) -> Vec<(u8, bool)> {
    let mut found = Vec::new();
    let mut rest = path.to_vec();
    rest.reverse();
    while let Some(byte) = rest.pop() {
        let (mut byte, mut escaped) = (byte, false);
        while byte == b'%' && (again || !escaped) {
            let digits: Vec<u8> = rest.iter().rev().take(2).copied().collect();
            let text = String::from_utf8_lossy(&digits).into_owned();
            let is_hex = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let Some(decoded) = u8::from_str_radix(&text, 16).ok().filter(|_| is_hex) else {
                break;
            };
            rest.truncate(rest.len() - 2);
            (byte, escaped) = (decoded, true);
        }
        found.push((byte, escaped));
    }
    found
}

/// Whether a path is written in the one way that has no other reading.
fn is_clean(path: &[u8]) -> bool {
    if path.is_empty() {
        return true;
    }
    let plain = |(byte, escaped): &(u8, bool)| match byte {
        b'\\' | b'%' | b';' => false,
        b'/' => !escaped,
        b'-' | b'.' | b'_' | b'~' => !escaped,
        byte if byte.is_ascii_alphanumeric() || byte.is_ascii_control() => !escaped,
        _ => true,
    };
    let dots_and_empties = |segment: &Vec<u8>| matches!(&segment[..], b"" | b"." | b"..");
    let segments = reading(path, 0, usize::MAX).unwrap_or_default();
    path[0] == b'/'
        && unescaped(path, false).iter().all(plain)
        && !segments.iter().any(dots_and_empties)
}

fn ends_in_slash(path: &[u8]) -> bool {
    path.len() > 1 && path.ends_with(b"/")
}

/// One of eight readings, or `None` when it has more than `limit` segments.
fn reading(path: &[u8], number: u8, limit: usize) -> Option<Vec<Vec<u8>>> {
    let (drops_empties, resolves_dots, sees_hidden) =
        (number & 1 != 0, number & 2 != 0, number & 4 != 0);
    let mut segments = vec![Vec::new()];
    for (byte, escaped) in unescaped(path, true) {
        let is_slash = byte == b'/' && !escaped || sees_hidden && matches!(byte, b'/' | b'\\');
        match segments.last_mut() {
            Some(last) if !is_slash => last.push(byte),
            _ => segments.push(Vec::new()),
        }
    }
    if path.first() == Some(&b'/') {
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
