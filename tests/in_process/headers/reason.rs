//! `X-RateLimit-Reason`: why a request was rejected, if the operator sends it.

use std::convert::Infallible;

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use sfv::{BareItem, Item, Parser};
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    extract::{ExtensionKey, Header},
    headers::Headers,
    matching::PathPattern,
    rejection::Rejection,
    testing::ScriptedStore,
    tiers::Tier,
};
use tower::{Layer, ServiceExt, service_fn};

const REASON: &str = "x-ratelimit-reason";

/// A layer with a rejection of each kind.
fn layer(headers: Headers) -> RateLimitLayer {
    let user = Policy::new("per-user", Quota::per_day(1)).key(Header::new("x-user"));
    let user = user
        .tier_by(|_: &RequestHead, key: &Key| (*key == Key::new("banned")).then(Tier::forbidden));
    let misconfigured = Policy::new("inner", Quota::per_day(100));
    let misconfigured = misconfigured
        .key(ExtensionKey::new(|tenant: &Tenant| {
            Some(Key::new(tenant.0))
        }))
        .when(PathPattern::new("/inner"));
    let layer = RateLimitLayer::builder()
        .policy(user)
        .policy(misconfigured)
        .forbid(PathPattern::new("/secret"))
        .headers(headers);
    layer.build().expect("a usable layer")
}

#[derive(Clone)]
struct Tenant(&'static str);

async fn send(layer: &RateLimitLayer, path: &str, users: &[&str]) -> (StatusCode, HeaderMap) {
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        let mut response = Response::new(Body::empty());
        let own = HeaderValue::from_static("of the service");
        response.headers_mut().insert("x-own", own);
        Ok::<_, Infallible>(response)
    }));
    let mut request = Request::get(path).body(Body::empty()).expect("a request");
    for user in users {
        let value = HeaderValue::from_str(user).expect("a value");
        request.headers_mut().append("x-user", value);
    }
    let Ok(response) = service.oneshot(request).await;
    (response.status(), response.headers().clone())
}

/// The rejections of the layer: the request, its status, the code, and the policy that rejects it.
type Row = (
    &'static str,
    &'static [&'static str],
    u16,
    &'static str,
    Option<&'static str>,
);

const ROWS: [Row; 6] = [
    ("/", &["ada"], 429, "rate_limited", Some("per-user")),
    ("/secret", &["ada"], 403, "forbidden", None),
    ("/", &["banned"], 403, "forbidden", Some("per-user")),
    ("/", &[], 400, "key_missing", Some("per-user")),
    ("/", &["ada", "bob"], 400, "key_ambiguous", Some("per-user")),
    ("/inner", &["eve"], 500, "internal_error", Some("inner")),
];

/// Makes one request of a user, and then one for each row.
async fn rejections(headers: Headers) -> Vec<(Row, HeaderMap)> {
    let layer = layer(headers);
    let (status, headers) = send(&layer, "/", &["ada"]).await;
    assert_eq!(status, StatusCode::OK);
    assert!(!headers.contains_key(REASON), "it is not rejected");
    let mut rejections = Vec::new();
    for row in ROWS {
        let (status, headers) = send(&layer, row.0, row.1).await;
        assert_eq!(status, row.2, "{row:?}");
        rejections.push((row, headers));
    }
    rejections
}

#[tokio::test]
async fn rejections_carry_no_reason_by_default() {
    let families = [
        Headers::default(),
        Headers::none(),
        Headers::draft06(),
        Headers::draft11(),
        Headers::discord().into(),
    ];
    for headers in families {
        for (row, headers) in rejections(headers).await {
            assert!(!headers.contains_key(REASON), "{row:?}");
        }
    }
}

#[tokio::test]
async fn reason_is_a_code_without_names() {
    let headers = Headers::legacy().with(Headers::reason());
    for (row, headers) in rejections(headers).await {
        assert_eq!(headers[REASON], row.3, "{row:?}");
        if row.2 == 429 {
            assert!(headers.contains_key("x-ratelimit-limit"));
            assert!(headers.contains_key("retry-after"));
        }
    }
}

#[tokio::test]
async fn reason_has_the_policy_only_if_the_operator_chooses_so() {
    for (row, headers) in rejections(Headers::reason_with_policy().with(Headers::reason())).await {
        let value = headers[REASON].to_str().expect("visible ASCII");
        let item: Item = Parser::new(value).parse().expect("a structured field");
        let BareItem::Token(code) = &item.bare_item else {
            panic!("{value} is not a token")
        };
        assert_eq!(code.as_str(), row.3, "{row:?}");
        let policy = item.params.get("policy").map(|policy| match policy {
            BareItem::String(policy) => policy.as_str(),
            other => panic!("{other:?} is not a string"),
        });
        assert_eq!(policy, row.4, "{row:?}");
        assert!(!headers.contains_key("x-ratelimit-limit"), "no family");
    }
}

#[tokio::test]
async fn reason_that_the_response_has_already_stays() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("per-user", Quota::per_day(1)).key(Header::new("x-user")))
        .headers(Headers::reason_with_policy())
        .on_rejection(|_: &Rejection| {
            let response = Response::builder().header(REASON, "slow down");
            response.body("wait").expect("a response")
        });
    let layer = layer.build().expect("a usable layer");
    send(&layer, "/", &["ada"]).await;
    let (_, headers) = send(&layer, "/", &["ada"]).await;
    let values: Vec<_> = headers.get_all(REASON).iter().collect();
    assert_eq!(values, ["slow down"]);
}

#[tokio::test]
async fn store_that_fails_is_unavailable() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("per-user", Quota::per_day(1)).key(Header::new("x-user")))
        .headers(Headers::reason_with_policy())
        .store(ScriptedStore::failing(ErrorKind::Unavailable, "broken"));
    let layer = layer.build().expect("a usable layer");
    let (status, headers) = send(&layer, "/", &["ada"]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers[REASON], "unavailable");
}
