//! Keys from what clients write: cookies, queries, hosts. However it is written, one value is one key; and what is there
//! twice is ambiguous.

use http::{HeaderValue, Request, StatusCode, header, request::Parts};
use proptest::{collection::vec, prelude::*};
use tollgate::{
    Key, RequestHead,
    extract::{
        ApiKey, Cookie,
        Extracted::{Absent, Ambiguous, Found},
        HashSecret, Header, HostHeader, KeyExtractor, QueryParam,
    },
};

// === Headers ===

// Reproducer: over HTTP/2, where nothing strips it, each space around a header's value made another key.
#[test]
fn space_around_a_headers_value_is_no_part_of_it() {
    let with = |value: &'static str| {
        let request = Request::get("/").header("x-key", HeaderValue::from_static(value));
        request.body(()).expect("a request").into_parts().0
    };
    let (clear, secret) = (Header::new("x-key"), ApiKey::header("x-key"));
    for value in ["a b", " a b", "a b\t", " \t a b  "] {
        assert_eq!(
            clear.extract(&RequestHead::from(&with(value))).found(),
            Some(Key::new("a b")),
            "{value:?}"
        );
        assert_eq!(
            secret.extract(&RequestHead::from(&with(value))).found(),
            Some(Key::secret("a b")),
            "{value:?}"
        );
    }
    for value in ["", " ", "\t "] {
        assert_eq!(
            clear.extract(&RequestHead::from(&with(value))),
            Absent,
            "{value:?}"
        );
        assert_eq!(
            secret.extract(&RequestHead::from(&with(value))),
            Absent,
            "{value:?}"
        );
    }
}

// === Cookie ===

#[test]
fn cookie_is_found_among_others_and_over_several_lines() {
    let session = Cookie::new("session");
    let expected = Some(Key::secret("abc"));
    for lines in [
        &["session=abc"][..],
        &["session=abc; theme=dark"],
        &["theme=dark; session=abc"],
        &["theme=dark;session=abc;"],
        &["theme=dark ;\t session = abc \t; "],
        &["theme=dark", "session=abc"],
        &["session=abc", "theme=dark"],
        &["theme=dark", "", ";;", "session", "=x", "session=abc"],
        &["a=session=x; session=abc"],
    ] {
        assert_eq!(
            session.extract(&RequestHead::from(&cookies(lines))).found(),
            expected,
            "{lines:?}"
        );
    }
}

#[test]
fn cookie_that_is_missing_or_empty_is_absent() {
    for extractor in [Cookie::new("session"), Cookie::new("session").plaintext()] {
        for lines in [
            &[][..],
            &[""],
            &["session"],
            &["session="],
            &["session= "],
            &["session=\"\""],
            &["session=%22%22"],
            &["Session=abc"],
            &["xsession=abc"],
            &["sessionx=abc"],
            &["x; y=session=abc"],
        ] {
            let key = extractor.extract(&RequestHead::from(&cookies(lines)));
            assert_eq!(key, Absent, "{lines:?}");
        }
    }
}

#[test]
fn cookie_that_is_repeated_is_ambiguous() {
    for extractor in [Cookie::new("session"), Cookie::new("session").plaintext()] {
        for lines in [
            &["session=abc; session=abc"][..],
            &["session=abc; session=other"],
            &["session=abc", "session=other"],
            &["session=abc; session="],
            &["session=; session=abc"],
            // as a framework that decodes names reads it
            &["session=abc; %73ession=other"],
            &["session=abc, session=abc; session=abc"],
            &["session=; session="],
            &["session=\"abc;session=abc\""],
        ] {
            let key = extractor.extract(&RequestHead::from(&cookies(lines)));
            assert_eq!(key, Ambiguous, "{lines:?}");
        }
    }
}

#[test]
fn cookie_written_in_another_way_is_the_same_key() {
    let expected = Some(Key::secret("a b=c"));
    for line in [
        "session=a b=c",
        "session=\"a b=c\"",
        "session=a%20b%3Dc",
        "session=a%20b%3dc",
        "session=\"%61%20b=c\"",
        "session=%22a b=c%22",
        "%73ession=a b=c",
        "%73%65%73%73%69%6F%6E=a b=c",
    ] {
        let key = Cookie::new("session")
            .extract(&RequestHead::from(&cookies(&[line])))
            .found();
        assert_eq!(key, expected, "{line}");
    }
}

