//! Which requests are counted, at what cost, and which are let pass or refused before any rule is asked.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{Router, body::Body, routing::get};
use http::{HeaderValue, Method, Request, Response, request::Parts};
use ipnet::IpNet;
use proptest::{collection::vec, prelude::*};
use tokio::net::TcpListener;
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    builder::RateLimitLayerBuilder,
    extract::{
        self, ApiKey, ClientIp, Cookie, Global, Header, KeyExtractor, Networks, PeerIp, QueryParam,
    },
    matching::{
        AddressList, HasHeader, HostPattern, KeyList, Match, Matcher, Methods, PathPattern,
        Preflight,
    },
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::Client;

#[path = "../../../fuzz/models/paths.rs"]
mod paths;

// === Deny and skip ===

#[tokio::test]
async fn only_real_preflights_pass_uncounted_and_only_if_the_layer_skips_them() {
    let head = |fields: &[(&'static str, &str)], method: Method| {
        let mut request = Request::new(());
        *request.method_mut() = method;
        for (name, value) in fields {
            let value = value.parse().expect("a value");
            request.headers_mut().append(*name, value);
        }
        request
    };
    let origin = ("origin", "https://example.com");
    let asks = ("access-control-request-method", "PUT");
    for (fields, method, is_preflight) in [
        (&[origin, asks][..], Method::OPTIONS, true),
        (&[origin], Method::OPTIONS, false),
        (&[asks], Method::OPTIONS, false),
        (&[], Method::OPTIONS, false),
        (&[origin, asks], Method::GET, false),
    ] {
        for skips in [true, false] {
            let builder = RateLimitLayer::builder().policy(plan().key(Global));
            let builder = if skips {
                builder.skip(Preflight)
            } else {
                builder
            };
            let app = built(builder).layer(service_fn(fine));
            let request = head(fields, method.clone());
            let response = app.oneshot(request).await.expect("it answers");
            let is_counted = response.headers().contains_key("x-ratelimit-limit");
            assert_eq!(
                is_counted,
                !(is_preflight && skips),
                "{method} {fields:?} {skips}"
            );
        }
    }
}

// === Lists ===

#[test]
fn address_list_holds_networks_however_they_and_addresses_are_written() {
    let list = addresses(&[
        "203.0.113.0/24",
        "198.51.100.7/32",
        "::ffff:192.0.2.0/120",
        "2001:db8::/32",
        "10.1.2.3/8",
    ]);
    for (address, is_in) in [
        ("203.0.113.0", true),
        ("203.0.113.255", true),
        ("203.0.114.0", false),
        ("203.0.112.255", false),
        ("::ffff:203.0.113.9", true),
        ("198.51.100.7", true),
        ("198.51.100.8", false),
        ("192.0.2.9", true),
        ("::ffff:192.0.2.9", true),
        ("192.0.3.0", false),
        ("2001:db8::1", true),
        ("2001:db9::", false),
        ("2001:db7:ffff::", false),
        ("10.255.0.1", true),
        ("::", false),
        ("0.0.0.0", false),
        ("255.255.255.255", false),
    ] {
        assert_eq!(
            list.matches(&RequestHead::from(&from(address))),
            is_in.into(),
            "{address}"
        );
    }
    assert_eq!(
        list.matches(&RequestHead::from(&head("/"))),
        Match::Miss,
        "nobody knows"
    );
    let all = addresses(&["0.0.0.0/0", "::/0"]);
    for address in [
        "0.0.0.0",
        "255.255.255.255",
        "::",
        "ffff::",
        "::ffff:1.2.3.4",
    ] {
        assert_eq!(
            all.matches(&RequestHead::from(&from(address))),
            Match::Exact,
            "{address}"
        );
    }
    assert_eq!(
        addresses(&[]).matches(&RequestHead::from(&from("::1"))),
        Match::Miss
    );
}

// Reproducer: a client behind NAT64 passed a list that forbids its IPv4 network.
#[test]
fn networks_match_the_ipv4_address_behind_nat64() {
    let blocked = ["203.0.113.0/24", "10.0.0.0/8", "64:ff9b:1::/48"];
    let list = addresses(&blocked);
    let networks = Networks::new(blocked).expect("networks");
    let by_prefix = addresses(&["64:ff9b::/96"]);
    for (address, is_in, is_translated) in [
        ("64:ff9b::203.0.113.9", true, true),
        ("64:ff9b::203.0.114.9", false, true),
        ("64:ff9b:0:0:1::203.0.113.9", false, false),
        ("64:ff9b:1::198.51.100.1", true, false),
        // A translator drops private addresses, so this client is somebody else.
        ("64:ff9b::10.0.0.7", false, true),
        ("203.0.113.9", true, false),
        ("198.51.100.1", false, false),
    ] {
        let client = from(address);
        let head = RequestHead::from(&client);
        assert_eq!(list.matches(&head), is_in.into(), "{address}");
        let parsed: IpAddr = address.parse().expect("an address");
        assert_eq!(networks.contains(parsed), is_in, "{address}");
        let by_prefix = by_prefix.matches(&head);
        assert_eq!(by_prefix, is_translated.into(), "{address}");
    }
    let behind = ClientIp::behind(["203.0.113.0/24"]);
    for (peer, client) in [
        ("64:ff9b::203.0.113.9", "192.0.2.7"),
        ("64:ff9b::203.0.114.9", "64:ff9b::203.0.114.9"),
    ] {
        let mut head = from(peer);
        let header = HeaderValue::from_static("192.0.2.7");
        head.headers.insert("x-forwarded-for", header);
        assert_eq!(
            behind.address(&RequestHead::from(&head)),
            client.parse().ok(),
            "{peer}"
        );
    }
}

proptest! {
    #[test]
    fn address_list_matches_like_each_network_alone(
        networks in vec((any::<u32>(), 0_u8..=32, any::<bool>()), 0..60),
        others in vec(any::<u32>(), 20),
    ) {
        // few addresses, so that networks overlap and touch
        let narrow = |bits: u32| bits & 0x0000_0F0F | 0xC000_0000;
        let network = |&(bits, prefix, mapped): &(u32, u8, bool)| {
            let address = std::net::Ipv4Addr::from(narrow(bits));
            match mapped {
                true => IpNet::new(address.to_ipv6_mapped().into(), 96 + prefix),
                false => IpNet::new(address.into(), prefix),
            }.expect("a network")
        };
        let networks: Vec<IpNet> = networks.iter().map(network).collect();
        let list = AddressList::new(peer, networks.clone());
        let ends = networks.iter().flat_map(|network| [network.network(), network.broadcast()]);
        let beside = ends.filter_map(|end| match end.to_canonical() {
            IpAddr::V4(end) => Some([u32::from(end).wrapping_sub(1), end.into(), u32::from(end).wrapping_add(1)]),
            IpAddr::V6(_) => None,
        });
        let others = others.into_iter().map(narrow);
        for bits in beside.flatten().chain(others).collect::<Vec<_>>() {
            let address = std::net::Ipv4Addr::from(bits);
            let is_in = networks.iter().any(|network| {
                network.contains(&IpAddr::from(address)) || network.contains(&IpAddr::from(address.to_ipv6_mapped()))
            });
            prop_assert_eq!(list.matches(&RequestHead::from(&from(&address.to_string()))), Match::from(is_in));
        }
    }
}

#[tokio::test]
async fn lists_let_pass_and_refuse() {
    let builder = RateLimitLayer::builder()
        .forbid(addresses(&["203.0.113.0/24"]))
        .forbid(KeyList::new(
            ApiKey::header("x-api-key"),
            [Key::secret("leaked")],
        ))
        .skip(addresses(&["10.0.0.0/8"]))
        .skip(KeyList::new(
            ApiKey::header("x-api-key"),
            [Key::secret("monitor")],
        ))
        .policy(Policy::new("plan", Quota::per_hour(1)).key(Global));
    let app = built(builder).layer(service_fn(fine));
    for (address, api_key, status) in [
        ("192.0.2.1", "k", 200),
        ("192.0.2.1", "k", 429),
        ("10.1.1.1", "k", 200),
        ("::ffff:10.1.1.1", "k", 200),
        ("192.0.2.1", "monitor", 200),
        ("192.0.2.1", "leaked", 403),
        ("10.1.1.1", "leaked", 403),
        ("203.0.113.77", "monitor", 403),
        ("::ffff:203.0.113.77", "k", 403),
        ("192.0.2.1", "k", 429),
    ] {
        let mut request = Request::new(());
        let socket = SocketAddr::new(address.parse().expect("an address"), 1);
        request.extensions_mut().insert(socket);
        let value = api_key.parse().expect("a value");
        request.headers_mut().insert("x-api-key", value);
        let response = app.clone().oneshot(request).await.expect("it answers");
        assert_eq!(response.status(), status, "{address} {api_key}");
    }
}

// Reproducer: whoever sent a header of a deny list twice was not denied, and reached handlers that take the first.
#[test]
fn key_that_stands_there_twice_resembles_those_of_a_list() {
    use Match::{Ambiguous, Exact, Miss};
    let by_header = || ApiKey::header("x-key");
    let keys = || [Key::secret("leaked")];
    let listed: [(&str, Arc<dyn Matcher>); 6] = [
        ("alone", Arc::new(KeyList::new(by_header(), keys()))),
        (
            "first",
            Arc::new(KeyList::new(by_header().or_else(Global), keys())),
        ),
        (
            "second",
            Arc::new(KeyList::new(ApiKey::bearer().or_else(by_header()), keys())),
        ),
        (
            "mapped",
            Arc::new(KeyList::new(by_header().map(|key| key), keys())),
        ),
        (
            "chosen",
            Arc::new(KeyList::new(by_header().and_then(Some), keys())),
        ),
        (
            "boxed",
            Arc::new(KeyList::new(
                Box::new(by_header()) as Box<dyn KeyExtractor>,
                keys(),
            )),
        ),
    ];
    for (which, list) in listed {
        for (values, likeness) in [
            (&[][..], Miss),
            (&["other"], Miss),
            (&["leaked"], if which == "second" { Miss } else { Exact }),
            (&["leaked", "leaked"], Ambiguous),
            (&["leaked", "other"], Ambiguous),
        ] {
            let mut head = head("/");
            for value in values {
                head.headers
                    .append("x-key", value.parse().expect("a value"));
            }
            assert_eq!(
                list.matches(&RequestHead::from(&head)),
                likeness,
                "{which} {values:?}"
            );
        }
    }
}

#[test]
fn values_that_stand_there_twice_are_ambiguous_wherever_they_stand() {
    fn check(extractor: impl KeyExtractor, once: Request<()>, twice: Request<()>) {
        for (request, is_ambiguous) in [(once, false), (twice, true)] {
            let (head, ()) = request.into_parts();
            let key = extractor.extract(&RequestHead::from(&head));
            assert_eq!(key.is_ambiguous(), is_ambiguous, "{key:?}");
            assert_eq!(key.found().is_none(), is_ambiguous);
        }
    }
    let with = |name: &str, values: &[&str]| {
        let request = values.iter().fold(Request::get("/"), |request, value| {
            request.header(name, *value)
        });
        request.body(()).expect("a request")
    };
    let at = |uri: &str| Request::get(uri).body(()).expect("a request");
    check(
        Header::new("x-a"),
        with("x-a", &["1"]),
        with("x-a", &["1", "2"]),
    );
    check(
        ApiKey::header("x-a"),
        with("x-a", &["1"]),
        with("x-a", &["", "2"]),
    );
    check(
        ApiKey::bearer(),
        with("authorization", &["Bearer 1"]),
        with("authorization", &["Bearer 1", "Basic 2"]),
    );
    check(
        Cookie::new("a"),
        with("cookie", &["a=1; b=2"]),
        with("cookie", &["a=1", "a=1"]),
    );
    check(QueryParam::new("a"), at("/?a=1&b=2"), at("/?a=1&%61=2"));
    check(ApiKey::query("a"), at("/?a=1"), at("/?a=1&a"));
    check(
        extract::HostHeader,
        with("host", &["a"]),
        with("host", &["a", "b"]),
    );
    let both = || Header::new("x-a").and(Global);
    check(both(), with("x-a", &["1"]), with("x-a", &["1", "2"]));
}

// === Paths ===

// What anybody can send over a socket, as it arrives.
#[tokio::test]
async fn other_spellings_of_a_path_do_not_pass_its_limit() {
    let layer = built(
        RateLimitLayer::builder().policy(
            plan_of(1_000)
                .key(Global)
                .when(PathPattern::new("/admin/login")),
        ),
    );
    let app = Router::new()
        .route("/admin/login", get(|| async { "login" }))
        .fallback(|| async { "other" })
        .layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut client = Client::connect(address).await;
    let mut left = 1_000;
    for path in SPELLINGS {
        let reply = client.get(path).await;
        left -= 1;
        let remaining = reply.header("x-ratelimit-remaining");
        assert_eq!(remaining, Some(&*left.to_string()), "{path}");
    }
    for path in OTHERS {
        let reply = client.get(path).await;
        assert_eq!(reply.header("x-ratelimit-remaining"), None, "{path}");
    }
    server.abort();
}

#[test]
fn other_spellings_of_a_path_do_not_get_its_exception() {
    let exact = PathPattern::new("/admin/login");
    let below = PathPattern::prefix("/admin/login");
    for path in &SPELLINGS[1..] {
        assert_eq!(
            exact.matches(&RequestHead::from(&head(path))),
            Match::Ambiguous,
            "{path}"
        );
        let only_the_slash = *path == "/admin/login/";
        let expected = if only_the_slash {
            Match::Exact
        } else {
            Match::Ambiguous
        };
        assert_eq!(
            below.matches(&RequestHead::from(&head(path))),
            expected,
            "{path}"
        );
    }
    assert_eq!(
        exact.matches(&RequestHead::from(&head(SPELLINGS[0]))),
        Match::Exact
    );
    for path in OTHERS {
        assert_eq!(
            exact.matches(&RequestHead::from(&head(path))),
            Match::Miss,
            "{path}"
        );
    }
    // out of the exception by dots, and into another place
    for path in [
        "/static/../admin",
        "/static/%2e%2e/admin",
        "/static/..%2Fadmin",
        "/static/x/../../admin",
        "/static/..;/admin",
        "/static\\..\\admin",
        "/static//admin",
    ] {
        let statics = PathPattern::prefix("/static");
        assert_eq!(
            statics.matches(&RequestHead::from(&head(path))),
            Match::Ambiguous,
            "{path}"
        );
    }
}

#[test]
fn patterns_match_as_in_their_table() {
    use Match::{Ambiguous, Exact, Miss};
    for (matcher, path, likeness) in [
        (PathPattern::new("/"), "/", Exact),
        (PathPattern::new("/"), "//", Ambiguous),
        (PathPattern::new("/"), "/x", Miss),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/7/files",
            Exact,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/a%40b/files",
            Exact,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/%C3%A9/files",
            Exact,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/%c3%a9/files",
            Exact,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/.x/files",
            Exact,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/7/files/",
            Ambiguous,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/%37/files",
            Ambiguous,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/a;b/files",
            Ambiguous,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/a%2Fb/files",
            Ambiguous,
        ),
        (
            PathPattern::new("/users/{id}/files"),
            "/users//files",
            Ambiguous,
        ),
        (PathPattern::new("/users/{id}/files"), "/users/files", Miss),
        (
            PathPattern::new("/users/{id}/files"),
            "/users/7/8/files",
            Miss,
        ),
        (PathPattern::new("/users/*/files"), "/users/7/files", Exact),
        (PathPattern::new("/users/{id}"), "/users/", Miss),
        (PathPattern::new("/users/{id}"), "/users", Miss),
        (PathPattern::new("/static/{*rest}"), "/static/a/b", Exact),
        (PathPattern::new("/static/{*rest}"), "/static/a/", Exact),
        (PathPattern::new("/static/{*rest}"), "/static", Miss),
        (PathPattern::new("/static/{*rest}"), "/static/", Miss),
        (PathPattern::new("/static/{*rest}"), "/static//", Ambiguous),
        (PathPattern::prefix("/api"), "/api", Exact),
        (PathPattern::prefix("/api"), "/api/", Exact),
        (PathPattern::prefix("/api"), "/api/x", Exact),
        (PathPattern::prefix("/api"), "/apis", Miss),
        (PathPattern::prefix("/api"), "/API/x", Ambiguous),
        (PathPattern::prefix("/"), "/anything/at/all", Exact),
        (PathPattern::new("/login/"), "/login/", Exact),
        (PathPattern::new("/login/"), "/login", Ambiguous),
        (
            PathPattern::new("/.well-known/acme"),
            "/.well-known/acme",
            Exact,
        ),
        (PathPattern::new("/caf\u{e9}"), "/caf%C3%A9", Exact),
        (PathPattern::new("/caf%C3%A9"), "/caf%C3%A9", Exact),
        (PathPattern::new("/caf%C3%A9"), "/caf%E9", Miss),
        (PathPattern::new("/a+b"), "/a+b", Exact),
        (PathPattern::new("/a+b"), "/a%2Bb", Exact),
    ] {
        assert_eq!(
            matcher.matches(&RequestHead::from(&head(path))),
            likeness,
            "{matcher:?} {path}"
        );
    }
}

