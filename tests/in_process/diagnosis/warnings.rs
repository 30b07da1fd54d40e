//! What looks wrong about a set-up is told once, by its code, and nothing else is.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    routing::{any, get},
};
use http::{Method, Request, StatusCode};
use ipnet::IpNet;
use tollgate::{
    Charge, Decision, Error, Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    algorithm::{Algorithm, WindowStart},
    decision::PolicyName,
    diagnosis::{Code, Warning},
    extract::{ApiKey, ClientIp, Extracted, Global, Header, KeyExtractor, PeerIp, Route},
    matching::{AddressList, KeyList, Matcher, Methods, PathPattern},
    policy::Penalty,
    rules::{OnMissingKey, Rule},
    store::{Store, StoreFuture},
};
use tower::ServiceExt;

use super::app::{PLENTY, app, ask, builder, codes, get_root, warnings};
use crate::support::logged;

// === Codes ===

#[test]
fn every_code_has_a_distinct_number_and_a_remedy() {
    let numbers: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let expected: Vec<String> = (1..=Code::ALL.len())
        .map(|number| format!("TG{number:03}"))
        .collect();
    assert_eq!(numbers, expected);
    assert!(Code::ALL.iter().all(|code| code.remedy().len() > 20));
}

#[test]
fn table_of_the_docs_lists_every_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/diagnosis/mod.rs");
    let text = std::fs::read_to_string(path).expect("readable text");
    let rows: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("//! | TG")?.split_once(" | "))
        .collect();
    assert_eq!(rows.len(), Code::ALL.len());
    for (code, (number, rest)) in Code::ALL.iter().zip(&rows) {
        assert_eq!(code.as_str(), format!("TG{number}"));
        assert!(rest.starts_with(&format!("[`{code:?}`]")), "{rest}");
    }
}

#[tokio::test]
async fn warning_has_code_policy_detail_and_remedy_and_is_logged_once() {
    logged();
    let layer = layer(PeerIp);
    let app = app(&layer);
    for _ in 0..3 {
        ask(&app, get_root()).await;
    }
    let [warning] = warnings(&layer);
    assert_eq!(warning.code(), Code::NoPeerAddress);
    assert_eq!(warning.policy().map(PolicyName::as_str), Some("p"));
    assert_eq!(
        warning.to_string(),
        "policy p: peer-ip found no key in a request; such requests are rejected; with axum, serve \
         into_make_service_with_connect_info::<SocketAddr>(); otherwise insert a SocketAddr into the request's extensions"
    );
    let lines = logged();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains(
            "WARN tollgate: possible misconfiguration code=TG001 policy=p detail=peer-ip found no key in a request; such \
             requests are rejected remedy=with axum, serve into_make_service_with_connect_info::<SocketAddr>();"
        ),
        "{lines:?}"
    );
}

// Regression: a ban that ended before the wait of the denial was accepted without a word.
#[test]
fn ban_that_is_shorter_than_the_wait_of_a_denial_is_reported_when_a_layer_is_built() {
    let seconds = Duration::from_secs;
    let bucket = |quota| Policy::new("p", quota);
    let window = bucket(Quota::per_hour(5)).algorithm(Algorithm::FixedWindow(WindowStart::Clock));
    for (policy, ban, wait) in [
        (bucket(Quota::per_hour(12)), 1, Some("300s")),
        (bucket(Quota::per_minute(3)), 10, Some("20s")),
        (bucket(Quota::per_minute(3)), 20, None),
        (bucket(Quota::per_minute(3)).cost(3), 59, Some("60s")),
        (window.clone(), 3_599, Some("3600s")),
        (window, 3_600, None),
        (Policy::concurrency("p", 3), 1, None),
    ] {
        logged();
        let penalty = Penalty::after(3, seconds(60))
            .ban(seconds(ban))
            .growing(2, seconds(7_200));
        let layer = build(policy.penalty(penalty), Global);
        let details: Vec<String> = layer.warnings().iter().map(ToString::to_string).collect();
        let expected = wait.map(|wait| {
            format!(
                "policy p: the first ban lasts {ban}s, but a denied request may have a wait of {wait} without it; make the \
                 first ban longer than the window of the quota, or than the time of one request; until then clients notice no \
                 ban before it has grown"
            )
        });
        assert_eq!(details, Vec::from_iter(expected), "{wait:?}");
        assert_eq!(logged().len(), details.len());
        assert!(
            layer
                .warnings()
                .iter()
                .all(|warning| warning.code() == Code::ShortBan)
        );
    }
}

