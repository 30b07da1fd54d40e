//! Keys made of other keys, and from what other layers left: nobody passes for somebody else.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{HeaderValue, Request, StatusCode, request::Parts};
use proptest::{collection::vec, prelude::*};
use tollgate::{
    Key, RequestHead,
    extract::{
        ApiKey, CallerId, Claim, ClientIp, Cookie, ExtensionKey, Extracted, Global, HashSecret,
        Header, HostHeader, KeyExtractor, PeerIp, Route,
    },
};

#[derive(Clone, Debug)]
struct Claims {
    sub: String,
    org: Option<String>,
}

/// As `jsonwebtoken` wraps them.
#[derive(Clone)]
struct TokenData<T> {
    claims: T,
}

// === Claim, Extension ===

#[test]
fn claim_is_read_from_the_verified_token() {
    let by_user = Claim::new("sub", |claims: &Claims| Key::new(&claims.sub));
    let by_org = Claim::new("org", |claims: &Claims| claims.org.as_deref().map(Key::new));
    let member = with(claims("ada", Some("acme")));
    assert_eq!(
        by_user.extract(&RequestHead::from(&member)).found(),
        Some(Key::new("ada"))
    );
    assert_eq!(
        by_org.extract(&RequestHead::from(&member)).found(),
        Some(Key::new("acme"))
    );
    let loner = with(claims("ada", None));
    assert_eq!(
        by_user.extract(&RequestHead::from(&loner)).found(),
        Some(Key::new("ada"))
    );
    assert_eq!(by_org.extract(&RequestHead::from(&loner)).found(), None);
    let wrapped = Claim::new("sub", |token: &TokenData<Claims>| {
        Key::new(&token.claims.sub)
    });
    let token = TokenData {
        claims: claims("ada", None),
    };
    assert_eq!(
        wrapped.extract(&RequestHead::from(&with(token))).found(),
        Some(Key::new("ada"))
    );
}

#[test]
fn claim_is_never_read_from_an_unverified_token() {
    let by_user = Claim::new("sub", |claims: &Claims| Key::new(&claims.sub));
    let mut head = nothing();
    // {"alg":"none"}.{"sub":"ada"}.
    let unsigned = HeaderValue::from_static("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.");
    head.headers.insert("authorization", unsigned);
    assert_eq!(by_user.extract(&RequestHead::from(&head)).found(), None);
    assert_eq!(by_user.label(), "sub");
    assert_eq!(
        by_user.missing_status(&RequestHead::from(&nothing())),
        StatusCode::UNAUTHORIZED
    );
}

#[test]
fn claims_of_any_content_have_distinct_keys() {
    let by_user = Claim::new("sub", |claims: &Claims| Key::new(&claims.sub));
    let huge = "a".repeat(100_000);
    let keys: Vec<Key> = ["", "a", "{a}", "a|b", "é", "\0", &huge]
        .map(|sub| {
            by_user
                .extract(&RequestHead::from(&with(claims(sub, None))))
                .found()
        })
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(keys.len(), 7);
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "{}", key.as_str());
    }
}