#[test]
fn path_too_long_to_look_into_resembles_everything_and_a_plain_one_never_is() {
    let login = PathPattern::new("/login");
    let long = "x".repeat(60_000);
    assert_eq!(
        login.matches(&RequestHead::from(&head(&format!("/{long}")))),
        Match::Miss
    );
    assert_eq!(
        login.matches(&RequestHead::from(&head(&format!("/{long}%41")))),
        Match::Ambiguous
    );
    assert_eq!(
        login.matches(&RequestHead::from(&head(&format!(
            "/{}%41",
            &long[..2_044]
        )))),
        Match::Miss
    );
    assert_eq!(
        login.matches(&RequestHead::from(&head(&format!(
            "/{}%41",
            &long[..2_045]
        )))),
        Match::Ambiguous
    );
    let deep = "/x".repeat(101);
    assert_eq!(login.matches(&RequestHead::from(&head(&deep))), Match::Miss);
    assert_eq!(
        login.matches(&RequestHead::from(&head(&format!("{deep}%41")))),
        Match::Ambiguous
    );
    assert_eq!(
        login.matches(&RequestHead::from(&head(&format!("{}%41", &deep[2..])))),
        Match::Miss
    );
}

const SPELLINGS: [&str; 35] = [
    "/admin/login",
    "/admin/login/",
    "/admin/login//",
    "//admin/login",
    "/admin//login",
    "/admin/./login",
    "/./admin/login",
    "/x/../admin/login",
    "/admin/x/../login",
    "/admin/x//../login",
    "/../admin/login",
    "/admin/login/.",
    "/admin/login/x/..",
    "/Admin/login",
    "/ADMIN/LOGIN",
    "/%61dmin/login",
    "/admin/%6Cogin",
    "/admin/%6cogin",
    "/admin/%256Cogin",
    "/admin/%25256Cogin",
    "/admin%2Flogin",
    "/admin%2flogin",
    "/admin%252Flogin",
    "/admin\\login",
    "/admin%5Clogin",
    "/x/%2e%2e/admin/login",
    "/x/%2E./admin/login",
    "/x/..%2fadmin/login",
    "/x/..;/admin/login",
    "/admin;x=1/login",
    "/admin/login;jsessionid=1",
    "/admin/login%00.png",
    "/admin/login%20",
    "/admin/login.",
    "/admin/login/;",
];