#[test]
fn cookies_that_differ_have_distinct_keys() {
    let values = [
        "abc", "Abc", "a+b", "a b", "\"\"\"", "\"abc", "abc\"", "%", "%2", "%zz", "a=c", "%00",
        "%FF", "%C3%A9",
    ];
    for extractor in [Cookie::new("session"), Cookie::new("session").plaintext()] {
        let keys = values.map(|value| {
            extractor
                .extract(&RequestHead::from(&cookies(&[&format!("session={value}")])))
                .found()
        });
        apart(&keys);
    }
}

#[test]
fn secret_of_a_cookie_or_a_query_appears_nowhere() {
    let mut head = cookies(&[&format!("session={SECRET}")]);
    head.uri = format!("/?key={SECRET}").parse().expect("it is a uri");
    let own = HashSecret::new([7; 32]);
    let extractors: [Box<dyn KeyExtractor>; 4] = [
        Box::new(Cookie::new("session")),
        Box::new(ApiKey::query("key")),
        Box::new(Cookie::new("session").hash_secret(own)),
        Box::new(ApiKey::query("key").hash_secret(own)),
    ];
    let keys = extractors.map(|extractor| {
        extractor
            .extract(&RequestHead::from(&head))
            .found()
            .expect("there is a key")
    });
    for key in keys {
        for piece in SECRET.as_bytes().windows(4) {
            let shown = format!("{} {key:?}", key.as_str()).to_lowercase();
            assert!(!shown.as_bytes().windows(4).any(|found| found == piece));
        }
        assert!(key.as_str().starts_with('$') && key.as_str().len() == 33);
    }
    // hashed in one way wherever it stood, and under another key into another
    assert_eq!(keys[0], Key::secret(SECRET));
    assert_eq!(keys[1], Key::secret(SECRET));
    assert_eq!(keys[2], Key::secret_with(&own, SECRET));
    assert_eq!(keys[3], keys[2]);
}

#[test]
fn debug_of_an_extractor_shows_no_hash_secret() {
    let own = HashSecret::new([0xAB; 32]);
    let cookie = Cookie::new("session").hash_secret(own);
    let query = ApiKey::query("key").hash_secret(own);
    for shown in [format!("{cookie:?}"), format!("{query:?}")] {
        assert!(shown.contains("HashSecret(..)"), "{shown}");
        for trace in ["171", "AB", "ab, ab"] {
            assert!(!shown.contains(trace), "{shown}");
        }
    }
}

#[test]
fn cookie_in_clear_can_be_read_and_is_never_the_hashed_one() {
    let head = cookies(&["language=cs"]);
    let clear = Cookie::new("language").plaintext();
    assert_eq!(
        clear.extract(&RequestHead::from(&head)).found(),
        Some(Key::new("cs"))
    );
    assert_eq!(
        Cookie::new("language")
            .extract(&RequestHead::from(&head))
            .found(),
        Some(Key::secret("cs"))
    );
}

#[test]
fn huge_cookies_are_keys_like_others() {
    let huge = "a".repeat(100_000);
    let many = "x=1; ".repeat(20_000);
    let encoded = "%61".repeat(100_000);
    let clear = Cookie::new("session").plaintext();
    let key = clear
        .extract(&RequestHead::from(&cookies(&[&format!("session={huge}")])))
        .found();
    assert_eq!(key, Some(Key::new(&huge)));
    let written_otherwise = clear
        .extract(&RequestHead::from(&cookies(&[&format!(
            "session={encoded}"
        )])))
        .found();
    assert_eq!(written_otherwise, key);
    assert_eq!(
        clear
            .extract(&RequestHead::from(&cookies(&[&many])))
            .found(),
        None
    );
    let last = clear
        .extract(&RequestHead::from(&cookies(&[&format!(
            "{many}session=abc"
        )])))
        .found();
    assert_eq!(last, Some(Key::new("abc")));
}

