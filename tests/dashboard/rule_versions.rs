//! Versions of the rules.

use axum::Router;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tollgate::{
    RateLimitLayer,
    config::{
        Format, RuleSet,
        reload::{RuleSource, RulesHandle},
    },
    dashboard::Dashboard,
};

use super::{READ, WRITE, ask, call, get, guarded, layer, post, send};

const FIRST: &str = "rules: [{ id: api, key: { header: x-caller }, limit: 1/hour }]";
const SECOND: &str = "rules: [{ id: api, key: { header: x-caller }, limit: 3/hour }]";

pub(super) fn reloading() -> (RateLimitLayer, RulesHandle) {
    let rules = RuleSet::parse(Format::Yaml, FIRST).expect("rules");
    let built = RateLimitLayer::builder().build_reloading(RuleSource::in_process(rules));
    built.expect("a layer")
}

#[tokio::test]
async fn rules_are_pushed_and_rolled_back_and_requests_follow() {
    let (layer, rules) = reloading();
    let router: Router = guarded(Dashboard::builder(&layer).rules(&rules)).router();
    assert_eq!(get(&router, "/api/session").await["has_rules"], true);
    assert_eq!(call(&layer, "ada").await, StatusCode::OK);
    assert_eq!(call(&layer, "ada").await, StatusCode::TOO_MANY_REQUESTS);
    let first = get(&router, "/api/rules").await["present"]
        .as_u64()
        .expect("a number");

    let body = json!({ "text": SECOND, "format": "yaml", "replacing": first, "comment": "more" });
    let (status, version) = post(&router, "/api/rules/push", &body.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{version}");
    assert_eq!(version["comment"], "more");
    for _ in 0..3 {
        assert_eq!(call(&layer, "bob").await, StatusCode::OK);
    }
    assert_eq!(get(&router, "/api/state").await["policies"][0]["limit"], 3);
    let list = get(&router, "/api/rules").await;
    let second = version["number"].as_u64().expect("a number");
    assert_eq!(list["present"], second);
    let numbers: Vec<_> = list["versions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| &it["number"])
        .collect();
    assert_eq!(numbers, [second, first]);
    let version = get(&router, &format!("/api/rules/{second}")).await;
    assert_eq!(
        (&version["text"], &version["format"]),
        (&json!(SECOND), &json!("yaml"))
    );
    // Rules that were given as a value have the text of that value.
    let version = get(&router, &format!("/api/rules/{first}")).await;
    assert!(
        version["text"]
            .as_str()
            .is_some_and(|text| text.contains("1/hour"))
    );

    let body = json!({ "version": first }).to_string();
    let (status, version) = post(&router, "/api/rules/roll-back", &body).await;
    assert_eq!(status, StatusCode::OK, "{version}");
    assert_eq!(get(&router, "/api/state").await["policies"][0]["limit"], 1);
}

#[tokio::test]
async fn rules_that_cannot_be_in_force_are_refused_with_the_place_of_the_fault() {
    let (layer, rules) = reloading();
    let router: Router = guarded(Dashboard::builder(&layer).rules(&rules)).router();
    let first = rules.version().number();
    for (text, replacing, expected, words) in [
        (
            "rules:\n  - id: api\n    limitt: 5/min",
            first,
            StatusCode::UNPROCESSABLE_ENTITY,
            "3:5",
        ),
        ("rules: [", first, StatusCode::UNPROCESSABLE_ENTITY, ""),
        (SECOND, first + 7, StatusCode::CONFLICT, "meanwhile"),
    ] {
        let body = json!({ "text": text, "format": "yaml", "replacing": replacing });
        let (status, reply) = post(&router, "/api/rules/push", &body.to_string()).await;
        assert_eq!(status, expected, "{reply}");
        let message = reply["message"].as_str().expect("a message");
        assert!(message.contains(words), "{message}");
    }
    let (status, _) = post(&router, "/api/rules/roll-back", r#"{"version":99}"#).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    for path in ["/api/rules/99", "/api/rules/x", "/api/rules/-1"] {
        let (head, _) = send(&router, ask(Method::GET, path, READ), "").await;
        assert_eq!(head.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(rules.version().number(), first);
}

#[tokio::test]
async fn rules_are_behind_the_guards_of_all_routes() {
    let (layer, rules) = reloading();
    let router: Router = guarded(Dashboard::builder(&layer).rules(&rules)).router();
    let first = rules.version().number();
    let push = json!({ "text": SECOND, "format": "yaml", "replacing": first }).to_string();
    let roll_back = json!({ "version": first }).to_string();
    for (method, path, body, is_write) in [
        (Method::GET, "/api/rules", "", false),
        (Method::GET, "/api/rules/1", "", false),
        (Method::POST, "/api/rules/push", push.as_str(), true),
        (
            Method::POST,
            "/api/rules/roll-back",
            roll_back.as_str(),
            true,
        ),
    ] {
        let foreign = Request::builder().method(method.clone()).uri(path);
        let foreign = foreign
            .header("origin", "https://evil.example")
            .header("host", "own");
        let expected = if is_write {
            StatusCode::FORBIDDEN
        } else {
            StatusCode::OK
        };
        for (request, expected) in [
            (
                ask(method.clone(), path, "wrong-0123456789abcdef"),
                StatusCode::UNAUTHORIZED,
            ),
            (ask(method.clone(), path, READ), expected),
            (
                foreign.header("authorization", format!("Bearer {WRITE}")),
                StatusCode::FORBIDDEN,
            ),
        ] {
            let (head, reply) = send(&router, request, body).await;
            assert_eq!(head.status, expected, "{path}: {reply}");
        }
    }
    let too_long =
        json!({ "text": " ".repeat(2 * 1024 * 1024), "format": "yaml", "replacing": first });
    let (status, _) = post(&router, "/api/rules/push", &too_long.to_string()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(rules.version().number(), first);
}

#[tokio::test]
async fn dashboard_without_the_handle_has_no_rules() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    assert_eq!(
        get(&router, "/api/session").await["has_rules"],
        Value::Bool(false)
    );
    let (head, _) = send(&router, ask(Method::GET, "/api/rules", READ), "").await;
    assert_eq!(head.status, StatusCode::NOT_FOUND);
}
