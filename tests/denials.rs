//! What a denied request is answered, in each form.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use tollgate::{
    Decision, Error, ErrorKind, Key, OnOutage, Policy, Quota, RateLimitLayer,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    extract::{ApiKey, Global, Header, PeerIp},
    rejection::{MakeRejection, Rejection, RejectionFormat},
    state::{CountedBy, Outcome, PolicyState},
    store::{Charge, OwnedCharge, Store, StoreFuture},
};
use tower::{Layer, Service, ServiceExt, service_fn};

#[tokio::test]
async fn problem_names_the_policies_that_are_exceeded() {
    let builder = RateLimitLayer::builder()
        .policy(Policy::new("minute", Quota::per_minute(1)).key(Global))
        .policy(Policy::new("roomy", Quota::per_minute(100)).key(Global))
        .policy(Policy::new("day", Quota::per_day(1)).key(Global))
        .clock(stopped());
    let answer = denied(
        builder.on_rejection(RejectionFormat::problem_json()),
        plain(),
    )
    .await;
    assert_eq!(
        answer.told(),
        (
            429,
            "application/problem+json",
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"rate limit day exceeded, retry in 86400 seconds","violated-policies":["minute","day"]}"#
        )
    );
}

#[tokio::test]
async fn problem_of_a_store_that_is_away_names_no_policy() {
    for broken in [Broken::Refuses, Broken::DeniesAndRefuses, Broken::Fails] {
        let answer = refused(
            away(broken).on_rejection(RejectionFormat::problem_json()),
            plain(),
        )
        .await;
        assert_eq!(
            answer.told(),
            (
                503,
                "application/problem+json",
                r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"detail":"the service is temporarily unavailable","violated-policies":[]}"#
            )
        );
    }
}

#[tokio::test]
async fn problem_of_a_missing_key_has_no_type_of_its_own() {
    let by_header =
        builder(Policy::new("tenant", Quota::per_minute(1)).key(Header::new("x-tenant")));
    let by_key = builder(Policy::new("tenant", Quota::per_minute(1)).key(ApiKey::bearer()));
    let by_peer = builder(Policy::new("tenant", Quota::per_minute(1)).key(PeerIp));
    let lacks = "the request is missing ";
    for (builder, status, title, detail) in [
        (by_header, 400, "Bad Request", format!("{lacks}x-tenant")),
        (by_key, 401, "Unauthorized", format!("{lacks}bearer-token")),
        // The client cannot mend it, and need not know what the server looks at.
        (
            by_peer,
            500,
            "Internal Server Error",
            "internal server error".to_owned(),
        ),
    ] {
        let answer = refused(
            builder.on_rejection(RejectionFormat::problem_json()),
            plain(),
        )
        .await;
        assert_eq!(
            (answer.status, answer.kind.as_str()),
            (status, "application/problem+json")
        );
        let expected = format!(
            r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}"#
        );
        assert_eq!(answer.body, expected);
    }
}

#[tokio::test]
async fn text_is_one_plain_sentence() {
    let answer = denied(
        one_a_minute().on_rejection(RejectionFormat::text()),
        plain(),
    )
    .await;
    let wanted = "rate limit everybody exceeded, retry in 60 seconds";
    assert_eq!(answer.told(), (429, "text/plain; charset=utf-8", wanted));
    let answer = refused(
        away(Broken::Fails).on_rejection(RejectionFormat::text()),
        plain(),
    )
    .await;
    let wanted = "the service is temporarily unavailable";
    assert_eq!(answer.told(), (503, "text/plain; charset=utf-8", wanted));
}

#[tokio::test]
async fn json_is_the_default() {
    let spelt = denied(
        one_a_minute().on_rejection(RejectionFormat::json()),
        plain(),
    )
    .await;
    let unsaid = denied(one_a_minute(), plain()).await;
    assert_eq!(spelt.told(), unsaid.told());
    assert_eq!(spelt.kind, "application/json");
    assert_eq!(spelt.vary, None);
}

