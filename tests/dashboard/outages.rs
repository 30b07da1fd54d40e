//! The API while Redis does not answer.

use std::time::{Duration, Instant};

use axum::Router;
use http::{Method, StatusCode};
use serde_json::Value;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer,
    config::{Format, RuleSet, reload::RuleSource},
    dashboard::Dashboard,
    extract::Header,
    remote::RedisStore,
};

use super::{API, WRITE, ask, get, guarded, post, send};
use crate::support::Server;

const RULES: &str = "rules:\n  - id: api\n    key: { header: x-caller }\n    limit: 3/hour\n";

#[tokio::test]
async fn every_path_responds_in_time_while_redis_does_not() {
    let server = Server::start();
    let rules = RuleSet::parse(Format::Yaml, RULES).expect("rules");
    let (layer, handle) = RateLimitLayer::builder()
        .redis(RedisStore::builder(server.url()).shared_blocks(true))
        .build_reloading(RuleSource::redis(rules))
        .expect("a layer");
    let router: Router = guarded(Dashboard::builder(&layer).rules(&handle)).router();
    let rules = get(&router, "/api/rules").await;
    assert_eq!(rules["source_error"], Value::Null, "{rules}");
    let (status, _) = post(&router, "/api/key/block", r#"{"key":"eve","seconds":600}"#).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let push = serde_json::json!({ "text": RULES, "format": "yaml", "replacing": 1 }).to_string();
    let mut requests: Vec<_> = API
        .into_iter()
        .map(|(method, path, body, _)| (method, path, body.to_owned()))
        .collect();
    for (method, path, body) in [
        ("GET", "/api/rules", ""),
        ("GET", "/api/rules/1", ""),
        ("GET", "/api/rules/9", ""),
        ("POST", "/api/rules/push", push.as_str()),
        ("POST", "/api/rules/roll-back", r#"{"version":1}"#),
    ] {
        let method = method.parse().expect("a method");
        requests.push((method, path, body.to_owned()));
    }
    let mut was_slow = Vec::new();
    server.pause();
    for round in 0..2 {
        for (method, path, body) in &requests {
            let started = Instant::now();
            let (head, reply) = send(&router, ask(method.clone(), path, WRITE), body).await;
            let took = started.elapsed();
            if took > BOUND {
                was_slow.push((round, *path, took));
            }
            let is_fault = head.status == StatusCode::INTERNAL_SERVER_ERROR;
            assert!(!is_fault, "{path}: {reply}");
        }
    }
    // The current version is known without Redis.
    let rules = get(&router, "/api/rules").await;
    assert!(rules["source_error"].is_string(), "{rules}");
    assert_eq!(rules["versions"][0]["number"], rules["present"]);
    // So are the blocks, which hold.
    let (head, blocks) = send(&router, ask(Method::GET, "/api/blocks", WRITE), "").await;
    assert_eq!(head.status, StatusCode::OK, "{blocks}");
    let blocks: Value = serde_json::from_str(&blocks).expect("JSON");
    assert!(blocks["store_error"].is_string(), "{blocks}");
    assert_eq!(blocks["blocks"][0]["key"], "eve");
    server.resume();
    assert!(was_slow.is_empty(), "{was_slow:?}");
}

/// A call for rules waits 5 s for a reply, and 2 s each for two connections.
const BOUND: Duration = Duration::from_secs(10);

// Regression: the first failure ended the reset, so the other policies kept what this process had counted.
#[tokio::test]
async fn reset_in_an_outage_reaches_what_this_process_counts_under_each_policy() {
    let mut server = Server::start();
    let by_caller = |name: &str| {
        let policy = Policy::new(name, Quota::per_hour(3));
        policy.key(Header::new("x-caller"))
    };
    let layer = RateLimitLayer::builder()
        .redis(server.url())
        .policy(by_caller("first"))
        .policy(by_caller("second"))
        .build()
        .expect("a layer");
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    server.kill();
    let policies = ["first", "second"].map(|name| Policy::new(name, Quota::per_hour(3)));
    let key = Key::new("ada");
    let started = Instant::now();
    while !layer.health().is_degraded() {
        let charges = policies.each_ref().map(|policy| policy.charge(key));
        layer.limiter().check(&charges).await.expect("a decision");
        assert!(started.elapsed() < BOUND, "{:?}", layer.health());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let body = r#"{"key":"ada"}"#;
    let left = async || {
        let (status, reply) = post(&router, "/api/key", body).await;
        assert_eq!(status, StatusCode::OK, "{reply}");
        ["first", "second"].map(|name| {
            let states = reply["policies"].as_array().expect("states");
            let state = states.iter().find(|state| state["policy"] == name);
            state.and_then(|state| state["remaining"].as_u64())
        })
    };
    assert_eq!(left().await, [Some(0), Some(0)]);
    let (status, reply) = post(&router, "/api/key/reset", body).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{reply}");
    println!("{reply}");
    assert_eq!(left().await, [Some(3), Some(3)]);
}