#[test]
fn bytes_in_a_cookie_that_are_not_text_have_distinct_keys() {
    let key = |value: &[u8]| {
        let line = [b"session=", value].concat();
        let mut head = nothing();
        let line = HeaderValue::from_bytes(&line).expect("HTTP allows it");
        head.headers.insert(header::COOKIE, line);
        Cookie::new("session")
            .plaintext()
            .extract(&RequestHead::from(&head))
            .found()
    };
    apart(&[
        key(b"\xFF"),
        key(b"\xFE"),
        key(b"\xFF\xFE"),
        key("é".as_bytes()),
    ]);
    assert_eq!(key(b"\xFF"), key(b"%FF"));
}

// === Query ===

#[test]
fn query_parameter_is_its_value_and_nothing_else_of_the_uri() {
    let tenant = QueryParam::new("tenant");
    let expected = Some(Key::new("acme"));
    for uri in [
        "/?tenant=acme",
        "/other/path?tenant=acme",
        "/?page=3&tenant=acme",
        "/?tenant=acme&page=3",
        "/?&&tenant=acme&",
        "/?junk=1&tenant=acme&junk=2&junk=3",
        "/?tenants=x&tenant=acme&xtenant=y&Tenant=z",
        "http://example.com/?tenant=acme",
        "/?page=tenant=x&tenant=acme",
    ] {
        assert_eq!(
            tenant.extract(&RequestHead::from(&at(uri))).found(),
            expected,
            "{uri}"
        );
    }
}

#[test]
fn query_parameter_written_in_another_way_is_the_same_key() {
    let expected = Some(Key::new("a b"));
    for uri in [
        "/?my%20tenant=a%20b",
        "/?my+tenant=a+b",
        "/?my+tenant=%61%20b",
        "/?%6D%79%20%74enant=a+%62",
        "/?my%20tenant=a%20%62",
    ] {
        let key = QueryParam::new("my tenant")
            .extract(&RequestHead::from(&at(uri)))
            .found();
        assert_eq!(key, expected, "{uri}");
    }
}

#[test]
fn query_parameter_that_is_missing_or_empty_is_absent_and_one_that_is_repeated_ambiguous() {
    for extractor in [
        Box::new(QueryParam::new("key")) as Box<dyn KeyExtractor>,
        Box::new(ApiKey::query("key")),
    ] {
        for uri in [
            "/", "/?", "/?key", "/?key=", "/?KEY=a", "/?keys=a", "/?ke=a", "/?=a", "/key=a",
        ] {
            assert_eq!(
                extractor.extract(&RequestHead::from(&at(uri))),
                Absent,
                "{uri}"
            );
        }
        for uri in [
            "/?key=a&key=a",
            "/?key=a&key=b",
            "/?key=a&key",
            "/?key&key=a",
            "/?key&key",
            "/?key=a&k%65y=b",
        ] {
            assert_eq!(
                extractor.extract(&RequestHead::from(&at(uri))),
                Ambiguous,
                "{uri}"
            );
        }
    }
}

#[test]
fn query_values_that_differ_have_distinct_keys() {
    let values = [
        "abc", "Abc", "a+b", "a%2Bb", "%", "%2", "%zz", "a=c", "%00", "%FF", "%C3%A9", "%26",
        "%2526",
    ];
    let keys = values.map(|value| {
        QueryParam::new("key")
            .extract(&RequestHead::from(&at(&format!("/?key={value}"))))
            .found()
    });
    apart(&keys);
    // a value that breaks off within an escape is taken as it is
    assert_eq!(keys[5], Some(Key::new("%2")));
}

#[test]
fn huge_query_is_a_key_like_others() {
    let uri = format!("/?{}key={}", "a=b&".repeat(5_000), "x".repeat(40_000));
    let key = QueryParam::new("key")
        .extract(&RequestHead::from(&at(&uri)))
        .found();
    assert_eq!(key, Some(Key::new("x".repeat(40_000))));
}

// === Host ===

