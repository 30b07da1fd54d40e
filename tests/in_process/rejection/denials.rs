//! Responses to rejected requests, in each format.

use std::{
    convert::Infallible,
    iter,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use tollgate::{
    Decision, ErrorKind, OnOutage, Policy, Quota, RateLimitLayer, RequestHead,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, PolicyState},
    extract::{ApiKey, Global, Header, PeerIp},
    memory::MemoryStore,
    rejection::{MakeRejection, Rejection, RejectionFormat},
    store::StoreFuture,
    testing::ScriptedStore,
};
use tower::{Layer, Service, ServiceExt, service_fn};

// The closure that the compiler suggests for a text.
#[tokio::test]
async fn response_of_a_closure_has_the_status_of_the_rejection() {
    let own = |rejection: &Rejection| rejection.response(rejection.message());
    let reply = denied(one_a_minute().on_rejection(own), plain()).await;
    assert_eq!(reply.parts().0, 429);
    let reply = first(broken(failing()).on_rejection(own), plain()).await;
    assert_eq!(reply.parts().0, 503);
}

#[tokio::test]
async fn problem_names_the_policies_that_are_exceeded() {
    let builder = RateLimitLayer::builder()
        .policy(Policy::new("minute", Quota::per_minute(1)).key(Global))
        .policy(Policy::new("roomy", Quota::per_minute(100)).key(Global))
        .policy(Policy::new("day", Quota::per_day(1)).key(Global))
        .clock(stopped());
    let reply = denied(
        builder.on_rejection(RejectionFormat::problem_json()),
        plain(),
    )
    .await;
    assert_eq!(
        reply.parts(),
        (
            429,
            "application/problem+json",
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"rate limit day exceeded, retry in 86400 seconds","violated-policies":["minute","day"]}"#
        )
    );
}

#[tokio::test]
async fn problem_of_an_unavailable_store_names_no_policy() {
    for store in [
        unavailable_but(Outcome::Unavailable),
        unavailable_but(Outcome::Limited),
        failing(),
    ] {
        let reply = first(
            broken(store).on_rejection(RejectionFormat::problem_json()),
            plain(),
        )
        .await;
        assert_eq!(
            reply.parts(),
            (
                503,
                "application/problem+json",
                r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"detail":"the service is temporarily unavailable","violated-policies":[]}"#
            )
        );
    }
}

#[tokio::test]
async fn problem_of_a_missing_key_has_the_type_about_blank() {
    let by_header =
        builder(Policy::new("tenant", Quota::per_minute(1)).key(Header::new("x-tenant")));
    let by_key = builder(Policy::new("tenant", Quota::per_minute(1)).key(ApiKey::bearer()));
    let by_peer = builder(Policy::new("tenant", Quota::per_minute(1)).key(PeerIp));
    let lacks = "the request is missing ";
    for (builder, status, title, detail) in [
        (by_header, 400, "Bad Request", format!("{lacks}x-tenant")),
        (by_key, 401, "Unauthorized", format!("{lacks}bearer-token")),
        // The client cannot correct it, and must not learn how the server is configured.
        (
            by_peer,
            500,
            "Internal Server Error",
            "internal server error".to_owned(),
        ),
    ] {
        let reply = first(
            builder.on_rejection(RejectionFormat::problem_json()),
            plain(),
        )
        .await;
        assert_eq!(
            (reply.status, reply.kind.as_str()),
            (status, "application/problem+json")
        );
        let expected = format!(
            r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}"#
        );
        assert_eq!(reply.body, expected);
    }
}

#[tokio::test]
async fn text_is_the_message() {
    let reply = denied(
        one_a_minute().on_rejection(RejectionFormat::text()),
        plain(),
    )
    .await;
    let expected = "rate limit everybody exceeded, retry in 60 seconds";
    assert_eq!(reply.parts(), (429, "text/plain; charset=utf-8", expected));
    let reply = first(
        broken(failing()).on_rejection(RejectionFormat::text()),
        plain(),
    )
    .await;
    let expected = "the service is temporarily unavailable";
    assert_eq!(reply.parts(), (503, "text/plain; charset=utf-8", expected));
}

