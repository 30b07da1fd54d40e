//! Keys from any bytes: never empty, long or with a brace, never those of somebody else, and one whole hash tag each.
//!
//! Also what finds keys in requests, fed with the same bytes: it must not panic.

#![no_main]

use std::sync::LazyLock;

use http::{HeaderValue, Request, header, request::Parts};
use libfuzzer_sys::fuzz_target;
use tollgate::{
    Key, Policy, Quota,
    extract::{ApiKey, Cookie, Extracted, HashSecret, HostHeader, KeyExtractor, QueryParam},
    remote::fuzzing,
};

fuzz_target!(|data: &[u8]| {
    let Some((control, data)) = data.split_first_chunk::<4>() else {
        return;
    };
    let cut = usize::from(control[0]) % (data.len() + 1);
    let (first, second) = data.split_at(cut);
    // One question at a time: hashing is what takes long.
    match control[1] % 4 {
        0 => identities(first, second),
        1 => compositions([control[2], control[3]], [first, second]),
        2 => places(
            [made(control[2], first), made(control[2] / 16, second)],
            control[3],
        ),
        _ => requests(data),
    }
});

/// Two identities give one key exactly when they are the same bytes.
fn identities(first: &[u8], second: &[u8]) {
    let keys = [first, second].map(Key::new);
    keys.iter().for_each(check);
    assert_eq!(keys[0] == keys[1], first == second);
    let secrets = [first, second].map(Key::secret);
    secrets.iter().for_each(check);
    assert_eq!(secrets[0] == secrets[1], first == second);
    assert!(!secrets.contains(&keys[0]) && !secrets.contains(&keys[1]));
    for marker in [Key::GLOBAL, Key::UNIDENTIFIED] {
        assert!(!keys.contains(&marker) && !secrets.contains(&marker));
    }
    // What a key looks like is another key, unless it stands for itself.
    let look = Key::new(keys[0].as_bytes());
    assert_eq!(look == keys[0], keys[0].as_bytes() == first);
}

/// Keys of two kinds, or of two identities, joined and labelled in every order.
fn compositions(ways: [u8; 2], identities: [&[u8]; 2]) {
    let ways = ways.map(|way| way % WAYS);
    let keys = [0, 1].map(|side| made(ways[side], identities[side]));
    let [first, second] = keys;
    let is_same = ways[0] == ways[1] && (identities[0] == identities[1] || ways[0] == 2);
    assert_eq!(first == second, is_same);
    let both = [first.and(&second), second.and(&first)];
    both.iter().for_each(check);
    assert_eq!(both[0] == both[1], is_same);
    let labelled = [first.labelled(second), second.labelled(first)];
    labelled.iter().for_each(check);
    assert_eq!(labelled[0] == labelled[1], is_same);
    for key in both.iter().chain(&labelled) {
        assert!(!keys.contains(key));
    }
    assert!(!both.contains(&labelled[0]) && !both.contains(&labelled[1]));
    assert_eq!(first.and(&first) == second.and(&second), is_same);
}

/// Where counts lie in Redis.
fn places(keys: [Key; 2], choice: u8) {
    let policies = &*POLICIES;
    let chosen = [usize::from(choice) % 8, usize::from(choice / 8) % 8];
    let prefix = PREFIXES[usize::from(choice / 64)];
    let [first, second] = [0, 1].map(|side| {
        fuzzing::redis_keys(prefix, &policies[chosen[side]], keys[side]).expect("a usable prefix")
    });
    let names = chosen.map(|policy| policies[policy].name());
    for (places, (key, name)) in [&first, &second].into_iter().zip(keys.iter().zip(names)) {
        // The first is the present one, which is among the five that there may have been.
        assert_eq!(places.len(), 6);
        assert_eq!(
            places[1..]
                .iter()
                .filter(|place| **place == places[0])
                .count(),
            1
        );
        for place in places {
            assert_eq!(
                place
                    .iter()
                    .filter(|byte| matches!(byte, b'{' | b'}'))
                    .count(),
                2
            );
            let rest = place.strip_prefix(prefix.as_bytes()).expect("the prefix");
            let rest = rest.strip_prefix(b":{").expect("a tag begins");
            let rest = rest.strip_prefix(key.as_bytes()).expect("the identity");
            let rest = rest.strip_prefix(b"}:").expect("the tag ends");
            assert_eq!(
                rest.split(|byte| *byte == b'#').next(),
                Some(name.as_bytes())
            );
        }
    }
    let is_same = keys[0] == keys[1] && names[0] == names[1];
    let shares = first[1..].iter().any(|place| second[1..].contains(place));
    assert_eq!(shares, is_same);
}

/// What clients write.
fn requests(data: &[u8]) {
    let mut parts = Request::new(()).into_parts().0;
    if let Ok(value) = HeaderValue::from_bytes(data) {
        parts.headers.append(header::COOKIE, value.clone());
        parts.headers.append(header::HOST, value.clone());
        parts.headers.append(header::AUTHORIZATION, value);
    }
    let uri = [b"http://", data].concat();
    if let Ok(uri) = uri.as_slice().try_into() {
        parts.uri = uri;
    }
    let extractors: [&dyn KeyExtractor; 6] = [
        &*COOKIE,
        &*CLEAR,
        &*QUERY,
        &HostHeader,
        &*TOKEN,
        &|parts: &Parts| parts.uri.host().map(Key::from),
    ];
    for extractor in extractors {
        if let Extracted::Found(key) = extractor.extract(&parts) {
            check(&key);
        }
    }
}

fn made(way: u8, identity: &[u8]) -> Key {
    match way % WAYS {
        0 => Key::new(identity),
        1 => Key::secret(identity),
        2 => Key::GLOBAL,
        3 => Key::secret_with(&HashSecret::new([1; 32]), identity),
        _ => Key::new("user").and(&Key::new(identity)).labelled("label"),
    }
}

fn check(key: &Key) {
    let text = key.as_str();
    assert!((1..=Key::MAX_LENGTH).contains(&text.len()));
    assert!(
        text.bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'{' && byte != b'}')
    );
}

const WAYS: u8 = 5;
const PREFIXES: [&str; 4] = ["t", "t:", "a#b:c|d!e%", "tollgate"];
static COOKIE: LazyLock<Cookie> = LazyLock::new(|| Cookie::new("a"));
static CLEAR: LazyLock<Cookie> = LazyLock::new(|| Cookie::new("b").plaintext());
static QUERY: LazyLock<QueryParam> = LazyLock::new(|| QueryParam::new("a"));
static TOKEN: LazyLock<ApiKey> = LazyLock::new(ApiKey::bearer);
/// Names that begin alike, and one pair that is the same.
static POLICIES: LazyLock<[Policy; 8]> = LazyLock::new(|| {
    ["a", "a.", "a-f", "a_f", "af", "f", "-", "a"].map(|name| Policy::new(name, Quota::per_hour(9)))
});