#[test]
fn host_is_one_key_however_it_is_written() {
    let expected = Some(Key::new("example.com"));
    for host in [
        "example.com",
        "EXAMPLE.com",
        "example.com:80",
        "example.com:",
        "Example.Com.:8443",
        "example.com.",
    ] {
        assert_eq!(
            HostHeader
                .extract(&RequestHead::from(&hosts(&[host])))
                .found(),
            expected,
            "{host}"
        );
        let uri = format!("http://{}/path?query", host.trim_end_matches(':'));
        assert_eq!(
            HostHeader.extract(&RequestHead::from(&at(&uri))).found(),
            expected,
            "{uri}"
        );
    }
    let with_user = at("http://ada:secret@example.com:80/");
    assert_eq!(
        HostHeader.extract(&RequestHead::from(&with_user)).found(),
        expected
    );
}

#[test]
fn equal_authority_and_host_are_one_host() {
    for (uri, host) in [
        ("https://example.com/", "example.com"),
        ("https://example.com/", "EXAMPLE.com."),
        ("https://example.com/", "example.com:443"),
        ("https://example.com:443/", "example.com"),
        ("http://example.com:80/", "example.com:"),
        ("http://example.com:8080/", "example.com:8080"),
        ("http://ada:secret@example.com/", "example.com"),
        ("example.com:443", "example.com:443"),
    ] {
        let mut head = hosts(&[host]);
        head.uri = uri.parse().expect("it is a uri");
        let expected = Found(Key::new("example.com"));
        assert_eq!(
            HostHeader.extract(&RequestHead::from(&head)),
            expected,
            "{uri} {host}"
        );
    }
    let mut six = hosts(&["[2001:DB8::1]"]);
    six.uri = "http://[2001:db8:0::1]:80/".parse().expect("it is a uri");
    assert_eq!(
        HostHeader.extract(&RequestHead::from(&six)),
        Found(Key::new("2001:db8::1"))
    );
}

// Reproducer: the URI was believed, and the service behind may well have believed the header.
#[test]
fn authority_and_host_that_contradict_each_other_are_ambiguous() {
    for (uri, lines) in [
        ("https://example.com/", &["evil.example"][..]),
        ("https://example.com/", &["evil.example", "another.example"]),
        ("https://example.com/", &["example.com", "example.com"]),
        ("https://example.com/", &["sub.example.com"]),
        ("https://example.com/", &["example.com:80"]),
        ("http://example.com/", &["example.com:443"]),
        ("http://example.com:8080/", &["example.com"]),
        ("https://example.com/", &[""]),
        ("https://example.com/", &["user@example.com"]),
    ] {
        let mut head = hosts(lines);
        head.uri = uri.parse().expect("it is a uri");
        assert_eq!(
            HostHeader.extract(&RequestHead::from(&head)),
            Ambiguous,
            "{uri} {lines:?}"
        );
    }
}

#[test]
fn forwarded_hosts_are_not_looked_at() {
    let mut head = nothing();
    for name in ["x-forwarded-host", "forwarded", "x-host", "x-original-host"] {
        head.headers
            .insert(name, HeaderValue::from_static("evil.example"));
    }
    assert_eq!(HostHeader.extract(&RequestHead::from(&head)).found(), None);
}

#[test]
fn host_that_is_missing_is_absent() {
    for lines in [&[][..], &[""], &[" "]] {
        assert_eq!(
            HostHeader.extract(&RequestHead::from(&hosts(lines))),
            Absent,
            "{lines:?}"
        );
    }
}