#[test]
fn extension_may_have_no_key_for_a_request() {
    let by_org = ExtensionKey::new(|claims: &Claims| claims.org.as_deref().map(Key::new));
    assert_eq!(
        by_org
            .extract(&RequestHead::from(&with(claims("ada", None))))
            .found(),
        None
    );
    assert_eq!(
        by_org
            .extract(&RequestHead::from(&with(claims("ada", Some("acme")))))
            .found(),
        Some(Key::new("acme"))
    );
    assert_eq!(
        by_org.missing_status(&RequestHead::from(&nothing())),
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[test]
fn key_in_the_slot_of_another_is_its_own_without_the_other_one() {
    let (tenant, user) = (Header::new("x-tenant"), Header::new("x-user"));
    let placed = user.clone().co_located_with(tenant);
    let request = |headers: &[(&'static str, &'static str)]| {
        let mut head = nothing();
        for (name, value) in headers {
            head.headers.insert(*name, HeaderValue::from_static(value));
        }
        placed.extract(&RequestHead::from(&head)).found()
    };
    let ada = Key::new("ada");
    let expected = ada.co_located_with(&Key::new("acme"));
    assert_ne!(expected, ada);
    assert_eq!(
        request(&[("x-user", "ada"), ("x-tenant", "acme")]),
        Some(expected)
    );
    assert_eq!(request(&[("x-user", "ada")]), Some(ada));
    assert_eq!(request(&[("x-tenant", "acme")]), None);
    assert_eq!(placed.label(), user.label());
    assert_eq!(
        placed.missing_status(&RequestHead::from(&nothing())),
        user.missing_status(&RequestHead::from(&nothing()))
    );
}

#[test]
fn debug_of_claims_and_changes_shows_types_and_no_keys() {
    let claim = Claim::new("sub", |claims: &Claims| Key::new(&claims.sub));
    let shown = format!("{claim:?}");
    assert!(shown.ends_with("Claims>(sub)"), "{shown}");
    let copy = claim;
    assert_eq!(copy.label(), claim.clone().label());
    let secret = Key::new("ada");
    let changed = PeerIp.map(move |_| secret).and_then(Some);
    assert_eq!(format!("{changed:?}"), "AndThen(Map(PeerIp))");
}

// === Map, AndThen ===

#[test]
fn changed_keys_keep_their_label_and_status() {
    let claim = Claim::new("sub", |claims: &Claims| Key::new(&claims.sub));
    let hashed = claim.map(|key| Key::secret(key.as_bytes()));
    let head = with(claims("ada", None));
    assert_eq!(
        hashed.extract(&RequestHead::from(&head)).found(),
        Some(Key::secret("ada"))
    );
    assert_eq!(hashed.extract(&RequestHead::from(&nothing())).found(), None);
    assert_eq!(hashed.label(), "sub");
    assert_eq!(
        hashed.missing_status(&RequestHead::from(&nothing())),
        StatusCode::UNAUTHORIZED
    );
    let staff = claim.and_then(|key| (key != Key::new("ada")).then_some(key));
    assert_eq!(staff.extract(&RequestHead::from(&head)).found(), None);
    assert_eq!(
        staff
            .extract(&RequestHead::from(&with(claims("bob", None))))
            .found(),
        Some(Key::new("bob"))
    );
    assert_eq!(staff.label(), "sub");
    assert_eq!(
        staff.missing_status(&RequestHead::from(&nothing())),
        StatusCode::UNAUTHORIZED
    );
}

/// Never has a key, and counts how often it is asked for its status.
struct Missing(Arc<AtomicUsize>);

impl KeyExtractor for Missing {
    fn extract(&self, _: &RequestHead) -> Extracted<Key> {
        Extracted::Absent
    }

    fn label(&self) -> &str {
        "missing"
    }

    fn missing_status(&self, _: &RequestHead) -> StatusCode {
        self.0.fetch_add(1, Ordering::Relaxed);
        StatusCode::UNAUTHORIZED
    }
}

#[test]
fn work_for_a_request_without_any_of_several_keys_does_not_double_with_each_of_them() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut joined: Arc<dyn KeyExtractor> = Arc::new(Missing(Arc::clone(&asked)));
    for _ in 0..15 {
        joined = Arc::new(joined.and(Missing(Arc::clone(&asked))));
    }
    assert_eq!(
        joined.missing_status(&RequestHead::from(&nothing())),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(asked.swap(0, Ordering::Relaxed), 16, "each key once");
    assert_eq!(
        joined.missing_label(&RequestHead::from(&nothing())),
        "missing"
    );
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked < 16 * 16, "{asked}");
}

#[test]
fn changes_apply_to_closures_and_to_extractors_in_a_box() {
    let closure = |head: &RequestHead| head.headers.get("x-a").map(Key::new);
    let grouped = closure.map(|key| Key::new(&key.as_bytes()[..1]));
    let head = headers(&[("x-a", "abc")]);
    assert_eq!(
        grouped.extract(&RequestHead::from(&head)).found(),
        Some(Key::new("a"))
    );
    let boxed: Box<dyn KeyExtractor> = Box::new(grouped);
    let nobody = boxed.and_then(|_| None).or_else(Header::new("x-a"));
    assert!(nobody.extract(&RequestHead::from(&head)).found().is_some());
}

// === OrElse ===

// Regression: a chain behind a closure bore the label of the chain around it, so their second choices shared keys.
#[test]
fn second_choices_are_apart_from_those_that_a_closure_has_hidden() {
    let hidden = closure("x-a").or_else(closure("x-b"));
    let chain = (move |head: &RequestHead| hidden.extract(head)).or_else(closure("x-c"));
    assert_eq!(chain.label(), "closure-or-closure");
    for value in ["1", &"long".repeat(20), &"as-long-as-it-fits".repeat(2)] {
        apart(&[
            chain
                .extract(&RequestHead::from(&headers(&[("x-a", value)])))
                .found(),
            chain
                .extract(&RequestHead::from(&headers(&[("x-b", value)])))
                .found(),
            chain
                .extract(&RequestHead::from(&headers(&[("x-c", value)])))
                .found(),
        ]);
    }
}

#[test]
fn second_choices_are_apart_from_keys_that_a_map_has_labelled_alike() {
    let first = Header::new("x-a").map(|key| key.labelled("x-a-or-x-b"));
    let chain = first.or_else(Header::new("x-b"));
    for value in ["1", &"long".repeat(20)] {
        apart(&[
            chain
                .extract(&RequestHead::from(&headers(&[("x-a", value)])))
                .found(),
            chain
                .extract(&RequestHead::from(&headers(&[("x-b", value)])))
                .found(),
        ]);
    }
}

#[test]
fn first_choices_can_be_read_as_what_they_are() {
    let chain = Header::new("x-a").or_else(PeerIp);
    let key = chain
        .extract(&RequestHead::from(&headers(&[("x-a", "ada@example.org")])))
        .found();
    assert_eq!(key, Some(Key::new("ada@example.org")));
    let joined = Header::new("x-a").and(Header::new("x-b")).or_else(PeerIp);
    let key = joined
        .extract(&RequestHead::from(&headers(&[("x-a", "1"), ("x-b", "2")])))
        .found();
    assert_eq!(key.expect("both are there").as_str(), "1|2");
}

// === Compositions ===

/// How extractors are put together; a letter is a header.
#[derive(Clone, Debug)]
enum Shape {
    Leaf(char),
    And(Box<Shape>, Box<Shape>),
    OrElse(Box<Shape>, Box<Shape>),
    /// Behind a closure, which hides the label.
    Hidden(Box<Shape>),
    /// Changed by a closure that tells all keys apart.
    Mapped(Box<Shape>),
}

/// What a composition found: which headers, in which alternatives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Found {
    Value(String),
    Both(Box<Found>, Box<Found>),
    First(Box<Found>),
    Second(Box<Found>),
}

