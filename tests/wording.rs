//! What is said to people: to users about settings that cannot work, to clients about keys that are not there.

use std::{convert::Infallible, future, io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    response::{Html, IntoResponse},
};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, header::WWW_AUTHENTICATE, request::Parts,
};
use http_body_util::BodyExt;
use tollgate::{
    Error, ErrorKind, Key, Policy, Quota, RateLimitLayer,
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
fn header_is_named_in_any_case() {
    let request = Request::get("/")
        .header("x-tenant", "acme")
        .header("x-api-key", "k-1")
        .body(());
    let (parts, ()) = request.expect("a request").into_parts();
    let tenant = Header::new("X-Tenant");
    assert_eq!(tenant.extract(&parts).found(), Some(Key::new("acme")));
    assert_eq!(tenant.label(), "x-tenant");
    let by_key = ApiKey::header("X-Api-Key");
    assert_eq!(by_key.extract(&parts).found(), Some(Key::secret("k-1")));
    assert_eq!(HasHeader::new("X-TENANT").matches(&parts), Match::Exact);
    for rule in [plan().key(tenant), plan().key(by_key)] {
        assert!(RateLimitLayer::builder().policy(rule).build().is_ok());
    }
}

#[test]
fn name_that_nobody_can_send_is_refused_when_the_layer_is_built() {
    for (rule, says) in [
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
        let error = error.expect_err(says);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    // Till then it finds nothing, and no request is taken for one without the header.
    let (parts, ()) = Request::new(()).into_parts();
    assert_eq!(Header::new("a b").extract(&parts).found(), None);
    assert_eq!(HasHeader::new("a b").matches(&parts), Match::Possible);
}

// === Clients ===

#[tokio::test]
async fn key_that_is_there_twice_is_called_ambiguous() {
    let twice = |name| [(name, "one"), (name, "two")];
    for (rule, headers, path, said) in [
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
        // with tiers the key is found on another way
        (
            plan().key(Header::new("x-tenant")).tier_by(nobodys),
            twice("x-tenant"),
            "/",
            "x-tenant",
        ),
    ] {
        let layer = RateLimitLayer::builder().policy(rule).build();
        let layer = layer.expect("it is well set up");
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = ask(&layer, request.body(Body::empty()).expect("a request")).await;
        assert_eq!(
            answer.message(),
            format!("the request is ambiguous: {said} must be there exactly once")
        );
        let reason = answer.rejection.reason();
        assert!(matches!(reason, Reason::AmbiguousKey { .. }), "{reason:?}");
        let [warning] = &layer.warnings()[..] else {
            panic!("one warning: {:?}", layer.warnings());
        };
        assert_eq!(warning.code(), Code::AmbiguousKey);
        assert!(warning.detail().starts_with(said), "{}", warning.detail());
    }
}

#[tokio::test]
async fn another_scheme_is_a_missing_token_and_no_missing_header() {
    let request = get("/").header("authorization", "Basic abc");
    let rule = plan().key(ApiKey::bearer());
    let answer = asked(rule, request.body(Body::empty()).expect("a request")).await;
    let said = "the request cannot be counted: bearer-token is missing";
    assert_eq!(answer.message(), said);
}

#[tokio::test]
async fn words_of_the_program_are_not_told_to_clients() {
    let none = |_: &Parts| None::<Key>;
    let nobody = |_: &Parts| async { Ok::<_, Infallible>(None::<Key>) };
    let user = || ExtensionKey::new(|id: &u64| Key::from(*id));
    let client = "the request cannot be counted: its key is missing";
    let server = "internal server error";
    for (rule, said) in [
        (plan().key(none), client),
        (plan().key(none.or_else(user())), server),
        (plan().key(none.and(none)), client),
        (plan().key(user()), server),
        (plan().key_async(nobody), client),
    ] {
        let answer = asked(rule, empty("/")).await;
        assert_eq!(answer.message(), said);
    }
}

#[tokio::test]
async fn label_says_what_is_looked_for() {
    for (rule, said) in [
        (plan().key(QueryParam::new("t")), "query:t"),
        (plan().key(PathParam::new("id")), "path:id"),
        (plan().key(Cookie::new("sid")), "cookie:sid"),
        (plan().key(ApiKey::query("key")), "query:key"),
        (plan().key(Header::new("x-tenant")), "x-tenant"),
    ] {
        let answer = asked(rule, empty("/")).await;
        let said = format!("the request cannot be counted: {said} is missing");
        assert_eq!(answer.message(), said);
    }
}

#[tokio::test(start_paused = true)]
async fn key_that_could_not_be_looked_up_is_no_fault_of_the_client_s() {
    let fails = |_: &Parts| async { Err::<Option<Key>, _>(io::Error::other("away")) };
    let never = |_: &Parts| future::pending::<Result<Option<Key>, Infallible>>();
    for rule in [plan().key_async(fails), plan().key_async(never)] {
        let answer = asked(rule, empty("/")).await;
        assert_eq!(answer.rejection.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.rejection.code(), "unavailable");
        assert_eq!(answer.rejection.reason(), &Reason::Unavailable);
        assert_eq!(answer.message(), "the rate limit cannot be checked now");
    }
}

// === WWW-Authenticate ===

#[tokio::test]
async fn answer_of_401_says_how_to_authenticate() {
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
            plan().key(ApiKey::bearer()).tier_by(nobodys),
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
        let answer = asked(rule, empty("/")).await;
        let told = answer.head.headers.get_all(WWW_AUTHENTICATE);
        let told: Vec<_> = told.iter().map(|value| value.to_str()).collect();
        let expected: Vec<_> = scheme
            .into_iter()
            .map(Ok::<_, http::header::ToStrError>)
            .collect();
        assert_eq!(format!("{told:?}"), format!("{expected:?}"));
        let is_401 = answer.head.status == StatusCode::UNAUTHORIZED;
        assert_eq!(is_401, scheme.is_some());
    }
}

#[tokio::test]
async fn key_that_is_looked_up_says_how_to_authenticate_too() {
    struct Session;

    impl AsyncKeyExtractor for Session {
        fn extract(&self, _: &Parts) -> KeyLookup {
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
        let answer = asked(rule, empty("/")).await;
        assert_eq!(answer.head.status, StatusCode::UNAUTHORIZED);
        assert_eq!(
            answer.head.headers[WWW_AUTHENTICATE],
            "Basic realm=\"shop\""
        );
    }
}

#[tokio::test]
async fn answer_that_says_how_to_authenticate_by_itself_is_left_as_it_is() {
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
        let answer = ask(&layer.expect("it is well set up"), empty("/")).await;
        let told = answer.head.headers.get(WWW_AUTHENTICATE);
        assert_eq!(told.map(|value| value.to_str().expect("text")), expected);
    }
}

// === Answers of axum's own ===

#[tokio::test]
async fn answer_may_be_what_axum_makes_of_it() {
    let layer = RateLimitLayer::builder()
        .policy(plan().key(ApiKey::bearer()))
        .on_rejection(|rejection: &Rejection| {
            (StatusCode::IM_A_TEAPOT, rejection.message()).into_response()
        });
    let answer = ask(&layer.build().expect("it is well set up"), empty("/")).await;
    assert_eq!(answer.head.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(answer.body, answer.rejection.message());
    let by_head = RejectionFormat::by(|rejection, request| {
        let told = format!("{}: {}", request.uri.path(), rejection.message());
        (rejection.status(), [("x-own", "1")], Html(told)).into_response()
    });
    let layer = RateLimitLayer::builder()
        .policy(plan().key(ApiKey::bearer()))
        .on_rejection(by_head);
    let answer = ask(&layer.build().expect("it is well set up"), empty("/a")).await;
    assert_eq!(answer.head.status, StatusCode::UNAUTHORIZED);
    assert_eq!(answer.head.headers["x-own"], "1");
    assert_eq!(
        answer.head.headers["content-type"],
        "text/html; charset=utf-8"
    );
    assert_eq!(answer.body, format!("/a: {}", answer.rejection.message()));
}

#[tokio::test]
async fn answer_whose_body_is_still_to_come_is_json() {
    let streaming = |_: &Rejection| {
        let body = futures_util::stream::pending::<Result<String, Infallible>>();
        (StatusCode::OK, Body::from_stream(body)).into_response()
    };
    let broken = |_: &Rejection| {
        let body = futures_util::stream::iter([Ok("half"), Err(io::Error::other("gone"))]);
        (StatusCode::OK, Body::from_stream(body)).into_response()
    };
    // Reproducer: it was collected for ever.
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
        let layer = builder.policy(rule()).build().expect("it is well set up");
        let answer = ask(&layer, empty("/")).await;
        assert_eq!(answer.head.status, StatusCode::UNAUTHORIZED);
        assert_eq!(answer.head.headers["content-type"], "application/json");
        assert!(answer.body.contains("key_missing"), "{}", answer.body);
    }
}

// === Users ===

#[test]
fn tier_of_nothing_is_named_and_told_of_the_tier_that_is_denied() {
    let error = Tier::new("zero", Quota::per_minute(0)).expect_err("nothing");
    says(
        &error,
        ErrorKind::InvalidQuota,
        &["tier \"zero\"", "Tier::forbidden()"],
    );
    let error = Tier::new("none", Quota::in_flight(0)).expect_err("nothing");
    says(
        &error,
        ErrorKind::InvalidQuota,
        &["tier \"none\"", "Tier::forbidden()"],
    );
    let error = Tier::new("fast", Quota::per_second(2_000_000)).expect_err("too fast");
    says(
        &error,
        ErrorKind::InvalidQuota,
        &["tier \"fast\"", "1,000,000 a second"],
    );
    let error = Tier::new("", Quota::per_minute(1)).expect_err("no name");
    says(&error, ErrorKind::InvalidPolicy, &["tier name \"\""]);
    assert!(!error.to_string().contains("policy name"), "{error}");
    let tier = Tier::new("pro", Quota::per_minute(5).burst(9)).expect("it is usable");
    let log = tollgate::algorithm::Algorithm::SlidingLog;
    says(
        &tier.algorithm(log).expect_err("logs have no burst"),
        ErrorKind::InvalidQuota,
        &["tier \"pro\""],
    );
}

#[test]
fn limit_on_what_is_in_flight_is_told_in_its_own_words() {
    let error = Policy::concurrency("p", 2).cost(5).validate();
    let error = error.expect_err("too dear");
    says(
        &error,
        ErrorKind::InvalidPolicy,
        &["\"p\"", "costs 5", "2 slots", "raise the limit"],
    );
    assert!(!error.to_string().contains("burst"), "{error}");
    let error = Policy::concurrency("p", 0).validate().expect_err("none");
    says(
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
    let error = policy.cost(5).validate().expect_err("too dear");
    says(
        &error,
        ErrorKind::InvalidPolicy,
        &["costs 5", "raise the count"],
    );
}

#[test]
fn scope_of_a_policy_that_is_not_there_lists_those_that_are() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("day", Quota::per_day(1)).key(Global))
        .policy(Policy::new("per-ip", Quota::per_minute(1)).key(PeerIp))
        .headers(Headers::discord().scope("dya", DiscordScope::Shared))
        .build();
    let error = layer.expect_err("there is no such policy");
    says(
        &error,
        ErrorKind::InvalidConfig,
        &["\"dya\"", "\"day\", \"per-ip\""],
    );
}

// === What they stand on ===

struct Answer {
    head: http::response::Parts,
    body: String,
    rejection: Rejection,
}

impl Answer {
    /// The message, which the body has too.
    fn message(&self) -> String {
        let message = self.rejection.message();
        assert!(self.body.contains(&message), "{}", self.body);
        message
    }
}

async fn asked(rule: Rule, request: Request<Body>) -> Answer {
    let layer = RateLimitLayer::builder().policy(rule);
    let layer = layer.lookup_timeout(Duration::from_millis(10)).build();
    ask(&layer.expect("it is well set up"), request).await
}

async fn ask(layer: &RateLimitLayer, request: Request<Body>) -> Answer {
    let app: Router = Router::new()
        .fallback(async || "let in")
        .layer(layer.clone());
    let response = app.oneshot(request).await.expect("infallible");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("it is whole").to_bytes();
    let rejection = head.extensions.get::<Rejection>();
    let rejection = rejection.expect("it is not let in").clone();
    Answer {
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

fn nobodys(_: &Parts, _: &Key) -> Option<Tier> {
    None
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}
