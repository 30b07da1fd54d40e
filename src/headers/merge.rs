//! Merges the headers of this layer with those of an inner layer or of the inner service itself.
//!
//! Limit, remaining and reset describe one policy, so such a set is written as a whole or not at all. `RateLimit` and
//! `RateLimit-Policy` are lists in which each member has a name, so members are added to those of the response.
//!
//! # Why do headers of the inner service stay?
//!
//! A handler that reports its own quota understands its own numbers, and two numbers under one name are worse than either. An
//! upstream's limit beside our reset describes nothing, so if the response has a part of such a set, the layer adds none.
//!
//! Another layer of tollgate inside leaves a note about its headers in the extensions of the response, but only if the request
//! contains the decision of an outer layer. Both policies limit the client, so the response has the numbers of the narrower one.
//! A list of draft 11 has the policies of all layers and of an upstream, each name once, on one line, because some clients read
//! only the first line.

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};

// === WrittenSets ===

/// Sets that inner layers have written. They are in the extensions of a response, for the layers around them.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenSets {
    sets: Vec<WrittenSet>,
}

#[derive(Clone, Debug)]
struct WrittenSet {
    names: Box<[HeaderName]>,
    /// Headroom of the policy that the set describes; 0 if it denies.
    headroom: u128,
}

/// Result of claiming a set of headers for this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetClaim {
    /// This layer may write the set: the response has none of its headers.
    Free,
    /// An inner layer has written the set for a policy with as little headroom, or less.
    Narrower,
    /// The inner service has set some of the headers.
    Taken,
}

impl WrittenSets {
    /// Returns whether this layer may write a set. Removes an inner layer's set if its policy has more headroom.
    pub fn claim(
        &mut self,
        names: &[HeaderName],
        headroom: u128,
        headers: &mut HeaderMap,
    ) -> SetClaim {
        if !has_any(headers, names) {
            return SetClaim::Free;
        }
        let overlaps = |set: &WrittenSet| set.names.iter().any(|name| names.contains(name));
        let inner = || self.sets.iter().filter(|set| overlaps(set));
        let is_inner = |name: &HeaderName| inner().any(|set| set.names.contains(name));
        let mut present = names.iter().filter(|name| headers.contains_key(*name));
        if !present.all(is_inner) {
            return SetClaim::Taken;
        }
        if inner().any(|set| set.headroom <= headroom) {
            return SetClaim::Narrower;
        }
        self.sets.retain(|set| {
            let is_wider = overlaps(set);
            if is_wider {
                set.names.iter().for_each(|name| drop(headers.remove(name)));
            }
            !is_wider
        });
        SetClaim::Free
    }

    /// Records a set that this layer has written.
    pub fn record(&mut self, names: &[HeaderName], headroom: u128) {
        let names = names.into();
        self.sets.push(WrittenSet { names, headroom });
    }

    /// Puts the sets into a response's extensions.
    pub fn put(self, extensions: &mut Extensions) {
        if !self.sets.is_empty() {
            extensions.insert(self);
        }
    }
}

/// Whether a response has one of these headers.
// A walk over all names: responses have few, so that hashing ours would take longer.
pub(super) fn has_any(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    headers.keys().any(|name| names.contains(name))
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

/// Adds members to a field, and joins its lines, since some clients read only the first one.
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

/// Returns the names and texts of the members of a list of Strings with parameters (RFC 9651, section 3.1). `None` for any
/// other value.
fn named_members(line: &str) -> Option<Vec<(&str, &str)>> {
    let mut members = Vec::new();
    let mut rest = line.trim();
    loop {
        let name = leading_string(rest)?;
        let mut end = name.len();
        while !matches!(rest.as_bytes().get(end), None | Some(b',')) {
            end += match rest.as_bytes()[end] {
                b'"' => leading_string(&rest[end..])?.len(),
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

/// Returns the String at the start of a text, in its quotation marks.
fn leading_string(text: &str) -> Option<&str> {
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
    fn members_are_split_at_commas_outside_of_strings() {
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
    fn anything_else_is_not_a_list_of_strings() {
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