#[tokio::test]
async fn form_is_chosen_by_what_the_request_accepts() {
    const JSON: &str = "application/json";
    const PROBLEM: &str = "application/problem+json";
    const TEXT: &str = "text/plain; charset=utf-8";
    for (accept, wanted) in [
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
        // by quality, and not by place
        (&["application/json;q=0.5, text/plain"], TEXT),
        (
            &["text/plain;q=0.5, application/problem+json;q=0.9"],
            PROBLEM,
        ),
        (&["text/plain ; q=0.2 , */* ; Q=0.1"], TEXT),
        (&["application/json;q=0.001, text/plain;q=0"], JSON),
        // the exact name goes before the range, also when it says no
        (&["application/json;q=0, */*"], PROBLEM),
        (&["application/*;q=0, */*;q=0.1"], TEXT),
        (&["text/*, text/plain;q=0.1, application/json;q=0.2"], JSON),
        // named goes before meant
        (&["*/*, application/problem+json"], PROBLEM),
        (&["application/*, text/plain"], TEXT),
        // parameters of the type itself
        (
            &["application/json;version=1;q=0.1, text/plain;q=0.2"],
            TEXT,
        ),
        // several lines are one list
        (&["application/json;q=0.1", "text/plain;q=0.2"], TEXT),
        // none of them: better an answer than none
        (&["image/png"], JSON),
        (&["*/*;q=0"], JSON),
        // what makes no sense says nothing
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
            let line = line.expect("it may be sent");
            request.headers_mut().append(header::ACCEPT, line);
        }
        let answer = denied(
            one_a_minute().on_rejection(RejectionFormat::negotiated()),
            request,
        )
        .await;
        assert_eq!(
            (answer.status, answer.kind.as_str()),
            (429, wanted),
            "{accept:?}"
        );
        assert_eq!(answer.vary.as_deref(), Some("accept"), "{accept:?}");
    }
}

// Regression: a cache could keep a denial and answer others with it.
#[tokio::test]
async fn no_answer_may_be_stored_unless_it_says_so_itself() {
    let by_header = || Policy::new("tenant", Quota::per_minute(1)).key(Header::new("x-tenant"));
    for denial in [
        RejectionFormat::by(|_, _| Response::new("")),
        RejectionFormat::json(),
        RejectionFormat::negotiated(),
        RejectionFormat::problem_json(),
        RejectionFormat::text(),
    ] {
        let limited = denied(one_a_minute().on_rejection(denial.clone()), plain()).await;
        assert_eq!(limited.cache.as_deref(), Some("no-store"), "{denial:?}");
        for builder in [
            builder(by_header()),
            away(Broken::Fails),
            one_a_minute().forbid(|_: &Parts| true),
        ] {
            let refused = refused(builder.on_rejection(denial.clone()), plain()).await;
            assert_eq!(refused.cache.as_deref(), Some("no-store"), "{denial:?}");
        }
    }
    let own = |rejection: &Rejection| {
        let response = Response::builder().header(header::CACHE_CONTROL, "max-age=1");
        response
            .body(rejection.message())
            .expect("it is well formed")
    };
    let answer = denied(one_a_minute().on_rejection(own), plain()).await;
    assert_eq!(answer.cache.as_deref(), Some("max-age=1"));
}

// === Of one's own ===

#[tokio::test]
async fn closure_sees_the_requests_head_and_the_decision() {
    let denial = RejectionFormat::by(|rejection, request| {
        let decision = rejection.decision().expect("one was made");
        let left = decision.state("everybody").and_then(PolicyState::usage);
        let text = format!(
            "{} {} {:?} {}",
            request.method,
            request.uri,
            request.headers["x-id"],
            left.expect("it is counted").remaining,
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
    let answer = denied(one_a_minute().on_rejection(denial.clone()), request()).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (420, "POST /a?b=c \"seven\" 0")
    );

    // the same when the decision had to be awaited
    let slow = one_a_minute().store(Slow::default()).on_rejection(denial);
    let answer = denied(slow, request()).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (420, "POST /a?b=c \"seven\" 0")
    );
}

#[tokio::test]
async fn closure_sees_the_head_of_a_request_without_a_key() {
    let denial = RejectionFormat::by(|rejection, request| {
        assert!(rejection.decision().is_none());
        Response::new(format!("{} {}", rejection.code(), request.uri.path()))
    });
    let rule = Policy::new("tenant", Quota::per_minute(1)).key(Header::new("x-tenant"));
    let answer = refused(builder(rule).on_rejection(denial), plain()).await;
    assert_eq!(answer.body, "key_missing /");
}

#[tokio::test]
async fn type_of_ones_own_makes_the_answer_and_may_borrow_a_ready_made_one() {
    /// Hides from some what the limit is.
    struct Discreet;

    impl MakeRejection for Discreet {
        fn make(&self, rejection: &Rejection, request: &Parts) -> Response<Bytes> {
            match request.uri.path() {
                "/secret" => RejectionFormat::text()
                    .make(rejection, request)
                    .map(|_| Bytes::new()),
                _ => RejectionFormat::text().make(rejection, request),
            }
        }
    }
    let secret = Request::get("/secret").body(String::new());
    let answer = denied(
        one_a_minute().on_rejection(Discreet),
        secret.expect("it is well formed"),
    )
    .await;
    assert_eq!((answer.status, answer.body.as_str()), (429, ""));
    let answer = denied(one_a_minute().on_rejection(Discreet), plain()).await;
    assert!(answer.body.starts_with("rate limit everybody"));
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
            seeing.lock().expect("nobody panics with it").extend(names);
            Response::new("")
        });
    denied(builder, plain()).await;
    assert_eq!(*seen.lock().expect("nobody panics with it"), ["minute"]);
}

