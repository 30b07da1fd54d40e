//! Merges the headers of this layer with those of an inner layer or of the inner service itself.
//!
//! Limit, remaining and reset describe one policy, so such a set is written as a whole or not at all. `RateLimit` and
//! `RateLimit-Policy` are lists in which each member has a name, so members are added to those of the response.

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use smallvec::SmallVec;

/// The names of a set of headers.
pub(super) type Names = SmallVec<[HeaderName; 5]>;

// === Written ===

/// The sets that inner layers have written. It is in the extensions of a response, for the layers around them.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    sets: Vec<Set>,
}

#[derive(Clone, Debug)]
struct Set {
    names: Names,
    /// [`PolicyState::room`](crate::state::PolicyState) of the policy that it describes; 0 if that denies.
    room: u128,
}

/// Whether a layer may write a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The response has none of its headers.
    Free,
    /// An inner layer has written it for a policy that has as little room, or less.
    Narrower,
    /// The inner service has set some of its headers.
    Taken,
}

impl Written {
    /// Returns whether a set may be written. Removes an inner layer's set if its policy has more room.
    pub(super) fn place(&mut self, names: &Names, room: u128, headers: &mut HeaderMap) -> Place {
        if !names.iter().any(|name| headers.contains_key(name)) {
            return Place::Free;
        }
        let overlaps = |set: &Set| set.names.iter().any(|name| names.contains(name));
        let inner = || self.sets.iter().filter(|set| overlaps(set));
        let is_inner = |name: &HeaderName| inner().any(|set| set.names.contains(name));
        let mut present = names.iter().filter(|name| headers.contains_key(*name));
        if !present.all(is_inner) {
            return Place::Taken;
        }
        if inner().any(|set| set.room <= room) {
            return Place::Narrower;
        }
        self.sets.retain(|set| {
            let is_wider = overlaps(set);
            if is_wider {
                set.names.iter().for_each(|name| drop(headers.remove(name)));
            }
            !is_wider
        });
        Place::Free
    }

    /// Notes a set that this layer has written.
    pub(super) fn note(&mut self, names: Names, room: u128) {
        self.sets.push(Set { names, room });
    }
}

// === Lists ===

/// Adds members to `RateLimit-Policy` and `RateLimit` of draft 11.
///
/// A member whose name is in one of the lists is added to neither. Nothing is added to a list of another format. A member's `t`
/// is omitted if it ends after `Retry-After`, which takes precedence.
pub(super) fn add_named<const N: usize>(
    headers: &mut HeaderMap,
    ours: [(HeaderName, Option<HeaderValue>); N],
) {
    let is_there = |(field, _): &(HeaderName, _)| headers.contains_key(field);
    if ours.iter().any(is_there) || headers.contains_key(RETRY_AFTER) {
        merge_named(headers, &ours);
        return;
    }
    for (field, value) in ours {
        if let Some(value) = value {
            headers.insert(field, value);
        }
    }
}

#[cold]
fn merge_named(headers: &mut HeaderMap, ours: &[(HeaderName, Option<HeaderValue>)]) -> Option<()> {
    let mut names = Vec::new();
    for (field, _) in ours {
        for line in headers.get_all(field) {
            let members = named_members(line.to_str().ok()?)?;
            names.extend(members.into_iter().map(|(name, _)| name.to_owned()));
        }
    }
    let latest = headers.get(RETRY_AFTER);
    let latest = latest.and_then(|value| value.to_str().ok()?.parse().ok());
    for (field, value) in ours {
        let Some(value) = value else { continue };
        let members = named_members(value.to_str().ok()?)?.into_iter();
        let new = members.filter(|(name, _)| !names.iter().any(|known| known == name));
        add(headers, field, new.map(|(_, text)| timely(text, latest)));
    }
    Some(())
}

/// Adds members to `RateLimit-Policy` of draft 6, whose members have no names. Nothing is added to a list of another format.
pub(super) fn add_unnamed(headers: &mut HeaderMap, field: HeaderName, ours: HeaderValue) {
    if headers.contains_key(&field) {
        merge_unnamed(headers, &field, &ours);
    } else {
        headers.insert(field, ours);
    }
}

#[cold]
fn merge_unnamed(headers: &mut HeaderMap, field: &HeaderName, ours: &HeaderValue) -> Option<()> {
    let mut known = Vec::new();
    for line in headers.get_all(field) {
        for member in line.to_str().ok()?.split(',').map(str::trim) {
            let is_number = member.starts_with(|first: char| first.is_ascii_digit());
            is_number.then(|| known.push(member.to_owned()))?;
        }
    }
    let members = ours.to_str().ok()?.split(',').map(str::trim);
    let new = members.filter(|member| !known.iter().any(|known| known == member));
    add(headers, field, new);
    Some(())
}

/// Adds members to a field, and joins its lines: some clients read only the first.
fn add<'a>(headers: &mut HeaderMap, field: &HeaderName, members: impl Iterator<Item = &'a str>) {
    let lines = headers.get_all(field).iter().map(HeaderValue::as_bytes);
    let mut value: Vec<u8> = lines.collect::<Vec<_>>().join(&b", "[..]);
    for member in members {
        if !value.is_empty() {
            value.extend_from_slice(b", ");
        }
        value.extend_from_slice(member.as_bytes());
    }
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(value))
        && !value.is_empty()
    {
        headers.insert(field.clone(), value);
    }
}

/// Returns the member, without its `t` if that ends after the time to retry.
fn timely(member: &str, latest: Option<u64>) -> &str {
    match (member.rsplit_once(";t="), latest) {
        (Some((rest, seconds)), Some(latest))
            if seconds.parse::<u64>().is_ok_and(|seconds| seconds > latest) =>
        {
            rest
        }
        _ => member,
    }
}

/// Returns the names and texts of the members of a structured list of Strings with parameters. `None` for any other value.
fn named_members(line: &str) -> Option<Vec<(&str, &str)>> {
    let mut members = Vec::new();
    let mut rest = line.trim();
    loop {
        let name = string(rest)?;
        let mut end = name.len();
        while !matches!(rest.as_bytes().get(end), None | Some(b',')) {
            end += match rest.as_bytes()[end] {
                b'"' => string(&rest[end..])?.len(),
                _ => 1,
            };
        }
        members.push((name, rest.get(..end)?.trim_end()));
        let Some(following) = rest.get(end + 1..) else {
            return Some(members);
        };
        rest = following.trim_start();
    }
}

/// Returns the String that a text begins with, in its quotation marks.
fn string(text: &str) -> Option<&str> {
    let inside = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inside.find(|character| match character {
        '"' if !is_escaped => true,
        character => {
            is_escaped = character == '\\' && !is_escaped;
            false
        }
    })?;
    text.get(..end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_parted_at_commas_outside_of_strings() {
        let found = named_members(r#""a";q=1;w=2, "b,\"c";pk=:dGVzdA==: ,"d";x="e, f""#);
        let found = found.expect("it is a list");
        let expected = [
            (r#""a""#, r#""a";q=1;w=2"#),
            (r#""b,\"c""#, r#""b,\"c";pk=:dGVzdA==:"#),
            (r#""d""#, r#""d";x="e, f""#),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn anything_else_is_no_list_of_strings() {
        for line in [
            "",
            "100;w=60",
            "limit=100, remaining=5, reset=7",
            r#""open"#,
            r#""a";x="open"#,
            r#""a", "#,
            r#""a", b"#,
            r#"("a" "b")"#,
        ] {
            assert_eq!(named_members(line), None, "{line}");
        }
    }
}
