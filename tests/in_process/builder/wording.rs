//! Texts for people: errors about invalid settings for users, messages about missing keys for clients.

use std::{convert::Infallible, future, io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    response::{Html, IntoResponse},
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header::WWW_AUTHENTICATE};
use http_body_util::BodyExt;
use tollgate::{
    Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    diagnosis::Code,
    extract::{
        ApiKey, AsyncKeyExtractor, Claim, Cookie, ExtensionKey, Extracted, Global, Header,
        KeyExtractor, KeyLookup, PathParam, PeerIp, QueryParam,
    },
    headers::{DiscordScope, Headers},
    matching::{HasHeader, Match, Matcher},
    rejection::{Reason, Rejection, RejectionFormat},
    rules::Rule,
    tiers::Tier,
};
use tower::ServiceExt;

// === Names ===

#[test]
fn header_names_ignore_case() {
    let request = Request::get("/")
        .header("x-tenant", "acme")
        .header("x-api-key", "k-1")
        .body(());
    let (head, ()) = request.expect("a request").into_parts();
    let tenant = Header::new("X-Tenant");
    assert_eq!(
        tenant.extract(&RequestHead::from(&head)).found(),
        Some(Key::new("acme"))
    );
    assert_eq!(tenant.label(), "x-tenant");
    let by_key = ApiKey::header("X-Api-Key");
    assert_eq!(
        by_key.extract(&RequestHead::from(&head)).found(),
        Some(Key::secret("k-1"))
    );
    assert_eq!(
        HasHeader::new("X-TENANT").matches(&RequestHead::from(&head)),
        Match::Exact
    );
    for rule in [plan().key(tenant), plan().key(by_key)] {
        assert!(RateLimitLayer::builder().policy(rule).build().is_ok());
    }
}

#[test]
fn name_that_no_request_can_contain_fails_the_build() {
    for (rule, text) in [
        (plan().key(Header::new("x tenant")), "\"x tenant\""),
        (plan().key(Header::new("")), "\"\""),
        (plan().key(Header::new("x-\u{fc}")), "not a header name"),
        (plan().key(ApiKey::header("x key")), "\"x key\""),
        (plan().key(ApiKey::query("")), "query parameter"),
        (plan().key(Cookie::new("a b")), "\"a b\""),
        (plan().key(Cookie::new("")), "cookie"),
        (plan().key(QueryParam::new("")), "query parameter"),
        (plan().key(PathParam::new("")), "path parameter"),
        (plan().key(PathParam::new("{id}")), "without braces"),
        (plan().key(PathParam::new("*rest")), "without braces"),
        (plan().key(PeerIp.and(Cookie::new("a b"))), "\"a b\""),
        (plan().key(PeerIp.or_else(Header::new("a b"))), "\"a b\""),
        (plan().key(Header::new("a b").map(|key| key)), "\"a b\""),
        (plan().key(Global).unless(HasHeader::new("a b")), "\"a b\""),
    ] {
        let error = RateLimitLayer::builder().policy(rule).build();
        let error = error.expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(text), "{text}: {error}");
    }
    // Without a build it finds no key, and it does not report that the header is absent.
    let (head, ()) = Request::new(()).into_parts();
    assert_eq!(
        Header::new("a b")
            .extract(&RequestHead::from(&head))
            .found(),
        None
    );
    assert_eq!(
        HasHeader::new("a b").matches(&RequestHead::from(&head)),
        Match::Ambiguous
    );
}

// === Clients ===

#[tokio::test]
async fn repeated_key_is_reported_as_ambiguous() {
    let twice = |name| [(name, "one"), (name, "two")];
    for (rule, headers, path, key) in [
        (
            plan().key(ApiKey::header("x-api-key")),
            twice("x-api-key"),
            "/",
            "x-api-key",
        ),
        (
            plan().key(Header::new("x-tenant")),
            twice("x-tenant"),
            "/",
            "x-tenant",
        ),
        (
            plan().key(Cookie::new("sid")),
            [("cookie", "sid=1"), ("cookie", "sid=2")],
            "/",
            "cookie:sid",
        ),
        (
            plan().key(QueryParam::new("t")),
            twice("x-other"),
            "/?t=1&t=2",
            "query:t",
        ),
        // a rule with tiers extracts its key on a different path
        (
            plan().key(Header::new("x-tenant")).tier_by(no_tier),
            twice("x-tenant"),
            "/",
            "x-tenant",
        ),
    ] {
        let layer = RateLimitLayer::builder().policy(rule).build();
        let layer = layer.expect("a valid layer");
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let reply = ask(&layer, request.body(Body::empty()).expect("a request")).await;
        assert_eq!(
            reply.message(),
            format!("the request must contain {key} exactly once")
        );
        let reason = reply.rejection.reason();
        assert!(matches!(reason, Reason::AmbiguousKey { .. }), "{reason:?}");
        let [warning] = &layer.warnings()[..] else {
            panic!("one warning: {:?}", layer.warnings());
        };
        assert_eq!(warning.code(), Code::AmbiguousKey);
        assert!(warning.detail().starts_with(key), "{}", warning.detail());
    }
}

