//! Patterns of paths.

#[cfg(feature = "axum")]
use axum::extract::{NestedPath, OriginalUri};
use http::request::Parts;

#[cfg(feature = "axum")]
use crate::diagnosis::Code;
use crate::error::{Error, ErrorKind};

use super::{
    matcher::{Match, Matcher},
    reading::{self, Written},
};

/// Requests whose path fits a pattern.
///
/// | pattern | fits |
/// |---|---|
/// | `PathPattern::new("/login")` | that path |
/// | `PathPattern::new("/users/{id}/files")`, `PathPattern::new("/users/*/files")` | any one segment in place of `{id}` or `*` |
/// | `PathPattern::new("/static/{*rest}")` | one segment or more after `/static` |
/// | `PathPattern::prefix("/api")` | `/api` and all below it, but not `/apis` |
///
/// What other frameworks write for a parameter (`/:id`, `/<id>`, `/**`) is refused when the layer is built. A segment that
/// does begin with a colon is written with `%3A`.
///
/// The path is the request URI's as the layer sees it: within axum's `nest` that is the path without the prefix of the
/// nested router, so a pattern with the prefix never matches there. That is reported as
/// [`Code::NestedPath`](crate::diagnosis::Code::NestedPath). The query is not part of the path.
///
/// # How a path may be written
///
/// A path matches when it is written as the pattern is, with escapes (`%C3%A9`) only where a path needs them. It resembles
/// when one of the readings that a server might take fits: needless escapes decoded, also twice; letters in the other case; a
/// slash more or less at the end; empty segments (`//`) kept or dropped; `.` and `..` kept or resolved; `%2F`, `\` and `%5C`
/// as part of a segment or as a slash; what follows a `;` or a zero byte in a segment cut off. What that means is said
/// [here](crate::matching#in-doubt-a-request-is-counted).
///
/// Matching does not allocate. A path with escapes, empty segments or the like that has more than 2,048 bytes or 128
/// segments resembles every pattern, so that the time is bounded too.
#[derive(Clone, Debug)]
pub struct PathPattern {
    pattern: Result<Pattern, Error>,
}

#[derive(Clone, Debug)]
struct Pattern {
    segments: Box<[Segment]>,
    tail: Tail,
    ends_in_slash: bool,
}

#[derive(Clone, Debug)]
enum Segment {
    Any,
    /// Decoded.
    Literal(Box<[u8]>),
}

/// What may follow the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Anything,
    Nothing,
    Something,
}

impl PathPattern {
    /// The paths that fit this pattern. One that cannot be understood is reported when the layer is built.
    #[must_use]
    pub fn new(pattern: impl AsRef<str>) -> Self {
        Self {
            pattern: Pattern::parse(pattern.as_ref()),
        }
    }

    /// This path, which may have `{id}` and `*` in it too, and all below it.
    #[must_use]
    pub fn prefix(pattern: impl AsRef<str>) -> Self {
        let prefix = |pattern: Pattern| match pattern.tail {
            Tail::Nothing => Ok(Pattern {
                tail: Tail::Anything,
                ..pattern
            }),
            _ => Err(refused("{*rest} in a prefix: take PathPattern::new for it")),
        };
        Self {
            pattern: Pattern::parse(pattern.as_ref()).and_then(prefix),
        }
    }

    /// How much a path is like the pattern.
    #[must_use]
    pub fn matches_path(&self, path: &str) -> Match {
        match &self.pattern {
            Ok(pattern) => pattern.compare(path.as_bytes()),
            Err(_) => Match::Possible,
        }
    }
}

impl Matcher for PathPattern {
    fn matches(&self, parts: &Parts) -> Match {
        self.matches_path(parts.uri.path())
    }

    fn validate(&self) -> Result<(), Error> {
        self.pattern.as_ref().map(drop).map_err(Clone::clone)
    }

    /// [`Code::NestedPath`] at a request that the pattern would match if it were not for the prefix of a nested router.
    #[cfg(feature = "axum")]
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let pattern = self.pattern.as_ref().ok()?;
        let prefix = parts.extensions.get::<NestedPath>()?.as_str();
        let OriginalUri(original) = parts.extensions.get()?;
        let is_meant = pattern.compare(original.path().as_bytes()) != Match::Miss;
        let is_missed = pattern.compare(parts.uri.path().as_bytes()) == Match::Miss;
        (is_meant && is_missed && pattern.begins_with(prefix)).then_some(Code::NestedPath)
    }
}

// === Pattern ===

impl Pattern {
    fn parse(pattern: &str) -> Result<Self, Error> {
        let refuse = |why: &str| Err(refused(&format!("{pattern:?}: {why}")));
        let Some(path) = pattern.strip_prefix('/') else {
            return refuse("a path begins with /");
        };
        if path.contains(['?', '#', '\\', ';']) {
            return refuse("a pattern has no query, no fragment, no \\ and no ;");
        }
        if path == "/" {
            return refuse("a pattern has no empty segment");
        }
        let ends_in_slash = path.ends_with('/');
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments = Vec::new();
        let mut tail = Tail::Nothing;
        for text in path.split('/').filter(|_| !path.is_empty()) {
            if tail == Tail::Something {
                return refuse("{*rest} stands at the end only");
            }
            match parse_segment(text) {
                Ok(Some(segment)) => segments.push(segment),
                Ok(None) => tail = Tail::Something,
                Err(why) => return refuse(why),
            }
        }
        Ok(Self {
            segments: segments.into(),
            tail,
            ends_in_slash,
        })
    }

