//! Input that no page sends.

use std::net::SocketAddr;

use axum::{Router, body::Body, extract::ConnectInfo};
use http::{Method, Request, StatusCode};
use http_body_util::StreamBody;
use tollgate::{dashboard::Dashboard, overload::Overload, rules::RuleMode};

use super::{API, READ, WRITE, ask, guarded, layer, respond, send};
use crate::support::Random;

#[tokio::test]
async fn parameters_in_the_url_are_refused() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for (method, path, body, _) in API {
        for query in ["?", "?token=1", &format!("?a={}", "x".repeat(10_000))] {
            let path = format!("{path}{query}");
            let (head, reply) = send(&router, ask(method.clone(), &path, WRITE), body).await;
            assert_eq!(head.status, StatusCode::BAD_REQUEST, "{path}");
            assert!(reply.contains("no parameters"), "{reply}");
        }
    }
    // The page ignores them, and never repeats them.
    let (head, page) = send(&router, Request::get("/?token=x-secret-x"), "").await;
    assert_eq!(head.status, StatusCode::OK);
    assert!(!page.contains("x-secret-x"));
    for query in [
        "",
        "boot.js=",
        "boot.js&x",
        "boot.css",
        "../boot.js",
        "%62oot.js",
    ] {
        let (_, other) = send(&router, Request::get(format!("/?{query}")), "").await;
        assert_eq!(other, page, "{query}");
    }
}

#[tokio::test]
async fn body_that_is_too_long_is_refused_even_if_its_length_is_unknown() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let posts = API
        .into_iter()
        .filter(|(method, ..)| *method == Method::POST);
    for (method, path, body, _) in posts {
        let longest = format!("{body}{}", " ".repeat(16 * 1024 - body.len()));
        let (head, _) = send(&router, ask(method.clone(), path, WRITE), &longest).await;
        assert!(head.status.is_success(), "{path}: {}", head.status);

        let too_long = format!("{longest} ");
        let (head, _) = send(&router, ask(method.clone(), path, WRITE), &too_long).await;
        assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");

        let endless = std::iter::repeat_with(|| {
            let part = bytes::Bytes::from_static(&[b' '; 1_000]);
            Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(part))
        });
        let endless = StreamBody::new(futures_util::stream::iter(endless));
        let request = ask(method, path, WRITE).body(Body::new(endless));
        let (head, _) = respond(&router, request.expect("a request")).await;
        assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
    }
}

#[tokio::test]
async fn response_to_a_refused_body_describes_a_valid_one() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for (path, body, fault) in [
        (
            "/api/key/block",
            r#"{"key":"x"}"#,
            "missing field `seconds` (line 1, column 11)",
        ),
        (
            "/api/key/block",
            r#"{"key":"x","key":"y","seconds":1}"#,
            "duplicate field `key` (line 1, column 16)",
        ),
        (
            "/api/key/block",
            r#"{"key":"x","seconds":"an hour, expected soon"}"#,
            "a field has a value that is not allowed: expected a whole number, at least 0 (line 1, column 45)",
        ),
        (
            "/api/mode",
            r#"{"mode":"on"}"#,
            "a field has a value that is not allowed: expected one of `off`, `shadow`, `enforce` (line 1, column 12)",
        ),
        (
            "/api/mode",
            r#"{"node":"off"}"#,
            "a field is unknown: expected `policy` or `mode` (line 1, column 7)",
        ),
        (
            "/api/mode",
            "{",
            "the body is not valid JSON (line 1, column 1)",
        ),
        (
            "/api/mode",
            " [\"off\"",
            "the body is not valid JSON (line 1, column 7)",
        ),
    ] {
        let (_, reply) = send(&router, ask(Method::POST, path, WRITE), body).await;
        let reply: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
        assert_eq!(reply["message"], fault, "{path} {body}");
    }
}