#[tokio::test]
async fn json_is_the_default() {
    let explicit = denied(
        one_a_minute().on_rejection(RejectionFormat::json()),
        plain(),
    )
    .await;
    let default = denied(one_a_minute(), plain()).await;
    assert_eq!(explicit.parts(), default.parts());
    assert_eq!(explicit.kind, "application/json");
    assert_eq!(explicit.vary, None);
}

#[tokio::test]
async fn format_depends_on_the_accept_header() {
    const JSON: &str = "application/json";
    const PROBLEM: &str = "application/problem+json";
    const TEXT: &str = "text/plain; charset=utf-8";
    for (accept, expected) in [
        (&[][..], JSON),
        (&["application/json"], JSON),
        (&["application/problem+json"], PROBLEM),
        (&["text/plain"], TEXT),
        (&["TEXT/Plain"], TEXT),
        // ranges
        (&["*/*"], JSON),
        (&["application/*"], JSON),
        (&["text/*"], TEXT),
        (&["text/html, application/xhtml+xml, */*;q=0.8"], JSON),
        // by quality, not by position
        (&["application/json;q=0.5, text/plain"], TEXT),
        (
            &["text/plain;q=0.5, application/problem+json;q=0.9"],
            PROBLEM,
        ),
        (&["text/plain ; q=0.2 , */* ; Q=0.1"], TEXT),
        (&["application/json;q=0.001, text/plain;q=0"], JSON),
        // an exact name takes precedence over a range, even with quality 0
        (&["application/json;q=0, */*"], PROBLEM),
        (&["application/*;q=0, */*;q=0.1"], TEXT),
        (&["text/*, text/plain;q=0.1, application/json;q=0.2"], JSON),
        // a name takes precedence over a range
        (&["*/*, application/problem+json"], PROBLEM),
        (&["application/*, text/plain"], TEXT),
        // parameters of the media type
        (
            &["application/json;version=1;q=0.1, text/plain;q=0.2"],
            TEXT,
        ),
        // several lines form one list
        (&["application/json;q=0.1", "text/plain;q=0.2"], TEXT),
        // none of the formats: JSON
        (&["image/png"], JSON),
        (&["*/*;q=0"], JSON),
        // malformed ranges are ignored
        (&["text/plain;q=2, application/problem+json;q=0.1"], PROBLEM),
        (
            &["text/plain;q=NaN, application/problem+json;q=0.1"],
            PROBLEM,
        ),
        (
            &["text/plain;q=0.1234, application/problem+json;q=0.1"],
            PROBLEM,
        ),
        (
            &["text/plain;q=-1, application/problem+json;q=0.1"],
            PROBLEM,
        ),
        (&["text/plain;q=, application/problem+json;q=0.1"], PROBLEM),
        (
            &[",,;q=1, /, text/, ;, application/problem+json;q=0.1,"],
            PROBLEM,
        ),
        (&["\u{e9}"], JSON),
    ] {
        let mut request = plain();
        for line in accept {
            let line = header::HeaderValue::from_bytes(line.as_bytes());
            let line = line.expect("a header value");
            request.headers_mut().append(header::ACCEPT, line);
        }
        let reply = denied(
            one_a_minute().on_rejection(RejectionFormat::negotiated()),
            request,
        )
        .await;
        assert_eq!(
            (reply.status, reply.kind.as_str()),
            (429, expected),
            "{accept:?}"
        );
        assert_eq!(reply.vary.as_deref(), Some("accept"), "{accept:?}");
    }
}