    fn compare(&self, path: &[u8]) -> Match {
        let written = reading::written(path);
        if written == Written::Plainly {
            return self.compare_plain(path);
        }
        if path.len() > LONGEST {
            return Match::Possible;
        }
        let is_clean = written == Written::WithEscapes;
        let mut likeness = Match::Miss;
        let fits = reading::each(path, |segments| match segments {
            Some(segments) if !self.resembles(path, segments) => false,
            Some(segments) if is_clean && self.equals(path, segments) => {
                likeness = Match::Exact;
                true
            }
            _ => true,
        });
        likeness.max(if fits { Match::Possible } else { Match::Miss })
    }

    /// Whether the pattern begins with the prefix of a nested router. A pattern whose parameter takes the place of a
    /// literal in the prefix may be meant for the path behind it.
    #[cfg(feature = "axum")]
    fn begins_with(&self, prefix: &str) -> bool {
        let mut prefix = prefix.split('/').filter(|segment| !segment.is_empty());
        let mut own = self.segments.iter();
        prefix.all(|segment| match own.next() {
            Some(Segment::Any) => segment.starts_with('{'),
            Some(Segment::Literal(_)) => true, // the original path was compared with it
            None => false,
        })
    }

    /// Compares a path that has one reading, and in place: this is the usual way.
    fn compare_plain(&self, path: &[u8]) -> Match {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let (path, has_slash) = match path.strip_suffix(b"/") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let mut pieces = path
            .split(|byte| *byte == b'/')
            .filter(|_| !path.is_empty());
        let mut is_exact = self.tail != Tail::Nothing || has_slash == self.ends_in_slash;
        for segment in &self.segments {
            match (segment, pieces.next()) {
                (_, None) => return Match::Miss,
                (Segment::Any, Some(_)) => {}
                (Segment::Literal(text), Some(piece)) if **text == *piece => {}
                (Segment::Literal(text), Some(piece)) if text.eq_ignore_ascii_case(piece) => {
                    is_exact = false;
                }
                (Segment::Literal(_), Some(_)) => return Match::Miss,
            }
        }
        match (self.tail, pieces.next().is_some()) {
            (Tail::Nothing, true) | (Tail::Something, false) => Match::Miss,
            _ if is_exact => Match::Exact,
            _ => Match::Possible,
        }
    }

    fn resembles(&self, path: &[u8], found: &[reading::Span]) -> bool {
        let fits = |(segment, span): (&Segment, &reading::Span)| match segment {
            Segment::Any => true,
            Segment::Literal(text) => reading::resembles(span.of(path), text),
        };
        self.has_room_for(found.len()) && self.segments.iter().zip(found).all(fits)
    }

    /// Whether a reading that fits is the pattern itself, escapes apart.
    fn equals(&self, path: &[u8], found: &[reading::Span]) -> bool {
        let fits = |(segment, span): (&Segment, &reading::Span)| match segment {
            Segment::Any => true,
            Segment::Literal(text) => reading::equals(span.of(path), text),
        };
        let ends_alike = path.ends_with(b"/") == self.ends_in_slash;
        (self.tail != Tail::Nothing || ends_alike) && self.segments.iter().zip(found).all(fits)
    }

    fn has_room_for(&self, found: usize) -> bool {
        match self.tail {
            Tail::Anything => found >= self.segments.len(),
            Tail::Nothing => found == self.segments.len(),
            Tail::Something => found > self.segments.len(),
        }
    }
}

/// A segment of a pattern; `None` is the rest of a path.
fn parse_segment(text: &str) -> Result<Option<Segment>, &'static str> {
    let inside = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    let name = inside.map(|name| name.strip_prefix('*').unwrap_or(name));
    if text == "*" {
        return Ok(Some(Segment::Any));
    }
    if let (Some(inside), Some(name)) = (inside, name) {
        if name.is_empty() || name.contains(['{', '}', '*']) {
            return Err("a parameter is {name} or {*name}");
        }
        return Ok((!inside.starts_with('*')).then_some(Segment::Any));
    }
    if text.starts_with(':') || text.starts_with('<') && text.ends_with('>') {
        return Err(
            "a parameter is written {name}, as in /users/{id}, or {*name} for the rest, and a segment that is meant so with %3A or %3C in front",
        );
    }
    if text == "**" {
        return Err("the rest of a path is written {*rest}, and one segment {name} or *");
    }
    if text.contains(['{', '}', '*']) {
        return Err("a parameter is a whole segment, {name}, {*name} or *");
    }
    let mut literal = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, length)) = reading::decode_once(rest) {
        literal.push(byte);
        rest = &rest[length..];
    }
    if text.is_empty() || literal == b"." || literal == b".." {
        return Err("a pattern has no empty segment, no . and no ..");
    }
    if literal
        .iter()
        .any(|byte| matches!(byte, b'/' | b'\\' | b';' | b'%') || byte.is_ascii_control())
    {
        return Err("a segment holds no escaped slash, \\, ;, % or control character");
    }
    Ok(Some(Segment::Literal(literal.into())))
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("path pattern {why}"))
}

/// The longest path with more than one reading that is looked into.
const LONGEST: usize = 2_048;
