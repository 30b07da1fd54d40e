//! Guards: access to the dashboard, to read and to change.

use axum::{Router, extract::Request as AxumRequest, middleware};
use http::{Method, Request, StatusCode};
use tollgate::{
    ErrorKind,
    dashboard::{Access, Dashboard},
    rules::RuleMode,
};

use super::{API, READ, WRITE, ask, banning_layer, call, guarded, layer, send};
use crate::support::logged;

#[tokio::test]
async fn dashboard_without_a_guard_or_with_a_weak_one_does_not_build() {
    let layer = layer();
    let builder = || Dashboard::builder(&layer);
    for (builder, words) in [
        (builder(), "has no guard"),
        (builder().token("short"), "too weak"),
        (builder().write_token(""), "too weak"),
        (builder().token("with a space 0123456789"), "too weak"),
        (builder().token(READ).write_token(READ), "are equal"),
        (builder().token(READ).max_clients(0), "max_clients(0)"),
    ] {
        let error = builder.build().expect_err(words);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(words), "{error}");
        assert!(!format!("{error:?}").contains(READ), "{error:?}");
    }
}

#[tokio::test]
async fn request_without_a_valid_token_gets_nothing() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let longer = format!("{WRITE}x");
    let wrong = [
        None,
        Some(String::new()),
        Some("Bearer".to_owned()),
        Some("Bearer ".to_owned()),
        Some("Bearer wrong-0123456789abcdef".to_owned()),
        Some(format!("Bearer {}", &WRITE[..WRITE.len() - 1])),
        Some(format!("Bearer {longer}")),
        Some(format!("Basic {WRITE}")),
        Some(WRITE.to_owned()),
        Some(format!("Bearer {}", WRITE.to_uppercase())),
    ];
    for (method, path, body, _) in API {
        for authorization in &wrong {
            let mut request = Request::builder().method(method.clone()).uri(path);
            request = request
                .header("content-type", "application/json")
                .header("x-tollgate-dashboard", "1");
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization);
            }
            let (head, reply) = send(&router, request, body).await;
            assert_eq!(head.status, StatusCode::UNAUTHORIZED, "{path}");
            assert!(reply.starts_with(r#"{"error":"unauthorized""#), "{reply}");
            assert_eq!(
                head.headers["www-authenticate"],
                "Bearer realm=\"tollgate\""
            );
        }
        // Two tokens, of which one is right.
        let twice = ask(method, path, WRITE).header("authorization", "Bearer other");
        assert_eq!(
            send(&router, twice, body).await.0.status,
            StatusCode::UNAUTHORIZED
        );
    }
    assert_eq!(layer.mode(), RuleMode::Enforce);
    let unknown = Request::get("/api/other");
    assert_eq!(
        send(&router, unknown, "").await.0.status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn session_shows_the_rights_of_a_token_and_nothing_else() {
    let layer = layer();
    let builder = Dashboard::builder(&layer).title("secret project");
    let router: Router = guarded(builder).router();
    for (token, can_read, can_write) in [
        (READ, true, false),
        (WRITE, true, true),
        ("wrong-0123456789abcdef", false, false),
    ] {
        let (head, reply) = send(&router, ask(Method::GET, "/api/session", token), "").await;
        assert_eq!(head.status, StatusCode::OK);
        let expected = serde_json::json!({
            "can_read": can_read, "can_write": can_write, "operator": null,
            "accepts_tokens": true, "has_modes": true, "has_top_keys": false, "has_rules": false,
        });
        let session: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
        assert_eq!(session, expected);
    }
    let foreign = Request::get("/api/session").header("sec-fetch-site", "cross-site");
    let (head, _) = send(&router, foreign, "").await;
    assert_eq!(head.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn read_token_sees_everything_and_changes_nothing() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let only_read = Dashboard::builder(&layer).token(READ).build();
    let only_read: Router = only_read.expect("a dashboard").router();
    for router in [router, only_read] {
        for (method, path, body, is_write) in API {
            let (head, reply) = send(&router, ask(method, path, READ), body).await;
            if is_write {
                assert_eq!(head.status, StatusCode::FORBIDDEN, "{path}");
                assert!(reply.starts_with(r#"{"error":"read_only""#), "{reply}");
            } else if path != "/api/top-keys" {
                assert_eq!(head.status, StatusCode::OK, "{path}: {reply}");
            }
        }
    }
    assert_eq!(layer.mode(), RuleMode::Enforce);
    assert_eq!(layer.rollout("api"), Some(100.0));
}

#[tokio::test]
async fn ban_is_not_lifted_and_nothing_is_refunded_with_the_read_token() {
    let layer = banning_layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for caller in ["ada", "bob"] {
        call(&layer, caller).await;
    }
    call(&layer, "ada").await;
    for (path, body) in [
        ("/api/key/reset", r#"{"key":"ada"}"#),
        (
            "/api/key/refund",
            r#"{"key":"bob","policy":"login","units":1}"#,
        ),
    ] {
        let (head, _) = send(&router, ask(Method::POST, path, READ), body).await;
        assert_eq!(head.status, StatusCode::FORBIDDEN, "{path}");
    }
    let found = |key: &str| format!(r#"{{"key":"{key}"}}"#);
    let ask = |key: &str| (ask(Method::POST, "/api/key", READ), found(key));
    let (request, body) = ask("ada");
    let (_, ada) = send(&router, request, &body).await;
    assert!(!ada.contains(r#""banned_millis":null"#), "{ada}");
    let (request, body) = ask("bob");
    let (_, bob) = send(&router, request, &body).await;
    assert!(bob.contains(r#""remaining":0"#), "{bob}");
}

#[tokio::test]
async fn write_token_may_do_everything() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for (method, path, body, _) in API.into_iter().filter(|(.., is_write)| *is_write) {
        let (head, reply) = send(&router, ask(method, path, WRITE), body).await;
        assert!(head.status.is_success(), "{path}: {reply}");
    }
    assert_eq!(layer.mode(), RuleMode::Off);
    assert_eq!(layer.rollout("api"), Some(30.0));
}

#[tokio::test]
async fn access_of_the_application_counts_only_if_it_was_asked_for() {
    let layer = layer();
    let trusting = Dashboard::builder(&layer).access_by_extension().build();
    let trusting = trusting.expect("a dashboard");
    let tokens_only = guarded(Dashboard::builder(&layer));
    let (_, session) = send(
        &trusting.router(),
        ask(Method::GET, "/api/session", READ),
        "",
    )
    .await;
    assert!(session.contains(r#""accepts_tokens":false"#), "{session}");
    for (dashboard, access, read, write) in [
        (&trusting, None, 401, 401),
        (&trusting, Some(Access::read_only()), 200, 403),
        (
            &trusting,
            Some(Access::read_write().operator("ada")),
            200,
            204,
        ),
        (&tokens_only, Some(Access::read_write()), 401, 401),
    ] {
        let grant = move |mut request: AxumRequest, next: middleware::Next| {
            if let Some(access) = access.clone() {
                request.extensions_mut().insert(access);
            }
            next.run(request)
        };
        let router: Router = dashboard.router().layer(middleware::from_fn(grant));
        let request = |method, path| {
            let request = Request::builder().method(method).uri(path);
            request
                .header("content-type", "application/json")
                .header("x-tollgate-dashboard", "1")
        };
        let (head, _) = send(&router, request(Method::GET, "/api/state"), "").await;
        assert_eq!(head.status, read);
        let body = r#"{"mode":"enforce"}"#;
        let (head, _) = send(&router, request(Method::POST, "/api/mode"), body).await;
        assert_eq!(head.status, write);
    }
}

#[tokio::test]
async fn requests_of_other_sites_are_refused() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let request = |method: &Method, path: &str| {
        let request = Request::builder().method(method.clone()).uri(path);
        request
            .header("host", "ops.example.com")
            .header("authorization", format!("Bearer {WRITE}"))
            .header("content-type", "application/json")
    };
    for (method, path, body, _) in API {
        for (name, value) in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", ""),
            ("origin", "https://evil.example"),
            ("origin", "https://ops.example.com.evil.example"),
            ("origin", "https://ops.example.com:8443"),
            ("origin", "null"),
        ] {
            let foreign = request(&method, path)
                .header(name, value)
                .header("x-tollgate-dashboard", "1");
            let (head, reply) = send(&router, foreign, body).await;
            assert_eq!(head.status, StatusCode::FORBIDDEN, "{path} {name}: {value}");
            assert!(reply.starts_with(r#"{"error":"cross_site""#), "{reply}");
        }
        // A form of any site can send this.
        if method == Method::POST {
            let (head, _) = send(&router, request(&method, path), body).await;
            assert_eq!(head.status, StatusCode::FORBIDDEN, "{path}");
        }
    }
    assert_eq!(layer.mode(), RuleMode::Enforce);
    for (name, value) in [
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-site", "none"),
        ("origin", "https://ops.example.com"),
        ("x-other", "not a browser"),
    ] {
        let own = request(&Method::GET, "/api/state").header(name, value);
        assert_eq!(send(&router, own, "").await.0.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn no_response_log_or_debug_output_contains_a_token() {
    let layer = layer();
    let builder = Dashboard::builder(&layer).token(READ).write_token(WRITE);
    let mut seen = format!("{builder:?}");
    let dashboard = builder.build().expect("a dashboard");
    seen += &format!("{dashboard:?}");
    let router: Router = dashboard.router();
    logged();
    for token in [READ, WRITE, "wrong-0123456789abcdef"] {
        for (method, path, body, _) in API {
            let (head, reply) = send(&router, ask(method, path, token), body).await;
            seen += &format!("{head:?}{reply}");
        }
        for path in [
            "/",
            "/?boot.js",
            "/assets/app.mjs",
            "/?style.css",
            "/?icon.svg",
        ] {
            let (head, reply) = send(&router, ask(Method::GET, path, token), "").await;
            assert_eq!(head.status, StatusCode::OK, "{path}");
            seen += &format!("{head:?}{reply}");
        }
    }
    let log = logged().join("\n");
    assert!(
        log.contains("dashboard: mode changed"),
        "changes are logged: {log}"
    );
    seen += &log;
    for token in [READ, WRITE, "wrong-0123456789abcdef"] {
        assert!(!seen.contains(token), "{token}");
    }
}
