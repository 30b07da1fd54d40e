//! Changes by operators, and their effect on requests.

use std::time::Duration;

use axum::Router;
use http::{Method, StatusCode};
use serde_json::json;
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    clock::{Clock, Timestamp},
    dashboard::Dashboard,
    extract::{HashSecret, Header},
    policy::Penalty,
    rules::RuleMode,
    top_keys::{ShownKeys, TopKeys},
};

use super::{WRITE, ask, banning_layer, call, get, guarded, layer, post, send};

#[tokio::test]
async fn kill_switch_ends_and_restores_the_limit() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for _ in 0..3 {
        assert_eq!(call(&layer, "ada").await, StatusCode::OK);
    }
    assert_eq!(call(&layer, "ada").await, StatusCode::TOO_MANY_REQUESTS);
    for body in [
        r#"{"mode":"off"}"#,
        r#"{"mode":"shadow"}"#,
        r#"{"mode":"shadow","policy":"api"}"#,
    ] {
        let (status, _) = post(&router, "/api/mode", body).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
        assert_eq!(call(&layer, "ada").await, StatusCode::OK, "{body}");
    }
    assert_eq!(get(&router, "/api/state").await["mode"], "shadow");
    for body in [
        r#"{"mode":"enforce"}"#,
        r#"{"mode":"enforce","policy":"api"}"#,
    ] {
        post(&router, "/api/mode", body).await;
    }
    assert_eq!(call(&layer, "ada").await, StatusCode::TOO_MANY_REQUESTS);
    post(&router, "/api/rollout", r#"{"policy":"api","percent":0}"#).await;
    assert_eq!(call(&layer, "ada").await, StatusCode::OK);
    assert_eq!(layer.rule_mode("api"), Some(RuleMode::Enforce));
}

