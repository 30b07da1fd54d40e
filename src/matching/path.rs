//! Patterns of paths.

#[cfg(feature = "axum")]
use axum::extract::{NestedPath, OriginalUri};

use super::matcher::{IntoMatcher, Match, Matcher};
#[cfg(feature = "axum")]
use crate::diagnosis::Code;
use crate::{
    error::{Error, ErrorKind},
    request::{
        MOST_SEGMENTS, Readings, RequestHead, Spelling, decode_once, is_dropped_at_end, may_equal,
    },
};

/// Requests whose path fits a pattern.
///
/// | pattern | fits |
/// |---|---|
/// | `PathPattern::new("/login")` | this path |
/// | `PathPattern::new("/users/{id}/files")`, `PathPattern::new("/users/*/files")` | any one segment in place of `{id}` or `*` |
/// | `PathPattern::new("/static/{*rest}")` | at least one segment after `/static` |
/// | `PathPattern::prefix("/api")` | `/api` and all paths below it, but not `/apis` |
///
/// The syntax that other frameworks use for parameters (`/:id`, `/<id>`, `/**`) fails when the layer is built. To match a
/// segment that starts with a colon, write it as `%3A`.
///
/// The path is the path of the request's URI as the layer sees it: inside axum's `nest`, the prefix of the nested router is
/// removed, so a pattern with the prefix never matches there. That is reported as
/// [`Code::NestedPath`]. The query is not part of the path.
///
/// # Spellings of a path
///
/// A path is an exact match if it is spelled as the pattern is, with escapes (`%C3%A9`) only where a path needs them. It is
/// a [possible match](crate::matching#ambiguous-matches) if it fits after some of these steps, in any order, each of which a
/// server may or may not take:
///
/// - decode needless escapes, also twice, and escapes such as `%u006C`
/// - ignore the case of ASCII letters
/// - add or remove a slash at the end
/// - merge slashes (`//`)
/// - resolve `.` and `..`
/// - read `%2F`, `\` and `%5C` as slashes
/// - cut a segment off at `;` or a zero byte, also if nothing is left of it (`/;/login`)
/// - cut the path off at `%3F`, `%23` or a zero byte
/// - drop dots, spaces and control characters at the end of a segment (`/login.`, `/login%20`, `/login%0A`)
///
/// # Not covered
///
/// A request that reaches a handler in one of these ways does not match the handler's path, so it evades `when` and
/// `forbid`. Write a pattern for it, or let a layer outside of this one reject it:
///
/// - A format suffix that a router accepts (`/login.json` in Rails, suffix patterns in Spring): add a pattern for each.
/// - Other letters for the same text: case beyond ASCII (`É`), Unicode normalization, full-width letters, escapes of
///   overlong UTF-8 (`%C0%AF`), short names of Windows (`LONGFI~1`).
/// - Spaces and control characters at the start of a segment, and a `+` that is read as a space.
/// - Paths that the server rewrites, aliases or takes from a header, such as `X-Original-URL` or `X-Rewrite-URL`.
/// - Another method in a header or a form field: see [`Methods`](super::Methods).
///
/// # Cost
///
/// The spelling is examined once for each request and layer. A path up to 128 bytes with at most 8 segments is matched
/// without an allocation, and so is a path up to 256 bytes without escapes. To bound the time, a path with escapes, empty
/// segments or other such spellings is a possible match for every pattern if it has more than 2,048 bytes or 100 segments.
#[derive(Clone, Debug)]
pub struct PathPattern {
    pattern: Result<Pattern, Error>,
}

impl PathPattern {
    /// Matches paths that fit this pattern. An invalid pattern fails when the layer is built.
    #[must_use]
    pub fn new(pattern: impl AsRef<str>) -> Self {
        Self {
            pattern: Pattern::parse(pattern.as_ref()),
        }
    }

    /// Matches this path and all paths below it. The prefix may contain `{id}` and `*`.
    #[must_use]
    pub fn prefix(pattern: impl AsRef<str>) -> Self {
        let text = pattern.as_ref();
        let prefix = |pattern: Pattern| match pattern.tail {
            Tail::None => Ok(Pattern {
                tail: Tail::Any,
                ..pattern
            }),
            Tail::Any | Tail::NonEmpty => Err(invalid(
                text,
                "a prefix cannot contain {*rest}: use PathPattern::new",
            )),
        };
        Self {
            pattern: Pattern::parse(text).and_then(prefix),
        }
    }

