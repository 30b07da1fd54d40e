//! Values that handlers extract from the requests of a layer, and the responses that they make of rejections.

use std::convert::Infallible;

use axum::{Router, body::Body, extract::FromRequestParts, routing::get};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    extract::Global,
    headers::Headers,
    middleware::{ActualCost, RateLimitInfo, RequestHold},
    rejection::{MakeRejection, Rejection, RejectionFormat},
    rules::{CompletedRequest, RuleMode},
    testing::ScriptedStore,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::logged;

const INTERNAL_ERROR: &str =
    r#"{"error":"internal_error","message":"internal server error","retry_after":null}"#;

fn stopped() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_250_000))
}

fn plenty(name: &str) -> Policy {
    Policy::new(name, Quota::per_second(1_000_000))
}

fn layer(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    builder.build().expect("it is well set up")
}

async fn ask(app: &Router) -> Response<Body> {
    let request = Request::get("/").body(Body::empty());
    let Ok(response) = app.clone().oneshot(request.expect("a request")).await;
    response
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("a whole body");
    String::from_utf8(bytes.to_bytes().into()).expect("text")
}

// === The limiter ===

#[tokio::test]
async fn handler_decides_by_the_limiter_of_the_layer() {
    async fn search(limiter: RateLimiter) -> Result<String, Rejection> {
        let searches = limiter.policy("searches")?;
        let permit = limiter.enforce(searches.charge(Key::new("ada"))).await?;
        Ok(format!("{:?}", permit.decision().remaining()))
    }
    let limiter = RateLimiter::builder()
        .clock(stopped())
        .policy(Policy::new("searches", Quota::per_minute(1)))
        .build()
        .expect("a limiter");
    let layer = layer(
        RateLimitLayer::builder()
            .limiter(&limiter)
            .policy(plenty("all").key(Global))
            .share_limiter(),
    );
    let app = Router::new().route("/", get(search)).layer(layer);
    assert_eq!(text(ask(&app).await).await, "Some(0)");
    let denied = ask(&app).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let rejection = denied.extensions().get::<Rejection>();
    assert_eq!(
        rejection
            .and_then(|rejection| rejection.reason().policy())
            .map(ToString::to_string),
        Some("searches".to_owned())
    );
    // The layer has plenty left: that is not what the client has to know.
    assert_eq!(denied.headers()["x-ratelimit-remaining"], "0");
}