#[tokio::test]
async fn key_is_looked_up_without_a_charge_and_reset() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for _ in 0..3 {
        call(&layer, "ada").await;
    }
    for _ in 0..2 {
        let (status, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
        assert_eq!(status, StatusCode::OK, "{found}");
        let found = &found["policies"][0];
        assert_eq!(
            (&found["policy"], &found["limit"]),
            (&json!("api"), &json!(3))
        );
        assert_eq!(
            (&found["remaining"], &found["outcome"]),
            (&json!(0), &json!("limited"))
        );
        assert_eq!(found["counted_by"], "in_process");
        assert!(found["reset_millis"].as_u64() > Some(3_500_000), "{found}");
    }
    let (_, other) = post(&router, "/api/key", r#"{"key":"bob"}"#).await;
    assert_eq!(other["policies"][0]["remaining"], 3);
    assert_eq!(other["policies"][0]["outcome"], "allowed");

    let (status, _) = post(&router, "/api/key/reset", r#"{"key":"ada","policy":"api"}"#).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(call(&layer, "ada").await, StatusCode::OK);
}

#[tokio::test]
async fn ban_is_shown_with_its_number_and_lifted_by_a_reset() {
    let layer = banning_layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let look_up = async || {
        let (status, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
        assert_eq!(status, StatusCode::OK, "{found}");
        found["policies"][0].clone()
    };
    assert_eq!(look_up().await["penalty"], json!(null));
    call(&layer, "ada").await;
    assert_eq!(look_up().await["penalty"], json!(null), "it was not denied");
    assert_eq!(call(&layer, "ada").await, StatusCode::TOO_MANY_REQUESTS);
    let found = look_up().await;
    let penalty = &found["penalty"];
    assert_eq!(found["outcome"], "limited");
    assert_eq!(
        (&penalty["bans"], &penalty["denials"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(penalty["most_denials"], 1);
    let millis = |value: &serde_json::Value| value.as_u64().expect("milliseconds");
    let left = millis(&penalty["banned_millis"]);
    assert!((3_500_000..=3_600_000).contains(&left), "{found}");
    assert!(millis(&penalty["since_millis"]) < 100_000, "{found}");
    assert!(millis(&penalty["forgiven_millis"]) > 7_000_000, "{found}");

    // A block by an operator is another thing.
    post(&router, "/api/key/unblock", r#"{"key":"ada"}"#).await;
    assert_eq!(call(&layer, "ada").await, StatusCode::TOO_MANY_REQUESTS);
    let (status, _) = post(
        &router,
        "/api/key/reset",
        r#"{"key":"ada","policy":"login"}"#,
    )
    .await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(look_up().await["penalty"], json!(null));
    assert_eq!(call(&layer, "ada").await, StatusCode::OK);
}

#[tokio::test]
async fn units_are_refunded_up_to_what_was_used_and_do_not_lift_a_ban() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let remaining = async || {
        let (_, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
        found["policies"][0]["remaining"].clone()
    };
    let refund = async |router: &Router, policy: &str, units: u64| {
        let body = json!({ "key": "ada", "policy": policy, "units": units }).to_string();
        post(router, "/api/key/refund", &body).await
    };
    for _ in 0..3 {
        assert_eq!(call(&layer, "ada").await, StatusCode::OK);
    }
    assert_eq!(remaining().await, 0);
    for (units, expected) in [(2, 2), (5, 3), (u64::MAX, 3)] {
        let (status, reply) = refund(&router, "api", units).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{reply}");
        assert_eq!(remaining().await, expected, "{units}");
    }

    let layer = banning_layer();
    let banning: Router = guarded(Dashboard::builder(&layer)).router();
    for _ in 0..2 {
        call(&layer, "ada").await;
    }
    refund(&banning, "login", 1).await;
    assert_eq!(call(&layer, "ada").await, StatusCode::TOO_MANY_REQUESTS);

    let slots = Policy::concurrency("slots", 3).key(Header::new("x-caller"));
    let layer = RateLimitLayer::builder().policy(slots).build();
    let slots: Router = guarded(Dashboard::builder(&layer.expect("a layer"))).router();
    let (_, found) = post(&slots, "/api/key", r#"{"key":"ada"}"#).await;
    assert_eq!(found["policies"][0]["is_refundable"], false);
    let (status, reply) = refund(&slots, "slots", 1).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{reply}");
}

#[tokio::test]
async fn key_is_found_in_every_form_in_which_an_operator_knows_it() {
    let secret = HashSecret::from_passphrase("of the fleet");
    let long = "x".repeat(300);
    let forms = [
        ("ada lovelace", "text", Key::new("ada lovelace")),
        (long.as_str(), "text", Key::new(&long)),
        ("203.0.113.7", "address", Key::new("203.0.113.7")),
        ("::ffff:203.0.113.7", "address", Key::new("203.0.113.7")),
        ("2001:db8:1:2:3::4", "address", Key::new("2001:db8:1:2::")),
        ("k-1", "secret", Key::secret_with(&secret, "k-1")),
        ("ada%20lovelace", "counted", Key::new("ada lovelace")),
        ("*", "counted", Key::GLOBAL),
        ("?", "counted", Key::UNIDENTIFIED),
    ];
    let policy = Policy::new("api", Quota::per_hour(3));
    let layer = RateLimitLayer::builder()
        .policy(policy.clone().key(|_: &RequestHead| None::<Key>))
        .build()
        .expect("a layer");
    let builder = Dashboard::builder(&layer).hash_secret(secret);
    let router: Router = guarded(builder).router();
    for (text, form, key) in forms {
        let charges = [policy.charge(key)];
        layer.limiter().check(&charges).await.expect("a decision");
        let body = json!({ "key": text, "form": form }).to_string();
        let (_, found) = post(&router, "/api/key", &body).await;
        assert_eq!(found["policies"][0]["remaining"], 2, "{text} {form}");
        layer
            .limiter()
            .reset(&policy, charges[0].key())
            .await
            .expect("reset");
    }
}

#[tokio::test]
async fn top_keys_of_the_limiter_are_shown_in_the_form_that_the_application_chose() {
    for (shown_keys, is_plain) in [(ShownKeys::plain(), true), (ShownKeys::default(), false)] {
        let top_keys = TopKeys::builder().shown_keys(shown_keys).build();
        let layer = RateLimitLayer::builder()
            .policy(Policy::new("api", Quota::per_hour(3)).key(Header::new("x-caller")))
            .top_keys(top_keys.expect("a recorder"))
            .build()
            .expect("a layer");
        let router: Router = guarded(Dashboard::builder(&layer)).router();
        assert_eq!(get(&router, "/api/session").await["has_top_keys"], true);
        for _ in 0..8 {
            call(&layer, "203.0.113.7").await;
        }
        let list = get(&router, "/api/top-keys").await;
        assert_eq!(list["is_plain"], is_plain);
        let list = &list["policies"][0];
        assert_eq!(
            (&list["policy"], &list["total"]),
            (&json!("api"), &json!(5))
        );
        assert_eq!(list["keys"][0]["count"], 5);
        assert_eq!(list["keys"][0]["key"] == "203.0.113.7", is_plain, "{list}");
    }
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    assert_eq!(get(&router, "/api/session").await["has_top_keys"], false);
}

#[tokio::test]
async fn last_denial_of_a_key_is_shown_if_it_is_recorded() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_hour(1)).key(Header::new("x-caller")))
        .record_denials(100)
        .build()
        .expect("a layer");
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for _ in 0..3 {
        call(&layer, "ada").await;
    }
    let (_, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
    let denial = &found["policies"][0]["last_denial"];
    assert_eq!(
        (&denial["count"], &denial["is_shadow"]),
        (&json!(2), &json!(false))
    );
    assert!(
        denial["ago_millis"].as_u64() <= denial["since_millis"].as_u64(),
        "{denial}"
    );
    let (_, found) = post(&router, "/api/key", r#"{"key":"bob"}"#).await;
    assert!(found["policies"][0]["last_denial"].is_null(), "{found}");
}

#[tokio::test]
async fn key_with_its_full_quota_has_a_state_while_anything_is_known_of_it() {
    let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
    let policy = || Policy::new("api", Quota::per_second(1));
    let builder = RateLimitLayer::builder;
    let by_caller = |policy: Policy| policy.key(Header::new("x-caller"));
    let recorded = builder().policy(by_caller(policy())).record_denials(100);
    let penalised = builder().policy(by_caller(
        policy().penalty(Penalty::after(3, day).ban(hour)),
    ));
    let plain = builder().policy(by_caller(policy()));
    for (builder, is_kept) in [(recorded, true), (penalised, true), (plain, false)] {
        let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
        let layer = builder.clock(clock.clone()).build().expect("a layer");
        let router: Router = guarded(Dashboard::builder(&layer)).router();
        for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            assert_eq!(call(&layer, "ada").await, expected);
        }
        let has_state = async |key: &str| {
            let body = json!({ "key": key }).to_string();
            let (_, found) = post(&router, "/api/key", &body).await;
            found["policies"][0]["has_state"].clone()
        };
        assert_eq!(has_state("ada").await, true);
        clock.advance(Duration::from_secs(60));
        assert_eq!(has_state("ada").await, is_kept);
        assert_eq!(has_state("bob").await, false);
        let body = json!({ "key": "bob", "seconds": 60 }).to_string();
        post(&router, "/api/key/block", &body).await;
        assert_eq!(has_state("bob").await, true, "it is blocked");
    }
}

#[tokio::test]
async fn store_that_fails_is_reported_without_its_causes() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_hour(3)).key(Header::new("x-caller")))
        .store(Broken(ErrorKind::Connect))
        .build()
        .expect("a layer");
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for path in ["/api/key", "/api/key/reset"] {
        let (status, reply) = post(&router, path, r#"{"key":"ada"}"#).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            reply,
            json!({ "error": "store_failed", "message": "the server is away" })
        );
    }
}

// Regression: all errors but three asked the operator to try again.
#[tokio::test]
async fn only_errors_that_may_pass_ask_to_try_again() {
    for (kind, expected, code, retry_after) in [
        (ErrorKind::Unavailable, 503, "store_failed", Some("5")),
        (ErrorKind::Overloaded, 503, "store_failed", Some("5")),
        (ErrorKind::Script, 502, "store_failed", None),
        (ErrorKind::ForeignValue, 502, "store_failed", None),
        (ErrorKind::DuplicatePolicy, 400, "bad_request", None),
        (ErrorKind::PolicyWithoutKey, 400, "bad_request", None),
    ] {
        let layer = RateLimitLayer::builder()
            .policy(Policy::new("api", Quota::per_hour(3)).key(Header::new("x-caller")))
            .store(Broken(kind))
            .build()
            .expect("a layer");
        let router: Router = guarded(Dashboard::builder(&layer)).router();
        let request = ask(Method::POST, "/api/key/reset", WRITE);
        let (head, reply) = send(&router, request, r#"{"key":"ada"}"#).await;
        assert_eq!(head.status, expected, "{kind:?}: {reply}");
        assert!(reply.contains(code), "{kind:?}: {reply}");
        let header = head.headers.get("retry-after");
        let header = header.map(|value| value.to_str().expect("text"));
        assert_eq!(header, retry_after, "{kind:?}");
    }
}

/// A store that answers nothing, with a cause that is nobody's business.
#[derive(Debug)]
struct Broken(ErrorKind);

impl Broken {
    fn error(&self) -> tollgate::Error {
        tollgate::Error::new(self.0, "the server is away").with_source("no route to 10.0.0.5")
    }
}

impl tollgate::store::Store for Broken {
    fn decide(
        &self,
        _: &[tollgate::Charge<'_>],
    ) -> tollgate::store::StoreFuture<tollgate::Decision> {
        tollgate::store::StoreFuture::ready(Err(self.error()))
    }

    fn reset(&self, _: &Policy, _: &Key) -> tollgate::store::StoreFuture<()> {
        tollgate::store::StoreFuture::ready(Err(self.error()))
    }
}
