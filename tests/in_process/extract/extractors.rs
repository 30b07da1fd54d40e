//! Whom a request counts for, and that nobody can pass for somebody else.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, connect_info::MockConnectInfo},
    routing,
};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use proptest::{collection::vec, prelude::*, sample::select};
use tollgate::{
    Decision, Key, Policy, Quota, RateLimitLayer, RequestHead,
    clock::{Clock, Timestamp},
    extract::{
        ApiKey, CallerId, ClientIp, Cookie, ExtensionKey,
        Extracted::{self, Absent, Ambiguous, Found},
        Global, HashSecret, Header, KeyExtractor, PeerIp, Route,
    },
    rejection::{Reason, Rejection},
    rules::OnMissingKey,
};
use tower::ServiceExt;

// === PeerIp ===

#[test]
fn peer_ip_is_the_address_of_the_connection_from_every_source() {
    let expected = Some(Key::new("192.0.2.1"));
    let socket: SocketAddr = address("192.0.2.1:4711");
    assert_eq!(
        PeerIp
            .extract(&RequestHead::from(&with(ConnectInfo(socket))))
            .found(),
        expected
    );
    assert_eq!(
        PeerIp.extract(&RequestHead::from(&with(socket))).found(),
        expected
    );
    assert_eq!(
        PeerIp
            .extract(&RequestHead::from(&with(socket.ip())))
            .found(),
        expected
    );
}

#[tokio::test]
async fn router_can_be_tested_with_a_made_up_peer() {
    let made_up = MockConnectInfo(address("192.0.2.1:4711"));
    assert_eq!(
        PeerIp.extract(&RequestHead::from(&with(made_up))).found(),
        Some(Key::new("192.0.2.1"))
    );
    let app = Router::new()
        .fallback(fine)
        .layer(limit(Policy::new("peer", Quota::per_minute(1)).key(PeerIp)))
        .layer(made_up);
    assert_eq!(status(&app, Method::GET, "/").await, 200);
    assert_eq!(status(&app, Method::GET, "/").await, 429);
}

#[test]
fn peer_ip_ignores_the_port() {
    let first = PeerIp
        .extract(&RequestHead::from(&with(ConnectInfo(address(
            "192.0.2.1:1",
        )))))
        .found();
    let second = PeerIp
        .extract(&RequestHead::from(&with(ConnectInfo(address(
            "192.0.2.1:2",
        )))))
        .found();
    assert!(first.is_some());
    assert_eq!(first, second);
}

#[test]
fn peer_ip_trusts_axum_over_an_extension() {
    let mut head = with(ConnectInfo(address("192.0.2.1:1")));
    head.extensions
        .insert(MockConnectInfo(address("192.0.2.4:1")));
    head.extensions.insert(address("192.0.2.2:1"));
    head.extensions.insert(ip("192.0.2.3"));
    assert_eq!(
        PeerIp.extract(&RequestHead::from(&head)).found(),
        Some(Key::new("192.0.2.1"))
    );
}

// CVE-2026-30827: all clients of a dual-stack socket fell into one prefix
#[test]
fn mapped_ipv4_address_is_the_ipv4_address_and_no_other() {
    let plain = PeerIp
        .extract(&RequestHead::from(&with(ip("192.0.2.1"))))
        .found();
    let mapped = PeerIp
        .extract(&RequestHead::from(&with(ip("::ffff:192.0.2.1"))))
        .found();
    let connected = PeerIp
        .extract(&RequestHead::from(&with(ConnectInfo(address(
            "[::ffff:192.0.2.1]:80",
        )))))
        .found();
    let other = PeerIp
        .extract(&RequestHead::from(&with(ip("::ffff:192.0.2.2"))))
        .found();
    assert_eq!(plain, mapped);
    assert_eq!(plain, connected);
    assert_ne!(plain, other);
}

