//! Parameter values of axum's matched route.
//!
//! axum keeps the values in an extension of a private type. They are found again by matching the route, which is public,
//! against the path:
//!
//! ```text
//! MatchedPath  /users/{id}/files/{*rest}
//! path         /users/7/files/a/b          id = 7, rest = a/b
//! ```

use std::borrow::Cow;

use crate::request::RequestHead;

use axum::extract::{MatchedPath, NestedPath, OriginalUri};

use super::{
    extracted::Extracted,
    param::{self, Plus},
};

/// Returns the decoded value of a parameter. It is ambiguous if the route has two of the name.
pub(super) fn parameter<'a>(head: &'a RequestHead<'a>, name: &str) -> Extracted<Cow<'a, [u8]>> {
    let Some(route) = head.extensions.get::<MatchedPath>() else {
        return Extracted::Absent;
    };
    // A nested router sees its own part of the path; only the original path has the prefix.
    let prefix = head
        .extensions
        .get::<NestedPath>()
        .map_or("", |nested| nested.as_str().trim_end_matches('/'));
    let Some(rest) = route.as_str().strip_prefix(prefix) else {
        return Extracted::Absent;
    };
    let original = head.extensions.get::<OriginalUri>();
    // A path that does not fit was rewritten on its way, so it has no parameters of this route.
    let find = |route, path| find(route, path, name).unwrap_or(Extracted::Absent);
    let in_prefix = original.map_or(Extracted::Absent, |uri| find(prefix, uri.path()));
    let raw = match (in_prefix, find(rest, head.uri.path())) {
        (value, Extracted::Absent) | (Extracted::Absent, value) => value,
        (Extracted::Ambiguous | Extracted::Found(_), _) => Extracted::Ambiguous,
    };
    raw.map(|raw| param::decode(raw.as_bytes(), Plus::Literal))
}

/// Finds the raw value of a parameter in a path. `None` if the path does not start with the route.
fn find<'a>(route: &str, path: &'a str, name: &str) -> Option<Extracted<&'a str>> {
    let mut rest = Some(path.strip_prefix('/')?);
    let mut found = Extracted::Absent;
    for segment in route.strip_prefix('/')?.split('/') {
        let tail = rest?;
        let (path_segment, after) = match tail.split_once('/') {
            Some((path_segment, after)) => (path_segment, Some(after)),
            None => (tail, None),
        };
        rest = after;
        let Some((literal, parameter)) = split_parameter(segment) else {
            if !strip_literal(path_segment, segment)?.is_empty() {
                return None;
            }
            continue;
        };
        let value = match parameter.strip_prefix('*') {
            Some(parameter) if parameter == name => tail,
            None if parameter == name => strip_literal(path_segment, literal)?,
            _ => continue,
        };
        found = match found {
            Extracted::Absent => Extracted::Found(value),
            Extracted::Ambiguous | Extracted::Found(_) => Extracted::Ambiguous,
        };
    }
    Some(found)
}

/// Splits a segment of the route into its literal and the parameter at its end. `None` without a parameter.
fn split_parameter(segment: &str) -> Option<(&str, &str)> {
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

/// Strips a literal of the route, in which braces are doubled. `None` if the path's segment does not start with it.
fn strip_literal<'a>(segment: &'a str, literal: &str) -> Option<&'a str> {
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