// Regression: a cache could store a rejection and send it to other clients.
#[tokio::test]
async fn rejection_is_not_stored_unless_it_sets_cache_control() {
    let by_header = || Policy::new("tenant", Quota::per_minute(1)).key(Header::new("x-tenant"));
    for format in [
        RejectionFormat::by(|_, _| Response::new("")),
        RejectionFormat::json(),
        RejectionFormat::negotiated(),
        RejectionFormat::problem_json(),
        RejectionFormat::text(),
    ] {
        let limited = denied(one_a_minute().on_rejection(format.clone()), plain()).await;
        assert_eq!(limited.cache.as_deref(), Some("no-store"), "{format:?}");
        for builder in [
            builder(by_header()),
            broken(failing()),
            one_a_minute().forbid(|_: &RequestHead| true),
        ] {
            let reply = first(builder.on_rejection(format.clone()), plain()).await;
            assert_eq!(reply.cache.as_deref(), Some("no-store"), "{format:?}");
        }
    }
    let own = |rejection: &Rejection| {
        let response = Response::builder().header(header::CACHE_CONTROL, "max-age=1");
        response
            .body(rejection.message())
            .expect("it is well formed")
    };
    let reply = denied(one_a_minute().on_rejection(own), plain()).await;
    assert_eq!(reply.cache.as_deref(), Some("max-age=1"));
}

// === Custom responses ===

#[tokio::test]
async fn closure_receives_the_request_head_and_the_decision() {
    let format = RejectionFormat::by(|rejection, request| {
        let decision = rejection.decision().expect("a decision");
        let left = decision.state("everybody").and_then(PolicyState::usage);
        let text = format!(
            "{} {} {:?} {}",
            request.method,
            request.uri,
            request.headers["x-id"],
            left.expect("a count").remaining,
        );
        Response::builder()
            .status(420)
            .body(text)
            .expect("it is well formed")
    });
    let request = || {
        let request = Request::post("/a?b=c").header("x-id", "seven");
        request
            .body("a body".to_owned())
            .expect("it is well formed")
    };
    let reply = denied(one_a_minute().on_rejection(format.clone()), request()).await;
    assert_eq!(
        (reply.status, reply.body.as_str()),
        (420, "POST /a?b=c \"seven\" 0")
    );

    // also if the decision is not ready at once
    let memory = MemoryStore::builder().clock(stopped()).build();
    let slow = ScriptedStore::over(memory.expect("a usable store")).later();
    let slow = one_a_minute().store(slow).on_rejection(format);
    let reply = denied(slow, request()).await;
    assert_eq!(
        (reply.status, reply.body.as_str()),
        (420, "POST /a?b=c \"seven\" 0")
    );
}

#[tokio::test]
async fn closure_receives_the_head_of_a_request_without_a_key() {
    let format = RejectionFormat::by(|rejection, request| {
        assert!(rejection.decision().is_none());
        Response::new(format!("{} {}", rejection.code(), request.uri.path()))
    });
    let rule = Policy::new("tenant", Quota::per_minute(1)).key(Header::new("x-tenant"));
    let reply = first(builder(rule).on_rejection(format), plain()).await;
    assert_eq!(reply.body, "key_missing /");
}

#[tokio::test]
async fn custom_type_may_use_a_ready_made_format() {
    /// Hides the limit of some paths.
    struct WithSecretPath;

    impl MakeRejection for WithSecretPath {
        fn make(&self, rejection: &Rejection, request: &RequestHead) -> Response<Bytes> {
            match request.uri.path() {
                "/secret" => RejectionFormat::text()
                    .make(rejection, request)
                    .map(|_| Bytes::new()),
                _ => RejectionFormat::text().make(rejection, request),
            }
        }
    }
    let secret = Request::get("/secret").body(String::new());
    let reply = denied(
        one_a_minute().on_rejection(WithSecretPath),
        secret.expect("it is well formed"),
    )
    .await;
    assert_eq!((reply.status, reply.body.as_str()), (429, ""));
    let reply = denied(one_a_minute().on_rejection(WithSecretPath), plain()).await;
    assert!(reply.body.starts_with("rate limit everybody"));
}