// A server answers them with 400 (RFC 9112, section 3.2), or makes of them what it likes.
#[test]
fn host_that_is_repeated_or_not_a_host_is_ambiguous() {
    for lines in [
        &["."][..],
        &[".."],
        &[":80"],
        &["example.com", "example.com"],
        &["example.com,other.example"],
        &["example.com other.example"],
        &["ada@example.com"],
        &["example.com:http"],
        &["example.com:80:80"],
        &["example.com.."],
        &["ex%61mple.com"],
        &["example.com/path"],
        &["http://example.com"],
        &["{example}"],
        &["::1"],
        &["[::1"],
        &["::1]"],
        &["[::1]x"],
        &["[::1]:x"],
        &["[]"],
        &["[192.0.2.1]"],
        &["[fe80::1%25eth0]"],
        &["[v1.a]"],
        &["example.com:65536"],
    ] {
        assert_eq!(
            HostHeader.extract(&RequestHead::from(&hosts(lines))),
            Ambiguous,
            "{lines:?}"
        );
    }
    let mut head = nothing();
    let unicode = HeaderValue::from_bytes("bücher.example".as_bytes()).expect("HTTP allows it");
    head.headers.insert(header::HOST, unicode);
    assert_eq!(HostHeader.extract(&RequestHead::from(&head)), Ambiguous);
}

#[test]
fn addresses_as_hosts_are_one_key_each() {
    let key = |host| {
        HostHeader
            .extract(&RequestHead::from(&hosts(&[host])))
            .found()
    };
    let six = Some(Key::new("2001:db8::1"));
    for host in [
        "[2001:db8::1]",
        "[2001:DB8:0:0::1]:8080",
        "[2001:db8::0001]:",
    ] {
        assert_eq!(key(host), six, "{host}");
    }
    assert_eq!(
        HostHeader
            .extract(&RequestHead::from(&at("http://[2001:DB8::1]:80/")))
            .found(),
        six
    );
    assert_eq!(key("192.0.2.1:80"), Some(Key::new("192.0.2.1")));
    assert_eq!(key("[::ffff:192.0.2.1]"), key("192.0.2.1"));
}

#[test]
fn host_is_as_long_as_dns_allows_and_no_longer() {
    let longest = "a".repeat(253);
    assert_eq!(
        HostHeader
            .extract(&RequestHead::from(&hosts(&[&longest])))
            .found(),
        Some(Key::new(&longest))
    );
    assert_eq!(
        HostHeader
            .extract(&RequestHead::from(&hosts(&[&format!("{longest}.:80")])))
            .found(),
        Some(Key::new(&longest))
    );
    assert_eq!(
        HostHeader.extract(&RequestHead::from(&hosts(&[&"a".repeat(254)]))),
        Ambiguous
    );
    assert_eq!(
        HostHeader.extract(&RequestHead::from(&hosts(&[&"a".repeat(100_000)]))),
        Ambiguous
    );
}

// === All ===

#[test]
fn labels_and_statuses_name_the_missing_key() {
    let told = |extractor: &dyn KeyExtractor| {
        (
            extractor.label().to_owned(),
            extractor.missing_status(&RequestHead::from(&nothing())),
        )
    };
    let bad = StatusCode::BAD_REQUEST;
    let unauthorized = StatusCode::UNAUTHORIZED;
    assert_eq!(
        told(&Cookie::new("sid")),
        ("cookie:sid".into(), unauthorized)
    );
    assert_eq!(
        told(&Cookie::new("sid").plaintext()),
        ("cookie:sid".into(), bad)
    );
    assert_eq!(
        told(&ApiKey::query("key")),
        ("query:key".into(), unauthorized)
    );
    assert_eq!(
        told(&QueryParam::new("tenant")),
        ("query:tenant".into(), bad)
    );
    assert_eq!(told(&HostHeader), ("host".into(), bad));
}