    /// Compares a path with the pattern.
    #[must_use]
    pub fn matches_path(&self, path: &str) -> Match {
        match &self.pattern {
            Ok(pattern) => pattern.matches_path(path.as_bytes()),
            Err(_) => Match::Ambiguous,
        }
    }
}

impl Matcher for PathPattern {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        match &self.pattern {
            Ok(pattern) => pattern.matches(head.uri.path().as_bytes(), head.spelling()),
            Err(_) => Match::Ambiguous,
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.pattern.as_ref().map(drop).map_err(Clone::clone)
    }

    /// [`Code::NestedPath`] for a request that only misses the pattern because the prefix of a nested router is removed.
    #[cfg(feature = "axum")]
    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let pattern = self.pattern.as_ref().ok()?;
        let prefix = head.extensions.get::<NestedPath>()?.as_str();
        let OriginalUri(original) = head.extensions.get()?;
        let with_prefix = pattern.matches_path(original.path().as_bytes());
        let without_prefix = pattern.matches_path(head.uri.path().as_bytes());
        let is_missed = with_prefix != Match::Miss && without_prefix == Match::Miss;
        (is_missed && pattern.starts_with(prefix)).then_some(Code::NestedPath)
    }
}

impl IntoMatcher for &str {
    type Matcher = PathPattern;

    fn into_matcher(self) -> PathPattern {
        if self.starts_with('/') {
            return PathPattern::new(self);
        }
        PathPattern {
            pattern: Err(invalid(
                self,
                "text is the pattern of a path, which starts with /; for addresses, hosts and methods there are AddressList, \
                 HostPattern and Methods",
            )),
        }
    }
}

impl IntoMatcher for String {
    type Matcher = PathPattern;

    fn into_matcher(self) -> PathPattern {
        self.as_str().into_matcher()
    }
}

// === Pattern ===

#[derive(Clone, Debug)]
struct Pattern {
    segments: Box<[SegmentPattern]>,
    tail: Tail,
    ends_in_slash: bool,
}

#[derive(Clone, Debug)]
enum SegmentPattern {
    Any,
    /// Decoded.
    Literal(Box<[u8]>),
}

/// The segments that may follow the pattern's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Any,
    NonEmpty,
    None,
}

impl Pattern {
    fn parse(pattern: &str) -> Result<Self, Error> {
        let invalid = |reason| Err(invalid(pattern, reason));
        let Some(path) = pattern.strip_prefix('/') else {
            return invalid("a path starts with /");
        };
        if path.contains(['?', '#', '\\', ';']) {
            return invalid("a pattern cannot contain a query, a fragment, \\ or ;");
        }
        if path == "/" {
            return invalid("a pattern cannot contain empty segments");
        }
        let ends_in_slash = path.ends_with('/');
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments = Vec::new();
        let mut tail = Tail::None;
        for text in path.split('/').filter(|_| !path.is_empty()) {
            if tail == Tail::NonEmpty {
                return invalid("{*rest} must be the last segment");
            }
            match parse_segment(text) {
                Ok(Some(segment)) => segments.push(segment),
                Ok(None) => tail = Tail::NonEmpty,
                Err(reason) => return invalid(reason),
            }
        }
        Ok(Self {
            segments: segments.into(),
            tail,
            ends_in_slash,
        })
    }

    fn matches_path(&self, path: &[u8]) -> Match {
        self.matches(path, &Spelling::of(path))
    }

    fn matches(&self, path: &[u8], spelling: &Spelling) -> Match {
        match spelling {
            Spelling::Segments(found) if self.segments.len() < MOST_SEGMENTS => {
                self.matches_segments(found.iter(), found.ends_in_slash())
            }
            Spelling::Plain | Spelling::Segments(_) => self.matches_plain(path),
            Spelling::Ambiguous(readings) => self.matches_readings(readings),
            Spelling::TooLong => Match::Ambiguous,
        }
    }

    /// Returns whether the pattern starts with the prefix of a nested router. Literals are not compared again, since the
    /// pattern matches the original path. A parameter in place of a literal is rather meant for the path after the prefix.
    #[cfg(feature = "axum")]
    fn starts_with(&self, prefix: &str) -> bool {
        let mut prefix = prefix.split('/').filter(|segment| !segment.is_empty());
        let mut own = self.segments.iter();
        prefix.all(|segment| match own.next() {
            Some(SegmentPattern::Any) => segment.starts_with('{'),
            Some(SegmentPattern::Literal(_)) => true,
            None => false,
        })
    }