#[tokio::test]
async fn limiter_is_shared_by_each_way_through_a_layer() {
    async fn is_there(limiter: Option<RateLimiter>) -> String {
        limiter.is_some().to_string()
    }
    let builder = || RateLimitLayer::builder().policy(plenty("all").key(Global));
    let window = tollgate::algorithm::Algorithm::SlidingWindow;
    let layers = [
        ("gate", true, builder()),
        (
            "gate without a decision",
            true,
            builder().expose_decision(false).headers(Headers::none()),
        ),
        (
            "long way",
            true,
            RateLimitLayer::builder().policy(plenty("all").algorithm(window).key(Global)),
        ),
        ("off", true, builder().mode(RuleMode::Off)),
        (
            "skipped",
            true,
            builder().skip(|_: &tollgate::RequestHead<'_>| true),
        ),
        ("not shared", false, builder()),
    ];
    for (name, is_shared, builder) in layers {
        let builder = match is_shared {
            true => builder.share_limiter(),
            false => builder,
        };
        let app = Router::new()
            .route("/", get(is_there))
            .layer(layer(builder));
        // The gate opens after the checks of the first 1,000 requests.
        for _ in 0..1_001 {
            ask(&app).await;
        }
        assert_eq!(text(ask(&app).await).await, is_shared.to_string(), "{name}");
    }
}

#[tokio::test]
async fn innermost_limiter_is_shared() {
    async fn name(limiter: RateLimiter) -> String {
        limiter.policy("inner").is_ok().to_string()
    }
    let of = |name| {
        let builder = RateLimitLayer::builder().policy(plenty(name).key(Global));
        layer(builder.share_limiter())
    };
    let app = Router::new()
        .route("/", get(name))
        .layer(of("inner"))
        .layer(of("outer"));
    assert_eq!(text(ask(&app).await).await, "true");
}

#[tokio::test]
async fn extractors_without_their_layer_respond_500_and_name_the_remedy() {
    let without = layer(RateLimitLayer::builder().policy(plenty("all").key(Global)));
    let app = Router::new()
        .route("/", get(async |_: RateLimiter| ""))
        .layer(without.clone());
    let response = ask(&app).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(text(response).await, INTERNAL_ERROR);
    let app = Router::new()
        .route("/", get(async |hold: RequestHold| drop(hold)))
        .layer(without);
    let response = ask(&app).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(text(response).await, INTERNAL_ERROR);

    let (mut parts, ()) = Request::new(()).into_parts();
    let missing = <RateLimiter as FromRequestParts<()>>::from_request_parts(&mut parts, &());
    let remedy = missing.await.expect_err("there is none").to_string();
    assert!(remedy.contains("add .share_limiter()"), "{remedy}");
    let missing = <RequestHold as FromRequestParts<()>>::from_request_parts(&mut parts, &());
    let remedy = missing.await.expect_err("there is none").to_string();
    assert!(remedy.contains("add Policy::concurrency(..)"), "{remedy}");
}

#[tokio::test]
async fn handles_beside_each_other_are_all_there() {
    async fn all(_: RateLimiter, _: RateLimitInfo, _: ActualCost, _: RequestHold) {}
    let settle = |request: &CompletedRequest<'_>| request.charged;
    let builder = RateLimitLayer::builder()
        .policy(plenty("all").key(Global).settle(settle))
        .policy(Policy::concurrency("slots", 9).key(Global))
        .share_limiter();
    let app = Router::new().route("/", get(all)).layer(layer(builder));
    assert_eq!(ask(&app).await.status(), StatusCode::OK);
}

// === Rejections as responses ===

/// The response of a layer, and the one that a handler makes of the same rejection.
async fn both(layer: RateLimitLayer, admitted: usize) -> [(http::response::Parts, String); 2] {
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let ask = async || {
        let Ok(response) = service.clone().oneshot(Request::new(Body::empty())).await;
        response
    };
    for _ in 0..admitted {
        assert_eq!(ask().await.status(), StatusCode::OK);
    }
    let own = ask().await;
    let rejection = own.extensions().get::<Rejection>().expect("it is rejected");
    let made = axum::response::IntoResponse::into_response(rejection.clone());
    [own.map(Body::new), made].map(|response| {
        let (parts, body) = response.into_parts();
        let length = http_body::Body::size_hint(&body).exact();
        let body = futures_util::FutureExt::now_or_never(body.collect());
        let bytes = body.expect("ready").expect("whole").to_bytes();
        assert_eq!(length, Some(bytes.len() as u64));
        (parts, String::from_utf8(bytes.into()).expect("text"))
    })
}

fn assert_same(
    [own, made]: [(http::response::Parts, String); 2],
) -> (http::response::Parts, String) {
    assert_eq!(own.0.status, made.0.status);
    assert_eq!(own.0.headers, made.0.headers);
    assert_eq!(own.1, made.1);
    let rejection = made.0.extensions.get::<Rejection>().expect("for layers");
    assert_eq!(rejection.status(), made.0.status);
    made
}

#[tokio::test]
async fn denial_as_a_response_has_the_same_bytes_as_that_of_the_layer() {
    let policy = Policy::new("searches", Quota::per_minute(2));
    let builder = RateLimitLayer::builder().policy(policy.key(Global));
    let (parts, body) = assert_same(both(layer(builder.clock(stopped())), 2).await);
    assert_eq!(parts.status, StatusCode::TOO_MANY_REQUESTS);
    let value = |name: &str| parts.headers.get(name).map(HeaderValue::as_bytes);
    assert_eq!(value("retry-after"), Some(&b"30"[..]));
    assert_eq!(value("cache-control"), Some(&b"no-store"[..]));
    assert_eq!(value("content-type"), Some(&b"application/json"[..]));
    assert_eq!(value("x-ratelimit-limit"), Some(&b"2"[..]));
    assert_eq!(value("x-ratelimit-remaining"), Some(&b"0"[..]));
    assert_eq!(value("x-ratelimit-reset"), Some(&b"1700000061"[..]));
    assert_eq!(
        body,
        r#"{"error":"rate_limited","message":"rate limit searches exceeded, retry in 30 seconds","retry_after":30}"#
    );
}

#[tokio::test]
async fn other_rejections_as_responses_have_the_same_bytes_too() {
    let failing = ScriptedStore::failing(ErrorKind::Unavailable, "down");
    let down = RateLimitLayer::builder()
        .policy(plenty("all").key(Global))
        .store(failing);
    let (parts, _) = assert_same(both(layer(down), 0).await);
    assert_eq!(parts.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(parts.headers.get("retry-after"), None);
    let forbidding = RateLimitLayer::builder()
        .policy(plenty("all").key(Global))
        .forbid(|_: &tollgate::RequestHead<'_>| true);
    let (parts, _) = assert_same(both(layer(forbidding), 0).await);
    assert_eq!(parts.status, StatusCode::FORBIDDEN);
    let key = tollgate::extract::ApiKey::header("x-api-key");
    let (parts, _) = assert_same(
        both(
            layer(RateLimitLayer::builder().policy(plenty("key").key(key))),
            0,
        )
        .await,
    );
    assert_eq!(parts.status, StatusCode::UNAUTHORIZED);
    assert!(parts.headers.contains_key("www-authenticate"));
}

#[tokio::test]
async fn headers_of_a_rejection_stay_below_a_layer_with_less_quota_left() {
    async fn denied() -> Result<(), Rejection> {
        let error = Error::new(ErrorKind::Unavailable, "down");
        Err(Rejection::from(error))
    }
    let builder = RateLimitLayer::builder().policy(plenty("all").key(Global));
    let app = Router::new().route("/", get(denied)).layer(layer(builder));
    let response = ask(&app).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(response.headers().get("retry-after"), None);
    // It has no numbers of its own, so those of the layer are added.
    assert_eq!(response.headers()["x-ratelimit-limit"], "1000000");
}

// Regression: it was a 503 without a line in the log, so one looked for a fault of the store.
#[tokio::test]
async fn policy_that_a_handler_misspells_is_an_internal_error() {
    async fn search(limiter: RateLimiter) -> Result<(), Rejection> {
        limiter.policy("search")?;
        Ok(())
    }
    logged();
    let builder = RateLimitLayer::builder().policy(plenty("searches").key(Global));
    let app = Router::new().route("/", get(search));
    let response = ask(&app.layer(layer(builder.share_limiter()))).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let rejection = response.extensions().get::<Rejection>().cloned();
    assert_eq!(text(response).await, INTERNAL_ERROR);
    let (head, ()) = Request::new(()).into_parts();
    let format = RejectionFormat::problem_json();
    let made = format.make(&rejection.expect("the reason"), &RequestHead::from(&head));
    assert_eq!(
        *made.body(),
        r#"{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"internal server error"}"#
    );
    let lines = logged();
    let [line] = lines.as_slice() else {
        panic!("not one line: {lines:?}");
    };
    let reason = r#"the limiter has no policy "search"; its policies are "searches""#;
    assert!(line.contains("ERROR") && line.contains(reason), "{line}");
}

#[test]
fn decision_without_counts_has_no_numbers() {
    let decision = Decision::new(
        tollgate::decision::CountedBy::Uncounted,
        Timestamp::from_micros(0),
        [],
    );
    let numbers = (decision.limit(), decision.remaining());
    assert_eq!(numbers, (None, None));
    assert_eq!(decision.reset_after(), None);
}
