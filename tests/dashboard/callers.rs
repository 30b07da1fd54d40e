//! Callers that an operator knows by an address, an API key or a name, under policies that count them by other keys.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RequestHead,
    dashboard::Dashboard,
    extract::{ApiKey, ClientIp, Global, Header, KeyExtractor, PeerIp},
    rules::OnMissingKey,
    tiers::Tier,
};
use tower::{Layer, ServiceExt, service_fn};

use super::{guarded, post};

const ADDRESS: &str = "198.51.100.99";

/// Counts customers by name and others by address, as the gateway does; all callers by address; and in other ways.
fn shop() -> RateLimitLayer {
    let ada = Key::secret("key-of-ada");
    let customer = ApiKey::header("x-api-key")
        .and_then(move |api_key| (api_key == ada).then(|| Key::new("ada")));
    let tenant = Header::new("x-tenant").and(PeerIp);
    let policy = |name| Policy::new(name, Quota::per_hour(3));
    let layer = RateLimitLayer::builder()
        .policy(
            policy("api")
                .key(customer.or_else(PeerIp))
                .tier_by(|_: &RequestHead, _: &Key| None::<Tier>),
        )
        .policy(Policy::new("networks", Quota::per_hour(100)).key(ClientIp::peer().ipv4_prefix(24)))
        .policy(
            Policy::new("tenants", Quota::per_hour(100))
                .key(tenant)
                .on_missing_key(OnMissingKey::Skip),
        )
        .policy(Policy::new("all", Quota::per_hour(100)).key(Global));
    layer.build().expect("a layer")
}

async fn call(layer: &RateLimitLayer, address: &str, api_key: Option<&str>) -> StatusCode {
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
    });
    let address: IpAddr = address.parse().expect("an address");
    let mut request = Request::get("/").extension(SocketAddr::from((address, 1)));
    if let Some(api_key) = api_key {
        request = request.header("x-api-key", api_key);
    }
    let request = request.body(()).expect("a request");
    let response = layer.layer(inner).oneshot(request).await;
    response.expect("infallible").status()
}

/// Returns policy, key and quota left of each state.
fn rows(found: &Value) -> Vec<(&str, &str, u64, bool)> {
    let rows = found["policies"].as_array().expect("a list").iter();
    rows.map(|row| {
        (
            row["policy"].as_str().expect("a name"),
            row["key"].as_str().expect("a key"),
            row["remaining"].as_u64().expect("a number"),
            row["has_state"].as_bool().expect("whether it has one"),
        )
    })
    .collect()
}

// Regression: an address was looked up and blocked by itself, while the policy counted it in the namespace of an `or_else`.
#[tokio::test]
async fn address_is_found_and_blocked_as_each_policy_counts_it() {
    let layer = shop();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    assert_eq!(call(&layer, ADDRESS, None).await, StatusCode::OK);
    let body = json!({ "key": ADDRESS, "form": "address" }).to_string();
    let (status, found) = post(&router, "/api/key", &body).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    assert_eq!(
        rows(&found),
        [
            ("api", "x-api-key-or-peer-ip!198.51.100.99", 2, true),
            ("networks", "198.51.100.0", 99, true),
        ]
    );
    let without_key = found["without_key"].as_array().expect("a list");
    let names: Vec<_> = without_key
        .iter()
        .map(|without| &without["policy"])
        .collect();
    assert_eq!(names, ["tenants", "all"]);
    let reason = &without_key[0]["reason"];
    assert_eq!(
        reason,
        "it counts by x-tenant+peer-ip, and this address alone makes no such key"
    );

    // A text that is an address, and the key of one row.
    for body in [
        json!({ "key": ADDRESS, "policy": "networks" }),
        json!({ "key": "198.51.100.0", "form": "counted", "policy": "networks" }),
    ] {
        let (_, found) = post(&router, "/api/key", &body.to_string()).await;
        assert_eq!(
            rows(&found),
            [("networks", "198.51.100.0", 99, true)],
            "{body}"
        );
    }

    for policy in [Value::Null, json!("api")] {
        let body = json!({ "key": ADDRESS, "form": "address", "policy": policy, "seconds": 600 });
        let (status, reply) = post(&router, "/api/key/block", &body.to_string()).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{reply}");
        let is_blocked = call(&layer, ADDRESS, None).await;
        assert_eq!(is_blocked, StatusCode::TOO_MANY_REQUESTS, "{policy}");
        assert_eq!(call(&layer, "203.0.113.7", None).await, StatusCode::OK);
        let body = json!({ "key": ADDRESS, "form": "address", "policy": policy });
        post(&router, "/api/key/unblock", &body.to_string()).await;
        assert_eq!(
            call(&layer, ADDRESS, None).await,
            StatusCode::OK,
            "{policy}"
        );
        let body = json!({ "key": ADDRESS, "form": "address", "policy": "api" });
        post(&router, "/api/key/reset", &body.to_string()).await;
        let body = json!({ "key": "203.0.113.7", "form": "address", "policy": "api" });
        post(&router, "/api/key/reset", &body.to_string()).await;
    }
}

