//! Keys that an operator blocks.

use axum::Router;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tollgate::{Policy, Quota, RateLimitLayer, dashboard::Dashboard, extract::Header};

use super::{READ, WRITE, ask, call, guarded, layer, post, send};
use crate::support::Server;

#[tokio::test]
async fn blocked_key_is_denied_until_it_is_unblocked() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for policy in [Value::Null, json!("api")] {
        let body =
            json!({ "key": "ada", "policy": policy, "seconds": 3_600, "reason": "scraping" });
        let (status, reply) = post(&router, "/api/key/block", &body.to_string()).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{reply}");
        assert_eq!(call(&layer, "ada").await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(call(&layer, "bob").await, StatusCode::OK);

        let (_, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
        let found = &found["policies"][0];
        assert_eq!(
            (&found["block_policy"], &found["block_reason"]),
            (&policy, &json!("scraping"))
        );
        let left = found["blocked_millis"].as_u64().expect("a number");
        assert!((3_500_000..=3_600_000).contains(&left), "{left}");
        assert_eq!(found["remaining"], 3, "nothing was charged");

        let (_, list) = send_blocks(&router, WRITE).await;
        assert_eq!(list["count"], 1);
        let block = &list["blocks"][0];
        assert_eq!((&block["key"], &block["policy"]), (&json!("ada"), &policy));

        let body = json!({ "key": "ada", "policy": policy }).to_string();
        let (status, _) = post(&router, "/api/key/unblock", &body).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
        let (_, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
        assert_eq!(found["policies"][0]["blocked_millis"], Value::Null);
    }
    assert_eq!(call(&layer, "ada").await, StatusCode::OK);
}

#[tokio::test]
async fn blocked_keys_are_listed_for_operators_with_write_access_only() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    post(&router, "/api/key/block", r#"{"key":"ada","seconds":60}"#).await;
    let (status, list) = send_blocks(&router, READ).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(!list.to_string().contains("ada"), "{list}");
}

#[tokio::test]
async fn block_in_redis_holds_for_the_fleet_and_needs_its_setting() {
    let server = Server::start();
    let layer = |shares_blocks: bool| {
        let redis = tollgate::remote::RedisStore::builder(server.url());
        let redis = redis.shared_blocks(shares_blocks);
        RateLimitLayer::builder()
            .policy(Policy::new("api", Quota::per_hour(100)).key(Header::new("x-caller")))
            .redis(redis)
            .build()
            .expect("a layer")
    };
    let (own, other) = (layer(true), layer(true));
    let router: Router = guarded(Dashboard::builder(&own)).router();
    let (status, reply) = post(&router, "/api/key/block", r#"{"key":"ada","seconds":60}"#).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{reply}");
    other.limiter().refresh_blocks().await.expect("refreshed");
    assert_eq!(call(&other, "ada").await, StatusCode::TOO_MANY_REQUESTS);

    let without = layer(false);
    let router: Router = guarded(Dashboard::builder(&without)).router();
    let (status, reply) = post(&router, "/api/key/block", r#"{"key":"ada","seconds":60}"#).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{reply}");
    assert!(
        reply["message"]
            .as_str()
            .is_some_and(|text| text.contains("shared_blocks")),
        "{reply}"
    );
    let (status, _) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
    assert_eq!(
        status,
        StatusCode::OK,
        "a key can be looked up without blocks"
    );
}

async fn send_blocks(router: &Router, token: &str) -> (StatusCode, Value) {
    let (head, body) = send(router, ask(Method::GET, "/api/blocks", token), "").await;
    (head.status, serde_json::from_str(&body).expect("JSON"))
}
