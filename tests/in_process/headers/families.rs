//! Rate limit headers: each family raw over a socket, and parsed by independent code.

use std::{
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    fs,
    future::{self, Future},
    net::SocketAddr,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use axum::{Router, body::Body, routing::get};
use http::{HeaderName, Request, Response};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    time,
};
use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    algorithm::{Algorithm, QueueLimits, WindowStart},
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, PolicyState, Retry, Usage},
    extract::{Global, Header},
    headers::{DiscordScope, Headers, LegacyHeaders, ResetFormat},
    memory::MemoryStore,
    rules::OnMissingKey,
    store::StoreFuture,
    testing::ScriptedStore,
    tiers::Tier,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::cors::{Any, CorsLayer};

// === Each family, raw ===

#[tokio::test]
async fn each_family_has_its_headers_on_success_and_on_denial() {
    for (headers, allowed, denied) in families() {
        let name = format!("{headers:?}");
        let server = serve(two_policies().headers(headers)).await;
        let first = raw(server).await;
        assert_eq!(
            first,
            ("HTTP/1.1 200 OK".to_owned(), lines(allowed)),
            "{name}"
        );
        raw(server).await;
        let third = raw(server).await;
        let status = "HTTP/1.1 429 Too Many Requests".to_owned();
        assert_eq!(third, (status, lines(denied)), "{name}");
    }
}

#[tokio::test]
async fn browser_script_of_another_origin_may_read_every_header() {
    for (headers, allowed, denied) in families() {
        let headers = headers.with(Headers::reason());
        let name = format!("{headers:?}");
        let expose = headers.header_names();
        let mut written = lines(allowed);
        written.extend(lines(denied));
        let sent = |header: &HeaderName| written.iter().any(|(name, _)| name == header.as_str());
        let on_denial_only = ["x-ratelimit-reason", "x-ratelimit-global"];
        for header in expose
            .iter()
            .filter(|header| !on_denial_only.contains(&header.as_str()))
        {
            assert!(sent(header), "{header} is never sent: {name}");
        }
        let layer = two_policies()
            .headers(headers)
            .build()
            .expect("it is well set up");
        let cors = CorsLayer::new().allow_origin(Any).expose_headers(expose);
        let handler =
            service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
        let app = ServiceBuilder::new()
            .layer(cors)
            .layer(layer)
            .service(handler);
        for status in [200, 200, 429] {
            let request = Request::get("/")
                .header("origin", "https://app.test")
                .body(Body::empty());
            let Ok(response) = app.clone().oneshot(request.expect("a request")).await;
            assert_eq!(response.status(), status);
            let readable = response.headers().get("access-control-expose-headers");
            let readable = readable.map_or("", |readable| readable.to_str().expect("text"));
            let readable: Vec<_> = readable.split(',').collect();
            let ours = response.headers().keys().map(HeaderName::as_str);
            for header in ours.filter(|header| header.contains("limit") || *header == "retry-after")
            {
                assert!(
                    readable.contains(&header),
                    "{header} of {status} is hidden: {name}"
                );
            }
        }
    }
}

#[test]
fn header_names_have_no_duplicates() {
    let headers = Headers::legacy()
        .with(Headers::discord())
        .with(Headers::draft06())
        .with(Headers::draft11());
    let names = headers.header_names();
    let unique: HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "{names:?}");
    assert_eq!(Headers::none().retry_after(false).header_names(), [""; 0]);
}

#[test]
fn every_family_is_tested() {
    let choice = concat!(env!("CARGO_MANIFEST_DIR"), "/src/headers/choice.rs");
    let choice = fs::read_to_string(choice).expect("readable text");
    let (_, variants) = choice.split_once("enum Family {").expect("an enum");
    let (variants, _) = variants.split_once('}').expect("an end");
    let (rows, all) = (format!("{:?}", families()), format!("{:?}", all_families()));
    for variant in variants.split(',').map(str::trim) {
        let name = variant.split('(').next().expect("a name");
        assert!(rows.contains(name), "families() has no row with {name}");
        assert!(all.contains(name), "all_families() does not have {name}");
    }
}

/// Each family, with the headers of the first of two allowed requests and those of the denied third one.
fn families() -> Vec<(Headers, &'static str, &'static str)> {
    vec![
        (
            Headers::legacy().into(),
            "x-ratelimit-limit: 2
             x-ratelimit-remaining: 1
             x-ratelimit-reset: 1700000031",
            "cache-control: no-store
             retry-after: 30
             x-ratelimit-limit: 2
             x-ratelimit-remaining: 0
             x-ratelimit-reset: 1700000061",
        ),
        (
            Headers::legacy().reset(ResetFormat::DeltaSeconds).into(),
            "x-ratelimit-limit: 2
             x-ratelimit-remaining: 1
             x-ratelimit-reset: 30",
            "cache-control: no-store
             retry-after: 30
             x-ratelimit-limit: 2
             x-ratelimit-remaining: 0
             x-ratelimit-reset: 60",
        ),
        (
            Headers::draft11(),
            r#"ratelimit: "per-ip";r=1;t=30, "day";r=999;t=86314
             ratelimit-policy: "per-ip";q=2;w=60, "day";q=1000;w=86400"#,
            r#"cache-control: no-store
             ratelimit: "per-ip";r=0;t=30, "day";r=998
             ratelimit-policy: "per-ip";q=2;w=60, "day";q=1000;w=86400
             retry-after: 30"#,
        ),
        (
            Headers::draft06(),
            "ratelimit-limit: 2
             ratelimit-policy: 2;w=60, 1000;w=86400
             ratelimit-remaining: 1
             ratelimit-reset: 30",
            "cache-control: no-store
             ratelimit-limit: 2
             ratelimit-policy: 2;w=60, 1000;w=86400
             ratelimit-remaining: 0
             ratelimit-reset: 60
             retry-after: 30",
        ),
        (
            Headers::discord().scope("day", DiscordScope::Global).into(),
            "x-ratelimit-bucket: per-ip
             x-ratelimit-limit: 2
             x-ratelimit-remaining: 1
             x-ratelimit-reset: 1700000030.250
             x-ratelimit-reset-after: 30.000",
            "cache-control: no-store
             retry-after: 30
             x-ratelimit-bucket: per-ip
             x-ratelimit-limit: 2
             x-ratelimit-remaining: 0
             x-ratelimit-reset: 1700000060.250
             x-ratelimit-reset-after: 60.000
             x-ratelimit-scope: user",
        ),
        (
            Headers::none(),
            "",
            "cache-control: no-store
             retry-after: 30",
        ),
        (
            Headers::none().retry_after(false),
            "",
            "cache-control: no-store",
        ),
        (
            Headers::draft11().with(millis()),
            r#"ratelimit: "per-ip";r=1;t=30, "day";r=999;t=86314
             ratelimit-policy: "per-ip";q=2;w=60, "day";q=1000;w=86400
             x-rate-limit-limit: 2
             x-rate-limit-remaining: 1
             x-rate-limit-reset: 1700000030250"#,
            r#"cache-control: no-store
             ratelimit: "per-ip";r=0;t=30, "day";r=998
             ratelimit-policy: "per-ip";q=2;w=60, "day";q=1000;w=86400
             retry-after: 30
             x-rate-limit-limit: 2
             x-rate-limit-remaining: 0
             x-rate-limit-reset: 1700000060250"#,
        ),
    ]
}