#[tokio::test]
async fn api_key_and_the_name_of_its_owner_are_the_same_caller() {
    let layer = shop();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let ada = Some("key-of-ada");
    assert_eq!(call(&layer, ADDRESS, ada).await, StatusCode::OK);
    for (key, form) in [
        ("key-of-ada", "secret"),
        ("key-of-ada", "text"),
        ("ada", "text"),
    ] {
        let body = json!({ "key": key, "form": form });
        let (_, found) = post(&router, "/api/key", &body.to_string()).await;
        assert_eq!(rows(&found), [("api", "ada", 2, true)], "{body}");
        assert_eq!(found["policies"][0]["has_tiers"], true);

        let body = json!({ "key": key, "form": form, "seconds": 600 });
        let (status, reply) = post(&router, "/api/key/block", &body.to_string()).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{reply}");
        assert_eq!(
            call(&layer, ADDRESS, ada).await,
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(call(&layer, ADDRESS, None).await, StatusCode::OK);
        let body = json!({ "key": key, "form": form });
        post(&router, "/api/key/unblock", &body.to_string()).await;
    }
    // It is a text that this policy would count, but does not now.
    let (_, found) = post(&router, "/api/key", r#"{"key":"bob"}"#).await;
    assert_eq!(rows(&found), [("api", "bob", 3, false)]);
}

#[tokio::test]
async fn change_without_a_key_is_refused_with_the_reason() {
    let layer = shop();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for (path, body) in [
        (
            "/api/key/block",
            json!({ "key": ADDRESS, "form": "address", "policy": "all", "seconds": 60 }),
        ),
        (
            "/api/key/unblock",
            json!({ "key": ADDRESS, "form": "address", "policy": "tenants" }),
        ),
        (
            "/api/key/reset",
            json!({ "key": "key-of-ada", "form": "secret", "policy": "networks" }),
        ),
        (
            "/api/key/refund",
            json!({ "key": "unknown", "form": "secret", "policy": "api", "units": 1 }),
        ),
    ] {
        let (status, reply) = post(&router, path, &body.to_string()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{reply}");
        assert_eq!(reply["error"], "no_key");
        let message = reply["message"].as_str().expect("a message");
        assert!(message.contains("it counts by "), "{message}");
    }
    assert_eq!(call(&layer, ADDRESS, None).await, StatusCode::OK);
    // Nobody is blocked who is counted together with all others.
    let body = json!({ "key": ADDRESS, "form": "address", "seconds": 60 }).to_string();
    post(&router, "/api/key/block", &body).await;
    assert_eq!(call(&layer, "203.0.113.7", None).await, StatusCode::OK);
}

#[tokio::test]
async fn text_that_two_extractors_may_find_has_a_state_for_each() {
    let key = Header::new("x-user").or_else(Header::new("x-device"));
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_hour(3)).key(key))
        .build()
        .expect("a layer");
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
    });
    let request = Request::get("/").header("x-device", "ada").body(());
    let request = request.expect("a request");
    layer
        .layer(inner)
        .oneshot(request)
        .await
        .expect("infallible");
    let (_, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
    assert_eq!(
        rows(&found),
        [
            ("api", "ada", 3, false),
            ("api", "x-user-or-x-device!ada", 2, true)
        ]
    );
}