#[test]
fn ipv6_addresses_of_one_customer_share_a_key_that_reads_as_usual() {
    let first = PeerIp
        .extract(&RequestHead::from(&with(ip("2001:db8:0:1:0:0:0:1"))))
        .found();
    let neighbour = PeerIp
        .extract(&RequestHead::from(&with(ip("2001:db8:0:1:f::2"))))
        .found();
    let stranger = PeerIp
        .extract(&RequestHead::from(&with(ip("2001:db8:0:2::1"))))
        .found();
    assert_eq!(first, Some(Key::new("2001:db8:0:1::")));
    assert_eq!(first, neighbour);
    assert_ne!(first, stranger);
    let longest = with(ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
    let longest = ClientIp::peer()
        .ipv6_prefix(128)
        .extract(&RequestHead::from(&longest));
    assert_eq!(
        longest.found(),
        Some(Key::new("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))
    );
}

// Reproducer: `Key::from` kept single IPv6 addresses, so a block or a tier by address missed what `PeerIp` counts.
#[test]
fn key_of_an_address_is_the_one_that_extractors_count_by() {
    for address in [
        "192.0.2.7",
        "::ffff:192.0.2.7",
        "2001:db8:0:1:f::2",
        "64:ff9b::203.0.113.9",
        "64:ff9b:1::203.0.113.9",
        "64:ff9b::10.0.0.7",
        "2002:cb00:7109::1",
    ] {
        let address = ip(address);
        let key = Key::from(address);
        assert_eq!(
            PeerIp.extract(&RequestHead::from(&with(address))).found(),
            Some(key)
        );
        assert_eq!(
            ClientIp::peer()
                .extract(&RequestHead::from(&with(address)))
                .found(),
            Some(key)
        );
        assert_eq!(CallerId::Address(address).key(), key);
        assert_eq!(PeerIp.keys_of(&CallerId::Address(address)), [key]);
        let by_closure =
            |head: &RequestHead| head.extensions.get::<IpAddr>().copied().map(Key::from);
        assert_eq!(
            by_closure
                .extract(&RequestHead::from(&with(address)))
                .found(),
            Some(key)
        );
    }
}

// Reproducer: all clients of a translator shared the key of 64:ff9b::/64.
#[test]
fn clients_behind_nat64_are_counted_by_their_ipv4_addresses() {
    for (address, key) in [
        ("64:ff9b::203.0.113.9", "203.0.113.9"),
        ("64:ff9b::203.0.113.10", "203.0.113.10"),
        // The position of the IPv4 address in this prefix is the operator's choice, so the whole address counts.
        ("64:ff9b:1::203.0.113.9", "64:ff9b:1::cb00:7109"),
        ("64:ff9b:1:cb00:71:900::", "64:ff9b:1:cb00:71:900::"),
        // A translator must drop these: nobody gets the key, or the trust, of a private address.
        ("64:ff9b::10.0.0.7", "64:ff9b::a00:7"),
        ("64:ff9b::127.0.0.1", "64:ff9b::7f00:1"),
        ("64:ff9b::100.64.0.1", "64:ff9b::6440:1"),
        // Neighbours of the prefixes, 6to4 and Teredo count by /64.
        ("64:ff9b:0:0:1::1", "64:ff9b::"),
        ("64:ff9b:2::1", "64:ff9b:2::"),
        ("2002:cb00:7109:1::1", "2002:cb00:7109:1::"),
        ("2001:0:cb00:7109:8000:1:2:3", "2001:0:cb00:7109::"),
    ] {
        assert_eq!(Key::from(ip(address)), Key::new(key), "{address}");
    }
    let by_24 = ClientIp::peer().ipv4_prefix(24);
    let translated = with(ip("64:ff9b::203.0.113.9"));
    assert_eq!(
        by_24.extract(&RequestHead::from(&translated)).found(),
        Some(Key::new("203.0.113.0"))
    );
    let network = by_24
        .network(&RequestHead::from(&translated))
        .expect("there is a peer");
    assert_eq!(network.to_string(), "203.0.113.0/24");
}

#[test]
fn peer_ip_listens_to_no_header() {
    let head = headers(&[
        ("x-forwarded-for", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("x-real-ip", "192.0.2.1"),
    ]);
    assert_eq!(PeerIp.extract(&RequestHead::from(&head)).found(), None);
}

// === Header ===

#[test]
fn header_is_its_value() {
    let tenant = Header::new("x-tenant");
    let key = |value| {
        tenant
            .extract(&RequestHead::from(&headers(&[("x-tenant", value)])))
            .found()
    };
    assert_eq!(key("acme"), Some(Key::new("acme")));
    assert_ne!(key("acme"), key("Acme"));
    assert_ne!(key("a b"), key("a%20b"));
}

#[test]
fn header_that_is_missing_or_empty_is_absent() {
    let tenant = Header::new("x-tenant");
    for fields in [
        &[][..],
        &[("x-other", "acme")],
        &[("x-tenant", "")],
        &[("x-tenant", " \t")],
    ] {
        assert_eq!(
            tenant.extract(&RequestHead::from(&headers(fields))),
            Absent,
            "{fields:?}"
        );
        assert_eq!(
            tenant.value(&RequestHead::from(&headers(fields))),
            Absent,
            "{fields:?}"
        );
    }
}

#[test]
fn repeated_header_is_ambiguous_for_all_values() {
    let tenant = Header::new("x-tenant");
    for fields in [
        &[("x-tenant", "acme"), ("x-tenant", "other")][..],
        &[("x-tenant", "acme"), ("x-tenant", "acme")],
        &[("x-tenant", ""), ("x-tenant", "acme")],
        &[("x-tenant", "acme"), ("x-tenant", "")],
        &[("x-tenant", ""), ("x-tenant", "")],
        &[("x-tenant", "acme"), ("X-Tenant", "acme")],
    ] {
        assert_eq!(
            tenant.extract(&RequestHead::from(&headers(fields))),
            Ambiguous,
            "{fields:?}"
        );
        assert_eq!(
            tenant.value(&RequestHead::from(&headers(fields))),
            Ambiguous,
            "{fields:?}"
        );
    }
}

#[test]
fn header_values_that_are_not_text_have_distinct_keys() {
    let tenant = Header::new("x-tenant");
    let mut keys: Vec<Key> = [
        &b"\xFF"[..],
        b"\xFE",
        b"\xFF\xFE",
        b"\xEF\xBF\xBD",
        b"\t\xFF\t\xFF",
    ]
    .into_iter()
    .map(|value| {
        let value = HeaderValue::from_bytes(value).expect("HTTP allows it");
        let mut head = nothing();
        head.headers.insert("x-tenant", value);
        tenant
            .extract(&RequestHead::from(&head))
            .found()
            .expect("there is a value")
    })
    .collect();
    keys.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    keys.dedup();
    assert_eq!(keys.len(), 5);
}

#[test]
fn header_may_be_named_at_run_time() {
    let name: HeaderName = "X-Tenant".parse().expect("it is a name");
    let key = Header::from(name)
        .extract(&RequestHead::from(&headers(&[("x-tenant", "acme")])))
        .found();
    assert_eq!(key, Some(Key::new("acme")));
}

// === ApiKey ===

#[test]
fn secret_of_an_api_key_appears_nowhere() {
    let extractor = ApiKey::header("x-api-key");
    let head = headers(&[("x-api-key", SECRET)]);
    let key = extractor
        .extract(&RequestHead::from(&head))
        .found()
        .expect("there is a key");
    assert!(!shows(key.as_str(), SECRET));
    assert!(!shows(&format!("{key:?}"), SECRET));
    assert_ne!(key, Key::new(SECRET));
    // and a hash of a fleet's own is another
    let fleet = extractor.hash_secret(HashSecret::new([7; 32]));
    let other = fleet
        .extract(&RequestHead::from(&head))
        .found()
        .expect("there is a key");
    assert!(!shows(other.as_str(), SECRET));
    assert_ne!(key, other);
}

#[test]
fn hash_secret_of_an_api_key_is_not_shown() {
    let hash_secret = HashSecret::new([0xAB; 32]);
    let extractor = ApiKey::bearer().hash_secret(hash_secret);
    for shown in [format!("{extractor:?}"), format!("{hash_secret:?}")] {
        for trace in ["171", "ab, ab", "AB", "abab"] {
            assert!(!shown.contains(trace), "{shown}");
        }
    }
    let phrase = HashSecret::from_passphrase(SECRET);
    assert!(!shows(&format!("{phrase:?}"), SECRET));
}

#[test]
fn same_api_key_is_the_same_key_on_every_instance() {
    let head = headers(&[("x-api-key", SECRET)]);
    let key = || {
        ApiKey::header("x-api-key")
            .hash_secret(HashSecret::from_passphrase("fleet"))
            .extract(&RequestHead::from(&head))
            .found()
    };
    assert!(key().is_some());
    assert_eq!(key(), key());
    // pinned: another value would give every client a fresh quota at the next release
    assert_eq!(Key::secret("k-1").as_str(), PINNED_SECRET);
}

#[test]
fn api_key_that_is_missing_or_empty_is_absent_and_one_that_is_repeated_ambiguous() {
    let extractor = ApiKey::header("x-api-key");
    for (fields, expected) in [
        (&[][..], Absent),
        (&[("x-api-key", "")], Absent),
        (&[("x-api-key", SECRET), ("x-api-key", SECRET)], Ambiguous),
        (&[("x-api-key", SECRET), ("x-api-key", "")], Ambiguous),
    ] {
        assert_eq!(
            extractor.extract(&RequestHead::from(&headers(fields))),
            expected,
            "{fields:?}"
        );
    }
}

#[test]
fn bearer_token_is_read_in_any_case_and_with_any_spaces() {
    let token = |value| {
        ApiKey::bearer()
            .extract(&RequestHead::from(&headers(&[("authorization", value)])))
            .found()
    };
    let expected = Some(Key::secret("abc.DEF-1"));
    for value in [
        "Bearer abc.DEF-1",
        "bearer abc.DEF-1",
        "BEARER abc.DEF-1",
        "bEaReR abc.DEF-1",
        "Bearer    abc.DEF-1",
        "Bearer abc.DEF-1 ",
        "Bearer\tabc.DEF-1",
        "Bearer \t abc.DEF-1\t",
    ] {
        assert_eq!(token(value), expected, "{value:?}");
    }
    assert_ne!(token("Bearer abc.def-1"), expected);
}

#[test]
fn authorization_that_is_not_a_bearer_token_is_absent() {
    for value in [
        "",
        "B",
        "Bearer",
        "Bearer ",
        "Bearer     ",
        "Bearerabc",
        "Bearer:abc",
        "Basic abc",
        "Digest Bearer abc",
        "xBearer abc",
        "abc",
        "Беарер abc",
    ] {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("HTTP allows it");
        let mut head = nothing();
        head.headers.insert(header::AUTHORIZATION, value.clone());
        assert_eq!(
            ApiKey::bearer().extract(&RequestHead::from(&head)),
            Absent,
            "{value:?}"
        );
    }
}

// Reproducer: a second line made the key missing, so that skip, share and the second choice of `or_else` applied.
#[test]
fn two_authorizations_are_ambiguous_also_when_one_is_empty_or_of_another_scheme() {
    for second in ["Bearer a", "Bearer b", "Bearer", "", " ", "Basic a"] {
        for pair in [["Bearer a", second], [second, "Bearer a"]] {
            let head = headers(&pair.map(|value| ("authorization", value)));
            assert_eq!(
                ApiKey::bearer().extract(&RequestHead::from(&head)),
                Ambiguous,
                "{pair:?}"
            );
        }
    }
}

// Some proxies and function runtimes join repeated lines by commas, and some handlers take what is before a space.
#[test]
fn bearer_token_with_a_comma_or_a_space_in_it_is_ambiguous() {
    for value in [
        "Bearer a,Bearer b",
        "Bearer a, ",
        "Bearer ,a",
        "Bearer a b",
        "Bearer a\tb",
        ", Bearer a",
        "Basic a, Bearer b",
        "Basic a,bearer",
    ] {
        let head = headers(&[("authorization", value)]);
        assert_eq!(
            ApiKey::bearer().extract(&RequestHead::from(&head)),
            Ambiguous,
            "{value:?}"
        );
    }
    let digest = headers(&[("authorization", "Digest username=\"a\", realm=\"b\"")]);
    assert_eq!(
        ApiKey::bearer().extract(&RequestHead::from(&digest)),
        Absent
    );
}

// === Route ===

#[tokio::test]
async fn route_counts_endpoints_and_not_paths() {
    let layer = limit(Policy::new("route", Quota::per_minute(2)).key(Route));
    let users = Router::new().route("/users/{id}", routing::any(fine));
    let app = Router::new()
        .route("/users/{id}", routing::any(fine))
        .route("/teams/{id}", routing::any(fine))
        .nest("/api", users)
        .route_layer(layer);
    let ask = |method, path| status(&app, method, path);
    assert_eq!(ask(Method::GET, "/users/1").await, 200);
    assert_eq!(ask(Method::GET, "/users/2?page=3").await, 200);
    assert_eq!(ask(Method::GET, "/users/3").await, 429);
    // another method, another route, and the same route elsewhere
    assert_eq!(ask(Method::POST, "/users/1").await, 200);
    assert_eq!(ask(Method::GET, "/teams/1").await, 200);
    assert_eq!(ask(Method::GET, "/api/users/1").await, 200);
}

#[tokio::test]
async fn requests_without_a_route_are_one_count_per_method() {
    assert_eq!(Route.extract(&RequestHead::from(&nothing())), Absent);
    let app = Router::new()
        .route("/users/{id}", routing::get(fine))
        .layer(limit(Policy::new("route", Quota::per_minute(2)).key(Route)));
    for (made_up, expected) in [("/a", 404), ("/b", 404), ("/c", 429), ("/users/1", 200)] {
        assert_eq!(
            status(&app, Method::GET, made_up).await,
            expected,
            "{made_up}"
        );
    }
    assert_eq!(status(&app, Method::POST, "/a").await, 404);
}

// Reproducer: a layer on a router answered 404 for all that its mounted services and its fallback served.
#[tokio::test]
async fn layer_does_not_respond_404_to_unmatched_paths() {
    let served = || Router::new().fallback(fine);
    for choice in [None, Some(OnMissingKey::Share), Some(OnMissingKey::Skip)] {
        let rule = Policy::new("route", Quota::per_minute(9)).key(Route);
        let rule = match choice {
            Some(choice) => rule.on_missing_key(choice),
            None => rule,
        };
        let app = Router::new()
            .route("/users/{id}", routing::get(fine))
            .nest_service("/files", served())
            .fallback_service(served())
            .layer(limit(rule));
        for path in ["/files/a/b", "/files", "/page", "/users/1"] {
            assert_eq!(
                status(&app, Method::GET, path).await,
                200,
                "{choice:?} {path}"
            );
        }
    }
}

// What no route names must not let one client use up the count of another.
#[tokio::test]
async fn route_beside_another_key_keeps_clients_apart_where_there_is_no_route() {
    let rule = Policy::new("each", Quota::per_minute(1)).key(Header::new("x-client").and(Route));
    let app = Router::new()
        .nest_service("/files", Router::new().fallback(fine))
        .layer(limit(rule));
    for (client, path, expected) in [
        ("a", "/files/1", 200),
        ("a", "/files/2", 429),
        ("b", "/files/1", 200),
    ] {
        let request = Request::get(path).header("x-client", client);
        let request = request.body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), expected, "{client} {path}");
    }
    // and without the client it is the client that is missing
    assert_eq!(status(&app, Method::GET, "/files/1").await, 400);
}

// === ExtensionKeyKey, Global ===

#[derive(Clone)]
struct User {
    id: u64,
}

#[test]
fn extension_is_what_its_closure_makes_of_it() {
    let user = ExtensionKey::new(|user: &User| Key::from(user.id));
    assert_eq!(
        user.extract(&RequestHead::from(&with(User { id: 42 })))
            .found(),
        Some(Key::new("42"))
    );
    assert_ne!(
        user.extract(&RequestHead::from(&with(User { id: 1 })))
            .found(),
        user.extract(&RequestHead::from(&with(User { id: 2 })))
            .found()
    );
    assert_eq!(user.extract(&RequestHead::from(&nothing())).found(), None);
}

#[test]
fn global_counts_all_clients_and_no_client_can_send_its_key() {
    assert_eq!(
        Global.extract(&RequestHead::from(&nothing())).found(),
        Some(Key::GLOBAL)
    );
    assert_eq!(
        Global
            .extract(&RequestHead::from(&with(ip("192.0.2.1"))))
            .found(),
        Some(Key::GLOBAL)
    );
    for reserved in [Key::GLOBAL, Key::UNIDENTIFIED] {
        assert_ne!(Key::new(reserved.as_str()), reserved);
        assert_ne!(Key::secret(reserved.as_str()), reserved);
    }
    assert_ne!(Key::GLOBAL, Key::UNIDENTIFIED);
}

// === And ===

#[test]
fn and_needs_both_and_distinguishes_both() {
    let both = Header::new("x-a").and(Header::new("x-b"));
    let key = |fields: &[_]| both.extract(&RequestHead::from(&headers(fields))).found();
    let base = key(&[("x-a", "1"), ("x-b", "2")]);
    assert!(base.is_some());
    assert_eq!(base, key(&[("x-b", "2"), ("x-a", "1")]));
    assert_ne!(base, key(&[("x-a", "2"), ("x-b", "1")]));
    assert_ne!(base, key(&[("x-a", "1"), ("x-b", "3")]));
    assert_ne!(
        key(&[("x-a", "1|2"), ("x-b", "3")]),
        key(&[("x-a", "1"), ("x-b", "2|3")])
    );
    for missing in [&[][..], &[("x-a", "1")], &[("x-b", "1")]] {
        assert_eq!(key(missing), None);
    }
}

#[test]
fn and_of_two_keys_has_the_status_of_the_missing_one() {
    fn check(
        both: impl KeyExtractor,
        head: &RequestHead,
        (status, challenge, label): (u16, Option<&str>, &str),
    ) {
        assert_eq!(both.extract(head), Absent, "{label}");
        assert_eq!(both.missing_status(head), status, "{label}");
        let found = both.challenge(head);
        assert_eq!(
            found.as_ref().map(HeaderValue::as_bytes),
            challenge.map(str::as_bytes)
        );
        assert_eq!(both.missing_label(head), label);
    }
    let tenant = || Header::new("x-tenant");
    let (address, named) = (with(ip("192.0.2.1")), headers(&[("x-tenant", "acme")]));
    // what the client left out
    check(
        tenant().and(PeerIp),
        &RequestHead::from(&address),
        (400, None, "x-tenant"),
    );
    check(
        PeerIp.and(tenant()),
        &RequestHead::from(&address),
        (400, None, "x-tenant"),
    );
    check(
        ApiKey::bearer().and(PeerIp),
        &RequestHead::from(&address),
        (401, Some("Bearer"), "bearer-token"),
    );
    check(
        PeerIp.and(ApiKey::header("x-key")),
        &RequestHead::from(&address),
        (401, Some("ApiKey"), "x-key"),
    );
    check(
        Cookie::new("sid").and(PeerIp).and(Global),
        &RequestHead::from(&address),
        (401, Some("Cookie"), "cookie:sid"),
    );
    // what the server lacks
    check(
        tenant().and(PeerIp),
        &RequestHead::from(&named),
        (500, None, "peer-ip"),
    );
    check(
        PeerIp.and(tenant()),
        &RequestHead::from(&named),
        (500, None, "peer-ip"),
    );
    check(
        tenant().and(Route),
        &RequestHead::from(&named),
        (404, None, "route"),
    );
    // both: what the client can mend, credentials first
    check(
        tenant().and(PeerIp),
        &RequestHead::from(&nothing()),
        (400, None, "x-tenant"),
    );
    check(
        PeerIp.and(tenant()),
        &RequestHead::from(&nothing()),
        (400, None, "x-tenant"),
    );
    check(
        Route.and(ApiKey::bearer()),
        &RequestHead::from(&nothing()),
        (401, Some("Bearer"), "bearer-token"),
    );
    check(
        ApiKey::bearer().and(Cookie::new("sid")),
        &RequestHead::from(&nothing()),
        (401, Some("Bearer, Cookie"), "bearer-token"),
    );
    check(
        Box::new(tenant().and(PeerIp)) as Box<dyn KeyExtractor>,
        &RequestHead::from(&address),
        (400, None, "x-tenant"),
    );
}

// Reproducer: any client could have a 500 by leaving a header out, and a 404 on a route that there is.
#[tokio::test]
async fn client_that_leaves_a_key_out_gets_no_status_of_the_server_s() {
    let rule = || Policy::new("both", Quota::per_minute(9));
    for (rule, expected, challenge) in [
        (rule().key(Header::new("x-tenant").and(PeerIp)), 400, None),
        (rule().key(Header::new("x-tenant").and(Route)), 400, None),
        (rule().key(ApiKey::bearer().and(Route)), 401, Some("Bearer")),
        (rule().key(Route.and(ApiKey::bearer())), 401, Some("Bearer")),
    ] {
        let app = Router::new()
            .route("/", routing::get(unreachable))
            .layer(limit(rule))
            .layer(axum::Extension(ip("192.0.2.1")));
        let response = app
            .oneshot(request(Method::GET, "/"))
            .await
            .expect("infallible");
        assert_eq!(response.status(), expected);
        let found = response.headers().get(header::WWW_AUTHENTICATE);
        assert_eq!(
            found.map(HeaderValue::as_bytes),
            challenge.map(str::as_bytes)
        );
    }
}

#[test]
fn joined_keys_are_ambiguous_when_either_is() {
    let twice = [("x-a", "1"), ("x-a", "1")];
    let (first, second) = (|| Header::new("x-a"), || Header::new("x-b"));
    for fields in [&twice[..], &[twice[0], twice[1], ("x-b", "2")]] {
        let head = headers(fields);
        assert_eq!(
            first().and(second()).extract(&RequestHead::from(&head)),
            Ambiguous
        );
        assert_eq!(
            second().and(first()).extract(&RequestHead::from(&head)),
            Ambiguous
        );
        assert_eq!(
            first()
                .and(second())
                .missing_label(&RequestHead::from(&head)),
            "x-a"
        );
        assert_eq!(
            second()
                .and(first())
                .missing_label(&RequestHead::from(&head)),
            "x-a"
        );
    }
}

#[test]
fn second_choice_is_not_taken_for_a_first_one_that_is_ambiguous() {
    let chain = || {
        Header::new("x-a")
            .or_else(Header::new("x-b"))
            .or_else(PeerIp)
    };
    let twice = [("x-a", "1"), ("x-a", ""), ("x-b", "2")];
    let mut head = headers(&twice);
    head.extensions.insert(ip("192.0.2.1"));
    for extractor in [
        Box::new(chain()) as Box<dyn KeyExtractor>,
        Box::new(chain().map(|key| key)),
        Box::new(chain().and_then(Some)),
        Box::new(Global.and(chain())),
    ] {
        assert_eq!(extractor.extract(&RequestHead::from(&head)), Ambiguous);
        assert_eq!(extractor.missing_label(&RequestHead::from(&head)), "x-a");
    }
    // the second is ambiguous only where it is looked at
    let mut head = headers(&[("x-b", "1"), ("x-b", "2")]);
    head.extensions.insert(ip("192.0.2.1"));
    assert_eq!(chain().extract(&RequestHead::from(&head)), Ambiguous);
    head.headers.insert("x-a", HeaderValue::from_static("1"));
    assert!(matches!(
        chain().extract(&RequestHead::from(&head)),
        Found(_)
    ));
}

#[test]
fn closures_and_extractors_of_ones_own_can_call_a_key_ambiguous() {
    let found = |head: &RequestHead| Header::new("x-a").extract(head);
    let key = |_: &RequestHead| Key::GLOBAL;
    let picky = Header::new("x-a").and_then(|key| match key.as_str() {
        "1" => Found(key),
        "2" => Absent,
        _ => Ambiguous,
    });
    let with = |value| headers(&[("x-a", value)]);
    assert_eq!(
        found.extract(&RequestHead::from(&headers(&[("x-a", "1"), ("x-a", "2")]))),
        Ambiguous
    );
    assert_eq!(
        key.extract(&RequestHead::from(&nothing())),
        Found(Key::GLOBAL)
    );
    for (value, expected) in [("1", Found(Key::new("1"))), ("2", Absent), ("3", Ambiguous)] {
        assert_eq!(picky.extract(&RequestHead::from(&with(value))), expected);
    }
    let extension = ExtensionKey::new(|user: &User| match user.id {
        0 => Ambiguous,
        id => Found(Key::from(id)),
    });
    assert_eq!(
        extension.extract(&RequestHead::from(&self::with(User { id: 0 }))),
        Ambiguous
    );
}

// === OrElse ===

#[test]
fn or_else_takes_the_first_key_that_is_there() {
    let extractor = ApiKey::header("x-api-key").or_else(PeerIp);
    let mut head = with(ip("192.0.2.1"));
    let by_address = extractor.extract(&RequestHead::from(&head)).found();
    head.headers
        .insert("x-api-key", HeaderValue::from_static(SECRET));
    let by_secret = extractor.extract(&RequestHead::from(&head)).found();
    assert_eq!(by_secret, Some(Key::secret(SECRET)));
    assert!(by_address.is_some());
    assert_ne!(by_address, by_secret);
    assert_eq!(
        extractor.extract(&RequestHead::from(&nothing())).found(),
        None
    );
    assert_eq!(
        extractor.missing_status(&RequestHead::from(&nothing())),
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[test]
fn header_that_reads_as_an_address_does_not_spend_the_quota_of_that_address() {
    let forms = [
        "192.0.2.1",
        "peer-ip!192.0.2.1",
        "peer-ip%21192.0.2.1",
        "x-tenant!192.0.2.1",
    ];
    let address = with(ip("192.0.2.1"));
    let header_first = Header::new("x-tenant").or_else(PeerIp);
    let header_last = PeerIp.or_else(Header::new("x-tenant"));
    for form in forms {
        let forged = headers(&[("x-tenant", form)]);
        assert_ne!(
            header_first.extract(&RequestHead::from(&forged)).found(),
            header_first.extract(&RequestHead::from(&address)).found()
        );
        assert_ne!(
            header_last.extract(&RequestHead::from(&forged)).found(),
            header_last.extract(&RequestHead::from(&address)).found()
        );
    }
}

#[test]
fn chain_of_or_else_keeps_every_kind_of_key_apart() {
    let chain = Header::new("x-a")
        .or_else(Header::new("x-b"))
        .or_else(Header::new("x-c"));
    apart([
        chain
            .extract(&RequestHead::from(&headers(&[("x-a", "1")])))
            .found(),
        chain
            .extract(&RequestHead::from(&headers(&[("x-b", "1")])))
            .found(),
        chain
            .extract(&RequestHead::from(&headers(&[("x-c", "1")])))
            .found(),
    ]);
    let nested = Header::new("x-a").or_else(Header::new("x-b").or_else(Header::new("x-c")));
    apart([
        nested
            .extract(&RequestHead::from(&headers(&[("x-a", "1")])))
            .found(),
        nested
            .extract(&RequestHead::from(&headers(&[("x-b", "1")])))
            .found(),
        nested
            .extract(&RequestHead::from(&headers(&[("x-c", "1")])))
            .found(),
    ]);
}

// Two extractors of one label: `KeyExtractor::or_else` promises that the second's keys are kept apart.
#[test]
fn chain_of_or_else_keeps_extensions_apart_though_they_are_labelled_alike() {
    #[derive(Clone)]
    struct Team {
        id: u64,
    }
    let chain = ApiKey::bearer()
        .or_else(ExtensionKey::new(|user: &User| Key::from(user.id)))
        .or_else(ExtensionKey::new(|team: &Team| Key::from(team.id)));
    apart([
        chain
            .extract(&RequestHead::from(&with(User { id: 42 })))
            .found(),
        chain
            .extract(&RequestHead::from(&with(Team { id: 42 })))
            .found(),
    ]);
}

#[test]
fn chain_of_or_else_keeps_closures_apart_though_they_are_labelled_alike() {
    let chain = PeerIp
        .or_else(|head: &RequestHead| head.uri.host().map(Key::from))
        .or_else(|head: &RequestHead| head.headers.get("x-tenant").map(Key::new));
    let mut by_host = nothing();
    by_host.uri = "http://acme/".parse().expect("it is a uri");
    apart([
        chain.extract(&RequestHead::from(&by_host)).found(),
        chain
            .extract(&RequestHead::from(&headers(&[("x-tenant", "acme")])))
            .found(),
    ]);
}

// The first alternative's own alternatives hide behind `and`, and behind a closure that calls them.
#[test]
fn chain_of_or_else_keeps_alternatives_apart_that_an_and_has_wrapped() {
    let chain = PeerIp
        .or_else(|head: &RequestHead| head.uri.host().map(Key::from))
        .and(Global)
        .or_else(|head: &RequestHead| {
            let tenant = head.headers.get("x-tenant").map(Key::new)?;
            Some(tenant.and(&Key::GLOBAL))
        });
    let mut by_host = nothing();
    by_host.uri = "http://acme/".parse().expect("it is a uri");
    apart([
        chain.extract(&RequestHead::from(&by_host)).found(),
        chain
            .extract(&RequestHead::from(&headers(&[("x-tenant", "acme")])))
            .found(),
    ]);
}

#[test]
fn chain_of_or_else_keeps_alternatives_apart_that_a_closure_has_wrapped() {
    let boxed: Box<dyn KeyExtractor> =
        Box::new(PeerIp.or_else(|head: &RequestHead| head.uri.host().map(Key::from)));
    let wrapped = move |head: &RequestHead| boxed.extract(head);
    let chain = wrapped.or_else(|head: &RequestHead| head.headers.get("x-tenant").map(Key::new));
    let mut by_host = nothing();
    by_host.uri = "http://acme/".parse().expect("it is a uri");
    apart([
        chain.extract(&RequestHead::from(&by_host)).found(),
        chain
            .extract(&RequestHead::from(&headers(&[("x-tenant", "acme")])))
            .found(),
    ]);
}

// === Extractors of one's own ===

#[test]
fn closures_and_functions_are_extractors() {
    fn by_host(head: &RequestHead) -> Option<Key> {
        head.uri.host().map(Key::from)
    }
    let salt = "tenant-".to_owned();
    let by_path = move |head: &RequestHead| Some(Key::from(format!("{salt}{}", head.uri.path())));
    assert_eq!(
        KeyExtractor::extract(&by_host, &RequestHead::from(&nothing())),
        Absent
    );
    assert_eq!(
        by_path.extract(&RequestHead::from(&nothing())).found(),
        Some(Key::new("tenant-/"))
    );
    assert_eq!(by_path.label(), "closure");
    let _ = Policy::new("host", Quota::per_minute(1)).key(by_host.and(by_path));
}

/// Has the one method that is required: no feature adds another.
struct Tenant;

impl KeyExtractor for Tenant {
    fn extract(&self, head: &RequestHead) -> Extracted<Key> {
        let tenant = head.uri.path().split('/').nth(1);
        let tenant = tenant.filter(|tenant| !tenant.is_empty());
        tenant.map(Key::new).into()
    }
}

#[tokio::test]
async fn extractor_of_ones_own_needs_one_method() {
    let app = Router::new().fallback(fine).layer(limit(
        Policy::new("tenant", Quota::per_minute(1)).key(Tenant),
    ));
    assert_eq!(status(&app, Method::GET, "/acme/1").await, 200);
    assert_eq!(status(&app, Method::GET, "/acme/2").await, 429);
    assert_eq!(status(&app, Method::GET, "/other/1").await, 200);
    assert_eq!(status(&app, Method::GET, "/").await, 400);
}

#[test]
fn extractors_can_be_kept_in_a_box() {
    let extractors: Vec<Box<dyn KeyExtractor>> = vec![
        Box::new(PeerIp),
        Box::new(Header::new("x-tenant").and(Route)),
        Box::new(ApiKey::bearer().or_else(Global)),
        Box::new(|_: &RequestHead| Some(Key::GLOBAL)),
    ];
    let labels: Vec<&str> = extractors.iter().map(KeyExtractor::label).collect();
    assert_eq!(
        labels,
        [
            "peer-ip",
            "x-tenant+route",
            "bearer-token-or-global",
            "closure"
        ]
    );
    let kept = extractors.into_iter().next_back().expect("there are four");
    let _ =
        Policy::new("kept", Quota::per_minute(1)).key(move |head: &RequestHead| kept.extract(head));
}

// === MissingKey ===

#[tokio::test]
async fn missing_key_is_rejected_by_default_with_the_status_of_its_extractor() {
    let key = |head: &RequestHead| head.uri.host().map(Key::from);
    let policy = || Policy::new("any", Quota::per_minute(1));
    for (rule, status, label) in [
        (policy().key(Header::new("x-tenant")), 400, "x-tenant"),
        (policy().key(key), 400, "closure"),
        (policy().key(Tenant), 400, "key"),
        (policy().key(ApiKey::bearer()), 401, "bearer-token"),
        (policy().key(ApiKey::header("x-key")), 401, "x-key"),
        (
            policy().key(Route).on_missing_key(OnMissingKey::Reject),
            404,
            "route",
        ),
        (policy().key(PeerIp), 500, "peer-ip"),
        (
            policy().key(ExtensionKey::new(|user: &User| Key::from(user.id))),
            500,
            "extension",
        ),
    ] {
        let app = Router::new().fallback(unreachable).layer(limit(rule));
        let response = app.oneshot(request(Method::GET, "/")).await;
        let response = response.expect("infallible");
        assert_eq!(response.status().as_u16(), status, "{label}");
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
        let rejection = response.extensions().get::<Rejection>();
        let rejection = rejection.expect("it is in the extensions");
        let Reason::MissingKey {
            policy,
            label: missing,
        } = rejection.reason()
        else {
            panic!("a missing key, and not {:?}", rejection.reason());
        };
        assert_eq!((policy.as_str(), missing.as_str()), ("any", label));
        let body = response.into_body().collect().await.expect("it is whole");
        let said = match label {
            "closure" | "extension" | "key" => "a required value",
            label => label,
        };
        let (code, message) = match status {
            500 => ("internal_error", "internal server error".to_owned()),
            _ => ("key_missing", format!("the request is missing {said}")),
        };
        let expected = format!(r#"{{"error":"{code}","message":"{message}","retry_after":null}}"#);
        assert_eq!(body.to_bytes(), expected);
    }
}

#[tokio::test]
async fn label_of_any_characters_leaves_the_json_whole() {
    struct Odd;
    impl KeyExtractor for Odd {
        fn extract(&self, _: &RequestHead) -> Extracted<Key> {
            Absent
        }
        fn label(&self) -> &str {
            "\"\\\n\u{1}é\u{2028}"
        }
    }
    let rule = Policy::new("odd", Quota::per_minute(1)).key(Odd);
    let app = Router::new().fallback(unreachable).layer(limit(rule));
    let response = app.oneshot(request(Method::GET, "/")).await;
    let body = response.expect("infallible").into_body().collect().await;
    assert_eq!(
        body.expect("it is whole").to_bytes(),
        "{\"error\":\"key_missing\",\"message\":\"the request is missing \
         \\\"\\\\\\u000a\\u0001é\u{2028}\",\"retry_after\":null}"
    );
}

#[tokio::test]
async fn shared_missing_keys_are_one_bucket_that_no_other_key_uses() {
    let app = Router::new().fallback(fine).layer(limit(
        Policy::new("tenant", Quota::per_minute(2))
            .key(Header::new("x-tenant"))
            .on_missing_key(OnMissingKey::Share),
    ));
    let ask = async |tenants: &[&'static str]| {
        let mut request = request(Method::GET, "/");
        for tenant in tenants {
            let tenant = HeaderValue::from_static(tenant);
            request.headers_mut().append("x-tenant", tenant);
        }
        let response = app.clone().oneshot(request).await;
        response.expect("infallible").status().as_u16()
    };
    assert_eq!(ask(&[]).await, 200);
    assert_eq!(ask(&[""]).await, 200);
    assert_eq!(ask(&[]).await, 429);
    assert_eq!(ask(&["a", "b"]).await, 400, "ambiguous, and not missing");
    assert_eq!(ask(&["?"]).await, 200);
    assert_eq!(ask(&["acme"]).await, 200);
}

#[tokio::test]
async fn missing_keys_that_are_skipped_are_not_counted() {
    let app = Router::new().fallback(undecided).layer(limit(
        Policy::new("tenant", Quota::per_minute(1))
            .key(Header::new("x-tenant"))
            .on_missing_key(OnMissingKey::Skip),
    ));
    for _ in 0..5 {
        assert_eq!(status(&app, Method::GET, "/").await, 200);
    }
}

// === Keys ===

#[test]
fn key_of_hostile_bytes_is_short_ascii_without_braces() {
    let megabyte = vec![b'a'; 1 << 20];
    let hostile: [&[u8]; 10] = [
        b"",
        b"\0",
        b"{}",
        b"}:other-policy{",
        b" \r\n\t",
        b"\xFF\xC0\xAF",
        b"%00%7B",
        b"a|b!c*?#$&",
        "žluťoučký kůň".as_bytes(),
        &megabyte,
    ];
    for identity in hostile {
        assert_canonical(&Key::new(identity));
        assert_canonical(&Key::secret(identity));
        assert_canonical(&Key::GLOBAL.and(&Key::new(identity)));
        assert_canonical(&Key::new(identity).labelled("{a label} of any length at all, and more"));
    }
}

#[test]
fn keys_that_differ_in_the_last_of_a_million_bytes_differ() {
    let mut identity = vec![b'a'; 1 << 20];
    let first = Key::new(&identity);
    identity[(1 << 20) - 1] = b'b';
    assert_ne!(first, Key::new(&identity));
}

// Exhaustive where random strings hardly ever meet: short ones of characters that mean something.
#[test]
fn no_two_short_strings_of_tricky_characters_give_one_key() {
    let alphabet = b"%27BAb|!*?#$&{} \0\xFF";
    let mut strings: Vec<Vec<u8>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..3 {
        let longer: Vec<Vec<u8>> = strings[from..]
            .iter()
            .flat_map(|string| alphabet.iter().map(|byte| [string, &[*byte][..]].concat()))
            .collect();
        from = strings.len();
        strings.extend(longer);
    }
    let mut seen = HashMap::new();
    for string in strings {
        let key = Key::new(&string);
        assert_canonical(&key);
        if let Some(other) = seen.insert(key, string.clone()) {
            panic!("{string:?} and {other:?} share {}", key.as_str());
        }
    }
}

#[test]
fn no_two_pairs_of_short_tricky_strings_give_one_key() {
    let head: Vec<Key> = ["", "a", "|", "!", "%", "a|", "|a", "%7C", "a!b", "b"]
        .into_iter()
        .map(Key::new)
        .chain([Key::GLOBAL, Key::UNIDENTIFIED, Key::secret("a")])
        .collect();
    let mut seen = HashMap::new();
    for (index, part) in head.iter().enumerate() {
        assert_eq!(seen.insert(*part, (index, usize::MAX)), None);
        for (other, second) in head.iter().enumerate() {
            let joined = seen.insert(part.and(second), (index, other));
            assert_eq!(joined, None, "{} and {}", part.as_str(), second.as_str());
        }
    }
    for part in head {
        assert_eq!(seen.insert(part.labelled("a"), (0, 0)), None);
        assert_eq!(seen.insert(part.labelled("a|"), (0, 0)), None);
    }
}

#[test]
fn debug_of_keys_does_not_show_who_it_is() {
    let keys = [
        Key::new("ada@example.org"),
        Key::from("ada@example.org"),
        Key::from("ada@example.org".to_owned()),
        Key::secret("ada@example.org"),
        Key::new("ada@example.org").and(&Key::GLOBAL),
        Key::new("ada@example.org").labelled("user"),
    ];
    for key in keys {
        let policy = Policy::new("any", Quota::per_minute(1));
        for shown in [
            format!("{key:?}"),
            format!("{key:#?}"),
            format!("{:?}", policy.charge(key)),
            format!("{:?}", policy.charge(key).to_owned()),
        ] {
            assert!(!shows(&shown, "ada"), "{shown}");
            assert!(!shown.contains(key.as_str()), "{shown}");
        }
    }
}

#[test]
fn keys_from_text_numbers_and_addresses_read_as_what_they_are() {
    assert_eq!(Key::from("user:42"), Key::new("user:42"));
    assert_eq!(Key::from(String::from("a b")), Key::new("a b"));
    assert_eq!(Key::from(0_u64).as_str(), "0");
    assert_eq!(Key::from(u64::MAX), Key::new(u64::MAX.to_string()));
    assert_eq!(Key::from(ip("192.0.2.1")), Key::new("192.0.2.1"));
}

#[test]
fn secrets_under_two_hash_secrets_are_two_keys() {
    let keys = [
        Key::secret("a"),
        Key::secret_with(&HashSecret::new([1; 32]), "a"),
        Key::secret_with(&HashSecret::new([2; 32]), "a"),
        Key::secret_with(&HashSecret::from_passphrase("1"), "a"),
        Key::secret_with(&HashSecret::from_passphrase(""), "a"),
    ];
    apart(keys.map(Some));
}

#[test]
fn every_octet_of_an_address_is_written_as_display_writes_it() {
    for octet in 0..=255 {
        for octets in [
            [octet, 0, 0, 7],
            [10, octet, 99, 100],
            [1, 1, octet, 255],
            [0, 10, 200, octet],
        ] {
            let address = IpAddr::from(octets);
            assert_eq!(Key::from(address), Key::new(address.to_string()));
        }
    }
}

proptest! {
    #[test]
    fn address_is_written_as_display_writes_it(
        segments in prop::array::uniform8(prop_oneof![Just(0), Just(1), 0..=u16::MAX, 0..=0xff_u16]),
    ) {
        let address = IpAddr::from(segments).to_canonical();
        let key = ClientIp::peer().ipv6_prefix(128).extract(&RequestHead::from(&with(address)));
        prop_assert_eq!(key.found(), Some(Key::new(address.to_string())));
    }

    #[test]
    fn different_bytes_never_give_one_key(
        first in vec(any::<u8>(), 0..80),
        second in vec(any::<u8>(), 0..80),
        cut in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        prop_assert_eq!(first == second, Key::new(&first) == Key::new(&second));
        // and those that differ in one place, where a careless form would not see it
        let mut changed = first.clone();
        changed.insert(cut.index(first.len() + 1), byte);
        prop_assert_ne!(Key::new(&first), Key::new(&changed));
    }

    #[test]
    fn what_a_key_looks_like_is_not_that_key(identity in vec(any::<u8>(), 0..80)) {
        let key = Key::new(&identity);
        let lookalike = Key::new(key.as_str());
        prop_assert_eq!(key == lookalike, key.as_bytes() == identity);
        prop_assert_ne!(Key::secret(&identity), key);
        prop_assert_ne!(Key::new(Key::secret(&identity).as_str()), Key::secret(&identity));
    }

    #[test]
    fn key_is_1_to_46_ascii_characters_without_braces(
        identity in vec(any::<u8>(), 0..120),
        other in vec(any::<u8>(), 0..120),
        label in ".{0,60}",
    ) {
        let key = Key::new(&identity);
        assert_canonical(&key);
        assert_canonical(&Key::secret(&identity));
        assert_canonical(&key.and(&Key::new(&other)));
        assert_canonical(&key.labelled(label.as_str()));
    }

    #[test]
    fn different_pairs_never_give_one_key(
        first in (text(), text()),
        second in (text(), text()),
        shift in any::<prop::sample::Index>(),
    ) {
        let key = |pair: &(String, String)| Key::new(&pair.0).and(&Key::new(&pair.1));
        prop_assert_eq!(first == second, key(&first) == key(&second));
        // and the same characters, cut elsewhere
        let whole = format!("{}{}", first.0, first.1);
        let cut = shift.index(whole.len() + 1);
        let moved = (whole[..cut].to_owned(), whole[cut..].to_owned());
        prop_assert_eq!(first == moved, key(&first) == key(&moved));
        prop_assert_ne!(key(&first), Key::new(format!("{}|{}", first.0, first.1)));
    }

    #[test]
    fn different_labels_never_give_one_key(first in text(), second in text(), key in text()) {
        let key = Key::new(key);
        prop_assert_eq!(first == second, key.labelled(first.as_str()) == key.labelled(second.as_str()));
        prop_assert_ne!(key.labelled(first.as_str()), key);
        prop_assert_ne!(key.labelled(first.as_str()), Key::new(&first).and(&key));
    }

    #[test]
    fn no_header_value_is_a_panic(value in prop_oneof![vec(any::<u8>(), 0..200), vec(select(b"\t a".to_vec()), 0..4)]) {
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            let mut head = nothing();
            head.headers.insert("x-tenant", value.clone());
            head.headers.insert(header::AUTHORIZATION, value.clone());
            let key = Header::new("x-tenant").extract(&RequestHead::from(&head)).found();
            prop_assert_eq!(key.is_some(), !value.as_bytes().trim_ascii().is_empty(), "blank is empty");
            prop_assert_eq!(ApiKey::header("x-tenant").extract(&RequestHead::from(&head)).found().is_some(), key.is_some());
            if let Some(key) = ApiKey::bearer().extract(&RequestHead::from(&head)).found() {
                prop_assert!(value.as_bytes()[..7].eq_ignore_ascii_case(b"bearer "));
                assert_canonical(&key);
            }
        }
    }
}

/// Short enough to collide, long enough to be hashed.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ab|!%]{0,4}", "[a-c|{}]{20,60}"]
}

fn assert_canonical(key: &Key) {
    let form = key.as_str();
    assert!((1..=Key::MAX_LENGTH).contains(&form.len()), "{form:?}");
    assert!(form.bytes().all(|byte| byte.is_ascii_graphic()), "{form:?}");
    assert!(!form.contains(['{', '}']), "{form:?}");
    assert_eq!(form.as_bytes(), key.as_bytes());
}

#[track_caller]
fn apart<const N: usize>(keys: [Option<Key>; N]) {
    for (index, key) in keys.iter().enumerate() {
        let key = key.expect("there is a key");
        for other in &keys[..index] {
            assert_ne!(*other, Some(key), "both are {}", key.as_str());
        }
    }
}

/// Whether any piece of the identity, of four characters, is in the text; of three when it has no more.
fn shows(text: &str, identity: &str) -> bool {
    let text = text.to_lowercase();
    let identity = identity.to_lowercase();
    let size = identity.len().min(4);
    identity
        .as_bytes()
        .windows(size)
        .any(|piece| text.as_bytes().windows(size).any(|found| found == piece))
}

fn limit(rule: impl Into<tollgate::rules::Rule>) -> RateLimitLayer {
    RateLimitLayer::builder()
        .policy(rule)
        .clock(Clock::manual(Timestamp::from_micros(1_700_000_000_000_000)))
        .build()
        .expect("it is well set up")
}

fn request(method: Method, path: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    request.body(Body::empty()).expect("it is well formed")
}

async fn status(app: &Router, method: Method, path: &str) -> u16 {
    let response = app.clone().oneshot(request(method, path)).await;
    response.expect("infallible").status().as_u16()
}

async fn fine() -> &'static str {
    "fine"
}

async fn unreachable() -> &'static str {
    panic!("a rejected request reached the handler")
}

async fn undecided(request: Request<Body>) -> &'static str {
    assert!(request.extensions().get::<Decision>().is_none());
    "fine"
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

fn address(text: &str) -> SocketAddr {
    text.parse().expect("it is an address")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("it is an address")
}

const SECRET: &str = "sk-live-zyxwvutsrq";
const PINNED_SECRET: &str = "$B9D1E817F10DF81616B959550A2E8FD6";

#[test]
fn extractor_chosen_at_run_time_keeps_its_label_and_status() {
    let chosen: [Box<dyn KeyExtractor>; 2] = [Box::new(PeerIp), Box::new(ApiKey::bearer())];
    let told = chosen.map(|extractor| {
        let shared: std::sync::Arc<dyn KeyExtractor> = std::sync::Arc::from(extractor);
        (
            shared.label().to_owned(),
            shared
                .missing_status(&RequestHead::from(&nothing()))
                .as_u16(),
            shared.or_else(Global).label().to_owned(),
        )
    });
    assert_eq!(told[0], ("peer-ip".into(), 500, "peer-ip-or-global".into()));
    assert_eq!(
        told[1],
        ("bearer-token".into(), 401, "bearer-token-or-global".into())
    );
}

// Regression: each made-up method had a count of its own.
#[tokio::test]
async fn made_up_methods_of_one_route_share_a_count() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("endpoint", Quota::per_hour(1)).key(Route))
        .clock(clock)
        .build()
        .expect("a usable layer");
    let app = axum::Router::new()
        .route("/pay", axum::routing::any(|| async { "paid" }))
        .layer(layer);
    let mut allowed = Vec::new();
    for method in ["M0", "M1", "M2", "GET", "HEAD", "POST"] {
        let request = http::Request::builder()
            .method(method)
            .uri("/pay")
            .body(axum::body::Body::empty());
        let response = tower::ServiceExt::oneshot(app.clone(), request.expect("a request"))
            .await
            .expect("an answer");
        if response.status() == StatusCode::OK {
            allowed.push(method);
        }
    }
    assert_eq!(allowed, ["M0", "GET", "POST"]);
}