proptest! {
    /// The reference reads the whole as a list first, and decodes by another hand.
    #[test]
    fn query_reads_as_forms_are_read(query in query_text()) {
        let uri = format!("/?{query}");
        let found: Vec<Vec<u8>> = form(&query)
            .into_iter()
            .filter(|(name, _)| name == b"ab")
            .map(|(_, value)| value)
            .collect();
        let expected = match &found[..] {
            [value] if !value.is_empty() => Some(Key::new(value)),
            _ => None,
        };
        prop_assert_eq!(QueryParam::new("ab").extract(&RequestHead::from(&at(&uri))).found(), expected);
    }

    #[test]
    fn no_bytes_are_a_panic_and_every_key_is_canonical(
        value in vec(any::<u8>(), 0..300),
        tricky in "[\\[\\]:;=%&\"a-c. {}|!2F]{0,40}",
    ) {
        for bytes in [&value[..], tricky.as_bytes()] {
            let mut head = nothing();
            if let Ok(value) = HeaderValue::from_bytes(bytes) {
                head.headers.append(header::COOKIE, value.clone());
                head.headers.append(header::HOST, value);
            }
            if let Ok(uri) = format!("/?{}", String::from_utf8_lossy(bytes)).parse() {
                head.uri = uri;
            }
            let extractors: [Box<dyn KeyExtractor>; 5] = [
                Box::new(Cookie::new("a").plaintext()),
                Box::new(Cookie::new("a")),
                Box::new(QueryParam::new("a")),
                Box::new(ApiKey::query("a")),
                Box::new(HostHeader),
            ];
            for key in extractors.iter().filter_map(|extractor| extractor.extract(&RequestHead::from(&head)).found()) {
                prop_assert!((1..=Key::MAX_LENGTH).contains(&key.as_str().len()));
                let has_brace = key.as_str().contains(['{', '}']);
prop_assert!(!has_brace);
            }
        }
    }

    /// No spelling of a cookie gives a second count, and no two values share one.
    #[test]
    fn key_of_a_cookie_is_its_value_and_not_its_spelling(
        first in "[a-c%\" ]{1,6}",
        second in "[a-c%\" ]{1,6}",
        escapes in any::<u64>(),
    ) {
        let written = |value: &str, escapes: u64| {
            let text: String = value
                .bytes()
                .enumerate()
                .map(|(index, byte)| match byte != b'a' || escapes >> index & 1 == 1 {
                    true => format!("%{byte:02x}"),
                    false => char::from(byte).to_string(),
                })
                .collect();
            Cookie::new("a").plaintext().extract(&RequestHead::from(&cookies(&[&format!("a={text}")]))).found()
        };
        let same = written(&first, 0);
        prop_assert_eq!(same, written(&first, escapes));
        let bare = |value: &str| match value.len() > 1 && value.starts_with('"') && value.ends_with('"') {
            true => value[1..value.len() - 1].to_owned(),
            false => value.to_owned(),
        };
        prop_assert_eq!(bare(&first) == bare(&second), same == written(&second, escapes));
    }
}

fn query_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab=&%+126zZ]{0,24}",
        vec(
            prop_oneof![
                Just("ab=".to_owned()),
                Just("a%62=".to_owned()),
                Just("&".to_owned()),
                "[a%+2bF]{0,4}"
            ],
            0..8
        )
        .prop_map(|pieces| pieces.concat()),
    ]
}

fn form(query: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        let mut bytes = Vec::new();
        let mut index = 0;
        while index < text.len() {
            let escape = text
                .get(index + 1..index + 3)
                .filter(|digits| digits.chars().all(|digit| digit.is_ascii_hexdigit()));
            match (text.as_bytes()[index], escape) {
                (b'%', Some(digits)) => {
                    bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
                    index += 3;
                }
                (byte, _) => {
                    bytes.push(byte);
                    index += 1;
                }
            }
        }
        bytes
    };
    query
        .split('&')
        .map(|pair| match pair.find('=') {
            Some(equals) => (decode(&pair[..equals]), decode(&pair[equals + 1..])),
            None => (decode(pair), Vec::new()),
        })
        .collect()
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

fn nothing() -> Parts {
    Request::new(()).into_parts().0
}

fn at(uri: &str) -> Parts {
    let mut head = nothing();
    head.uri = uri.parse().expect("it is a uri");
    head
}

fn cookies(lines: &[&str]) -> Parts {
    lines_of(header::COOKIE, lines)
}

fn hosts(lines: &[&str]) -> Parts {
    lines_of(header::HOST, lines)
}

fn lines_of(name: http::HeaderName, lines: &[&str]) -> Parts {
    let mut head = nothing();
    for line in lines {
        let line = HeaderValue::from_str(line).expect("HTTP allows it");
        head.headers.append(&name, line);
    }
    head
}

const SECRET: &str = "sk-live-zyxwvutsrq";