#[test]
fn denial_tells_its_form_in_debug() {
    for (denial, form) in [
        (RejectionFormat::by(|_, _| Response::new("")), "Custom"),
        (RejectionFormat::json(), "Json"),
        (RejectionFormat::negotiated(), "Negotiated"),
        (RejectionFormat::problem_json(), "Problem"),
        (RejectionFormat::text(), "Text"),
    ] {
        assert!(format!("{denial:?}").contains(form));
    }
}

// === Broken ===

/// A store that is away.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// The first policy denies, the others refuse.
    DeniesAndRefuses,
    Fails,
    Refuses,
}

impl Store for Broken {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let states = charges.iter().enumerate().map(|(index, charge)| {
            let outcome = match self {
                Self::DeniesAndRefuses if index == 0 => Outcome::Limited,
                _ => Outcome::Unavailable,
            };
            PolicyState::uncounted(*charge.policy().name(), outcome)
        });
        StoreFuture::ready(match self {
            Self::Fails => Err(Error::new(ErrorKind::Unavailable, "it was told to fail")),
            _ => Ok(Decision::new(CountedBy::Nobody, START, states)),
        })
    }

    fn reset(&self, _: &Policy, _: &Key) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}

fn away(broken: Broken) -> RateLimitLayerBuilder {
    let policy = |name| Policy::new(name, Quota::per_minute(1)).on_outage(OnOutage::Deny);
    RateLimitLayer::builder()
        .policy(policy("first").key(Global))
        .policy(policy("second").key(Global))
        .store(broken)
}

// === Slow ===

/// The in-process store, a moment later.
#[derive(Clone, Debug)]
struct Slow(Arc<tollgate::memory::MemoryStore>);

impl Default for Slow {
    fn default() -> Self {
        let store = tollgate::memory::MemoryStore::builder()
            .clock(stopped())
            .build();
        Self(Arc::new(store.expect("it is well set up")))
    }
}

impl Store for Slow {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let charges: Vec<OwnedCharge> = charges.iter().map(Charge::to_owned).collect();
        let store = Arc::clone(&self.0);
        StoreFuture::boxed(async move {
            tokio::task::yield_now().await;
            let charges: Vec<_> = charges.iter().map(OwnedCharge::borrow).collect();
            store.decide(&charges).await
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.0.reset(policy, key)
    }
}

// === Asking ===

fn builder(rule: tollgate::rules::Rule) -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(rule)
}

fn one_a_minute() -> RateLimitLayerBuilder {
    builder(Policy::new("everybody", Quota::per_minute(1)).key(Global))
}

fn plain() -> Request<String> {
    Request::default()
}

struct Told {
    status: u16,
    kind: String,
    vary: Option<String>,
    cache: Option<String>,
    body: String,
}

impl Told {
    fn told(&self) -> (u16, &str, &str) {
        (self.status, &self.kind, &self.body)
    }
}

/// The answer to the second request; the first one passes.
async fn denied(builder: RateLimitLayerBuilder, request: Request<String>) -> Told {
    let mut service = service(builder);
    let first = service.ready().await.expect("infallible").call(plain());
    assert_eq!(first.await.expect("infallible").status(), StatusCode::OK);
    told(service, request).await
}

/// The answer to the first request.
async fn refused(builder: RateLimitLayerBuilder, request: Request<String>) -> Told {
    told(service(builder), request).await
}

fn service(
    builder: RateLimitLayerBuilder,
) -> impl Service<
    Request<String>,
    Response = Response<tollgate::middleware::ResponseBody<String>>,
    Error = Infallible,
> {
    let layer = builder.build().expect("it is well set up");
    layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::from("passed")))
    }))
}

async fn told<S>(service: S, request: Request<String>) -> Told
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
    Told {
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