#[test]
fn detail_of_a_warning_stays_on_one_line_of_bounded_length() {
    let warning = |detail: &str| Warning::new(Code::RefusingServer, detail);
    let forged = warning("refused\r\nINFO all is well\u{1b}[2J");
    assert_eq!(forged.detail(), "refused\\r\\nINFO all is well\\u{1b}[2J");
    assert!(warning(&"x".repeat(1 << 20)).detail().len() < 1_100);
}

#[tokio::test]
async fn clones_of_a_layer_report_one_warning_together() {
    logged();
    let layer = layer(PeerIp);
    for _ in 0..2 {
        ask(&app(&layer.clone()), get_root()).await;
    }
    assert_eq!(codes(&layer), [Code::NoPeerAddress]);
    assert_eq!(logged().len(), 1);
}

#[tokio::test]
async fn layers_built_separately_each_report_their_warnings() {
    let (one, other) = (layer(PeerIp), layer(PeerIp));
    ask(&app(&one), get_root()).await;
    assert_eq!(codes(&one), [Code::NoPeerAddress]);
    assert_eq!(codes(&other), []);
    ask(&app(&other), get_root()).await;
    assert_eq!(codes(&other), [Code::NoPeerAddress]);
}

#[tokio::test]
async fn muted_code_is_not_reported() {
    logged();
    let layer = builder(PeerIp)
        .silence(Code::NoPeerAddress)
        .build()
        .expect("it is well set up");
    let status = ask(&app(&layer), get_root()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(codes(&layer), []);
    assert_eq!(logged(), Vec::<String>::new());
}

#[tokio::test]
async fn well_set_up_layer_has_no_warning() {
    let layer = layer(PeerIp);
    let app = app(&layer);
    for client in 0..50 {
        ask(&app, from(client)).await;
    }
    assert_eq!(codes(&layer), []);
}

// === Keys ===

#[tokio::test]
async fn each_policy_reports_its_missing_key() {
    let policy = |name| Policy::new(name, PLENTY);
    let rule = |name| {
        let rule = policy(name).key(Header::new("x-tenant"));
        rule.on_missing_key(OnMissingKey::Share)
    };
    let layer = RateLimitLayer::builder()
        .policy(rule("minute"))
        .policy(rule("day"))
        .build()
        .expect("it is well set up");
    let app = app(&layer);
    for _ in 0..3 {
        ask(&app, get_root()).await;
    }
    assert_eq!(codes(&layer), [Code::MissingKey, Code::MissingKey]);
    let [minute, day] = warnings(&layer);
    assert_eq!(minute.policy().map(PolicyName::as_str), Some("minute"));
    assert_eq!(day.policy().map(PolicyName::as_str), Some("day"));
    assert_eq!(
        day.detail(),
        "x-tenant found no key in a request; such requests share one count"
    );
}

// Reproducer: what the rule says to skip was reported as a mistake.
#[tokio::test]
async fn key_that_is_skipped_by_choice_is_no_mistake_but_a_server_without_addresses_is() {
    let skipping = |key: Box<dyn KeyExtractor>, looks_up_tiers: bool| {
        let rule = Policy::new("p", PLENTY)
            .key(key)
            .on_missing_key(OnMissingKey::Skip);
        let rule = match looks_up_tiers {
            true => rule.tier_by(|_: &RequestHead, _: &Key| None),
            false => rule,
        };
        RateLimitLayer::builder()
            .policy(rule)
            .build()
            .expect("it is well set up")
    };
    for looks_up_tiers in [false, true] {
        let by_header = skipping(Box::new(Header::new("x-tenant")), looks_up_tiers);
        let by_address = skipping(Box::new(PeerIp), looks_up_tiers);
        for _ in 0..3 {
            assert_eq!(ask(&app(&by_header), from(1)).await, StatusCode::OK);
            assert_eq!(ask(&app(&by_address), get_root()).await, StatusCode::OK);
        }
        assert_eq!(codes(&by_header), []);
        assert_eq!(codes(&by_address), [Code::NoPeerAddress]);
    }
    let absent = |_: &RequestHead| std::future::ready(Ok::<_, Infallible>(None::<Key>));
    let rule = Policy::new("p", PLENTY).key_async(absent);
    let layer = RateLimitLayer::builder().policy(rule.on_missing_key(OnMissingKey::Skip));
    let layer = layer.build().expect("it is well set up");
    assert_eq!(ask(&app(&layer), from(1)).await, StatusCode::OK);
    assert_eq!(codes(&layer), []);
}

#[tokio::test]
async fn first_ambiguous_key_is_reported_under_every_choice_for_missing_keys() {
    for choice in [None, Some(OnMissingKey::Share), Some(OnMissingKey::Skip)] {
        let rule = Policy::new("p", PLENTY).key(Header::new("x-tenant"));
        let rule = match choice {
            Some(choice) => rule.on_missing_key(choice),
            None => rule,
        };
        let layer = RateLimitLayer::builder().policy(rule).build();
        let layer = layer.expect("it is well set up");
        for _ in 0..3 {
            let request = Request::get("/")
                .header("x-tenant", "a")
                .header("x-tenant", "");
            let status = ask(
                &app(&layer),
                request.body(Body::empty()).expect("a request"),
            )
            .await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{choice:?}");
        }
        let [warning] = warnings(&layer);
        assert_eq!(warning.code(), Code::AmbiguousKey);
        assert!(warning.detail().starts_with("x-tenant"), "{warning}");
    }
}

// === Routers ===

#[tokio::test]
async fn route_extractor_outside_of_a_router_is_reported() {
    let outside = layer(Route);
    let routed = Router::new().route("/", get(async || "fine"));
    let around = tower::Layer::layer(&outside, routed.clone());
    for _ in 0..2 {
        let response = around.clone().oneshot(get_root()).await;
        assert_eq!(response.expect("infallible").status(), StatusCode::OK);
    }
    let [warning] = warnings(&outside);
    assert_eq!(warning.code(), Code::NoRoute);
    assert!(warning.detail().contains("no router"), "{warning}");
    // one on the router is right, also for what no route serves, and so is one that is asked for no more than it can tell
    let (inside, plain) = (layer(Route), layer(Route.or_unmatched()));
    let served = routed.nest_service("/files", Router::new().fallback(async || "file"));
    let served = served.layer(inside.clone());
    for path in ["/", "/files/a", "/nowhere"] {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        ask(&served, request).await;
    }
    let _ = tower::Layer::layer(&plain, Router::new())
        .oneshot(get_root())
        .await;
    assert_eq!((codes(&inside), codes(&plain)), (Vec::new(), Vec::new()));
}

// Reproducer: such a rule counted nothing, and nothing was said.
#[tokio::test]
async fn pattern_with_the_prefix_of_a_nested_router_is_reported() {
    let (post, exact) = (
        || Methods::new([Method::POST]),
        || PathPattern::new("/api/login"),
    );
    for (prefix, request, matcher, expected) in [
        (
            "/api",
            "/api/login",
            Box::new(exact()) as Box<dyn Matcher>,
            true,
        ),
        ("/api", "/api/login", Box::new(post().and(exact())), true),
        ("/api", "/api/login/", Box::new(exact()), true),
        (
            "/api",
            "/api/users/7",
            Box::new(PathPattern::new("/api/users/{id}")),
            true,
        ),
        (
            "/api",
            "/api/login",
            Box::new(PathPattern::prefix("/api")),
            true,
        ),
        (
            "/v1/api",
            "/v1/api/login",
            Box::new(PathPattern::new("/v1/api/login")),
            true,
        ),
        (
            "/{tenant}",
            "/acme/login",
            Box::new(PathPattern::new("/{tenant}/login")),
            true,
        ),
        (
            "/{tenant}",
            "/acme/login",
            Box::new(PathPattern::new("/acme/login")),
            true,
        ),
        // as it is to be written
        (
            "/api",
            "/api/login",
            Box::new(PathPattern::new("/login")),
            false,
        ),
        // another request
        ("/api", "/api/users/7", Box::new(exact()), false),
        // it may be meant for what is behind the prefix
        (
            "/v1",
            "/v1/login",
            Box::new(PathPattern::new("/{tenant}/login")),
            false,
        ),
        ("/api", "/api/api/login", Box::new(exact()), false),
    ] {
        let limit = |set: &dyn Fn(Rule) -> Rule| {
            let rule = Policy::new("p", PLENTY).key(Global);
            let layer = RateLimitLayer::builder().policy(set(rule)).build();
            layer.expect("it is well set up")
        };
        let matcher: Arc<dyn Matcher> = Arc::from(matcher);
        let on_rule = [
            limit(&|rule| rule.when(Arc::clone(&matcher))),
            limit(&|rule| rule.unless(Arc::clone(&matcher))),
            limit(&|rule| rule.cost_when(Arc::clone(&matcher), 3)),
        ];
        let builder = || builder(Global);
        let on_layer = [
            builder()
                .forbid(Arc::clone(&matcher))
                .build()
                .expect("it is well set up"),
            builder()
                .skip(Arc::clone(&matcher))
                .build()
                .expect("it is well set up"),
        ];
        for layer in on_rule.into_iter().chain(on_layer) {
            let fine = any(async || "fine");
            let nested = Router::new().route("/{*rest}", fine).layer(layer.clone());
            let app = Router::new().nest(prefix, nested);
            for _ in 0..2 {
                let request = Request::post(request)
                    .body(Body::empty())
                    .expect("a request");
                ask(&app, request).await;
            }
            let expected = [Code::NestedPath].repeat(usize::from(expected));
            assert_eq!(codes(&layer), expected, "{prefix} {request}");
        }
    }
    // a layer on the outer router sees the whole path
    let rule = Policy::new("p", PLENTY).key(Global).when(exact());
    let outer = RateLimitLayer::builder()
        .policy(rule)
        .build()
        .expect("it is well set up");
    let nested = Router::new().route("/login", get(async || "fine"));
    let app = Router::new().nest("/api", nested).layer(outer.clone());
    let request = Request::get("/api/login")
        .body(Body::empty())
        .expect("a request");
    ask(&app, request).await;
    assert_eq!((codes(&outer), used(&outer).await), (Vec::new(), 1));
}

#[tokio::test]
async fn missing_header_beside_an_address_is_a_missing_key() {
    let layer = layer(Header::new("x-tenant").and(PeerIp));
    let mut request = from(1);
    forward(&mut request, "192.0.2.9");
    ask(&app(&layer), request).await;
    assert_eq!(codes(&layer), [Code::MissingKey]);
}

#[tokio::test]
async fn last_resort_that_finds_no_address_is_reported() {
    let layer = layer(ApiKey::header("x-api-key").or_else(PeerIp));
    ask(&app(&layer), get_root()).await;
    assert_eq!(codes(&layer), [Code::NoPeerAddress]);
}

// === Proxies ===

#[tokio::test]
async fn forwarding_header_that_no_extractor_reads_is_reported() {
    for name in ["x-forwarded-for", "forwarded"] {
        let layer = layer(PeerIp);
        let mut request = from(1);
        let value = "for=192.0.2.9".parse().expect("a value");
        request.headers_mut().insert(name, value);
        let status = ask(&app(&layer), request).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(codes(&layer), [Code::ForwardedIgnored]);
        let [warning] = warnings(&layer);
        assert!(
            !warning.to_string().contains("192.0.2.9"),
            "no address: {warning}"
        );
    }
}

#[tokio::test]
async fn forwarding_header_of_a_peer_that_is_not_trusted_is_reported() {
    let behind = |networks: &'static str| ClientIp::behind([networks]);
    // The peer is 192.0.2.1.
    for (extractor, header, expected) in [
        (behind("10.0.0.0/8"), true, Some(Code::ForwardedUntrusted)),
        (behind("10.0.0.0/8"), false, None),
        (behind("192.0.2.0/24"), true, None),
        (ClientIp::behind_hops(1), true, None),
        (ClientIp::peer(), true, Some(Code::ForwardedIgnored)),
    ] {
        let layer = layer(extractor);
        let mut request = from(1);
        if header {
            forward(&mut request, "198.51.100.9");
        }
        assert_eq!(ask(&app(&layer), request).await, StatusCode::OK);
        assert_eq!(codes(&layer), Vec::from_iter(expected));
    }
}

#[tokio::test]
async fn forwarding_header_is_reported_for_joined_and_boxed_extractors() {
    let joined = layer(PeerIp.and(Route));
    let fallback = layer(ApiKey::header("x-api-key").or_else(PeerIp));
    let boxed: Box<dyn KeyExtractor> = Box::new(PeerIp);
    let boxed = layer(boxed);
    for layer in [joined, fallback, boxed] {
        let mut request = from(1);
        forward(&mut request, "192.0.2.9");
        ask(&app(&layer), request).await;
        assert_eq!(codes(&layer), [Code::ForwardedIgnored]);
    }
}

#[tokio::test]
async fn forwarding_header_is_nothing_to_a_rule_that_counts_by_something_else() {
    let by_key = layer(ApiKey::header("x-api-key").or_else(PeerIp));
    let by_tenant = layer(Header::new("x-api-key"));
    for layer in [by_key, by_tenant] {
        let mut request = from(1);
        forward(&mut request, "192.0.2.9");
        let key = "k-1".parse().expect("a value");
        request.headers_mut().insert("x-api-key", key);
        ask(&app(&layer), request).await;
        assert_eq!(codes(&layer), []);
    }
}

#[tokio::test]
async fn extractor_of_ones_own_can_have_a_diagnosis() {
    struct Suspicious;
    impl KeyExtractor for Suspicious {
        fn extract(&self, _: &RequestHead) -> Extracted<Key> {
            Extracted::Found(Key::new("k"))
        }
        fn label(&self) -> &str {
            "suspicious"
        }
        fn diagnose(&self, head: &RequestHead) -> Option<Code> {
            let is_doubtful = head.headers.contains_key("x-client");
            is_doubtful.then_some(Code::ForwardedUntrusted)
        }
    }
    let layer = layer(Suspicious);
    let app = app(&layer);
    ask(&app, get_root()).await;
    assert_eq!(codes(&layer), []);
    let request = Request::get("/").header("x-client", "192.0.2.1");
    ask(&app, request.body(Body::empty()).expect("a request")).await;
    let [warning] = warnings(&layer);
    assert_eq!(warning.code(), Code::ForwardedUntrusted);
    assert_eq!(
        warning.detail(),
        "a request has a header that suspicious reads, from a peer that is not trusted"
    );
}

// === Lists ===

#[tokio::test]
async fn list_that_misses_addresses_is_reported() {
    let everybody = || Policy::new("everybody", Quota::per_second(1_000_000)).key(Global);
    let list = || AddressList::new(PeerIp, [network()]);
    let shared: Arc<dyn Matcher> = Arc::new(list());
    let builder = RateLimitLayer::builder;
    for (policy, builder) in [
        (None, builder().forbid(list()).policy(everybody())),
        (None, builder().skip(list()).policy(everybody())),
        (
            None,
            builder()
                .forbid(PathPattern::new("/").and(list().not()))
                .policy(everybody()),
        ),
        (
            None,
            builder()
                .forbid(list().or(PathPattern::new("/x")))
                .policy(everybody()),
        ),
        (None, builder().forbid(shared).policy(everybody())),
        (
            None,
            builder()
                .forbid(KeyList::new(PeerIp, [Key::new("192.0.2.1")]))
                .policy(everybody()),
        ),
        (
            Some("everybody"),
            builder().policy(everybody().when(list().not())),
        ),
        (
            Some("everybody"),
            builder().policy(everybody().unless(list())),
        ),
        (
            Some("everybody"),
            builder().policy(everybody().cost_when(list(), 2)),
        ),
    ] {
        let layer = builder.build().expect("it is well set up");
        let app = app(&layer);
        ask(&app, from(1)).await;
        assert_eq!(codes(&layer), []);
        for _ in 0..2 {
            ask(&app, get_root()).await;
        }
        let [warning] = warnings(&layer);
        assert_eq!(warning.code(), Code::NoPeerAddress);
        assert_eq!(warning.policy().map(PolicyName::as_str), policy);
        assert!(warning.detail().contains("list"), "{}", warning.detail());
    }
}

#[tokio::test]
async fn list_of_keys_reports_the_diagnosis_of_its_extractor() {
    let layer = builder(Global).forbid(KeyList::new(PeerIp, [Key::new("192.0.2.9")]));
    let layer = layer.build().expect("it is well set up");
    let mut request = from(1);
    forward(&mut request, "192.0.2.9");
    ask(&app(&layer), request).await;
    assert_eq!(codes(&layer), [Code::ForwardedIgnored]);
}

#[tokio::test]
async fn list_behind_a_proxy_that_is_not_trusted_is_reported() {
    let list = AddressList::new(ClientIp::behind(["10.0.0.0/8"]), ["192.0.2.9"]);
    let layer = builder(Global)
        .forbid(list)
        .build()
        .expect("it is well set up");
    let mut request = from(1);
    forward(&mut request, "192.0.2.9");
    assert_eq!(ask(&app(&layer), request).await, StatusCode::OK);
    assert_eq!(codes(&layer), [Code::ForwardedUntrusted]);
}

#[tokio::test]
async fn list_of_addresses_that_are_seldom_there_is_fine() {
    let seldom = |_: &RequestHead| None;
    let layer = builder(Global).forbid(AddressList::new(seldom, [network()]));
    let layer = layer.build().expect("it is well set up");
    ask(&app(&layer), from(1)).await;
    assert_eq!(codes(&layer), []);
}

fn network() -> IpNet {
    "192.0.2.0/31".parse().expect("a network")
}

// === One bucket ===

#[tokio::test]
async fn one_key_for_many_clients_is_reported_after_a_thousand_requests() {
    // as behind a balancer that tells no addresses: one peer, many browsers
    let layer = layer(PeerIp);
    let app = app(&layer);
    for number in 0..WATCHED {
        assert_eq!(codes(&layer), []);
        let mut request = from(1);
        let agent = format!("browser {}", number % 8);
        let agent = agent.parse().expect("a value");
        request.headers_mut().insert("user-agent", agent);
        ask(&app, request).await;
    }
    assert_eq!(codes(&layer), [Code::SingleKey]);
    let [warning] = warnings(&layer);
    assert_eq!(
        warning.detail(),
        "the first 1000 requests had the same peer-ip key, although their addresses and headers differ as those of 8 clients or more"
    );
}

#[tokio::test]
async fn closure_that_finds_one_key_for_all_peers_is_reported() {
    let layer = layer(|_: &RequestHead| Some(Key::new("oops")));
    let app = app(&layer);
    for number in 0..WATCHED {
        ask(&app, from(number as u8)).await;
    }
    assert_eq!(codes(&layer), [Code::SingleKey]);
}

#[tokio::test]
async fn lookup_that_finds_one_key_for_all_peers_is_reported() {
    let plan = Policy::new("plan", Quota::per_second(1_000_000));
    let one = |_: &RequestHead| async { Ok::<_, Infallible>(Some(Key::new("oops"))) };
    let layer = RateLimitLayer::builder()
        .policy(plan.key_async(one))
        .build();
    let layer = layer.expect("usable policies");
    let app = app(&layer);
    for number in 0..WATCHED {
        assert_eq!(codes(&layer), []);
        ask(&app, from(number as u8)).await;
    }
    assert_eq!(codes(&layer), [Code::SingleKey]);
}

#[tokio::test]
async fn one_client_with_one_key_is_no_mistake() {
    let layer = layer(PeerIp);
    let app = app(&layer);
    for _ in 0..WATCHED + 10 {
        ask(&app, from(1)).await;
    }
    assert_eq!(codes(&layer), []);
}

#[tokio::test]
async fn a_second_key_ends_the_suspicion() {
    let layer = layer(Header::new("x-tenant"));
    let app = app(&layer);
    for number in 0..WATCHED + 10 {
        let mut request = from(number as u8);
        let tenant = if number == 700 { "b" } else { "a" };
        let tenant = tenant.parse().expect("a value");
        request.headers_mut().insert("x-tenant", tenant);
        ask(&app, request).await;
    }
    assert_eq!(codes(&layer), []);
}

#[tokio::test]
async fn keys_that_are_shared_on_purpose_are_not_reported() {
    let everybody = |_: &RequestHead| Some(Key::GLOBAL);
    for layer in [layer(Global), layer(Route), layer(everybody)] {
        let app = app(&layer);
        for number in 0..WATCHED + 10 {
            ask(&app, from(number as u8)).await;
        }
        assert_eq!(codes(&layer), []);
    }
}

// === Two layers ===

#[tokio::test]
async fn layer_inside_itself_is_reported() {
    logged();
    let layer = layer(Global);
    let inner = Router::new()
        .route("/", get(async || "fine"))
        .layer(layer.clone());
    let app = inner.layer(layer.clone());
    for _ in 0..2 {
        assert_eq!(ask(&app, get_root()).await, StatusCode::OK);
    }
    let [warning] = warnings(&layer);
    assert_eq!(warning.code(), Code::ChargedTwice);
    assert_eq!(warning.policy().map(PolicyName::as_str), Some("p"));
    assert_eq!(logged().len(), 1);
    assert_eq!(used(&layer).await, 4, "what the warning is about");
}

// Reproducer: where one request could not be charged twice, all were denied and nothing was said.
#[tokio::test]
async fn layer_inside_itself_is_reported_though_it_denies_everything() {
    for policy in [
        Policy::new("p", Quota::per_day(1)),
        Policy::concurrency("p", 1),
    ] {
        let layer = build(policy, Global);
        let app = app(&layer).layer(layer.clone());
        for _ in 0..2 {
            assert_eq!(ask(&app, get_root()).await, StatusCode::TOO_MANY_REQUESTS);
        }
        assert_eq!(codes(&layer), [Code::ChargedTwice]);
    }
}

// Reproducer: a layer that only looks was told to charge twice.
#[tokio::test]
async fn layer_that_only_looks_charges_nothing_twice() {
    let limiter = RateLimiter::builder().build().expect("it is well set up");
    let layer = |cost| {
        let rule = Policy::new("p", PLENTY).key(Global).cost_by(move |_| cost);
        let builder = RateLimitLayer::builder().policy(rule).limiter(&limiter);
        builder.build().expect("it is well set up")
    };
    for (outer, inner, told) in [(0, 1, &[][..]), (1, 0, &[]), (1, 1, &[Code::ChargedTwice])] {
        let (outer, inner) = (layer(outer), layer(inner));
        let app = app(&inner).layer(outer);
        assert_eq!(ask(&app, get_root()).await, StatusCode::OK);
        assert_eq!(codes(&inner), told);
    }
}

#[tokio::test]
async fn denial_inside_of_another_layer_is_reported_only_under_a_name_of_both() {
    let [outer, between] = ["a", "b"].map(|name| build(Policy::new(name, PLENTY), Global));
    let inner = build(Policy::new("c", Quota::per_day(1)), Global);
    let again = build(Policy::new("a", Quota::per_day(1)), Global);
    for (inside, told) in [(&inner, &[][..]), (&again, &[Code::ChargedTwice])] {
        let app = app(inside).layer(between.clone()).layer(outer.clone());
        inside_is_full(inside).await;
        assert_eq!(ask(&app, get_root()).await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(codes(inside), told);
    }
    assert_eq!(codes(&outer), []);
}

/// Takes the one unit that a layer has.
async fn inside_is_full(layer: &RateLimitLayer) {
    assert_eq!(ask(&app(layer), get_root()).await, StatusCode::OK);
}

#[tokio::test]
async fn third_layer_is_compared_with_the_first() {
    let [outer, between, inner] =
        ["a", "b", "a"].map(|name| build(Policy::new(name, PLENTY), Global));
    let app = app(&inner).layer(between.clone()).layer(outer.clone());
    ask(&app, get_root()).await;
    assert_eq!(codes(&inner), [Code::ChargedTwice]);
    assert_eq!(codes(&between), []);
    assert_eq!(codes(&outer), []);
}

#[tokio::test]
async fn layers_under_different_names_and_on_different_routes_are_fine() {
    let outer = build(Policy::new("all", PLENTY), Global);
    let inner = build(Policy::new("some", PLENTY), Global);
    let limited = |layer: &RateLimitLayer| get(async || "fine").layer(layer.clone());
    let app = Router::new()
        .route("/", limited(&inner))
        .route("/other", limited(&inner))
        .layer(outer.clone());
    for _ in 0..3 {
        ask(&app, get_root()).await;
    }
    assert_eq!(codes(&outer), []);
    assert_eq!(codes(&inner), []);
}

// === Stores of one's own ===

#[tokio::test]
async fn store_of_ones_own_can_warn() {
    #[derive(Debug)]
    struct Worried;
    impl Store for Worried {
        fn decide(&self, _: &[Charge<'_>]) -> StoreFuture<Decision> {
            StoreFuture::ready(Err(Error::new(
                tollgate::ErrorKind::Unavailable,
                "not today",
            )))
        }
        fn reset(&self, _: &Policy, _: &Key) -> StoreFuture<()> {
            StoreFuture::ready(Ok(()))
        }
        fn warnings(&self) -> Vec<Warning> {
            vec![Warning::new(Code::ClockSkew, "the clock stands")]
        }
    }
    let limiter = RateLimiter::new(Worried, []).expect("it is well set up");
    assert_eq!(limiter.warnings()[0].detail(), "the clock stands");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("p", PLENTY).key(Global))
        .limiter(&limiter)
        .build()
        .expect("it is well set up");
    assert_eq!(codes(&layer), [Code::ClockSkew]);
}

// === Helpers ===

fn layer(extractor: impl KeyExtractor) -> RateLimitLayer {
    builder(extractor).build().expect("it is well set up")
}

fn build(policy: Policy, extractor: impl KeyExtractor) -> RateLimitLayer {
    let layer = RateLimitLayer::builder().policy(policy.key(extractor));
    layer.build().expect("it is well set up")
}

fn from(client: u8) -> Request<Body> {
    let mut request = get_root();
    let peer = SocketAddr::from(([192, 0, 2, client], 40_000));
    request.extensions_mut().insert(peer);
    request
}

fn forward(request: &mut Request<Body>, value: &str) {
    let value = value.parse().expect("a value");
    request.headers_mut().insert("x-forwarded-for", value);
}

async fn used(layer: &RateLimitLayer) -> u64 {
    let policy = Policy::new("p", PLENTY);
    let now = layer.limiter().peek(&[policy.charge(Key::GLOBAL)]).await;
    let now = now.expect("it can be told");
    let usage = now.states()[0].usage().expect("it is counted");
    usage.limit - usage.remaining
}

/// How many requests of a rule are looked at.
const WATCHED: u32 = 1_000;