const OTHERS: [&str; 12] = [
    "/",
    "/admin",
    "/login",
    "/admin/logins",
    "/admin/login/x",
    "/admin/log%2Fin",
    "/admin/login/../x",
    "/admin/login.json",
    "/admin/x;/login",
    "/admin-login",
    "/x/admin/login",
    "/admin/%zzlogin",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn matching_a_path_agrees_with_a_list_of_all_its_readings(
        pieces in vec(0..PIECES.len(), 0..10),
        pattern in 0..PATTERNS.len(),
        is_prefix in any::<bool>(),
    ) {
        let path: String = pieces.into_iter().map(|piece| PIECES[piece]).collect();
        let pattern = PATTERNS[pattern];
        let is_prefix = is_prefix && !pattern.contains("{*");
        let matcher = if is_prefix { PathPattern::prefix(pattern) } else { PathPattern::new(pattern) };
        let found = matcher.matches(&RequestHead::from(&head(&format!("/{path}")))) as u8;
        if let Some(written) = paths::Written::new(&format!("/{path}")) {
            prop_assert_eq!(found, paths::Pattern::new(pattern, is_prefix).likeness(&written));
        }
    }

    #[test]
    fn any_path_that_is_written_as_a_path_is_matches_its_pattern(
        segments in vec("[a-zA-Z0-9 \"'()+,:=@!$&.~_|<>^`\u{c0}-\u{17f}-]{1,8}", 1..6),
    ) {
        prop_assume!(segments.iter().all(|segment| segment.contains(|char| !matches!(char, '.' | ' '))));
        let raw: String = segments.iter().map(|segment| format!("/{segment}")).collect();
        // What would be read as a parameter of another framework's is escaped.
        let pattern = raw.replace("/:", "/%3A").replace("/<", "/%3C");
        let escaped = |byte: u8| match byte {
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'+' | b',' | b'=' | b':' | b'@' | b'/' => char::from(byte).to_string(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        let path: String = raw.bytes().map(escaped).collect();
        let matcher = PathPattern::new(&pattern);
        prop_assert!(matcher.validate().is_ok());
        prop_assert_eq!(matcher.matches(&RequestHead::from(&head(&path))), Match::Exact);
        prop_assert_eq!(PathPattern::new("/{a}/{*rest}").matches(&RequestHead::from(&head(&path))) == Match::Exact, segments.len() > 1);
    }
}

const PIECES: [&str; 28] = [
    "%20",
    ".",
    "%3F",
    "%2%66",
    "/",
    "/",
    "//",
    ".",
    "..",
    "/../",
    "%2F",
    "%5C",
    "\\",
    "%252f",
    ";",
    "%00",
    "login",
    "LOGIN",
    "%6Cogin",
    "%256cogin",
    "users",
    "a",
    "%C3%A9",
    "%zz",
    "%2e",
    "%",
    "login/",
    "users/7",
];

const PATTERNS: [&str; 9] = [
    "/",
    "/login",
    "/login/",
    "/users/{id}",
    "/users/*/login",
    "/{a}/login",
    "/users/{*rest}",
    "/{*rest}",
    "/caf\u{e9}/%C3%A9",
];

// === Method, host, header ===

#[test]
fn head_resembles_get_and_other_methods_nothing() {
    let reads = Methods::new([Method::GET, Method::OPTIONS]);
    for (method, likeness) in [
        (Method::GET, Match::Exact),
        (Method::OPTIONS, Match::Exact),
        (Method::HEAD, Match::Ambiguous),
        (Method::POST, Match::Miss),
    ] {
        let mut head = head("/");
        head.method = method;
        assert_eq!(reads.matches(&RequestHead::from(&head)), likeness);
        let head_only = Methods::new([Method::HEAD]).matches(&RequestHead::from(&head));
        assert_eq!(head_only, Match::from(head.method == Method::HEAD));
    }
}

#[test]
fn host_is_found_in_uri_and_header_without_port_and_in_any_case() {
    use Match::{Ambiguous, Exact, Miss};
    for (host, uri, headers, likeness) in [
        ("api.example.com", "/", &["api.example.com"][..], Exact),
        ("api.example.com", "/", &["API.Example.com:8080"], Exact),
        ("api.example.com", "/", &["api.example.com."], Exact),
        ("api.example.com", "/", &["www.example.com"], Miss),
        ("api.example.com", "/", &["xapi.example.com"], Miss),
        ("api.example.com", "/", &[], Miss),
        ("api.example.com", "http://api.example.com/", &[], Exact),
        (
            "api.example.com",
            "http://api.example.com:1/",
            &["api.example.com"],
            Exact,
        ),
        (
            "api.example.com",
            "http://api.example.com/",
            &["www.example.com"],
            Ambiguous,
        ),
        (
            "api.example.com",
            "/",
            &["www.example.com", "api.example.com"],
            Ambiguous,
        ),
        ("*.example.com", "/", &["a.example.com"], Exact),
        ("*.example.com", "/", &["a.b.EXAMPLE.com:1"], Exact),
        ("*.example.com", "/", &["example.com"], Miss),
        ("*.example.com", "/", &[".example.com"], Miss),
        ("[::1]", "/", &["[::1]:80"], Exact),
        ("[::1]", "/", &["[::1]"], Exact),
        ("[::1]", "/", &["[::2]"], Miss),
    ] {
        let mut head = head(uri);
        for value in headers {
            head.headers.append("host", value.parse().expect("a value"));
        }
        let found = HostPattern::new(host).matches(&RequestHead::from(&head));
        assert_eq!(found, likeness, "{host} {uri} {headers:?}");
    }
}

// Regression: over HTTP/2, where no parser strips it, a space hid a host from a deny list.
#[test]
fn space_around_a_host_header_is_not_part_of_the_host() {
    for value in [
        " api.example.com",
        "api.example.com\t",
        " api.example.com:80 ",
    ] {
        let mut head = head("/");
        let host = value.parse().expect("a value");
        head.headers.insert("host", host);
        for pattern in ["api.example.com", "*.example.com"] {
            let found = HostPattern::new(pattern).matches(&RequestHead::from(&head));
            assert_eq!(found, Match::Exact, "{pattern} {value:?}");
        }
    }
}

#[test]
fn header_is_there_or_has_a_value() {
    let present = HasHeader::new("x-plan");
    let free = HasHeader::new("x-plan").equal_to("free");
    for (values, is_there, likeness) in [
        (&[][..], false, Match::Miss),
        (&["free"], true, Match::Exact),
        (&[" free\t"], true, Match::Exact),
        (&["fr ee"], true, Match::Miss),
        (&["Free"], true, Match::Miss),
        (&[""], true, Match::Miss),
        (&["free", "free"], true, Match::Exact),
        (&["free", "pro"], true, Match::Ambiguous),
    ] {
        let mut head = head("/");
        for value in values {
            head.headers
                .append("x-plan", value.parse().expect("a value"));
        }
        assert_eq!(present.matches(&RequestHead::from(&head)), is_there.into());
        assert_eq!(
            free.matches(&RequestHead::from(&head)),
            likeness,
            "{values:?}"
        );
    }
}

// === Combinations ===

#[test]
fn doubt_stays_unless_the_other_part_settles_it() {
    let all = [Match::Miss, Match::Ambiguous, Match::Exact];
    let head = head("/");
    for first in all {
        let not = Fixed(first).not().matches(&RequestHead::from(&head));
        assert_eq!(not as u8, 2 - first as u8);
        for second in all {
            let both = Fixed(first)
                .and(Fixed(second))
                .matches(&RequestHead::from(&head));
            let either = Fixed(first)
                .or(Fixed(second))
                .matches(&RequestHead::from(&head));
            assert_eq!((both, either), (first.min(second), first.max(second)));
            // what and, or and not say of each other
            let other = Fixed(first).not().or(Fixed(second).not()).not();
            assert_eq!(other.matches(&RequestHead::from(&head)), both);
        }
    }
}

#[test]
fn matcher_can_be_chosen_at_run_time() {
    let chosen: Arc<dyn Matcher> = Arc::new(PathPattern::new("/x"));
    assert_eq!(
        chosen.matches(&RequestHead::from(&head("/x"))),
        Match::Exact
    );
    assert!(
        chosen
            .and(|_: &RequestHead| true)
            .matches(&RequestHead::from(&head("/y")))
            == Match::Miss
    );
    let wrong: Arc<dyn Matcher> = Arc::new(PathPattern::new("x"));
    assert!(wrong.validate().is_err());
}

struct Fixed(Match);

impl Matcher for Fixed {
    fn matches(&self, _: &RequestHead<'_>) -> Match {
        self.0
    }
}

// === Wrong ones ===

// Reproducer: a deny list over an extractor that cannot work was built, and denied nobody.
#[test]
fn list_over_an_extractor_that_cannot_work_is_refused_when_the_layer_is_built() {
    let list = || KeyList::new(ClientIp::behind(["10.0.0.0/33"]), [Key::new("192.0.2.1")]);
    let builder = || RateLimitLayer::builder().policy(plan().key(Global));
    for builder in [
        builder().forbid(list()),
        builder().skip(list().not()),
        RateLimitLayer::builder().policy(plan().key(Global).unless(list())),
        builder().forbid(AddressList::new(PeerIp, ["10.0.0.0/33"])),
        builder().forbid(AddressList::new(
            ClientIp::behind(["10.0.0.0/33"]),
            ["192.0.2.1"],
        )),
    ] {
        let error = builder.build().expect_err("there is no such network");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
}

// Reproducer: built, and then every such request was denied for ever.
#[test]
fn cost_that_never_fits_is_refused_when_the_layer_is_built_unless_tiers_may_have_more() {
    let rule = || {
        let small = Policy::new("small", Quota::per_minute(60).burst(5)).key(Global);
        small.cost_when(PathPattern::new("/a"), 5)
    };
    let build = |rule| RateLimitLayer::builder().policy(rule).build();
    assert!(build(rule()).is_ok());
    let dear = || rule().cost_when(PathPattern::new("/b"), 6);
    let error = build(dear()).expect_err("6 of 5 are never there");
    assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
    for part in ["\"small\"", "6 units", "limit is 5"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(build(dear().tier_by(|_: &RequestHead, _: &Key| None)).is_ok());
}

#[test]
fn patterns_and_hosts_that_cannot_be_are_refused_when_the_layer_is_built() {
    for (pattern, hint) in [
        ("", "starts with /"),
        ("login", "starts with /"),
        ("http://x/login", "starts with /"),
        ("//login", "empty segments"),
        ("/a//b", "empty segments"),
        ("//", "empty segments"),
        ("/a/../b", ". or .."),
        ("/a/.", ". or .."),
        ("/a/%2e%2e", ". or .."),
        ("/a?b", "a query"),
        ("/a#b", "a fragment"),
        ("/a\\b", "\\ or ;"),
        ("/a;b", "\\ or ;"),
        ("/a%2Fb", "escaped slash"),
        ("/100%", "escaped slash"),
        ("/a%00", "control character"),
        ("/a%3Fb", "escaped slash"),
        ("/...", "only dots and spaces"),
        ("/%20", "only dots and spaces"),
        ("/{}", "{name}"),
        ("/{*}", "{name}"),
        ("/a/{b", "{name}"),
        ("/{a", "{name}"),
        ("/a}", "{name}"),
        ("/file-*.txt", "whole segment"),
        ("/v{n}", "whole segment: {name}"),
        ("/users/:id/pay", "{id}"),
        ("/:", "{name}"),
        ("/users/<id>", "{id}"),
        ("/<int:id>", "{name}"),
        ("/users/**", "{*rest}"),
        ("/**/x", "{*rest}"),
        ("/{*rest}/x", "last segment"),
        ("/{{a}}", "{name}"),
    ] {
        let rule = plan().key(Global).when(PathPattern::new(pattern));
        let error = refused(RateLimitLayer::builder().policy(rule));
        assert!(error.contains(hint), "{pattern}: {error}");
    }
    let none = plan().key(Global).when(Methods::new([]));
    assert!(refused(RateLimitLayer::builder().policy(none)).contains("without methods"));
    let rule = || plan().key(Global);
    let wrong = || PathPattern::new("x");
    for builder in [
        RateLimitLayer::builder().policy(rule().unless(wrong())),
        RateLimitLayer::builder().policy(rule().cost_when(wrong(), 1)),
        RateLimitLayer::builder().policy(rule().when(Anything.and(wrong()))),
        RateLimitLayer::builder().policy(rule().when(wrong().not().or(Anything))),
        RateLimitLayer::builder().policy(rule()).skip(wrong()),
        RateLimitLayer::builder().policy(rule()).forbid(wrong()),
        RateLimitLayer::builder().policy(rule().when(PathPattern::prefix("/a/{*rest}"))),
    ] {
        assert!(refused(builder).contains("path pattern"));
    }
    for host in [
        "", "*", "*.", "a:80", "http://a", "a.*.b", "a b", "a.", "u@a", "[::1", "*x.com",
    ] {
        let rule = rule().when(HostPattern::new(host));
        let error = refused(RateLimitLayer::builder().policy(rule));
        assert!(error.contains("is not a host pattern"), "{host}: {error}");
    }
}

struct Anything;

impl Matcher for Anything {
    fn matches(&self, _: &RequestHead<'_>) -> Match {
        Match::Exact
    }
}

#[track_caller]
fn refused(builder: RateLimitLayerBuilder) -> String {
    let error = builder.build().expect_err("it cannot work");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    error.to_string()
}

// === What they stand on ===

fn plan() -> Policy {
    plan_of(10)
}

fn plan_of(count: u64) -> Policy {
    Policy::new("plan", Quota::per_hour(count))
}

fn built(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    builder.build().expect("it is well set up")
}

async fn fine(_: Request<()>) -> Result<Response<Body>, std::convert::Infallible> {
    Ok(Response::new(Body::empty()))
}

fn head(uri: &str) -> Parts {
    let request = Request::builder().uri(uri).body(()).expect("a request");
    request.into_parts().0
}

fn from(address: &str) -> Parts {
    let mut head = head("/");
    let address: IpAddr = address.parse().expect("an address");
    head.extensions.insert(address);
    head
}

fn peer(head: &RequestHead) -> Option<IpAddr> {
    PeerIp.address(head)
}

fn addresses(networks: &[&str]) -> AddressList<fn(&RequestHead) -> Option<IpAddr>> {
    let networks = networks.iter().map(|text| text.parse().expect("a network"));
    AddressList::new(peer, networks.collect::<Vec<IpNet>>())
}
