//! Keys and costs from the bodies of requests, and the bodies that handlers get.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RequestHead,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    extract::{BodyFault, BodyLimits, Extracted, FromBody, Global, Header, KeyExtractor},
    rejection::{Reason, Rejection},
    rules::{OnMissingKey, Rule, RuleMode},
    tiers::TierCache,
};
use tower::{Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

// === Keys ===

#[tokio::test]
async fn field_of_a_json_document_or_a_form_is_the_key() {
    let by_email = || FromBody::json("/user/email").or_form("email");
    for (extractor, kind, body, key) in [
        (by_email(), JSON, r#"{"user":{"email":"ada"}}"#, Some("ada")),
        (by_email(), "", r#"{"user":{"email":"ada"}}"#, Some("ada")),
        (by_email(), FORM, "a=1&email=ada%40x&b", Some("ada@x")),
        (by_email(), FORM_UTF8, "email=a+b", Some("a b")),
        (FromBody::form("email"), JSON, "email=ada", Some("ada")),
        (FromBody::json("/id"), JSON, r#"{"id":17}"#, Some("17")),
        (FromBody::json("/id"), JSON, r#"{"id":-17}"#, Some("-17")),
        (
            FromBody::json("/ids/1/n"),
            JSON,
            r#"{"ids":[0,{"n":"x"},2]}"#,
            Some("x"),
        ),
        (
            FromBody::json("/a~1b/m~0n"),
            JSON,
            r#"{"a/b":{"m~n":"x"}}"#,
            Some("x"),
        ),
        (
            FromBody::json("/id").ignore_case(),
            JSON,
            r#"{"id":" ÄDA "}"#,
            Some("äda"),
        ),
        // One escape is one character, as the handler reads it.
        (
            FromBody::json("/id"),
            JSON,
            r#"{"\u0069d":"\u0041da"}"#,
            Some("Ada"),
        ),
        (by_email(), JSON, "", None),
        (by_email(), JSON, "{}", None),
        (by_email(), JSON, r#"{"user":null}"#, None),
        (by_email(), JSON, r#"{"user":"ada"}"#, None),
        (by_email(), JSON, r#"{"user":{"email":""}}"#, None),
        (by_email(), JSON, r#"{"user":{"email":null}}"#, None),
        (by_email(), FORM, "name=ada", None),
        (FromBody::json("/ids/7"), JSON, r#"{"ids":[0]}"#, None),
    ] {
        let rule = plenty().key(extractor.clone());
        let layer = layer([rule.on_missing_key(OnMissingKey::Skip)]);
        let response = send(&layer, kind, body).await;
        assert_eq!(response.status(), 200, "{body}");
        let is_counted = response.headers().contains_key("x-ratelimit-limit");
        assert_eq!(is_counted, key.is_some(), "{body}");
        let policy = Policy::new("plenty", Quota::per_hour(10));
        if let Some(key) = key {
            let peeked = layer.limiter().peek(&[policy.charge(Key::new(key))]).await;
            let usage = peeked.expect("it responds").states()[0].usage();
            assert_eq!(usage.expect("it is counted").remaining, 9, "{body}");
        }
    }
}

#[tokio::test]
async fn body_that_is_not_what_it_should_be_is_rejected_even_if_the_rule_skips() {
    let deep = format!(
        r#"{{"email":{}{}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let by_email = || FromBody::json("/email").or_form("email");
    for (kind, body) in [
        (JSON, "{"),
        (JSON, "email=ada"),
        (JSON, r#"{"email":"ada"} x"#),
        (JSON, r#"{"email":"ada"}{"email":"bob"}"#),
        (JSON, r#"{"email":"ada","email":"ada"}"#),
        (JSON, r#"{"email":"ada","em\u0061il":"bob"}"#),
        (JSON, r#"{"email":["ada"]}"#),
        // A list can be read as the fields of the object in their order.
        (JSON, r#"["ada"]"#),
        (JSON, "[]"),
        (JSON, r#"{"email":{"a":1}}"#),
        (JSON, r#"{"email":true}"#),
        (JSON, r#"{"email":1.5}"#),
        (JSON, r#"{"email":1e999}"#),
        (JSON, "\u{feff}{\"email\":\"ada\"}"),
        (JSON, &deep),
        // It is also a form, of another name.
        ("application/json, application/x-www-form-urlencoded", BOTH),
        (FORM, "email=ada&email=bob"),
        (FORM, "email=ada&em%61il="),
    ] {
        let rule = plenty().key(by_email().limit(1 << 20));
        let layer = layer([rule.on_missing_key(OnMissingKey::Skip)]);
        let response = send(&layer, kind, body).await;
        assert_eq!(response.status(), 400, "{body:.60}");
    }
    // Bytes that are not UTF-8.
    for kind in [JSON, FORM] {
        let layer = layer([plenty().key(by_email())]);
        let body = Body::from(&b"{\"email\":\"\xff\"}"[..]);
        let response = call(&layer, request(kind, body)).await;
        assert_eq!(response.status(), 400);
        assert_eq!(fault(&response), Some(BodyFault::Malformed));
    }
}

// Regression: the layer counted the name in the JSON document, while the handler read that in the form.
#[tokio::test]
async fn body_that_handlers_may_read_in_another_way_is_rejected() {
    let layer = layer([plenty().key(FromBody::json("/email").or_form("email"))]);
    for (name, value) in [
        ("content-type", FORM),
        ("content-encoding", "deflate"),
        ("content-encoding", "identity, gzip"),
    ] {
        for kind in [JSON, FORM] {
            let mut twice = request(kind, Body::from(BOTH));
            let value = value.parse().expect("a value");
            twice.headers_mut().append(name, value);
            let response = call(&layer, twice).await;
            assert_eq!(fault(&response), Some(BodyFault::Malformed), "{name}");
        }
    }
    // axum's `Form` looks at the start of the type only.
    for kind in ["+json", "x", " x", "-x; charset=utf-8"] {
        let kind = format!("{FORM}{kind}");
        let response = send(&layer, &kind, BOTH).await;
        assert_eq!(fault(&response), Some(BodyFault::Malformed), "{kind}");
    }
    let mut plain = request(JSON, Body::from(BOTH));
    let identity = "Identity".parse().expect("a value");
    plain.headers_mut().append("content-encoding", identity);
    assert_eq!(call(&layer, plain).await.status(), 200);
}

// Regression: `serde_json` reads a field of this name as a document in place of the object, if its feature `raw_value` is on, as it
// is with axum. So the handler found a key that the layer had not counted.
#[tokio::test]
async fn json_inside_json_that_handlers_may_unfold_is_rejected() {
    let hidden = |inside: &str| {
        let inside = serde_json::Value::from(inside);
        format!(r#"{{"$serde_json::private::RawValue":{inside}}}"#)
    };
    let whole = hidden(r#"{"user":{"email":"ada"},"tokens":500}"#);
    let value: serde_json::Value = serde_json::from_str(&whole).expect("a document");
    assert_eq!(value["user"]["email"], "ada", "handlers do not unfold it");
    let inner = hidden(r#"{"email":"ada"}"#);
    for body in [
        whole.clone(),
        format!(r#"{{"user":{inner},"tokens":1}}"#),
        format!(r#"{{"user":{{"email":{}}}}}"#, hidden("\"ada\"")),
        r#"{"user":{"$serde_json::private::Number":"1"}}"#.to_owned(),
    ] {
        let rule = plenty().key(FromBody::json("/user/email"));
        let layer = layer([rule.on_missing_key(OnMissingKey::Skip)]);
        let response = send(&layer, JSON, &body).await;
        assert_eq!(fault(&response), Some(BodyFault::Malformed), "{body}");
    }
    let layer = layer([plenty().key(Global).cost_field(FromBody::json("/tokens"))]);
    let response = send(&layer, JSON, &whole).await;
    assert_eq!(fault(&response), Some(BodyFault::Malformed));
}

#[tokio::test]
async fn deep_json_beside_the_key_is_skipped() {
    let depth = 10_000;
    let deep = format!(
        r#"{{"x":{}{},"email":"ada"}}"#,
        "[".repeat(depth),
        "]".repeat(depth)
    );
    let layer = layer([plenty().key(FromBody::json("/email").limit(1 << 20))]);
    assert_eq!(send(&layer, JSON, &deep).await.status(), 200);
}

#[tokio::test]
async fn keys_of_bodies_can_be_joined_with_others() {
    let both = FromBody::json("/email").and(Header::new("x-address"));
    let layer = layer([Policy::new("both", Quota::per_hour(1)).key(both)]);
    for (email, address, status) in [
        ("ada", "1", 200),
        ("ada", "2", 200),
        ("bob", "1", 200),
        ("ada", "1", 429),
    ] {
        let mut request = request(JSON, Body::from(format!(r#"{{"email":"{email}"}}"#)));
        let address = address.parse().expect("a value");
        request.headers_mut().insert("x-address", address);
        assert_eq!(call(&layer, request).await.status(), status, "{email}");
    }
}

#[tokio::test]
async fn hashed_key_is_not_readable() {
    let by_email = FromBody::json("/email").hashed();
    let request = request(JSON, Body::from(r#"{"email":"ada"}"#));
    let layer = layer([Policy::new("once", Quota::per_hour(1)).key(by_email)]);
    assert_eq!(call(&layer, request).await.status(), 200);
    let policy = Policy::new("once", Quota::per_hour(1));
    for (key, left) in [(Key::secret("ada"), 0), (Key::new("ada"), 1)] {
        let peeked = layer.limiter().peek(&[policy.charge(key)]).await;
        let usage = peeked.expect("it responds").states()[0].usage();
        assert_eq!(usage.expect("it is counted").remaining, left);
    }
}

// === Costs ===

#[tokio::test]
async fn cost_comes_from_the_body() {
    let limits = BodyLimits::default();
    let cost = |body: &[u8]| u64::try_from(body.len()).expect("it is small");
    let layer = layer([plenty().key(Global).cost_by_body(limits, cost)]);
    assert_eq!(remaining(&send(&layer, JSON, "1234").await), 6);
    assert_eq!(send(&layer, JSON, "1234567").await.status(), 429);
    assert_eq!(remaining(&send(&layer, JSON, "12345").await), 1);
    assert_eq!(remaining(&send(&layer, JSON, "").await), 1);
    let large = "x".repeat(20_000);
    assert_eq!(send(&layer, JSON, &large).await.status(), 413);
}

#[tokio::test]
async fn number_in_a_field_is_the_cost_and_at_least_the_own_one() {
    let field = FromBody::json("/max_tokens").or_form("max_tokens");
    let rule = plenty().cost(2).key(Global).cost_field(field.limit(60));
    let layer = layer([rule]);
    let sent = async |kind: &str, body: &str| {
        let response = send(&layer, kind, body).await;
        let status = response.status().as_u16();
        (status, (status == 200).then(|| remaining(&response)))
    };
    assert_eq!(sent(JSON, r#"{"max_tokens":3}"#).await, (200, Some(7)));
    assert_eq!(sent(FORM, "max_tokens=1").await, (200, Some(5)));
    assert_eq!(sent(JSON, r#"{"max_tokens":0}"#).await, (200, Some(3)));
    assert_eq!(sent(JSON, r#"{"max_tokens":4}"#).await, (429, None));
    assert_eq!(sent(JSON, r#"{"max_tokens":null}"#).await, (200, Some(1)));
    for body in [
        r#"{"max_tokens":1,"max_tokens":9}"#,
        r#"{"max_tokens":"many"}"#,
        r#"{"max_tokens":-1}"#,
        r#"{"max_tokens":1.5}"#,
        r#"{"max_tokens":99999999999999999999}"#,
        r#"{"max_tokens":[1]}"#,
        r#"{"max_tokens":1"#,
    ] {
        assert_eq!(sent(JSON, body).await, (400, None), "{body}");
    }
    assert_eq!(sent(JSON, &"x".repeat(61)).await, (413, None));
}

// Regression: each charge of a request looked the number up again.
#[tokio::test]
async fn body_is_asked_once_for_its_cost_however_many_charges_there_are() {
    let times = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&times);
    let cost = move |body: &[u8]| {
        counting.fetch_add(1, Ordering::Relaxed);
        body.len() as u64
    };
    let tiers = TierCache::builder(|_: &RequestHead, _: &Key| async {
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(None)
    });
    let rule = plenty().key(Global).candidate(Quota::per_hour(50));
    let rule = rule.cost_by_body(BodyLimits::default(), cost);
    let layer = layer([rule.tier_cache(tiers.build().expect("usable settings"))]);
    assert_eq!(remaining(&send(&layer, JSON, "1234").await), 6);
    assert_eq!(times.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn body_without_the_field_costs_what_the_policy_costs() {
    let field = || FromBody::json("/max_tokens");
    let limits = layer([plenty().cost(2).key(Global).cost_field(field())]);
    assert_eq!(remaining(&send(&limits, JSON, "{}").await), 8);
    assert_eq!(remaining(&send(&limits, JSON, "").await), 6);
    assert_eq!(send(&limits, JSON, "{").await.status(), 400);
    let lenient = field().unreadable_is_absent();
    let limits = layer([plenty().cost(2).key(Global).cost_field(lenient)]);
    assert_eq!(remaining(&send(&limits, JSON, "{").await), 8);
    let broken = FromBody::json("max_tokens");
    let rule = plenty().key(Global).cost_field(broken);
    let error = RateLimitLayer::builder().policy(rule).build();
    let error = error.expect_err("it is no pointer");
    assert!(error.to_string().contains("JSON pointer"), "{error}");
}

// Regression: a handler that reads an object takes a list of its fields too, and the cost was that of a body without the field.
#[tokio::test]
async fn list_in_place_of_the_object_with_the_cost_is_rejected() {
    for (pointer, body) in [
        ("/max_tokens", "[9]"),
        ("/options/max_tokens", r#"{"options":[9]}"#),
    ] {
        let layer = layer([plenty().key(Global).cost_field(FromBody::json(pointer))]);
        let response = send(&layer, JSON, body).await;
        assert_eq!(fault(&response), Some(BodyFault::Malformed), "{body}");
    }
}

// Regression: a key in a rollout passed free of charge with a number that the rule cannot read.
#[tokio::test]
async fn unreadable_cost_is_rejected_for_the_keys_of_a_rollout() {
    let user = Header::new("x-user");
    let rule = plenty().key(user).cost_field(FromBody::json("/max_tokens"));
    let layer = layer([rule.rollout(50.0)]);
    let (mut rejected, mut admitted) = (0, 0);
    for user in 0..100 {
        let send = async |body: &str| {
            let mut request = request(JSON, Body::from(body.to_owned()));
            let user = HeaderValue::from(user);
            request.headers_mut().insert("x-user", user);
            call(&layer, request).await.status()
        };
        let is_in = send(r#"{"max_tokens":11}"#).await == StatusCode::TOO_MANY_REQUESTS;
        let unreadable = send(r#"{"max_tokens":1e9}"#).await;
        if is_in {
            rejected += 1;
            assert_eq!(unreadable, StatusCode::BAD_REQUEST);
        } else {
            admitted += 1;
            assert_eq!(unreadable, StatusCode::OK);
        }
    }
    assert!(rejected > 20 && admitted > 20, "{rejected} {admitted}");
}

// === Limits ===

#[tokio::test]
async fn body_that_states_that_it_is_too_large_is_not_read() {
    let layer = layer([plenty().key(FromBody::json("/email").limit(100))]);
    let (body, polls) = Watched::new(Body::from("x".repeat(101)));
    let response = call(&layer, request(JSON, Body::new(body))).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(fault(&response), Some(BodyFault::TooLarge));
    assert_eq!(polls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn no_more_is_read_than_the_limit_and_a_frame() {
    let layer = layer([plenty().key(FromBody::json("/email").limit(100))]);
    let (sender, pieces) = pieces();
    for _ in 0..1_000 {
        sender
            .send(Frame::data(Bytes::from("1234567890")))
            .expect("it is read");
    }
    let (body, polls) = Watched::new(pieces);
    let response = call(&layer, request(JSON, Body::new(body))).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(polls.load(Ordering::SeqCst), 11);
    let text = text_of(response).await;
    assert!(text.contains("\"body_unreadable\""), "{text}");
    assert!(text.contains("the request body is too large"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn body_that_does_not_arrive_in_time_is_rejected() {
    let by_email = FromBody::json("/email").within(3 * SECOND);
    let layer = layer([plenty().key(by_email)]);
    let (sender, body) = pieces();
    let begun = tokio::time::Instant::now();
    let response = tokio::spawn({
        let layer = layer.clone();
        async move { call(&layer, request(JSON, Body::new(body))).await }
    });
    // A byte a second does not prolong it.
    for _ in 0..2 {
        tokio::time::sleep(SECOND).await;
        sender
            .send(Frame::data(Bytes::from("{")))
            .expect("it is read");
    }
    let response = response.await.expect("no panic");
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(fault(&response), Some(BodyFault::TooSlow));
    assert_eq!(begun.elapsed().as_secs(), 3);
}

// Regression: only a body that was waited for was timed, so one of empty frames took a worker for as long as it liked.
#[tokio::test]
async fn body_of_empty_frames_ends_in_time() {
    let by_email = FromBody::json("/email").within(Duration::from_millis(20));
    let layer = layer([plenty().key(by_email)]);
    let frames = std::iter::repeat_with(|| Ok::<_, std::io::Error>(Bytes::new()));
    let frames = frames.take(10_000_000);
    let (body, polls) = Watched::new(Body::from_stream(futures_util::stream::iter(frames)));
    let response = call(&layer, request(JSON, Body::new(body))).await;
    assert_eq!(fault(&response), Some(BodyFault::TooSlow));
    assert!(polls.load(Ordering::SeqCst) < 10_000_000);
}

// Regression: the time of a lookup was counted as that of the body.
#[tokio::test]
async fn lookup_beside_a_body_takes_none_of_its_time() {
    let by_email = FromBody::json("/email").within(Duration::from_millis(50));
    let lookup = |_: &RequestHead<'_>| async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok::<_, std::convert::Infallible>(Key::new("tenant"))
    };
    let looked_up = Policy::new("looked-up", Quota::per_hour(10)).key_async(lookup);
    let layer = layer([plenty().key(by_email), looked_up]);
    let response = send(&layer, JSON, r#"{"email":"ada"}"#).await;
    assert_eq!(
        (response.status(), fault(&response)),
        (StatusCode::OK, None)
    );
}

#[tokio::test]
async fn rules_have_their_own_limits_of_one_body() {
    let small = plenty().key(FromBody::json("/email").limit(40));
    let large = Policy::new("large", Quota::per_hour(10)).key(FromBody::json("/email").limit(80));
    let layer = layer([small, large]);
    let padded = |length: usize| {
        let start = r#"{"email":"ada"}"#;
        format!("{start}{}", " ".repeat(length - start.len()))
    };
    assert_eq!(send(&layer, JSON, &padded(40)).await.status(), 200);
    let response = send(&layer, JSON, &padded(60)).await;
    assert_eq!(response.status(), 413);
    let rejection = response
        .extensions()
        .get::<Rejection>()
        .expect("a rejection");
    let policy = rejection.reason().policy().expect("a policy");
    assert_eq!(policy.as_str(), "plenty");
}

#[tokio::test]
async fn unreadable_body_is_no_key_if_the_rule_chooses_that() {
    let by_email = FromBody::json("/email").limit(100).unreadable_is_absent();
    let rule = plenty().key(by_email).on_missing_key(OnMissingKey::Skip);
    let layer = layer([rule]);
    for body in ["x".repeat(100_000), "{".to_owned()] {
        let response = send(&layer, JSON, &body).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
        // The handler echoes: it gets what was read, and the rest.
        assert!(text_of(response).await == body);
    }
}

// === What is read, and when ===

#[tokio::test]
async fn body_of_a_request_that_no_such_rule_counts_is_not_read() {
    let elsewhere = plenty().key(FromBody::json("/email"));
    let elsewhere = elsewhere.when(tollgate::matching::PathPattern::new("/elsewhere"));
    let all = Policy::new("all", Quota::per_hour(10)).key(Global);
    let layer = layer([elsewhere, all]);
    let (body, polls) = Watched::new(Body::from("{}"));
    let service = layer.layer(service_fn(async |request: Request<Body>| {
        assert!(!request.body().is_end_stream());
        Ok::<_, std::convert::Infallible>(Response::new(()))
    }));
    let response = service.oneshot(request(JSON, Body::new(body))).await;
    assert_eq!(response.expect("it responds").status(), 200);
    assert_eq!(polls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn body_of_a_request_whose_key_is_in_its_head_is_not_read() {
    let user = || Header::new("x-user").or_else(FromBody::json("/email").limit(50));
    let layers = [
        layer([plenty().key(user())]),
        layer([plenty().key(Global.and(user()))]),
        layer([plenty().key(Box::new(user()) as Box<dyn KeyExtractor>)]),
        layer([plenty().key(user().map(|key| key))]),
    ];
    for layer in layers {
        // Within the limit: one that is larger is not read in any case.
        let (body, polls) = Watched::new(Body::from("x".repeat(40)));
        let handler = async |_: Request<Body>| Ok::<_, std::convert::Infallible>(Response::new(()));
        let mut request = request(JSON, Body::new(body));
        let user = HeaderValue::from_static("ada");
        request.headers_mut().insert("x-user", user);
        let response = layer.layer(service_fn(handler)).oneshot(request).await;
        assert_eq!(response.expect("it responds").status(), 200);
        assert_eq!(polls.load(Ordering::SeqCst), 0);
        assert_eq!(remaining(&send(&layer, JSON, r#"{"email":"b"}"#).await), 9);
        let large = send(&layer, JSON, &"x".repeat(100)).await;
        assert_eq!(large.status(), 413);
    }
}

#[cfg(feature = "explain")]
#[tokio::test]
async fn explanation_states_that_a_rule_needs_the_body() {
    use tollgate::explain::{RuleExplanation, RuleFinding};

    let user = Header::new("x-user").or_else(FromBody::json("/email"));
    let by_body = plenty().key(Global);
    let by_body = by_body.cost_by_body(BodyLimits::default(), |body| body.len() as u64);
    let other = Policy::new("other", Quota::per_hour(10)).key(user);
    let layer = layer([by_body, other]);
    let mut request = Request::post("/").body(()).expect("a request");
    let explained = layer.explain(&request).await.expect("in process");
    let findings: Vec<_> = explained
        .rules()
        .iter()
        .map(RuleExplanation::finding)
        .collect();
    assert!(
        matches!(
            findings[..],
            [RuleFinding::NeedsBody, RuleFinding::NeedsBody]
        ),
        "{explained}"
    );
    let user = HeaderValue::from_static("ada");
    request.headers_mut().insert("x-user", user);
    let explained = layer.explain(&request).await.expect("in process");
    let [cost, key] = explained.rules() else {
        panic!("{explained}");
    };
    assert!(
        matches!(cost.finding(), RuleFinding::NeedsBody),
        "{explained}"
    );
    assert!(
        matches!(key.finding(), RuleFinding::Counted { .. }),
        "{explained}"
    );
}

#[tokio::test]
async fn body_of_a_request_that_another_policy_denies_is_not_read() {
    let name = plenty().key(FromBody::json("/email"));
    let address = Policy::new("address", Quota::per_hour(1)).key(Global);
    let layer = layer([name, address]);
    assert_eq!(send(&layer, JSON, r#"{"email":"ada"}"#).await.status(), 200);
    let (body, polls) = Watched::new(Body::from(r#"{"email":"ada"}"#));
    let response = call(&layer, request(JSON, Body::new(body))).await;
    assert_eq!(response.status(), 429);
    assert_eq!(polls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn unreadable_body_is_charged_to_the_policies_decided_before() {
    let name = plenty().key(FromBody::json("/email"));
    let address = Policy::new("address", Quota::per_hour(3)).key(Global);
    let layer = layer([name, address]);
    for _ in 0..3 {
        assert_eq!(send(&layer, JSON, "{").await.status(), 400);
    }
    assert_eq!(send(&layer, JSON, "{").await.status(), 429);
}

#[tokio::test]
async fn client_that_hangs_up_while_its_body_is_read_is_charged_and_holds_nothing() {
    let name = plenty().key(FromBody::json("/email"));
    let address = Policy::new("address", Quota::per_hour(3)).key(Global);
    let slots = Policy::concurrency("slots", 1).key(Global);
    let layer = layer([name, address, slots]);
    for _ in 0..3 {
        let (sender, body) = pieces();
        sender
            .send(Frame::data(Bytes::from("{")))
            .expect("it is read");
        let mut waiting = Box::pin(call(&layer, request(JSON, Body::new(body))));
        let polled = std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        drop(waiting);
        assert!(sender.is_closed());
    }
    let denied = send(&layer, JSON, "{}").await;
    assert_eq!(denied.status(), 429);
    let rejection = denied.extensions().get::<Rejection>().expect("a rejection");
    assert!(
        matches!(rejection.reason(), Reason::Limited { policy } if policy.as_str() == "address")
    );
}

#[tokio::test]
async fn request_with_a_body_of_another_type_is_rejected_with_500() {
    let layer = layer([plenty().key(FromBody::json("/email"))]);
    let service = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, std::convert::Infallible>(Response::new(()))
    }));
    let request = Request::post("/").body(r#"{"email":"ada"}"#.to_owned());
    let response = service.oneshot(request.expect("a request")).await;
    let response = response.expect("it responds");
    assert_eq!(response.status(), 500);
    let rejection = response
        .extensions()
        .get::<Rejection>()
        .expect("a rejection");
    assert_eq!(rejection.message(), "internal server error");
}

// === What the handler gets ===

#[tokio::test]
async fn handler_gets_the_bytes_the_trailers_and_the_length_as_they_were_sent() {
    let layer = layer([plenty().key(FromBody::json("/email"))]);
    let service = layer.layer(service_fn(async |request: Request<Body>| {
        let hint = request.body().size_hint();
        let collected = request.into_body().collect().await.expect("a whole body");
        let trailers = collected.trailers().cloned();
        let seen = (hint.exact(), trailers, collected.to_bytes());
        Ok::<_, std::convert::Infallible>(Response::new(seen))
    }));
    let text = r#"{"email":"ada","more":[1,2,3]}"#;
    let whole = request(JSON, Body::from(text));
    let response = service.clone().oneshot(whole).await.expect("it responds");
    let (exact, trailers, bytes) = response
        .into_body()
        .into_inner()
        .expect("the handler's body");
    assert_eq!(
        (exact, trailers, &bytes[..]),
        (Some(text.len() as u64), None, text.as_bytes())
    );

    let (sender, body) = pieces();
    for byte in text.bytes() {
        sender
            .send(Frame::data(Bytes::from(vec![byte])))
            .expect("it is read");
    }
    let mut sent = HeaderMap::new();
    sent.insert("x-checksum", "17".parse().expect("a value"));
    sender
        .send(Frame::trailers(sent.clone()))
        .expect("it is read");
    drop(sender);
    let chunked = request(JSON, Body::new(body));
    let response = service.oneshot(chunked).await.expect("it responds");
    let (exact, trailers, bytes) = response
        .into_body()
        .into_inner()
        .expect("the handler's body");
    assert_eq!(
        (exact, trailers, &bytes[..]),
        (None, Some(sent), text.as_bytes())
    );
}

// Regression: the error was lost, and a body of hyper ends after it, so a part of the body passed for the whole.
#[tokio::test]
async fn handler_gets_the_error_of_a_body_that_breaks_off() {
    let by_email = || FromBody::json("/email");
    let ignoring = plenty().key(by_email().unreadable_is_absent());
    for rule in [
        plenty().key(by_email()).mode(RuleMode::Shadow),
        ignoring.on_missing_key(OnMissingKey::Skip),
    ] {
        let service = layer([rule]).layer(service_fn(async |request: Request<Body>| {
            let read = request.into_body().collect().await;
            let read = read.map(http_body_util::Collected::to_bytes);
            Ok::<_, std::convert::Infallible>(Response::new(read))
        }));
        let frames = [
            Ok(Bytes::from(r#"{"amount":1"#)),
            Err(std::io::Error::other("reset")),
        ];
        let broken = Body::from_stream(futures_util::stream::iter(frames));
        let response = service.oneshot(request(JSON, broken)).await;
        let read = response.expect("it responds").into_body().into_inner();
        read.expect("a body").expect_err("a part of the body");
    }
}

#[tokio::test]
async fn two_layers_read_one_body() {
    let inner = layer([plenty().key(FromBody::json("/email"))]);
    let outer = layer([plenty().key(FromBody::json("/email"))]);
    let app = Router::new().route("/", post(async |body: Bytes| body));
    let app = app.layer(inner.clone()).layer(outer.clone());
    let text = r#"{"email":"ada"}"#;
    let response = app.oneshot(request(JSON, Body::from(text))).await;
    let response = response.expect("it responds");
    assert_eq!(response.status(), 200);
    let bytes = response
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert_eq!(bytes, text);
}

#[tokio::test]
async fn client_that_waits_to_send_its_body_is_asked_for_it_only_if_it_is_read() {
    let name = plenty().key(FromBody::json("/email"));
    let address = Policy::new("address", Quota::per_hour(1)).key(Global);
    let layer = layer([name, address]);
    let app = Router::new()
        .route("/", post(async |body: Bytes| body))
        .layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let server = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n\
                connection: close\r\ncontent-length: 15\r\n\r\n";
    for (asked, body) in [(true, r#"{"email":"ada"}"#), (false, "")] {
        let mut client = TcpStream::connect(server).await.expect("it listens");
        client.write_all(head.as_bytes()).await.expect("it is sent");
        let mut first = [0; 12];
        client.read_exact(&mut first).await.expect("a status line");
        let expected: &[u8] = if asked {
            b"HTTP/1.1 100"
        } else {
            b"HTTP/1.1 429"
        };
        assert_eq!(first, expected);
        client.write_all(body.as_bytes()).await.expect("it is sent");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("a response");
        if asked {
            let rest = String::from_utf8(rest).expect("text");
            assert!(rest.contains("200 OK") && rest.ends_with(body), "{rest}");
        }
    }
}

// === Settings that cannot work ===

#[test]
fn extractors_of_bodies_that_cannot_work_fail_when_the_layer_is_built() {
    for (extractor, words) in [
        (FromBody::json("email"), "write one such as \"/user/email\""),
        (FromBody::json("/"), "write one such as"),
        (FromBody::form(""), "field of a form"),
        (FromBody::json("/email").or_form(""), "field of a form"),
        (FromBody::json("/email").limit(0), "no body could be read"),
        (
            FromBody::json("/email").within(Duration::ZERO),
            "no body could be read",
        ),
    ] {
        let built = RateLimitLayer::builder()
            .policy(plenty().key(extractor))
            .build();
        let error = built.expect_err("it cannot work").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn extractor_finds_nothing_without_a_layer_that_reads() {
    let request = Request::post("/").body(()).expect("a request");
    let head = tollgate::RequestHead::from(&request);
    assert_eq!(
        FromBody::json("/email").extract(&head),
        Extracted::Ambiguous
    );
    let fault = FromBody::json("/email").body_fault(&head);
    assert_eq!(fault, Some(BodyFault::Unsupported));
}

// === Tools ===

const JSON: &str = "application/json";
const BOTH: &str = r#"{"email":"mallory","more":"&email=ada&"}"#;
const FORM: &str = "application/x-www-form-urlencoded";
const FORM_UTF8: &str = "Application/X-WWW-Form-Urlencoded; charset=utf-8";

fn plenty() -> Policy {
    Policy::new("plenty", Quota::per_hour(10))
}

fn layer(rules: impl IntoIterator<Item = Rule>) -> RateLimitLayer {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let builder = RateLimitLayer::builder().clock(clock);
    let builder = rules
        .into_iter()
        .fold(builder, RateLimitLayerBuilder::policy);
    builder.build().expect("usable rules")
}

fn request(kind: &str, body: Body) -> Request<Body> {
    let mut request = Request::post("/");
    if !kind.is_empty() {
        request = request.header("content-type", kind);
    }
    request.body(body).expect("a request")
}

async fn send(layer: &RateLimitLayer, kind: &str, body: &str) -> Response<Body> {
    call(layer, request(kind, Body::from(body.to_owned()))).await
}

/// Sends a request to a handler that echoes its body.
async fn call(layer: &RateLimitLayer, request: Request<Body>) -> Response<Body> {
    let app = Router::new().route("/", post(async |body: Bytes| body));
    let app = app.layer(axum::extract::DefaultBodyLimit::disable());
    app.layer(layer.clone())
        .oneshot(request)
        .await
        .expect("it responds")
}

fn fault(response: &Response<Body>) -> Option<BodyFault> {
    match response.extensions().get::<Rejection>()?.reason() {
        Reason::UnreadableBody { fault, .. } => Some(*fault),
        _ => None,
    }
}

fn remaining(response: &Response<Body>) -> u64 {
    assert_eq!(response.status(), 200);
    let value = response.headers()["x-ratelimit-remaining"].to_str();
    value.expect("text").parse().expect("a number")
}

async fn text_of(response: Response<Body>) -> String {
    let collected = response.into_body().collect().await.expect("a body");
    String::from_utf8(collected.to_bytes().to_vec()).expect("text")
}

/// Counts how often a body is polled.
struct Watched<B> {
    body: B,
    polls: Arc<AtomicUsize>,
}

impl<B> Watched<B> {
    fn new(body: B) -> (Self, Arc<AtomicUsize>) {
        let polls = Arc::new(AtomicUsize::new(0));
        let watched = Self {
            body,
            polls: Arc::clone(&polls),
        };
        (watched, polls)
    }
}

impl<B: HttpBody + Unpin> HttpBody for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body whose frames come from the test.
fn pieces() -> (mpsc::UnboundedSender<Frame<Bytes>>, Pieces) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Pieces(receiver))
}

struct Pieces(mpsc::UnboundedReceiver<Frame<Bytes>>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}