#[tokio::test]
async fn other_authorization_scheme_is_a_missing_token_not_a_missing_header() {
    let request = get("/").header("authorization", "Basic abc");
    let rule = plan().key(ApiKey::bearer());
    let reply = ask_rule(rule, request.body(Body::empty()).expect("a request")).await;
    let message = "the request is missing bearer-token";
    assert_eq!(reply.message(), message);
}

#[tokio::test]
async fn internal_names_do_not_reach_clients() {
    let none = |_: &RequestHead| None::<Key>;
    let nobody = |_: &RequestHead| async { Ok::<_, Infallible>(None::<Key>) };
    let user = || ExtensionKey::new(|id: &u64| Key::from(*id));
    let client = "the request is missing a required value";
    let server = "internal server error";
    for (rule, message) in [
        (plan().key(none), client),
        (plan().key(none.or_else(user())), server),
        (plan().key(none.and(none)), client),
        (plan().key(user()), server),
        (plan().key_async(nobody), client),
    ] {
        let reply = ask_rule(rule, empty("/")).await;
        assert_eq!(reply.message(), message);
    }
}

#[tokio::test]
async fn message_names_the_missing_key() {
    for (rule, key) in [
        (plan().key(QueryParam::new("t")), "query:t"),
        (plan().key(PathParam::new("id")), "path:id"),
        (plan().key(Cookie::new("sid")), "cookie:sid"),
        (plan().key(ApiKey::query("key")), "query:key"),
        (plan().key(Header::new("x-tenant")), "x-tenant"),
    ] {
        let reply = ask_rule(rule, empty("/")).await;
        let message = format!("the request is missing {key}");
        assert_eq!(reply.message(), message);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_key_lookup_is_not_reported_as_a_mistake_of_the_client() {
    let fails = |_: &RequestHead| async { Err::<Option<Key>, _>(io::Error::other("away")) };
    let never = |_: &RequestHead| future::pending::<Result<Option<Key>, Infallible>>();
    for rule in [plan().key_async(fails), plan().key_async(never)] {
        let reply = ask_rule(rule, empty("/")).await;
        assert_eq!(reply.rejection.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(reply.rejection.code(), "unavailable");
        assert_eq!(reply.rejection.reason(), &Reason::Unavailable);
        assert_eq!(reply.message(), "the service is temporarily unavailable");
    }
}

// === WWW-Authenticate ===

#[tokio::test]
async fn response_401_contains_a_challenge() {
    let sub = || Claim::new("sub", |id: &u64| Key::from(*id));
    for (rule, scheme) in [
        (plan().key(ApiKey::bearer()), Some("Bearer")),
        (plan().key(ApiKey::header("x-key")), Some("ApiKey")),
        (plan().key(ApiKey::query("key")), Some("ApiKey")),
        (plan().key(Cookie::new("sid")), Some("Cookie")),
        (plan().key(sub()), Some("Bearer")),
        (plan().key(sub().map(|key| key)), Some("Bearer")),
        (plan().key(sub().and_then(Some)), Some("Bearer")),
        (
            plan().key(ApiKey::bearer()).tier_by(no_tier),
            Some("Bearer"),
        ),
        (
            plan().key(Box::new(ApiKey::bearer()) as Box<dyn KeyExtractor>),
            Some("Bearer"),
        ),
        (
            plan().key(Arc::new(ApiKey::bearer()) as Arc<dyn KeyExtractor>),
            Some("Bearer"),
        ),
        (
            plan().key(ApiKey::bearer().or_else(ApiKey::header("x-key"))),
            Some("Bearer, ApiKey"),
        ),
        (plan().key(ApiKey::bearer().or_else(sub())), Some("Bearer")),
        (
            plan().key(Header::new("x-tenant").and(ApiKey::bearer())),
            Some("Bearer"),
        ),
        // no 401
        (plan().key(Cookie::new("sid").plaintext()), None),
        (plan().key(ApiKey::bearer().or_else(PeerIp)), None),
        (plan().key(Header::new("x-tenant")), None),
    ] {
        let reply = ask_rule(rule, empty("/")).await;
        let challenges = reply.head.headers.get_all(WWW_AUTHENTICATE);
        let challenges: Vec<_> = challenges.iter().map(|value| value.to_str()).collect();
        let expected: Vec<_> = scheme
            .into_iter()
            .map(Ok::<_, http::header::ToStrError>)
            .collect();
        assert_eq!(format!("{challenges:?}"), format!("{expected:?}"));
        let is_401 = reply.head.status == StatusCode::UNAUTHORIZED;
        assert_eq!(is_401, scheme.is_some());
    }
}

#[tokio::test]
async fn response_401_contains_the_challenge_of_a_key_lookup() {
    struct Session;

    impl AsyncKeyExtractor for Session {
        fn extract(&self, _: &RequestHead) -> KeyLookup {
            Box::pin(future::ready(Ok(Extracted::Absent)))
        }

        fn missing_status(&self) -> StatusCode {
            StatusCode::UNAUTHORIZED
        }

        fn challenge(&self) -> Option<HeaderValue> {
            Some(HeaderValue::from_static("Basic realm=\"shop\""))
        }
    }

    let shared: Arc<dyn AsyncKeyExtractor> = Arc::new(Session);
    for rule in [plan().key_async(Session), plan().key_async(shared)] {
        let reply = ask_rule(rule, empty("/")).await;
        assert_eq!(reply.head.status, StatusCode::UNAUTHORIZED);
        assert_eq!(reply.head.headers[WWW_AUTHENTICATE], "Basic realm=\"shop\"");
    }
}

#[tokio::test]
async fn challenge_of_a_custom_response_is_kept() {
    let make = |status: StatusCode, own: Option<&'static str>| {
        move |_: &Rejection| {
            let mut response = Response::new("no");
            *response.status_mut() = status;
            if let Some(own) = own {
                let own = HeaderValue::from_static(own);
                response.headers_mut().insert(WWW_AUTHENTICATE, own);
            }
            response
        }
    };
    let unauthorized = StatusCode::UNAUTHORIZED;
    for (status, own, expected) in [
        (unauthorized, Some("Basic"), Some("Basic")),
        (unauthorized, None, Some("Bearer")),
        (StatusCode::FORBIDDEN, None, None),
    ] {
        let layer = RateLimitLayer::builder()
            .policy(plan().key(ApiKey::bearer()))
            .on_rejection(make(status, own))
            .build();
        let reply = ask(&layer.expect("a valid layer"), empty("/")).await;
        let challenge = reply.head.headers.get(WWW_AUTHENTICATE);
        assert_eq!(
            challenge.map(|value| value.to_str().expect("text")),
            expected
        );
    }
}

// === Responses of axum ===

#[tokio::test]
async fn custom_response_may_be_any_axum_response() {
    let layer = RateLimitLayer::builder()
        .policy(plan().key(ApiKey::bearer()))
        .on_rejection(|rejection: &Rejection| {
            (StatusCode::IM_A_TEAPOT, rejection.message()).into_response()
        });
    let reply = ask(&layer.build().expect("a valid layer"), empty("/")).await;
    assert_eq!(reply.head.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(reply.body, reply.rejection.message());
    let by_head = RejectionFormat::by(|rejection, request| {
        let text = format!("{}: {}", request.uri.path(), rejection.message());
        (rejection.status(), [("x-own", "1")], Html(text)).into_response()
    });
    let layer = RateLimitLayer::builder()
        .policy(plan().key(ApiKey::bearer()))
        .on_rejection(by_head);
    let reply = ask(&layer.build().expect("a valid layer"), empty("/a")).await;
    assert_eq!(reply.head.status, StatusCode::UNAUTHORIZED);
    assert_eq!(reply.head.headers["x-own"], "1");
    assert_eq!(
        reply.head.headers["content-type"],
        "text/html; charset=utf-8"
    );
    assert_eq!(reply.body, format!("/a: {}", reply.rejection.message()));
}

#[tokio::test]
async fn custom_response_with_a_streaming_body_falls_back_to_json() {
    let streaming = |_: &Rejection| {
        let body = futures_util::stream::pending::<Result<String, Infallible>>();
        (StatusCode::OK, Body::from_stream(body)).into_response()
    };
    let broken = |_: &Rejection| {
        let body = futures_util::stream::iter([Ok("half"), Err(io::Error::other("gone"))]);
        (StatusCode::OK, Body::from_stream(body)).into_response()
    };
    // Reproducer: the layer collected this body forever.
    let endless = |_: &Rejection| {
        let body = futures_util::stream::repeat_with(|| Ok::<_, Infallible>("more"));
        (StatusCode::OK, Body::from_stream(body)).into_response()
    };
    let rule = || plan().key(ApiKey::bearer());
    for builder in [
        RateLimitLayer::builder().on_rejection(streaming),
        RateLimitLayer::builder().on_rejection(endless),
        RateLimitLayer::builder().on_rejection(broken),
        RateLimitLayer::builder().on_rejection(RejectionFormat::by(move |rejection, _| {
            streaming(rejection)
        })),
    ] {
        let layer = builder.policy(rule()).build().expect("a valid layer");
        let reply = ask(&layer, empty("/")).await;
        assert_eq!(reply.head.status, StatusCode::UNAUTHORIZED);
        assert_eq!(reply.head.headers["content-type"], "application/json");
        assert!(reply.body.contains("key_missing"), "{}", reply.body);
    }
}

// === Users ===

#[test]
fn error_about_an_empty_tier_names_it_and_suggests_the_forbidden_tier() {
    let error = Tier::new("zero", Quota::per_minute(0)).expect_err("nothing");
    assert_error(
        &error,
        ErrorKind::InvalidQuota,
        &["tier \"zero\"", "Tier::forbidden()"],
    );
    let error = Tier::new("none", Quota::in_flight(0)).expect_err("nothing");
    assert_error(
        &error,
        ErrorKind::InvalidQuota,
        &["tier \"none\"", "Tier::forbidden()"],
    );
    let error = Tier::new("fast", Quota::per_second(2_000_000)).expect_err("too fast");
    assert_error(
        &error,
        ErrorKind::InvalidQuota,
        &["tier \"fast\"", "1,000,000 a second"],
    );
    let error = Tier::new("", Quota::per_minute(1)).expect_err("no name");
    assert_error(&error, ErrorKind::InvalidPolicy, &["tier name \"\""]);
    assert!(!error.to_string().contains("policy name"), "{error}");
    let tier = Tier::new("pro", Quota::per_minute(5).burst(9)).expect("a usable tier");
    let log = tollgate::algorithm::Algorithm::SlidingLog;
    assert_error(
        &tier.algorithm(log).expect_err("logs have no burst"),
        ErrorKind::InvalidQuota,
        &["tier \"pro\""],
    );
}

#[test]
fn error_about_a_concurrency_policy_uses_its_terms() {
    let error = Policy::concurrency("p", 2).cost(5).validate();
    let error = error.expect_err("the cost exceeds the limit");
    assert_error(
        &error,
        ErrorKind::InvalidPolicy,
        &["\"p\"", "costs 5", "2 slots", "raise the limit"],
    );
    assert!(!error.to_string().contains("burst"), "{error}");
    let error = Policy::concurrency("p", 0).validate().expect_err("none");
    assert_error(
        &error,
        ErrorKind::InvalidQuota,
        &[
            "\"p\"",
            "1 to 100,000 slots",
            "remove the route",
            "at least 1",
        ],
    );
    let window = tollgate::algorithm::Algorithm::SlidingWindow;
    let policy = Policy::new("p", Quota::per_minute(2)).algorithm(window);
    let error = policy
        .cost(5)
        .validate()
        .expect_err("the cost exceeds the limit");
    assert_error(
        &error,
        ErrorKind::InvalidPolicy,
        &["costs 5", "raise the count"],
    );
}

#[test]
fn error_about_the_scope_of_an_unknown_policy_lists_the_known_ones() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("day", Quota::per_day(1)).key(Global))
        .policy(Policy::new("per-ip", Quota::per_minute(1)).key(PeerIp))
        .headers(Headers::discord().scope("dya", DiscordScope::Shared))
        .build();
    let error = layer.expect_err("there is no such policy");
    assert_error(
        &error,
        ErrorKind::InvalidConfig,
        &["\"dya\"", "\"day\", \"per-ip\""],
    );
}

// === Support ===

struct Reply {
    head: http::response::Parts,
    body: String,
    rejection: Rejection,
}

impl Reply {
    /// The message, which the body has too.
    fn message(&self) -> String {
        let message = self.rejection.message();
        assert!(self.body.contains(&message), "{}", self.body);
        message
    }
}

async fn ask_rule(rule: Rule, request: Request<Body>) -> Reply {
    let layer = RateLimitLayer::builder().policy(rule);
    let layer = layer.lookup_timeout(Duration::from_millis(10)).build();
    ask(&layer.expect("a valid layer"), request).await
}

async fn ask(layer: &RateLimitLayer, request: Request<Body>) -> Reply {
    let app: Router = Router::new()
        .fallback(async || "admitted")
        .layer(layer.clone());
    let response = app.oneshot(request).await.expect("infallible");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let rejection = head.extensions.get::<Rejection>();
    let rejection = rejection.expect("a rejection").clone();
    Reply {
        head,
        body: String::from_utf8(body.to_vec()).expect("text"),
        rejection,
    }
}

fn get(path: &str) -> http::request::Builder {
    Request::builder().method(Method::GET).uri(path)
}

fn empty(path: &str) -> Request<Body> {
    get(path).body(Body::empty()).expect("a request")
}

fn plan() -> Policy {
    Policy::new("plan", Quota::per_hour(10))
}

fn no_tier(_: &RequestHead, _: &Key) -> Option<Tier> {
    None
}

#[track_caller]
fn assert_error(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}