fn millis() -> Headers {
    named().reset(ResetFormat::EpochMillis).into()
}

fn named() -> LegacyHeaders {
    Headers::legacy().names(
        HeaderName::from_static("x-rate-limit-limit"),
        HeaderName::from_static("x-rate-limit-remaining"),
        HeaderName::from_static("x-rate-limit-reset"),
    )
}

fn two_policies() -> RateLimitLayerBuilder {
    RateLimitLayer::builder()
        .policy(Policy::new("per-ip", Quota::per_minute(2)).key(Global))
        .policy(Policy::new("day", Quota::per_day(1_000)).key(Global))
        .clock(stopped())
}

#[tokio::test]
async fn custom_names_replace_the_default_ones() {
    let (_, found) = ask(&two_policies().headers(named())).await;
    assert_eq!(found["x-rate-limit-limit"], "2");
    assert_eq!(found["x-rate-limit-remaining"], "1");
    assert_eq!(found["x-rate-limit-reset"], "1700000031");
    assert!(!found.contains_key("x-ratelimit-limit"), "{found:?}");
}

#[tokio::test]
async fn header_of_two_families_is_written_by_the_first() {
    let both = Headers::discord().with(Headers::legacy());
    let (_, found) = ask(&two_policies().headers(both)).await;
    assert_eq!(found["x-ratelimit-reset"], "1700000030.250");
    let both = Headers::legacy().with(Headers::discord());
    let (_, found) = ask(&two_policies().headers(both)).await;
    assert_eq!(found["x-ratelimit-reset"], "1700000031");
    assert_eq!(found["x-ratelimit-reset-after"], "30.000");
}

#[tokio::test]
async fn discord_headers_contain_the_scope_of_the_denying_policy() {
    for (scope, word, is_global) in [
        (DiscordScope::Global, "global", true),
        (DiscordScope::Shared, "shared", false),
        (DiscordScope::User, "user", false),
    ] {
        let headers = Headers::discord().scope("everybody", scope);
        let builder = scripted(Script::Deny).headers(headers);
        let (status, found) = ask(&builder).await;
        assert_eq!((status, found["x-ratelimit-scope"].as_str()), (429, word));
        let global = found.get("x-ratelimit-global").map(String::as_str);
        assert_eq!(global, is_global.then_some("true"));
    }
}

#[test]
fn scope_of_an_unknown_policy_fails_at_build() {
    let headers = Headers::legacy().with(Headers::discord().scope("dya", DiscordScope::Shared));
    let error = two_policies().headers(headers).build();
    let error = error.expect_err("there is no such policy");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("\"dya\""), "{error}");
}

// Reproducer: the limiter kept the policy names of a layer that failed to build because of its headers.
#[test]
fn layer_with_invalid_headers_does_not_register_its_policies() {
    let limiter = RateLimiter::builder()
        .build()
        .expect("the settings are valid");
    let layer = |quota, scoped| {
        RateLimitLayer::builder()
            .policy(Policy::new("day", quota).key(Global))
            .headers(Headers::discord().scope(scoped, DiscordScope::Shared))
            .limiter(&limiter)
            .build()
    };
    let error = layer(Quota::per_day(10), "dya").expect_err("there is no such policy");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(layer(Quota::per_day(20), "day").is_ok(), "another quota");
}

// === Beside headers that are there already ===

// Regression: the inner layer's draft 11 headers hid those of the outer one.
#[test]
fn nested_layers_list_the_policies_of_all_layers_in_one_line() {
    let layer = |name, count| layer_of(name, count, Headers::draft11());
    let app =
        layer("outer", 2).layer(layer("between", 20).layer(layer("inner", 4).layer(plain([]))));
    let sent = sent(&app);
    let policies = r#""inner";q=4;w=60, "between";q=20;w=60, "outer";q=2;w=60"#;
    assert_eq!(sent.all("ratelimit-policy"), [policies]);
    let limits = r#""inner";r=3;t=45, "between";r=19;t=57, "outer";r=1;t=30"#;
    assert_eq!(sent.all("ratelimit"), [limits]);
    assert_eq!(members(policies).len(), 3);
}