#[tokio::test]
async fn violated_policies_are_those_that_deny() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let builder = RateLimitLayer::builder()
        .policy(Policy::new("minute", Quota::per_minute(1)).key(Global))
        .policy(Policy::new("roomy", Quota::per_minute(100)).key(Global))
        .on_rejection(move |rejection: &Rejection| {
            let names = rejection.violated().map(|state| state.policy().to_string());
            seeing.lock().expect("no panic while locked").extend(names);
            Response::new("")
        });
    denied(builder, plain()).await;
    assert_eq!(*seen.lock().expect("no panic while locked"), ["minute"]);
}

#[test]
fn debug_output_names_the_format() {
    for (format, name) in [
        (RejectionFormat::by(|_, _| Response::new("")), "Custom"),
        (RejectionFormat::json(), "Json"),
        (RejectionFormat::negotiated(), "Negotiated"),
        (RejectionFormat::problem_json(), "Problem"),
        (RejectionFormat::text(), "Text"),
    ] {
        assert!(format!("{format:?}").contains(name));
    }
}

// === Broken store ===

fn failing() -> ScriptedStore {
    ScriptedStore::failing(ErrorKind::Unavailable, "the test makes it fail")
}

/// A store that decides the first policy like this, and cannot count the others.
fn unavailable_but(first: Outcome) -> ScriptedStore {
    ScriptedStore::new(move |charges| {
        let outcomes = iter::once(first).chain(iter::repeat(Outcome::Unavailable));
        let names = charges.iter().map(|charge| *charge.policy().name());
        let states = names.zip(outcomes);
        let states = states.map(|(name, outcome)| PolicyState::uncounted(name, outcome));
        StoreFuture::ready(Ok(Decision::new(CountedBy::Uncounted, START, states)))
    })
}

fn broken(store: ScriptedStore) -> RateLimitLayerBuilder {
    let policy = |name| Policy::new(name, Quota::per_minute(1)).on_outage(OnOutage::Deny);
    RateLimitLayer::builder()
        .policy(policy("first").key(Global))
        .policy(policy("second").key(Global))
        .store(store)
}

// === Requests ===

fn builder(rule: tollgate::rules::Rule) -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(rule)
}

fn one_a_minute() -> RateLimitLayerBuilder {
    builder(Policy::new("everybody", Quota::per_minute(1)).key(Global))
}

fn plain() -> Request<String> {
    Request::default()
}

struct Reply {
    status: u16,
    kind: String,
    vary: Option<String>,
    cache: Option<String>,
    body: String,
}

impl Reply {
    fn parts(&self) -> (u16, &str, &str) {
        (self.status, &self.kind, &self.body)
    }
}

/// Returns the response to a second request. The first one is admitted.
async fn denied(builder: RateLimitLayerBuilder, request: Request<String>) -> Reply {
    let mut service = service(builder);
    let first = service.ready().await.expect("infallible").call(plain());
    assert_eq!(first.await.expect("infallible").status(), StatusCode::OK);
    send(service, request).await
}

/// Returns the response to a first request.
async fn first(builder: RateLimitLayerBuilder, request: Request<String>) -> Reply {
    send(service(builder), request).await
}

fn service(
    builder: RateLimitLayerBuilder,
) -> impl Service<
    Request<String>,
    Response = Response<tollgate::middleware::ResponseBody<String>>,
    Error = Infallible,
> {
    let layer = builder.build().expect("the settings are valid");
    layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::from("passed")))
    }))
}

async fn send<S>(service: S, request: Request<String>) -> Reply
where
    S: Service<
            Request<String>,
            Response = Response<tollgate::middleware::ResponseBody<String>>,
            Error = Infallible,
        >,
{
    let response = service.oneshot(request).await.expect("infallible");
    let header = |name| {
        let value: &header::HeaderValue = response.headers().get(name)?;
        Some(value.to_str().expect("it is text").to_owned())
    };
    let (kind, vary) = (header(header::CONTENT_TYPE), header(header::VARY));
    let cache = header(header::CACHE_CONTROL);
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("infallible");
    Reply {
        status,
        kind: kind.unwrap_or_default(),
        vary,
        cache,
        body: String::from_utf8(body.to_bytes().to_vec()).expect("it is text"),
    }
}

fn stopped() -> Clock {
    Clock::manual(START)
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_250_000);