    /// Compares a plain path in place: the usual case.
    fn matches_plain(&self, path: &[u8]) -> Match {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let (path, ends_in_slash) = match path.strip_suffix(b"/") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let found = path
            .split(|byte| *byte == b'/')
            .filter(|_| !path.is_empty());
        self.matches_segments(found, ends_in_slash)
    }

    /// Compares the segments of a single reading.
    fn matches_segments<'a>(
        &self,
        mut found: impl Iterator<Item = &'a [u8]>,
        ends_in_slash: bool,
    ) -> Match {
        let mut is_exact = self.tail != Tail::None || ends_in_slash == self.ends_in_slash;
        for segment in &self.segments {
            match (segment, found.next()) {
                (_, None) => return Match::Miss,
                (SegmentPattern::Any, Some(_)) => {}
                (SegmentPattern::Literal(text), Some(found)) if **text == *found => {}
                (SegmentPattern::Literal(text), Some(found)) if may_equal(found, text) => {
                    is_exact = false;
                }
                (SegmentPattern::Literal(_), Some(_)) => return Match::Miss,
            }
        }
        let is_complete = match self.tail {
            Tail::Any => true,
            Tail::NonEmpty => found.next().is_some(),
            Tail::None => found.next().is_none(),
        };
        if !is_complete {
            Match::Miss
        } else if is_exact {
            Match::Exact
        } else {
            Match::Ambiguous
        }
    }

    /// Compares all readings.
    fn matches_readings(&self, path: &Readings) -> Match {
        let fits = |number: usize, name: &[u8]| match &self.segments[number] {
            SegmentPattern::Any => true,
            SegmentPattern::Literal(text) => may_equal(name, text),
        };
        let fits_all = |number: usize| matches!(self.segments[number], SegmentPattern::Any);
        let size = (self.segments.len(), self.lengths());
        if path.any_fits(size, fits, fits_all) {
            Match::Ambiguous
        } else {
            Match::Miss
        }
    }

    /// Returns the numbers of segments that fit, as bits.
    fn lengths(&self) -> u128 {
        let length = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        match self.tail {
            Tail::Any => u128::MAX.checked_shl(length),
            Tail::NonEmpty => u128::MAX.checked_shl(length.saturating_add(1)),
            Tail::None => 1_u128.checked_shl(length),
        }
        .unwrap_or(0)
    }
}

/// Parses one segment of a pattern. `None` is `{*rest}`.
fn parse_segment(text: &str) -> Result<Option<SegmentPattern>, &'static str> {
    if text == "*" {
        return Ok(Some(SegmentPattern::Any));
    }
    let inside = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    if let Some(inside) = inside {
        let name = inside.strip_prefix('*').unwrap_or(inside);
        if name.is_empty() || name.contains(['{', '}', '*']) {
            return Err("write a parameter as {name} or {*name}");
        }
        return Ok((!inside.starts_with('*')).then_some(SegmentPattern::Any));
    }
    if text.starts_with(':') || text.starts_with('<') && text.ends_with('>') {
        return Err(
            "write a parameter as {name}, as in /users/{id}, and the rest of a path as {*name}; a literal : or < at the \
             start of a segment as %3A or %3C",
        );
    }
    if text == "**" {
        return Err("write the rest of a path as {*rest}, and a single segment as {name} or *");
    }
    if text.contains(['{', '}', '*']) {
        return Err("a parameter must be a whole segment: {name}, {*name} or *");
    }
    let mut literal = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, length)) = decode_once(rest) {
        literal.push(byte);
        rest = &rest[length..];
    }
    if text.is_empty() || literal == b"." || literal == b".." {
        return Err("a pattern cannot contain empty segments, . or ..");
    }
    let is_special = |byte: &u8| b"/\\;%?#".contains(byte) || byte.is_ascii_control();
    if literal.iter().any(is_special) {
        return Err(
            "a segment cannot contain an escaped slash, \\, ;, %, ?, # or a control character",
        );
    }
    if literal.iter().copied().all(is_dropped_at_end) {
        return Err("a segment cannot contain only dots and spaces");
    }
    Ok(Some(SegmentPattern::Literal(literal.into())))
}

fn invalid(pattern: &str, reason: &str) -> Error {
    let message = format!("path pattern {pattern:?}: {reason}");
    Error::new(ErrorKind::InvalidConfig, message)
}
