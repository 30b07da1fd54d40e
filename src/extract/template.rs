//! A route laid over the path that it matched.
//!
//! axum keeps the parameters' values in an extension of a private type: they are found again from what is public.

use std::borrow::Cow;

use axum::extract::{MatchedPath, NestedPath, OriginalUri};
use http::request::Parts;

use super::{
    extracted::Extracted,
    percent::{self, Plus},
};

/// The decoded value of a parameter. One that the route has twice is ambiguous.
pub(super) fn value<'a>(parts: &'a Parts, name: &str) -> Extracted<Cow<'a, [u8]>> {
    let Some(route) = parts.extensions.get::<MatchedPath>() else {
        return Extracted::Absent;
    };
    // A nested router sees its own part of the path; the prefix stands only in the original.
    let prefix = parts
        .extensions
        .get::<NestedPath>()
        .map_or("", |nested| nested.as_str().trim_end_matches('/'));
    let Some(rest) = route.as_str().strip_prefix(prefix) else {
        return Extracted::Absent;
    };
    let original = parts.extensions.get::<OriginalUri>();
    let in_prefix = original.map_or(Extracted::Absent, |uri| find(prefix, uri.path(), name));
    let raw = match (in_prefix, find(rest, parts.uri.path(), name)) {
        (only, Extracted::Absent) | (Extracted::Absent, only) => only,
        (Extracted::Ambiguous | Extracted::Found(_), _) => Extracted::Ambiguous,
    };
    raw.map(|raw| percent::decoded(raw.as_bytes(), Plus::Itself))
}

/// Looks for a parameter of a route, or of its beginning, in a path that it matches.
fn find<'a>(route: &str, path: &'a str, name: &str) -> Extracted<&'a str> {
    // A path that does not fit was rewritten on its way, and is not taken for another.
    fitted(route, path, name).unwrap_or(Extracted::Absent)
}

fn fitted<'a>(route: &str, path: &'a str, name: &str) -> Option<Extracted<&'a str>> {
    let mut rest = Some(path.strip_prefix('/')?);
    let mut found = Extracted::Absent;
    for segment in route.strip_prefix('/')?.split('/') {
        let tail = rest?;
        let (own, behind) = match tail.split_once('/') {
            Some((own, behind)) => (own, Some(behind)),
            None => (tail, None),
        };
        rest = behind;
        let Some((literal, parameter)) = parameter(segment) else {
            if !after_literal(own, segment)?.is_empty() {
                return None;
            }
            continue;
        };
        let value = match parameter.strip_prefix('*') {
            Some(parameter) if parameter == name => tail,
            None if parameter == name => after_literal(own, literal)?,
            _ => continue,
        };
        found = match found {
            Extracted::Absent => Extracted::Found(value),
            Extracted::Ambiguous | Extracted::Found(_) => Extracted::Ambiguous,
        };
    }
    Some(found)
}

/// What stands before the parameter of a segment, and the parameter: one at most, at its end.
fn parameter(segment: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    loop {
        let brace = from + segment[from..].find('{')?;
        if !segment[brace + 1..].starts_with('{') {
            let inside = segment[brace + 1..].strip_suffix('}')?;
            return Some((&segment[..brace], inside));
        }
        from = brace + 2;
    }
}

/// What follows the literal, in which a brace is written twice. `None` when the segment does not begin with it.
fn after_literal<'a>(segment: &'a str, literal: &str) -> Option<&'a str> {
    if !literal.contains(['{', '}']) {
        return segment.strip_prefix(literal);
    }
    let mut rest = segment;
    let mut characters = literal.chars();
    while let Some(character) = characters.next() {
        if matches!(character, '{' | '}') {
            characters.next();
        }
        rest = rest.strip_prefix(character)?;
    }
    Some(rest)
}