// As derived, a list with the values of all fields would be read as an object.
#[tokio::test]
async fn body_that_is_not_an_object_is_refused_with_an_example_of_one() {
    let layer = layer();
    let overload = Overload::adaptive().build().expect("usable settings");
    let builder = Dashboard::builder(&layer).overload(&overload);
    let dashboard = builder.token(READ).write_token(WRITE).build();
    let router: Router = dashboard.expect("a dashboard").router();
    for (path, list, example) in [
        ("/api/key", r#"["ada","text",null]"#, r#"{"key":"ada"}"#),
        (
            "/api/key/block",
            r#"["ada","text",null,60,"spam"]"#,
            r#"{"key":"ada","seconds":60}"#,
        ),
        (
            "/api/key/refund",
            r#"["ada","text","api",1]"#,
            r#"{"key":"ada","policy":"api","units":1}"#,
        ),
        (
            "/api/key/reset",
            r#"["ada","text",null]"#,
            r#"{"key":"ada"}"#,
        ),
        (
            "/api/key/unblock",
            r#"["ada","text",null]"#,
            r#"{"key":"ada"}"#,
        ),
        ("/api/mode", r#"[null,"off"]"#, r#"{"mode":"shadow"}"#),
        ("/api/overload/mode", " [\"off\"]", r#"{"mode":"shadow"}"#),
        (
            "/api/rollout",
            r#"["api",30]"#,
            r#"{"policy":"api","percent":30}"#,
        ),
        (
            "/api/rules/push",
            r#"["rules: []","yaml",1,null]"#,
            r#"{"text":"..","format":"yaml","replacing":1}"#,
        ),
        ("/api/rules/roll-back", "[1]", r#"{"version":1}"#),
    ] {
        for body in [list, "\"off\"", "7", "null", "[]"] {
            let (head, reply) = send(&router, ask(Method::POST, path, WRITE), body).await;
            assert_eq!(head.status, StatusCode::BAD_REQUEST, "{path} {body}");
            let reply: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
            let message = format!("the body is not an object: send one such as {example}");
            assert_eq!(reply["message"], message, "{path} {body}");
        }
    }
    assert_eq!(overload.mode(), RuleMode::Enforce);
    assert_eq!(layer.mode(), RuleMode::Enforce);
}

#[tokio::test]
async fn body_that_is_not_what_the_api_expects_is_refused_and_not_repeated() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let long = format!(r#"{{"key":"{}"}}"#, "s-secret".repeat(200));
    for (path, body) in [
        ("/api/key", ""),
        ("/api/key", "{}"),
        ("/api/key", "null"),
        ("/api/key", "[]"),
        ("/api/key", r#"{"key":5}"#),
        ("/api/key", r#"{"key":""}"#),
        ("/api/key", long.as_str()),
        ("/api/key", r#"{"key":"s-secret","form":"other"}"#),
        ("/api/key", r#"{"key":"s-secret","form":"address"}"#),
        ("/api/key", r#"{"key":"s-secret {}","form":"counted"}"#),
        ("/api/key", r#"{"key":"s-secret","more":1}"#),
        ("/api/key", r#"{"s-secret":"x","key":"x"}"#),
        ("/api/key", r#"{"key":"x","policy":"s-secret"}"#),
        ("/api/key/reset", r#"{"key":"x","policy":"s-secret"}"#),
        ("/api/key/refund", r#"{"key":"x","units":1}"#),
        ("/api/key/refund", r#"{"key":"x","policy":"api"}"#),
        ("/api/key/refund", r#"{"key":"x","policy":null,"units":1}"#),
        ("/api/key/refund", r#"{"key":"x","policy":"api","units":0}"#),
        (
            "/api/key/refund",
            r#"{"key":"x","policy":"api","units":-1}"#,
        ),
        (
            "/api/key/refund",
            r#"{"key":"x","policy":"api","units":0.5}"#,
        ),
        (
            "/api/key/refund",
            r#"{"key":"x","policy":"api","units":18446744073709551616}"#,
        ),
        (
            "/api/key/refund",
            r#"{"key":"x","policy":"s-secret","units":1}"#,
        ),
        ("/api/key/block", r#"{"key":"x"}"#),
        ("/api/key/block", r#"{"key":"x","seconds":0}"#),
        ("/api/key/block", r#"{"key":"x","seconds":-1}"#),
        ("/api/key/block", r#"{"key":"x","seconds":1e18}"#),
        (
            "/api/key/block",
            r#"{"key":"x","seconds":18446744073709551615}"#,
        ),
        (
            "/api/key/block",
            r#"{"key":"x","seconds":1,"reason":"s-secret\u0000"}"#,
        ),
        (
            "/api/key/block",
            r#"{"key":"x","seconds":1,"policy":"s-secret"}"#,
        ),
        ("/api/key/unblock", r#"{"key":"x","policy":"s-secret"}"#),
        ("/api/mode", r#"{"mode":"s-secret"}"#),
        ("/api/mode", r#"{"mode":"off","policy":5}"#),
        ("/api/rollout", r#"{"policy":"api","percent":101}"#),
        ("/api/rollout", r#"{"policy":"api","percent":-0.1}"#),
        ("/api/rollout", r#"{"policy":"api","percent":1e999}"#),
        ("/api/rollout", r#"{"policy":"api","percent":"30"}"#),
    ] {
        let (head, reply) = send(&router, ask(Method::POST, path, WRITE), body).await;
        assert_eq!(head.status, StatusCode::BAD_REQUEST, "{path} {body}");
        assert!(reply.contains(r#""error":"bad_request""#), "{reply}");
        assert!(!reply.contains("s-secret"), "{reply}");
    }
    assert_eq!(layer.mode(), RuleMode::Enforce);
    let form = Request::post("/api/mode")
        .header("authorization", format!("Bearer {WRITE}"))
        .header("x-tollgate-dashboard", "1");
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
    ] {
        let mut request = form_of(&form);
        request = request.header("content-type", content_type);
        let (head, _) = send(&router, request, r#"{"mode":"off"}"#).await;
        assert_eq!(head.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}

#[tokio::test]
async fn every_error_of_the_api_is_json() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for (method, path, status, code) in [
        ("DELETE", "/api/state", 405, "wrong_method"),
        ("PUT", "/api/mode", 405, "wrong_method"),
        ("OPTIONS", "/api/key", 405, "wrong_method"),
        ("GET", "/api/key/reset", 405, "wrong_method"),
        ("POST", "/api/session", 405, "wrong_method"),
        ("GET", "/api/rules/%ff", 404, "not_found"),
        ("GET", "/api/rules/x%00", 404, "not_found"),
        ("GET", "/api/rules/18446744073709551616", 404, "not_found"),
        ("GET", "/api/rules/-1", 404, "not_found"),
        ("GET", "/api//state", 404, "not_found"),
        ("BREW", "/api/none", 404, "not_found"),
    ] {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let (head, reply) = send(&router, ask(method, path, WRITE), "").await;
        assert_eq!(head.status, status, "{path}: {reply}");
        assert_eq!(head.headers["content-type"], "application/json", "{path}");
        let error: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
        assert_eq!(error["error"], code, "{path}");
        assert_eq!(head.headers.contains_key("allow"), status == 405, "{path}");
    }
    // The length of a GET, and nothing else.
    let (head, reply) = send(&router, ask(Method::HEAD, "/api/state", READ), "").await;
    assert_eq!((head.status, reply.as_str()), (StatusCode::OK, ""));
}

fn form_of(form: &http::request::Builder) -> http::request::Builder {
    let mut copy = Request::builder().method(Method::POST).uri("/api/mode");
    for (name, value) in form.headers_ref().expect("valid headers") {
        copy = copy.header(name, value);
    }
    copy
}

/// Random requests from parts that have a meaning here. With the read token, none changes anything; none is a fault of the
/// server, and each response has the headers that all have.
#[tokio::test]
async fn random_requests_change_nothing_and_are_no_fault_of_the_server() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let seed = 0x0da5_4b0a;
    let mut random = Random(seed);
    let paths = [
        "/",
        "/api",
        "/api/",
        "/api/key",
        "/api/key/reset",
        "/api/key/refund",
        "/api/key/",
        "/api/mode",
        "/api/mode/..",
        "/api/rollout",
        "/api/%6Dode",
        "//api/mode",
        "/api//mode",
        "/API/mode",
        "/?boot.js",
        "/assets/..%2fmod.rs",
        "/assets/none.mjs",
        "/..%2f",
        "/api/live/x",
        "/api/\u{7f}",
    ];
    let parts = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\u0000",
        "\u{0}",
        "\u{fe}\u{ff}",
        "\"key\"",
        "\"form\"",
        "\"secret\"",
        "\"policy\"",
        "\"api\"",
        "\"mode\"",
        "\"off\"",
        "\"shadow\"",
        "\"percent\"",
        "0",
        "-1",
        "1e308",
        "null",
        "true",
        "\"ada\"",
        " ",
    ];
    let methods = [
        "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW",
    ];
    let tokens = [READ, READ, "wrong-0123456789abcdef", ""];
    let mut statuses = std::collections::BTreeMap::new();
    for round in 0..4_000 {
        let mut pick = |count: usize| usize::try_from(random.below(count as u64)).expect("small");
        let path = paths[pick(paths.len())];
        let method = methods[pick(methods.len())];
        let token = tokens[pick(tokens.len())];
        let body = if pick(4) == 0 {
            let (.., body, _) = API[pick(API.len())].clone();
            body.to_owned()
        } else {
            let count = pick(12);
            (0..count).map(|_| parts[pick(parts.len())]).collect()
        };
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let host = if token == READ { 1 } else { 2 };
        let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, host], 50_000)));
        let request = ask(method, path, token).extension(peer);
        let Ok(request) = request.body(Body::from(body.clone())) else {
            continue; // not a path
        };
        let (head, reply) = respond(&router, request).await;
        let context = format!("seed {seed}, round {round}: {path} {body:?}: {reply}");
        assert!(!head.status.is_server_error(), "{context}");
        assert_eq!(head.headers["cache-control"], "no-store", "{context}");
        assert_eq!(layer.mode(), RuleMode::Enforce, "{context}");
        assert_eq!(layer.rollout("api"), Some(100.0), "{context}");
        *statuses.entry(head.status.as_u16()).or_insert(0) += 1;
    }
    // The mix reaches what it should: answers, and each kind of refusal.
    for status in [200, 400, 401, 403, 404, 405, 429] {
        assert!(statuses.contains_key(&status), "{statuses:?}");
    }
}