impl Shape {
    fn extractor(&self) -> Box<dyn KeyExtractor> {
        match self {
            Self::Leaf(letter) => Box::new(Header::from(name(*letter))),
            Self::And(first, second) => Box::new(first.extractor().and(second.extractor())),
            Self::OrElse(first, second) => Box::new(first.extractor().or_else(second.extractor())),
            Self::Hidden(inner) => {
                let inner = inner.extractor();
                Box::new(move |head: &RequestHead| inner.extract(head))
            }
            Self::Mapped(inner) => Box::new(inner.extractor().map(|key| key.labelled("mapped"))),
        }
    }

    fn find(&self, values: &HashMap<char, String>) -> Option<Found> {
        Some(match self {
            Self::Leaf(letter) => Found::Value(values.get(letter)?.clone()),
            Self::And(first, second) => Found::Both(
                Box::new(first.find(values)?),
                Box::new(second.find(values)?),
            ),
            Self::OrElse(first, second) => match first.find(values) {
                Some(found) => Found::First(Box::new(found)),
                None => Found::Second(Box::new(second.find(values)?)),
            },
            Self::Hidden(inner) | Self::Mapped(inner) => inner.find(values)?,
        })
    }
}

fn leaf() -> impl Strategy<Value = Shape> + Clone {
    let letter = prop::sample::select(vec!['a', 'b', 'c', 'd']);
    prop_oneof![
        1 => letter.clone().prop_map(Shape::Leaf),
        2 => letter.prop_map(|letter| Shape::Hidden(Box::new(Shape::Leaf(letter)))),
    ]
}

