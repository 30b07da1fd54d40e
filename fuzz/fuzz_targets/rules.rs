//! Which requests a rule counts: whatever a client writes, matching neither panics nor differs from the model.

#![no_main]

use std::sync::LazyLock;

use http::{Request, request::Parts, uri::PathAndQuery};
use libfuzzer_sys::fuzz_target;
use tollgate::matching::{Match, Matcher, PathPattern, RequestHead};

use self::paths::{Pattern, Written};

#[path = "../models/paths.rs"]
mod paths;

fuzz_target!(|data: &[u8]| {
    let [choice, rest @ ..] = data else { return };
    let own = rest.iter().position(|byte| *byte == b'\n');
    match own.filter(|_| choice & 1 == 1) {
        Some(end) => pattern_of_ones_own(*choice, &rest[..end], &rest[end + 1..]),
        None => known_patterns(*choice, rest),
    }
});

/// Any pattern: it is refused, or it compares as the model says.
fn pattern_of_ones_own(choice: u8, pattern: &[u8], path: &[u8]) {
    let (Ok(pattern), Some(parts)) = (std::str::from_utf8(pattern), head(choice, path)) else {
        return;
    };
    let is_prefix = choice & 2 == 2;
    let matcher = if is_prefix {
        PathPattern::prefix(pattern)
    } else {
        PathPattern::new(pattern)
    };
    let likeness = matcher.matches(&RequestHead::new(&parts));
    if matcher.validate().is_ok() {
        let Some(written) = Written::new(parts.uri.path()) else {
            return;
        };
        let expected = Pattern::new(pattern, is_prefix).likeness(&written);
        assert_eq!(number(likeness), expected, "{pattern}");
    }
}

/// Patterns as rules have them, alone and combined.
fn known_patterns(choice: u8, path: &[u8]) {
    let Some(parts) = head(choice, path) else {
        return;
    };
    let Some(written) = Written::new(parts.uri.path()) else {
        return;
    };
    let expected = MODELS.each_ref().map(|model| model.likeness(&written));
    for (matcher, expected) in MATCHERS.iter().zip(expected) {
        assert_eq!(number(matcher.matches(&RequestHead::new(&parts))), expected);
    }
    let [login, user, ..] = expected;
    assert_eq!(number(BOTH.matches(&RequestHead::new(&parts))), login.min(2 - user));
    assert_eq!(number(EITHER.matches(&RequestHead::new(&parts))), (2 - login).max(user));
}

/// A head with this path. Half of the choices write it in the letters that matter.
fn head(choice: u8, path: &[u8]) -> Option<Parts> {
    let letter = |byte: &u8| ALPHABET[usize::from(*byte) % ALPHABET.len()];
    let path: Vec<u8> = match choice & 4 {
        0 => path.iter().map(letter).collect(),
        _ => path.to_vec(),
    };
    let path = PathAndQuery::try_from([b"/", &path[..]].concat()).ok()?;
    let mut request = Request::new(());
    *request.uri_mut() = path.into();
    Some(request.into_parts().0)
}

fn number(likeness: Match) -> u8 {
    match likeness {
        Match::Miss => 0,
        Match::Ambiguous => 1,
        Match::Exact => 2,
        _ => unreachable!("there are three"),
    }
}

const ALPHABET: &[u8; 32] = b"//..%%%%22555fFcC;\\LloginIuser06";

const KNOWN: [(&str, bool); 6] = [
    ("/login", false),
    ("/users/{id}", false),
    ("/login", true),
    ("/users/*/login/", false),
    ("/g/{*rest}", false),
    ("/", false),
];

static MATCHERS: LazyLock<[PathPattern; 6]> = LazyLock::new(|| {
    KNOWN.map(|(pattern, is_prefix)| {
        if is_prefix {
            PathPattern::prefix(pattern)
        } else {
            PathPattern::new(pattern)
        }
    })
});
static MODELS: LazyLock<[Pattern; 6]> =
    LazyLock::new(|| KNOWN.map(|(pattern, is_prefix)| Pattern::new(pattern, is_prefix)));
static BOTH: LazyLock<Box<dyn Matcher>> = LazyLock::new(|| {
    Box::new(PathPattern::new("/login").and(PathPattern::new("/users/{id}").not()))
});
static EITHER: LazyLock<Box<dyn Matcher>> = LazyLock::new(|| {
    Box::new(
        PathPattern::new("/login")
            .not()
            .or(PathPattern::new("/users/{id}")),
    )
});
