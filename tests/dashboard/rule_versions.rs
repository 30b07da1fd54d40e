//! Versions of the rules.

use axum::Router;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tollgate::{
    RateLimitLayer,
    config::{
        Format, RuleSet, RuleSetReader,
        reload::{NewRules, RuleSource, RulesHandle},
    },
    dashboard::Dashboard,
    extract::Header,
};

use super::{READ, WRITE, ask, call, get, guarded, layer, post, send};
use crate::support::Server;

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
    assert_eq!(
        (&list["present"], &list["latest"]),
        (&json!(second), &json!(second))
    );
    assert_eq!(list["can_push"], true);
    assert_eq!(
        list["versions"][0]["author"], "dashboard",
        "a token has no name"
    );
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
async fn rules_that_cannot_be_used_are_refused_with_the_place_of_the_fault() {
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
    assert_eq!(status, StatusCode::NOT_FOUND);
    let comment = "x".repeat(1_025);
    let body = json!({ "text": SECOND, "format": "yaml", "replacing": first, "comment": comment });
    let (status, reply) = post(&router, "/api/rules/push", &body.to_string()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{reply}");
    for path in ["/api/rules/99", "/api/rules/x", "/api/rules/-1"] {
        let (head, _) = send(&router, ask(Method::GET, path, READ), "").await;
        assert_eq!(head.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(rules.version().number(), first);
}

// Regression: the page could only name the current version, so every push after a refusal was a conflict.
#[tokio::test]
async fn rules_are_replaced_after_a_version_that_was_refused_here() {
    let server = Server::start();
    let reader = RuleSetReader::default();
    let newer = reader.clone().extractor("tenant", Header::new("x-tenant"));
    let build = |reader| {
        let rules = RuleSet::parse(Format::Yaml, FIRST).expect("rules");
        RateLimitLayer::builder()
            .redis(server.url())
            .build_reloading(RuleSource::redis(rules).reader(reader))
            .expect("a layer")
    };
    let (layer, rules) = build(reader);
    let (_newer_layer, newer) = build(newer);
    let of_newer = SECOND.replace("{ header: x-caller }", "{ custom: tenant }");
    for text in [FIRST, of_newer.as_str()] {
        let pushed = newer.push(NewRules::new(Format::Yaml, text)).await;
        pushed.expect("pushed");
    }
    rules
        .reload()
        .await
        .expect_err("it does not know the extractor");

    let router: Router = guarded(Dashboard::builder(&layer).rules(&rules)).router();
    let list = get(&router, "/api/rules").await;
    assert!(list["last_error"].is_string(), "{list}");
    let (present, latest) = (&list["present"], &list["latest"]);
    assert!(present.as_u64() < latest.as_u64(), "{list}");
    for (replacing, expected) in [(present, StatusCode::CONFLICT), (latest, StatusCode::OK)] {
        let body = json!({ "text": SECOND, "format": "yaml", "replacing": replacing });
        let (status, reply) = post(&router, "/api/rules/push", &body.to_string()).await;
        assert_eq!(status, expected, "{reply}");
    }
    let list = get(&router, "/api/rules").await;
    assert_eq!(list["present"], list["latest"]);
}

// Regression: this was a 503 with `retry-after`, as if the file would take a push later.
#[tokio::test]
async fn rules_from_a_file_are_not_replaced_from_here() {
    let file = std::env::temp_dir().join(format!("tollgate-dashboard-{}.yaml", std::process::id()));
    std::fs::write(&file, FIRST).expect("it can be written");
    let built = RateLimitLayer::builder().build_reloading(RuleSource::file(&file));
    let (layer, rules) = built.expect("a layer");
    let router: Router = guarded(Dashboard::builder(&layer).rules(&rules)).router();
    let list = get(&router, "/api/rules").await;
    assert_eq!(list["can_push"], false);
    let push = json!({ "text": SECOND, "format": "yaml", "replacing": list["latest"] });
    let roll_back = json!({ "version": list["present"] });
    for (path, body) in [("push", push), ("roll-back", roll_back)] {
        let path = format!("/api/rules/{path}");
        let (head, reply) = send(&router, ask(Method::POST, &path, WRITE), &body.to_string()).await;
        assert_eq!(head.status, StatusCode::CONFLICT, "{reply}");
        assert!(reply.contains("rules_from_file"), "{reply}");
        assert!(head.headers.get("retry-after").is_none());
    }
    drop(layer);
    std::fs::remove_file(&file).expect("it can be removed");
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