/// Whatever can be put together.
fn tree() -> impl Strategy<Value = Shape> {
    leaf().prop_recursive(4, 12, 2, |inner| {
        let pair = (inner.clone(), inner.clone());
        prop_oneof![
            1 => pair.clone()
                .prop_map(|(a, b)| Shape::And(Box::new(a), Box::new(b))),
            3 => pair.prop_map(|(a, b)| Shape::OrElse(Box::new(a), Box::new(b))),
            1 => inner.clone().prop_map(|inner| Shape::Hidden(Box::new(inner))),
            1 => inner.prop_map(|inner| Shape::Mapped(Box::new(inner))),
        ]
    })
}

/// Alternatives of alternatives, some of them hidden: where labels meet.
fn chain() -> impl Strategy<Value = Shape> {
    (leaf(), vec((leaf(), 0..3_u8), 1..4)).prop_map(|(first, rest)| {
        rest.into_iter().fold(first, |chain, (next, wrapped)| {
            let chain = match wrapped {
                0 => chain,
                1 => Shape::Hidden(Box::new(chain)),
                _ => Shape::Mapped(Box::new(chain)),
            };
            Shape::OrElse(Box::new(chain), Box::new(next))
        })
    })
}

/// Few values, so that they meet: short ones, such as look joined or labelled, and one that is hashed when joined.
fn values() -> impl Strategy<Value = HashMap<char, String>> {
    let value = prop_oneof![
        8 => Just("1".to_owned()),
        1 => "1[|!]2",
        1 => Just("!!1".to_owned()),
        1 => "[12]{40}",
        1 => Just("x".repeat(80)),
    ];
    vec(prop::option::of(value), 4).prop_map(|values| {
        "abcd"
            .chars()
            .zip(values)
            .filter_map(|(letter, value)| Some((letter, value?)))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// All requests that one composition is asked about get one key exactly when they read the same.
    #[test]
    fn compositions_never_give_two_requests_one_key(
        shape in prop_oneof![tree(), chain()],
        requests in vec(values(), 2..24),
    ) {
        let extractor = shape.extractor();
        let mut seen: HashMap<Key, Found> = HashMap::new();
        for values in &requests {
            let mut head = nothing();
            for (letter, value) in values {
                let value = HeaderValue::from_str(value).expect("HTTP allows it");
                head.headers.insert(name(*letter), value);
            }
            let (key, found) = (extractor.extract(&RequestHead::from(&head)).found(), shape.find(values));
            prop_assert_eq!(key.is_some(), found.is_some());
            let (Some(key), Some(found)) = (key, found) else {
                continue;
            };
            prop_assert!((1..=Key::MAX_LENGTH).contains(&key.as_str().len()));
            let has_brace = key.as_str().contains(['{', '}']);
prop_assert!(!has_brace);
            if let Some(other) = seen.insert(key, found.clone()) {
                prop_assert_eq!(&other, &found, "both are {}", key.as_str());
            }
        }
    }
}

fn closure(name: &'static str) -> impl KeyExtractor {
    move |head: &RequestHead| head.headers.get(name).map(Key::new)
}

fn name(letter: char) -> http::HeaderName {
    format!("x-{letter}").parse().expect("it is a name")
}

#[track_caller]
fn apart(keys: &[Option<Key>]) {
    for (index, key) in keys.iter().enumerate() {
        let key = key.expect("there is a key");
        for other in &keys[..index] {
            assert_ne!(*other, Some(key), "both are {}", key.as_str());
        }
    }
}

fn claims(sub: &str, org: Option<&str>) -> Claims {
    Claims {
        sub: sub.to_owned(),
        org: org.map(str::to_owned),
    }
}

fn nothing() -> Parts {
    Request::new(()).into_parts().0
}

fn with<T: Clone + Send + Sync + 'static>(extension: T) -> Parts {
    let mut head = nothing();
    head.extensions.insert(extension);
    head
}

fn headers(fields: &[(&'static str, &str)]) -> Parts {
    let mut head = nothing();
    for (name, value) in fields {
        let value = HeaderValue::from_str(value).expect("HTTP allows it");
        head.headers.append(*name, value);
    }
    head
}

// === Callers without a request ===

#[test]
fn caller_has_the_keys_that_its_requests_have() {
    let secret = HashSecret::from_passphrase("of the fleet");
    let address = IpAddr::from([0x2001, 0xdb8, 1, 2, 3, 0, 0, 4]);
    let mut by_address = nothing();
    by_address.extensions.insert(address);
    let with_header = |name: &'static str, value: &'static str| {
        let request = Request::get("/").header(name, value).body(());
        request.expect("a request").into_parts().0
    };
    let api_key = || ApiKey::header("x-api-key").hash_secret(secret);
    let names = |key: Key| (key == Key::new("k-1")).then(|| Key::new("ada"));
    let extractors: [(Box<dyn KeyExtractor>, Parts, CallerId<'_>); 9] = [
        (
            Box::new(PeerIp),
            by_address.clone(),
            CallerId::Address(address),
        ),
        (
            Box::new(ClientIp::peer().ipv6_prefix(48)),
            by_address.clone(),
            CallerId::Text("2001:db8:1:2:3::4"),
        ),
        (
            Box::new(api_key().or_else(Header::new("x-user")).or_else(PeerIp)),
            by_address.clone(),
            CallerId::Address(address),
        ),
        (
            Box::new(Header::new("x-user").co_located_with(Header::new("x-user"))),
            with_header("x-user", "ada"),
            CallerId::Text("ada"),
        ),
        (
            Box::new(api_key().or_else(PeerIp)),
            with_header("x-api-key", "k-1"),
            CallerId::Text("k-1"),
        ),
        (
            Box::new(Header::new("x-user").map(|key| Key::secret(key.as_bytes()))),
            with_header("x-user", "ada"),
            CallerId::Text("ada"),
        ),
        (
            Box::new(Header::new("x-api-key").and_then(names)),
            with_header("x-api-key", "k-1"),
            CallerId::Text("ada"),
        ),
        (
            Box::new(Cookie::new("session").hash_secret(secret)),
            with_header("cookie", "session=s-1"),
            CallerId::Text("s-1"),
        ),
        (
            Box::new(HostHeader),
            with_header("host", "API.example.com:80"),
            CallerId::Text("api.Example.com"),
        ),
    ];
    for (extractor, head, caller) in extractors {
        let found = extractor
            .extract(&RequestHead::from(&head))
            .found()
            .expect("a key");
        let keys = extractor.keys_of(&caller);
        assert_eq!(as_text(&keys), [found.as_str()], "{}", extractor.label());
    }
}

#[test]
fn caller_has_no_key_that_others_share_or_that_needs_more_than_one_value() {
    let known = Key::new("example.com");
    let by_host = HostHeader.map(move |host| match host == known {
        true => host,
        false => Key::UNIDENTIFIED,
    });
    let address = CallerId::Address(IpAddr::from([203, 0, 113, 7]));
    let text = CallerId::Text("ada");
    let extractors: [Box<dyn KeyExtractor>; 4] = [
        Box::new(Global),
        Box::new(Header::new("x-tenant").and(PeerIp)),
        Box::new(
            Header::new("x-tenant")
                .or_else(Global)
                .and(Header::new("x-user")),
        ),
        Box::new(Route),
    ];
    for extractor in extractors {
        for caller in [address, text] {
            assert_eq!(extractor.keys_of(&caller), [], "{}", extractor.label());
        }
    }
    assert_eq!(as_text(&by_host.keys_of(&text)), ["ada"]);
    assert_eq!(by_host.keys_of(&address), []);
    // A closure is taken to make the usual key.
    let closure = |head: &RequestHead| head.uri.host().map(Key::from);
    assert_eq!(as_text(&closure.keys_of(&address)), ["203.0.113.7"]);
    assert_eq!(as_text(&closure.keys_of(&text)), ["ada"]);
}

fn as_text(keys: &[Key]) -> Vec<&str> {
    keys.iter().map(Key::as_str).collect()
}