#[test]
fn policy_of_two_nested_layers_is_listed_once_with_the_state_of_the_inner_layer() {
    let inner = layer_of("same", 4, Headers::draft11());
    let outer = RateLimitLayer::builder()
        .policy(Policy::new("same", Quota::per_minute(2)).key(Global))
        .policy(Policy::new("other", Quota::per_minute(3)).key(Global))
        .headers(Headers::draft11())
        .clock(stopped())
        .build()
        .expect("the settings are valid");
    let app = outer.layer(inner.layer(plain([])));
    let sent = sent(&app);
    let policies = r#""same";q=4;w=60, "other";q=3;w=60"#;
    assert_eq!(sent.all("ratelimit-policy"), [policies]);
    assert_eq!(
        sent.all("ratelimit"),
        [r#""same";r=3;t=45, "other";r=2;t=40"#]
    );
}

// Regression: the headers of the inner layer stayed, however much quota it had left.
#[test]
fn headers_of_one_policy_describe_the_narrowest_of_nested_layers() {
    type Family = fn() -> Headers;
    let families: [(Family, [&str; 3]); 4] = [
        (
            || Headers::legacy().into(),
            [
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
            ],
        ),
        (
            || named().into(),
            [
                "x-rate-limit-limit",
                "x-rate-limit-remaining",
                "x-rate-limit-reset",
            ],
        ),
        (
            Headers::draft06,
            ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
        ),
        (
            || Headers::discord().into(),
            [
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "x-ratelimit-reset-after",
            ],
        ),
    ];
    for (family, names) in families {
        for (counts, narrowest) in [
            ([2, 4, 8], 2),
            ([4, 2, 8], 2),
            ([8, 4, 2], 2),
            ([3, 3, 3], 3),
        ] {
            let [outer, between, inner] = counts;
            let layer = |name, count| layer_of(name, count, family());
            let app = layer("outer", outer);
            let app =
                app.layer(layer("between", between).layer(layer("inner", inner).layer(plain([]))));
            let sent = sent(&app);
            let name = format!("{:?} {counts:?}", family());
            assert_eq!(sent.all(names[0]), [narrowest.to_string()], "{name}");
            assert_eq!(sent.all(names[1]), [(narrowest - 1).to_string()], "{name}");
            assert_eq!(sent.all(names[2]).len(), 1, "{name}");
            for bucket in sent.all("x-ratelimit-bucket") {
                let of_the_narrowest = match narrowest {
                    2 => ["outer", "between", "inner"][counts
                        .iter()
                        .position(|count| *count == 2)
                        .expect("it is there")],
                    _ => "inner",
                };
                assert_eq!(bucket, of_the_narrowest);
            }
        }
    }
    // draft 6 lists all policies
    let layer = |name, count| layer_of(name, count, Headers::draft06());
    let app = layer("outer", 2).layer(layer("inner", 4).layer(plain([])));
    assert_eq!(sent(&app).all("ratelimit-policy"), ["4;w=60, 2;w=60"]);
}

#[test]
fn headers_of_a_wider_layer_are_removed_as_a_set() {
    let inner = layer_of("inner", 8, Headers::discord());
    let outer = layer_of("outer", 2, Headers::legacy());
    let sent_headers = sent(&outer.layer(inner.layer(plain([]))));
    assert_eq!(sent_headers.all("x-ratelimit-limit"), ["2"]);
    assert_eq!(sent_headers.all("x-ratelimit-reset"), ["1700000031"]);
    for left in ["x-ratelimit-bucket", "x-ratelimit-reset-after"] {
        assert_eq!(
            sent_headers.all(left),
            [""; 0],
            "{left} is the inner layer's"
        );
    }
    // headers with other names stay
    let inner = layer_of("inner", 8, named());
    let sent = sent(&outer.layer(inner.layer(plain([]))));
    assert_eq!(sent.all("x-rate-limit-limit"), ["8"]);
    assert_eq!(sent.all("x-ratelimit-limit"), ["2"]);
}

#[test]
fn headers_of_a_denial_by_an_inner_layer_stay() {
    for family in all_families() {
        let inner = layer_of("inner", 2, family.clone());
        let outer = layer_of("outer", 3, family.clone());
        let app = outer.layer(inner.layer(plain([])));
        sent(&app);
        sent(&app);
        // the outer layer has no quota left either
        let denied = sent(&app);
        let alone = {
            let app = layer_of("inner", 2, family.clone()).layer(plain([]));
            sent(&app);
            sent(&app);
            sent(&app)
        };
        assert_eq!(denied.status, 429);
        for (name, value) in &alone.headers {
            let value = value.to_str().expect("it is text");
            let found = denied.all(name.as_str());
            assert!(
                found.len() == 1 && found[0].starts_with(value),
                "{name}: {found:?}, {value}"
            );
        }
        for limit in denied.all("ratelimit") {
            assert_eq!(limit, r#""inner";r=0;t=30, "outer";r=0;t=20"#);
        }
    }
}

#[test]
fn effective_window_after_the_time_to_retry_is_omitted() {
    let outer = layer_of("outer", 3, Headers::draft11());
    let limit = |retry_after| {
        let inner = plain([("retry-after", retry_after)]);
        sent(&outer.layer(inner)).text("ratelimit").to_owned()
    };
    assert_eq!(limit("19"), r#""outer";r=2"#, "40 s to go");
    assert_eq!(limit("20"), r#""outer";r=1;t=20"#);
    assert_eq!(
        limit("Fri, 31 Dec 1999 23:59:59 GMT"),
        r#""outer";r=0;t=20"#
    );
}

// Regression: the layer added the missing headers of a set, so a response had an upstream's limit and our reset.
#[test]
fn incomplete_set_of_the_inner_service_is_not_completed() {
    for family in [
        Headers::from(Headers::legacy()),
        Headers::legacy().reset(ResetFormat::DeltaSeconds).into(),
        Headers::discord().into(),
    ] {
        for theirs in [
            vec![
                ("x-ratelimit-limit", "5000"),
                ("x-ratelimit-remaining", "4999"),
            ],
            vec![("x-ratelimit-remaining", "4999")],
            vec![("x-ratelimit-reset", "12")],
        ] {
            let app = layer_of("ours", 2, family.clone()).layer(plain(theirs.clone()));
            let sent = sent(&app);
            let found: Vec<_> = sent
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.to_str().expect("it is text")))
                .collect();
            assert_eq!(found, theirs, "{family:?}");
        }
    }
    let theirs = [
        ("ratelimit-limit", "5000"),
        ("ratelimit-policy", "5000;w=3600"),
    ];
    let app = layer_of("ours", 2, Headers::draft06()).layer(plain(theirs));
    let sent = sent(&app);
    assert_eq!(sent.headers.len(), 2, "{:?}", sent.headers);
}

#[test]
fn members_are_added_to_lists_of_the_same_draft_only() {
    for (theirs, policies, limits) in [
        (
            vec![("ratelimit", r#""own";r=7"#)],
            &[r#""ours";q=2;w=60"#][..],
            &[r#""own";r=7, "ours";r=1;t=30"#][..],
        ),
        (
            vec![
                ("ratelimit-policy", r#""own";q=9;qu="a, b";w=1, "two";q=1"#),
                ("ratelimit-policy", r#""three";q=3;pk=:dGVzdA==:"#),
                ("ratelimit", r#""own";r=7;t=1"#),
            ],
            &[r#""own";q=9;qu="a, b";w=1, "two";q=1, "three";q=3;pk=:dGVzdA==:, "ours";q=2;w=60"#],
            &[r#""own";r=7;t=1, "ours";r=1;t=30"#],
        ),
        // same name as ours: neither list gets ours
        (
            vec![("ratelimit-policy", r#""ours";q=9;w=1"#)],
            &[r#""ours";q=9;w=1"#],
            &[],
        ),
        // another draft, or no list
        (
            vec![("ratelimit", "limit=100, remaining=50, reset=30")],
            &[],
            &["limit=100, remaining=50, reset=30"],
        ),
        (vec![("ratelimit-policy", "100;w=60")], &["100;w=60"], &[]),
        (vec![("ratelimit", r#""open"#)], &[], &[r#""open"#]),
        (vec![("ratelimit", "")], &[], &[""]),
    ] {
        let app = layer_of("ours", 2, Headers::draft11()).layer(plain(theirs.clone()));
        let sent = sent(&app);
        assert_eq!(sent.all("ratelimit-policy"), policies, "{theirs:?}");
        assert_eq!(sent.all("ratelimit"), limits, "{theirs:?}");
    }
}

// === Allocations ===

#[test]
fn three_headers_take_three_allocations_and_a_denial_takes_four() {
    let limited = |quota: Quota, headers: Headers| {
        let policy = Policy::new("per-ip", quota).key(Global);
        let builder = RateLimitLayer::builder().policy(policy).headers(headers);
        let layer = builder.expose_decision(false).clock(stopped());
        layer.build().expect("the layer is valid")
    };
    // The limit, the remaining units and the reset have more digits than static values.
    let plenty = Quota::per_second(1_000_000);
    let without = allocations(&limited(plenty, Headers::none()));
    assert_eq!(without, 0);
    assert_eq!(allocations(&limited(plenty, Headers::default())), 3);
    assert_eq!(allocations(&limited(plenty, Headers::draft11())), 4);
    let denied = limited(Quota::per_day(1), Headers::default());
    assert_eq!(allocations(&denied), 4);
    let denied = limited(Quota::per_day(1), Headers::draft11());
    assert_eq!(allocations(&denied), 5);
}

/// Allocations of a layer's third request, after those that fill tables and caches. The request has an extension, as one that
/// comes from a server has.
fn allocations(layer: &RateLimitLayer) -> u64 {
    let mut service = layer.layer(plain([]));
    let mut last = 0;
    for _ in 0..3 {
        let mut request = Request::<String>::default();
        request.extensions_mut().insert(0_u8);
        let measured = measure(|| {
            let response = pin!(service.call(request));
            let polled = response.poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_ready());
        });
        last = measured.count_total;
    }
    last
}

// === Units ===

// Regression: the headers of a policy that counts tokens described it as one that counts requests.
#[tokio::test]
async fn draft_11_contains_the_unit_of_a_quota() {
    let tokens = || Policy::new("tokens", Quota::per_minute(50_000)).unit("tokens");
    let pro = Tier::new("pro", Quota::per_minute(90_000)).expect("a usable tier");
    for (rule, policies) in [
        (tokens().key(Global), r#""tokens";q=50000;qu="tokens";w=60"#),
        (
            tokens().unit("content-bytes").key(Global),
            r#""tokens";q=50000;qu="content-bytes";w=60"#,
        ),
        // the default unit is omitted
        (
            tokens().unit("requests").key(Global),
            r#""tokens";q=50000;w=60"#,
        ),
        (
            tokens()
                .key(Global)
                .tier_by(move |_: &RequestHead, _: &Key| Some(pro.clone())),
            r#""tokens";q=90000;qu="tokens";w=60"#,
        ),
    ] {
        let builder = RateLimitLayer::builder().policy(rule);
        let drafts = Headers::draft11().with(Headers::draft06());
        let (_, headers) = ask(&builder.clone().headers(drafts)).await;
        assert_eq!(headers["ratelimit-policy"], policies);
        assert_eq!(members(policies).len(), 1);
        let (_, headers) = ask(&builder.headers(Headers::draft06())).await;
        assert!(!headers["ratelimit-policy"].contains("qu"));
    }
}

#[test]
fn unit_that_cannot_be_sent_fails_at_build() {
    let tokens = || Policy::new("tokens", Quota::per_minute(10));
    let long = "n".repeat(40);
    for unit in ["", "a b", "a\"b", "\u{fc}", "a\r\nb", long.as_str()] {
        let layer = RateLimitLayer::builder().policy(tokens().unit(unit).key(Global));
        let error = layer.build().expect_err(unit);
        assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
        assert!(error.to_string().contains("quota unit"), "{error}");
    }
    let slots = Policy::concurrency("slots", 3).unit("connections");
    let layer = RateLimitLayer::builder().policy(slots.key(Global));
    let error = layer.build().expect_err("they have their own");
    assert!(error.to_string().contains("concurrent-requests"), "{error}");
}

// === Parsed by independent code ===

#[tokio::test]
async fn parser_of_structured_fields_accepts_draft_11() {
    let server = serve(two_policies().headers(Headers::draft11())).await;
    for (status, limits) in [
        (
            "200 OK",
            [("per-ip", 1, Some(30)), ("day", 999, Some(86_314))],
        ),
        (
            "200 OK",
            [("per-ip", 0, Some(30)), ("day", 998, Some(86_228))],
        ),
        (
            "429 Too Many Requests",
            [("per-ip", 0, Some(30)), ("day", 998, None)],
        ),
    ] {
        let (line, headers) = raw(server).await;
        assert_eq!(line, format!("HTTP/1.1 {status}"));
        let found = members(&headers["ratelimit"]);
        let expected: Vec<_> = limits
            .iter()
            .map(|(name, r, t)| member(name, &[("r", Some(*r)), ("t", *t)]))
            .collect();
        assert_eq!(found, expected);
        let policies = members(&headers["ratelimit-policy"]);
        let expected = [
            member("per-ip", &[("q", Some(2)), ("w", Some(60))]),
            member("day", &[("q", Some(1_000)), ("w", Some(86_400))]),
        ];
        assert_eq!(policies, expected);
    }
}

#[tokio::test]
async fn parser_of_structured_fields_accepts_draft_6() {
    let (_, headers) = ask(&two_policies().headers(Headers::draft06())).await;
    for (name, expected) in [("limit", 2), ("remaining", 1), ("reset", 30)] {
        let item = Parser::new(&headers[&format!("ratelimit-{name}")]).parse::<sfv::Item>();
        let item = item.expect("it is an item");
        assert_eq!(item.bare_item, BareItem::Integer(expected.into()));
    }
    let policies = members(&headers["ratelimit-policy"]);
    let expected = [
        member("2", &[("w", Some(60))]),
        member("1000", &[("w", Some(86_400))]),
    ];
    assert_eq!(policies, expected);
}

#[tokio::test]
async fn numbers_are_capped_at_the_largest_of_structured_fields() {
    const LARGEST: i64 = 999_999_999_999_999;
    for family in [Headers::draft11(), Headers::draft06()] {
        let (_, headers) = ask(&scripted(Script::Endless).headers(family)).await;
        for (name, value) in headers
            .iter()
            .filter(|(name, _)| name.starts_with("ratelimit"))
        {
            for (item, numbers) in members(value) {
                let own = item.parse().into_iter();
                for number in numbers
                    .values()
                    .filter_map(|text| text.parse().ok())
                    .chain(own)
                {
                    assert!((0..=LARGEST).contains(&number), "{name}: {value}");
                }
            }
        }
    }
    let (_, headers) = ask(&scripted(Script::Endless).headers(Headers::draft11())).await;
    let expected = [member(
        "everybody",
        &[("r", Some(LARGEST)), ("t", Some(18_445_044_073_710))],
    )];
    assert_eq!(members(&headers["ratelimit"]), expected);

    let huge = Quota::per_second(1_000_000).burst(1_000_000_000_000_000);
    let builder = RateLimitLayer::builder()
        .policy(Policy::new("huge", huge).key(Global))
        .headers(Headers::draft11())
        .clock(stopped());
    let (_, headers) = ask(&builder).await;
    let expected = [member(
        "huge",
        &[("q", Some(LARGEST)), ("w", Some(1_000_000_000))],
    )];
    assert_eq!(members(&headers["ratelimit-policy"]), expected);
}

#[tokio::test]
async fn concurrency_limit_has_its_own_unit_and_no_times() {
    let builder = RateLimitLayer::builder()
        .policy(Policy::concurrency("slots", 3).key(Global))
        .headers(Headers::draft11().with(Headers::draft06()))
        .clock(stopped());
    let (_, headers) = ask(&builder).await;
    assert_eq!(headers["ratelimit"], r#""slots";r=2"#);
    assert_eq!(
        headers["ratelimit-policy"],
        r#""slots";q=3;qu="concurrent-requests""#
    );
    let unit = &members(&headers["ratelimit-policy"])[0].1["qu"];
    assert_eq!(unit, "concurrent-requests");

    // draft 6 requires a window, so it omits the policy
    let (_, headers) = ask(&builder.headers(Headers::draft06())).await;
    assert_eq!(headers["ratelimit-limit"], "3");
    assert_eq!(headers.get("ratelimit-policy"), None);
}

#[tokio::test]
async fn quota_and_window_are_the_sustained_rate_in_whole_seconds() {
    for (policy, expected) in [
        (Policy::new("a", Quota::per_minute(100)), "q=100;w=60"),
        (
            Policy::new("a", Quota::per_minute(100).burst(20)),
            "q=20;w=12",
        ),
        (
            Policy::new("a", Quota::per_minute(10).burst(100)),
            "q=100;w=600",
        ),
        // a fifth of a second: the units of a whole second
        (
            Policy::new("a", Quota::per_second(50).burst(10)),
            "q=50;w=1",
        ),
        // two and a third
        (Policy::new("a", Quota::per_second(3).burst(7)), "q=9;w=3"),
        (
            Policy::new("a", Quota::new(5, Duration::from_millis(100))),
            "q=50;w=1",
        ),
        (
            Policy::new("a", Quota::new(1, Duration::from_micros(1_500_001))),
            "q=1;w=2",
        ),
        (
            Policy::new("a", Quota::per_second(10)).algorithm(Algorithm::LeakyBucket),
            "q=10;w=1",
        ),
        (
            Policy::new("a", Quota::per_month(50))
                .algorithm(Algorithm::FixedWindow(WindowStart::Month)),
            "q=50;w=2678400",
        ),
        (
            Policy::new("a", Quota::per_hour(50)).algorithm(Algorithm::SlidingWindow),
            "q=50;w=3600",
        ),
        (
            Policy::new("a", Quota::per_hour(50)).algorithm(Algorithm::SlidingLog),
            "q=50;w=3600",
        ),
    ] {
        let builder = RateLimitLayer::builder()
            .policy(policy.key(Global))
            .headers(Headers::draft11())
            .clock(stopped());
        let (_, headers) = ask(&builder).await;
        assert_eq!(headers["ratelimit-policy"], format!("\"a\";{expected}"));
    }
}

#[tokio::test]
async fn policies_that_were_not_checked_are_not_listed() {
    let builder = two_policies()
        .policy(
            Policy::new("tenant", Quota::per_minute(1))
                .key(Header::new("x-tenant"))
                .on_missing_key(OnMissingKey::Skip),
        )
        .headers(Headers::draft11());
    let (_, headers) = ask(&builder).await;
    let policies = r#""per-ip";q=2;w=60, "day";q=1000;w=86400"#;
    assert_eq!(headers["ratelimit-policy"], policies);
    assert_eq!(
        headers["ratelimit"],
        r#""per-ip";r=1;t=30, "day";r=999;t=86314"#
    );
}

// === While the store is down ===

#[tokio::test]
async fn headers_are_omitted_when_no_count_is_available() {
    for family in all_families() {
        for script in [Script::Uncounted, Script::Refuse] {
            let (_, headers) = ask(&scripted(script).headers(family.clone())).await;
            let counts: Vec<_> = headers
                .keys()
                .filter(|name| *name != "ratelimit-policy")
                .collect();
            assert_eq!(counts, Vec::<&String>::new(), "{family:?} {script:?}");
        }
        // without a decision no policy is known
        let (status, headers) = ask(&scripted(Script::Fail).headers(family)).await;
        assert_eq!((status, headers.len()), (503, 0));
    }
    // the policy is the same, whichever store counts
    let (_, headers) = ask(&scripted(Script::Uncounted).headers(Headers::draft11())).await;
    assert_eq!(headers["ratelimit-policy"], r#""everybody";q=10;w=60"#);
}

#[tokio::test]
async fn counts_of_this_process_alone_are_sent() {
    let (_, headers) = ask(&scripted(Script::Local).headers(Headers::draft11())).await;
    assert_eq!(headers["ratelimit"], r#""everybody";r=4;t=24"#);
}

#[tokio::test]
async fn policy_of_a_tier_is_described_with_the_terms_of_the_tier() {
    let hour = |count| Tier::new("some", Quota::per_hour(count)).expect("a usable tier");
    for (tier, policies, allowed, denied) in [
        (
            None,
            r#""api";q=2;w=60, "roomy";q=1000;w=86400"#,
            r#""api";r=1;t=30, "roomy";r=999;t=86314"#,
            r#""api";r=0;t=30, "roomy";r=998"#,
        ),
        // the same limit as without the tier, in a longer time
        (
            Some(hour(2)),
            r#""api";q=2;w=3600, "roomy";q=1000;w=86400"#,
            r#""api";r=1;t=1800, "roomy";r=999;t=86314"#,
            r#""api";r=0;t=1800, "roomy";r=998"#,
        ),
        (
            Some(hour(1)),
            r#""api";q=1;w=3600, "roomy";q=1000;w=86400"#,
            r#""api";r=0;t=3600, "roomy";r=999;t=86314"#,
            r#""api";r=0;t=3600, "roomy";r=999"#,
        ),
    ] {
        let api = Policy::new("api", Quota::per_minute(2)).key(Global);
        let builder = RateLimitLayer::builder()
            .policy(api.tier_by(move |_: &RequestHead, _: &Key| tier.clone()))
            .policy(Policy::new("roomy", Quota::per_day(1_000)).key(Global))
            .headers(Headers::draft11());
        let at_once = builder.clone().clock(stopped());
        let memory = MemoryStore::builder().clock(stopped()).build();
        let slow = ScriptedStore::over(memory.expect("a usable store")).later();
        for builder in [at_once, builder.store(slow)] {
            let server = serve(builder).await;
            let (_, first) = raw(server).await;
            assert_eq!(first["ratelimit-policy"], policies);
            assert_eq!(first["ratelimit"], allowed);
            let (mut status, mut last) = raw(server).await;
            while !status.contains("429") {
                (status, last) = raw(server).await;
            }
            assert_eq!(last["ratelimit-policy"], policies);
            assert_eq!(last["ratelimit"], denied);
        }
    }
}

#[tokio::test]
async fn limit_that_a_store_changed_is_sent_without_a_window() {
    let (_, headers) = ask(&scripted(Script::OtherLimit).headers(Headers::draft11())).await;
    assert_eq!(headers["ratelimit-policy"], r#""everybody";q=99"#);
    assert_eq!(headers["ratelimit"], r#""everybody";r=98;t=7"#);
}

#[tokio::test]
async fn permanent_denial_has_remaining_units_and_no_wait() {
    for family in all_families() {
        let (status, headers) = ask(&scripted(Script::Never).headers(family)).await;
        assert_eq!((status, headers.get("retry-after")), (429, None));
    }
    let (_, headers) = ask(&scripted(Script::Never).headers(Headers::draft11())).await;
    assert_eq!(headers["ratelimit"], r#""everybody";r=10;t=60"#);
}

#[tokio::test]
async fn wait_that_is_over_is_a_second_in_every_header() {
    let (_, headers) = ask(&scripted(Script::DenyForNow).headers(Headers::draft11())).await;
    assert_eq!(headers["retry-after"], "1");
    assert_eq!(headers["ratelimit"], r#""everybody";r=0;t=1"#);
}

fn all_families() -> [Headers; 4] {
    [
        Headers::legacy().into(),
        Headers::draft11(),
        Headers::draft06(),
        Headers::discord().into(),
    ]
}

// === Properties ===

#[derive(Clone, Debug)]
struct Traffic {
    algorithm: Algorithm,
    quota: Quota,
    cost: u64,
    start: u64,
    /// Thousandths of a period between two requests.
    gaps: Vec<u64>,
    /// Times within `t` at which remaining units are taken, in thousandths.
    parts: Vec<u64>,
}

impl Traffic {
    fn any() -> impl Strategy<Value = Self> {
        let algorithm = prop_oneof![
            Just(Algorithm::TokenBucket),
            Just(Algorithm::LeakyBucket),
            Just(Algorithm::FixedWindow(WindowStart::Clock)),
            Just(Algorithm::FixedWindow(WindowStart::FirstHit)),
            Just(Algorithm::SlidingLog),
            Just(Algorithm::SlidingWindow),
        ];
        let quota = (1_u64..=12, prop_oneof![20_u64..3_000, 3_000_u64..200_000])
            .prop_map(|(count, millis)| Quota::new(count, Duration::from_millis(millis)));
        let gaps = proptest::collection::vec(0_u64..=600, 0..12);
        let parts = proptest::collection::vec(0_u64..=1_000, 12);
        (
            algorithm,
            quota,
            1_u64..=3,
            1_u64 << 40..1 << 50,
            gaps,
            parts,
        )
            .prop_map(|(algorithm, quota, cost, start, gaps, parts)| Self {
                algorithm,
                quota,
                cost: cost.min(match algorithm {
                    Algorithm::LeakyBucket => 1,
                    _ => quota.count(),
                }),
                start,
                gaps,
                parts,
            })
    }

    fn policy(&self) -> Policy {
        let policy = Policy::new("any", self.quota).algorithm(self.algorithm);
        policy.cost(self.cost)
    }

    /// Returns the layer after this traffic, with the last response.
    fn run(&self) -> (RateLimitLayer, Clock, Draft11Numbers) {
        let clock = Clock::manual(Timestamp::from_micros(self.start));
        let layer = RateLimitLayer::builder()
            .policy(self.policy().key(Global))
            .headers(Headers::draft11())
            .clock(clock.clone())
            .build();
        let layer = layer.expect("it is within the limits");
        let mut numbers = Draft11Numbers::by(&layer);
        for gap in &self.gaps {
            clock.advance(self.quota.period() * u32::try_from(*gap).expect("it is small") / 1_000);
            numbers = Draft11Numbers::by(&layer);
        }
        (layer, clock, numbers)
    }

    /// Returns the same after further requests, of which the last is denied.
    fn until_denied(&self) -> (RateLimitLayer, Clock, Draft11Numbers) {
        let (layer, clock, mut numbers) = self.run();
        for _ in 0..=self.quota.count() + 2 {
            if numbers.status == 429 {
                return (layer, clock, numbers);
            }
            numbers = Draft11Numbers::by(&layer);
        }
        panic!("the limit is reached at last");
    }

    fn takes(&self, layer: &RateLimitLayer, units: u64) -> bool {
        let policy = self.policy();
        let mut decided = layer
            .limiter()
            .check(&[policy.charge(Key::GLOBAL).cost(units)]);
        let decided = decided.take_ready().expect("it is in process");
        decided.expect("it decides").is_allowed()
    }
}

/// The numbers of a response by draft 11.
#[derive(Clone, Debug)]
struct Draft11Numbers {
    status: u16,
    remaining: u64,
    seconds: u64,
    retry_after: Option<u64>,
    wait: Option<Duration>,
}

impl Draft11Numbers {
    fn by(layer: &RateLimitLayer) -> Self {
        let inner = service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let mut service = layer.layer(inner);
        let context = &mut Context::from_waker(Waker::noop());
        let future = pin!(tower::Service::call(&mut service, Request::default()));
        let Poll::Ready(Ok(response)) = future.poll(context) else {
            panic!("nothing here waits");
        };
        let header = |name| {
            let value: &http::HeaderValue = response.headers().get(name)?;
            Some(value.to_str().expect("it is text").to_owned())
        };
        let (_, limit) = members(&header("ratelimit").expect("it is counted")).remove(0);
        let rejection = response
            .extensions()
            .get::<tollgate::rejection::Rejection>();
        let decision = rejection.and_then(|rejection| rejection.decision());
        Self {
            status: response.status().as_u16(),
            remaining: limit["r"].parse().expect("a number"),
            seconds: limit["t"].parse().expect("a number"),
            retry_after: header("retry-after").map(|text| text.parse().expect("whole seconds")),
            wait: decision.and_then(Decision::retry_after),
        }
    }
}

// Regression: the start of the window was rounded up to a millisecond, and the remaining time then to a second.
#[test]
fn new_window_of_a_minute_resets_within_a_minute_whenever_it_starts() {
    let opening = Algorithm::FixedWindow(WindowStart::FirstHit);
    for micros in (0..2_000).chain([999_001, 999_999]) {
        let clock = Clock::manual(START + Duration::from_micros(micros));
        let policy = Policy::new("minute", Quota::per_minute(2)).algorithm(opening);
        let layer = RateLimitLayer::builder()
            .policy(policy.key(Global))
            .headers(Headers::draft11().with(Headers::draft06()))
            .clock(clock)
            .build()
            .expect("the settings are valid");
        let fresh = Sent::by(&layer);
        assert_eq!(fresh.number("ratelimit-reset"), Some(60), "{micros}");
        assert_eq!(fresh.text("ratelimit"), r#""minute";r=1;t=60"#, "{micros}");
        Sent::by(&layer);
        let denied = Sent::by(&layer);
        assert_eq!(denied.number("retry-after"), Some(60), "{micros}");
        assert_eq!(denied.number("ratelimit-reset"), Some(60), "{micros}");
    }
}

#[test]
fn calendar_month_has_the_window_of_the_longest_month() {
    const DAY: u64 = 86_400;
    for (days, left) in [(0, 31), (30, 1), (31, 28), (58, 1), (59, 31)] {
        // From the first of January 2023 on.
        let now = Duration::from_secs(1_672_531_200 + days * DAY);
        for length in [28, 31] {
            let quota = Quota::new(10, Duration::from_secs(length * DAY));
            let policy = Policy::new("month", quota);
            let layer = RateLimitLayer::builder()
                .policy(
                    policy
                        .algorithm(Algorithm::FixedWindow(WindowStart::Month))
                        .key(Global),
                )
                .headers(Headers::draft11())
                .clock(Clock::manual(Timestamp::default() + now))
                .build()
                .expect("the settings are valid");
            let sent = Sent::by(&layer);
            assert_eq!(sent.text("ratelimit-policy"), r#""month";q=10;w=2678400"#);
            let limit = format!(r#""month";r=9;t={}"#, left * DAY);
            assert_eq!(sent.text("ratelimit"), limit);
        }
    }
}

thread_local! {
    /// A runtime whose time advances whenever all tasks wait.
    static PAUSED: Runtime = {
        let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be made")
    };
}

/// The headers of one response.
struct Sent {
    status: u16,
    headers: http::HeaderMap,
}

impl Sent {
    /// Sends the next request. If it waits in a queue, the layer's clock does not advance.
    fn by(layer: &RateLimitLayer) -> Self {
        sent(&layer.layer(plain([])))
    }

    /// Milliseconds of a header in seconds with three decimals.
    #[track_caller]
    fn millis(&self, name: &str) -> u64 {
        let text = self.text(name).replace('.', "");
        text.parse().expect("it is a number")
    }

    #[track_caller]
    fn text(&self, name: &str) -> &str {
        self.headers[name].to_str().expect("it is text")
    }

    #[track_caller]
    fn number(&self, name: &str) -> Option<u64> {
        let text = self.headers.get(name)?.to_str().expect("it is text");
        Some(text.parse().expect("it is a number"))
    }
}

impl Sent {
    /// All lines of a header.
    fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.get_all(name).iter();
        lines
            .map(|line| line.to_str().expect("it is text"))
            .collect()
    }
}

/// Returns a layer that allows `count` requests a minute, of all clients together.
fn layer_of(name: &str, count: u64, headers: impl Into<Headers>) -> RateLimitLayer {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(name, Quota::per_minute(count)).key(Global))
        .headers(headers)
        .clock(stopped());
    layer.build().expect("the settings are valid")
}

/// Returns a service whose responses have these headers.
fn plain(
    headers: impl IntoIterator<Item = (&'static str, &'static str)>,
) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible> + Clone {
    let headers: Vec<_> = headers.into_iter().collect();
    service_fn(move |_: Request<String>| {
        let response = headers
            .iter()
            .fold(Response::builder(), |response, (name, value)| {
                response.header(*name, *value)
            });
        future::ready(Ok(response.body(String::new()).expect("it is well formed")))
    })
}

/// Sends a request, and returns the response.
fn sent<S, B>(service: &S) -> Sent
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone,
{
    let response = service.clone().oneshot(Request::default());
    let Ok(response) = PAUSED.with(|paused| paused.block_on(response));
    Sent {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
    }
}

/// Returns all families, each with different header names.
fn every_family() -> Headers {
    let renamed = |prefix: &str| {
        let name = |rest: &str| {
            let name = HeaderName::try_from(format!("{prefix}-{rest}"));
            name.expect("it is a name")
        };
        Headers::legacy().names(name("limit"), name("remaining"), name("reset"))
    };
    Headers::draft11()
        .with(Headers::draft06())
        .with(Headers::discord())
        .with(renamed("delta").reset(ResetFormat::DeltaSeconds))
        .with(renamed("seconds").reset(ResetFormat::EpochSeconds))
        .with(renamed("millis").reset(ResetFormat::EpochMillis))
}

/// Traffic on any algorithm: with odd rates, long periods, and starts between ticks.
fn any_traffic() -> impl Strategy<Value = Traffic> {
    let algorithm = prop_oneof![
        Just(Algorithm::TokenBucket),
        Just(Algorithm::LeakyBucket),
        (1_u64..20)
            .prop_map(|length| Algorithm::LeakyQueue(QueueLimits::new(length, Duration::MAX))),
        Just(Algorithm::FixedWindow(WindowStart::Clock)),
        Just(Algorithm::FixedWindow(WindowStart::FirstHit)),
        Just(Algorithm::SlidingLog),
        Just(Algorithm::SlidingWindow),
    ];
    let millis = prop_oneof![
        20_u64..3_000,
        3_000_u64..200_000,
        Just(1_000),
        Just(60_000),
        Just(3_600_000),
        Just(86_400_000),
        Just(31 * 86_400_000),
        Just(366 * 86_400_000),
    ];
    let start = 1_600_000_000_000_000_u64..1_800_000_000_000_000;
    // Often within a tick, a millisecond or a second after the one before.
    let gap = prop_oneof![
        3 => Just(0_u64),
        2 => 0_u64..100,
        2 => 0_u64..2_000,
        1 => 0_u64..2_000_000,
        1 => 0_u64..200_000_000,
    ];
    let gaps = proptest::collection::vec(gap, 0..16);
    (algorithm, 1_u64..=40, millis, 1_u64..=3, start, gaps).prop_map(
        |(algorithm, count, millis, cost, start, gaps)| Traffic {
            algorithm,
            quota: Quota::new(count, Duration::from_millis(millis)),
            cost: match algorithm {
                Algorithm::LeakyBucket | Algorithm::LeakyQueue(_) => 1,
                _ => cost.min(count),
            },
            start,
            gaps,
            parts: Vec::new(),
        },
    )
}

/// The longest times that headers may contain, in microseconds.
struct Longest {
    /// Until all units are back.
    reset: u64,
    /// Until the client may retry.
    wait: u64,
    /// `t` if no units remain, which may be longer than `w`.
    beyond: u64,
}

impl Longest {
    fn of(traffic: &Traffic) -> Self {
        let (count, period) = (traffic.quota.count(), traffic.quota.period());
        let period = u64::try_from(period.as_micros()).expect("it is short enough");
        let limit = traffic.policy().counter().limit();
        let window = |reset, wait, beyond| Self {
            reset,
            wait,
            beyond,
        };
        match traffic.algorithm {
            Algorithm::FixedWindow(_) => window(period, period, 0),
            Algorithm::SlidingLog => {
                // A unit may come back up to a tick late, and a wait must not be too short.
                let tick = period.div_ceil(1 << 31).next_power_of_two();
                window(period, period + tick - 1, 0)
            }
            Algorithm::SlidingWindow => {
                // Units of the younger window count in full until it closes, and then expire one by one.
                let units = |cost: u64| (period * cost).div_ceil(limit) + 1_000;
                window(2 * period, period + units(traffic.cost), units(1))
            }
            _ => {
                let span = (limit * period).div_ceil(count);
                window(span, span, 0)
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_time_in_a_header_is_longer_than_the_window(traffic in any_traffic()) {
        let clock = Clock::manual(Timestamp::from_micros(traffic.start));
        let layer = RateLimitLayer::builder()
            .policy(traffic.policy().key(Global))
            .headers(every_family())
            .clock(clock.clone())
            .build();
        let layer = layer.expect("it is within the limits");
        let longest = Longest::of(&traffic);
        let (seconds, millis) = (|micros: u64| micros.div_ceil(1_000_000), |micros: u64| micros.div_ceil(1_000));
        let until_full = std::iter::repeat_n(&0, 50);
        let mut denials = 0;
        for gap in traffic.gaps.iter().chain(until_full) {
            clock.advance(Duration::from_micros(*gap));
            let now = clock.now().as_micros();
            let sent = Sent::by(&layer);
            prop_assert!(sent.number("delta-reset").expect("it is sent") <= seconds(longest.reset));
            prop_assert!(sent.number("ratelimit-reset").expect("it is sent") <= seconds(longest.reset));
            prop_assert!(sent.millis("x-ratelimit-reset-after") <= millis(longest.reset));
            prop_assert!(sent.millis("x-ratelimit-reset") <= millis(now) + millis(longest.reset));
            prop_assert!(sent.number("seconds-reset").expect("it is sent") <= seconds(now) + seconds(longest.reset));
            prop_assert!(sent.number("millis-reset").expect("it is sent") <= millis(now) + millis(longest.reset));
            let (_, limit) = members(sent.text("ratelimit")).remove(0);
            let (_, policy) = members(sent.text("ratelimit-policy")).remove(0);
            let number = |text: &String| text.parse::<u64>().expect("it is a number");
            let (r, t, w) = (number(&limit["r"]), number(&limit["t"]), number(&policy["w"]));
            let beyond = if r == 0 { longest.beyond } else { 0 };
            let most = seconds(w * 1_000_000 + beyond);
            prop_assert!(t <= most, "t={} w={} r={}", t, w, r);
            let Some(wait) = sent.number("retry-after") else { continue };
            denials += 1;
            prop_assert!(wait >= 1 && wait <= seconds(longest.wait), "{} s", wait);
            prop_assert!(t <= wait);
            if denials == 3 {
                // Never early: a client that waits this long is admitted.
                clock.advance(Duration::from_secs(wait));
                prop_assert_eq!(Sent::by(&layer).status, 200);
                break;
            }
        }
        prop_assert!(denials == 3 || traffic.quota.count() > 40);
    }
}

proptest! {
    #[test]
    fn retry_after_is_never_zero_and_never_early(traffic in Traffic::any()) {
        let (layer, clock, denied) = traffic.until_denied();
        let seconds = denied.retry_after.expect("waiting helps");
        let wait = denied.wait.expect("waiting helps");
        prop_assert!(seconds >= 1);
        prop_assert!(Duration::from_secs(seconds) >= wait);
        prop_assert!(Duration::from_secs(seconds - 1) < wait);
        prop_assert!(denied.seconds <= seconds, "Retry-After lies behind t");
        clock.advance(Duration::from_secs(seconds));
        prop_assert_eq!(Draft11Numbers::by(&layer).status, 200);
    }

    #[test]
    fn remaining_units_can_be_taken_at_any_time_of_the_effective_window(traffic in Traffic::any(), denied: bool) {
        let (layer, clock, numbers) = if denied { traffic.until_denied() } else { traffic.run() };
        let now = clock.now();
        let mut times: Vec<_> = traffic.parts.iter().map(|part| numbers.seconds * part * 1_000).collect();
        times.truncate(usize::try_from(numbers.remaining).expect("a small number"));
        times.sort_unstable();
        for time in times {
            clock.set(now + Duration::from_micros(time));
            prop_assert!(traffic.takes(&layer, 1), "{:?} after {time} us", numbers);
        }
    }

    #[test]
    fn a_unit_is_back_after_the_effective_window_if_none_remain(traffic in Traffic::any(), denied: bool) {
        let (layer, clock, numbers) = if denied { traffic.until_denied() } else { traffic.run() };
        if numbers.remaining == 0 {
            clock.advance(Duration::from_secs(numbers.seconds));
            prop_assert!(traffic.takes(&layer, 1), "{:?}", numbers);
        }
    }

    #[test]
    fn rate_by_the_effective_window_is_not_faster_than_a_bucket(traffic in Traffic::any(), bucket in 0_usize..2) {
        let algorithm = [Algorithm::TokenBucket, Algorithm::LeakyBucket][bucket];
        let cost = if bucket == 1 { 1 } else { traffic.cost };
        let traffic = Traffic { algorithm, cost, ..traffic };
        let (_, _, numbers) = traffic.run();
        if numbers.status == 200 {
            let seconds = u128::from(numbers.seconds) * u128::from(traffic.quota.count());
            let micros = u128::from(numbers.remaining) * traffic.quota.period().as_micros();
            prop_assert!(seconds * 1_000_000 >= micros, "{:?}", numbers);
        }
    }
}

// === Script ===

/// A store that decides every charge in the same way.
#[derive(Clone, Copy, Debug)]
enum Script {
    Deny,
    DenyForNow,
    Endless,
    Fail,
    Local,
    Never,
    OtherLimit,
    Refuse,
    Uncounted,
}

impl Script {
    fn store(self) -> ScriptedStore {
        let counted_by = match self {
            Self::Fail => {
                return ScriptedStore::failing(ErrorKind::Unavailable, "the test makes it fail");
            }
            Self::Local => CountedBy::Fallback,
            Self::Refuse | Self::Uncounted => CountedBy::Uncounted,
            _ => CountedBy::Shared,
        };
        ScriptedStore::new(move |charges| {
            let states = charges.iter().map(|charge| self.state(charge));
            StoreFuture::ready(Ok(Decision::new(counted_by, START, states)))
        })
    }

    fn state(self, charge: &Charge<'_>) -> PolicyState {
        let name = *charge.policy().name();
        let after = |seconds| START + Duration::from_secs(seconds);
        let counted = |usage, retry| PolicyState::counted(name, usage, retry);
        match self {
            Self::Deny => counted(Usage::new(10, 0, after(60)), Retry::At(after(6))),
            Self::DenyForNow => counted(Usage::new(10, 0, after(60)), Retry::At(START)),
            Self::Endless => {
                let end = Timestamp::from_micros(u64::MAX);
                counted(Usage::new(u64::MAX, u64::MAX, end), Retry::Now)
            }
            Self::Local => counted(Usage::new(10, 4, after(36)), Retry::Now),
            Self::Never => counted(Usage::new(10, 10, START), Retry::Never),
            Self::OtherLimit => counted(Usage::new(99, 98, after(7)), Retry::Now),
            Self::Fail | Self::Refuse => PolicyState::uncounted(name, Outcome::Unavailable),
            Self::Uncounted => PolicyState::uncounted(name, Outcome::Allowed),
        }
    }
}

fn scripted(script: Script) -> RateLimitLayerBuilder {
    RateLimitLayer::builder()
        .policy(Policy::new("everybody", Quota::per_minute(10)).key(Global))
        .store(script.store())
}

// === Requests ===

type Lines = BTreeMap<String, String>;

/// Sends the first request. Returns the status and the headers.
async fn ask(builder: &RateLimitLayerBuilder) -> (u16, Lines) {
    let layer = builder.clone().build().expect("the settings are valid");
    let app = Router::new().route("/", get(async || "fine")).layer(layer);
    let response = app
        .oneshot(Request::new(axum::body::Body::empty()))
        .await
        .expect("infallible");
    let others = ["cache-control", "content-type", "content-length"];
    let own = |name: &HeaderName| !others.contains(&name.as_str());
    let headers = response.headers().iter().filter(|(name, _)| own(name));
    let headers = headers.map(|(name, value)| {
        let value = value.to_str().expect("it is text");
        (name.to_string(), value.to_owned())
    });
    (response.status().as_u16(), headers.collect())
}

async fn serve(builder: RateLimitLayerBuilder) -> SocketAddr {
    let layer = builder.build().expect("the settings are valid");
    let app = Router::new().route("/", get(async || "fine")).layer(layer);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.expect("some port is free");
    let server = listener.local_addr().expect("it is bound");
    // ends with the test's runtime
    tokio::spawn(axum::serve(listener, app).into_future());
    server
}

/// Sends a request over a socket. Returns the status line, and the header lines that the server did not add.
async fn raw(server: SocketAddr) -> (String, Lines) {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await.expect("it listens");
        let request = b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("it is text");
        text
    };
    let text = time::timeout(Duration::from_secs(10), exchange).await;
    let text = text.expect("a response in time");
    println!("{text}\n");
    let (head, _) = text.split_once("\r\n\r\n").expect("the head ends");
    let (status, rest) = head.split_once("\r\n").expect("the status line ends");
    let mut found = lines(rest);
    for own in ["connection", "content-length", "content-type", "date"] {
        found.remove(own).expect("every response has it");
    }
    (status.to_owned(), found)
}

fn lines(text: &str) -> Lines {
    let lines = text.lines().map(str::trim);
    let pairs = lines.filter_map(|line| line.split_once(": "));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Returns the items of a list, each with its parameters as text.
#[track_caller]
fn members(value: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let list = Parser::new(value).parse::<List>();
    let list = list.unwrap_or_else(|error| panic!("{value}: {error}"));
    let items = list.iter().map(|entry| {
        let ListEntry::Item(item) = entry else {
            panic!("{value}: an inner list");
        };
        let params = item.params.iter();
        let params = params.map(|(key, value)| (key.as_str().to_owned(), shown(value)));
        (shown(&item.bare_item), params.collect())
    });
    items.collect()
}

/// Returns a bare item as text. Our fields have Strings and Integers only.
fn shown(item: &BareItem) -> String {
    match item {
        BareItem::Integer(number) => number.to_string(),
        BareItem::String(text) => text.as_str().to_owned(),
        other => panic!("neither a String nor an Integer: {other:?}"),
    }
}

fn member(name: &str, numbers: &[(&str, Option<i64>)]) -> (String, BTreeMap<String, String>) {
    let numbers = numbers.iter().filter_map(|(key, number)| {
        let number: Option<i64> = *number;
        Some(((*key).to_owned(), number?.to_string()))
    });
    (name.to_owned(), numbers.collect())
}

fn stopped() -> Clock {
    Clock::manual(START)
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_250_000);
