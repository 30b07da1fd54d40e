//! The dashboard over HTTP: what it shows and changes, and whom it refuses.

mod actions;
mod behind_nginx;
mod blocks;
mod browser;
mod callers;
mod charts;
mod connection;
mod counted_keys;
mod display;
mod forwarded;
mod guards;
mod hostile;
mod live;
mod mounting;
mod numbers;
mod operations;
mod outages;
mod overload;
mod page;
mod pictures;
mod rule_editor;
mod rule_versions;
mod site;
mod wrong_tokens;

use std::time::Duration;

use axum::{Router, body::Body};
use http::{Method, Request, StatusCode, request, response::Parts};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer,
    dashboard::{Dashboard, DashboardBuilder},
    extract::Header,
    overload::Overload,
    policy::Penalty,
};
use tower::{Layer, ServiceExt, service_fn};

const READ: &str = "read-0123456789abcdef";
const WRITE: &str = "write-0123456789abcdef";

/// Every path of the API behind the guard, with its method, a valid body, and whether it needs write access.
const API: [(Method, &str, &str, bool); 13] = [
    (Method::GET, "/api/state", "", false),
    (Method::GET, "/api/history", "", false),
    (Method::GET, "/api/live", "", false),
    (Method::GET, "/api/top-keys", "", false),
    (Method::POST, "/api/key", r#"{"key":"ada"}"#, false),
    (Method::GET, "/api/blocks", "", true),
    (
        Method::POST,
        "/api/key/block",
        r#"{"key":"bob","seconds":60}"#,
        true,
    ),
    (
        Method::POST,
        "/api/key/refund",
        r#"{"key":"ada","policy":"api","units":1}"#,
        true,
    ),
    (Method::POST, "/api/key/reset", r#"{"key":"ada"}"#, true),
    (Method::POST, "/api/key/unblock", r#"{"key":"bob"}"#, true),
    (Method::POST, "/api/mode", r#"{"mode":"off"}"#, true),
    (
        Method::POST,
        "/api/overload/mode",
        r#"{"mode":"off"}"#,
        true,
    ),
    (
        Method::POST,
        "/api/rollout",
        r#"{"policy":"api","percent":30}"#,
        true,
    ),
];

/// A layer with one policy: three requests an hour for each caller.
fn layer() -> RateLimitLayer {
    let policy = Policy::new("api", Quota::per_hour(3));
    let layer = RateLimitLayer::builder().policy(policy.key(Header::new("x-caller")));
    layer.build().expect("a layer")
}

/// A layer whose policy bans a caller with its first denial, for an hour.
fn banning_layer() -> RateLimitLayer {
    let hour = Duration::from_secs(3_600);
    let policy =
        Policy::new("login", Quota::per_hour(1)).penalty(Penalty::after(1, hour).ban(hour));
    let layer = RateLimitLayer::builder().policy(policy.key(Header::new("x-caller")));
    layer.build().expect("a layer")
}

fn guarded(builder: DashboardBuilder) -> Dashboard {
    let overload = Overload::adaptive().build().expect("usable settings");
    let builder = builder.overload(&overload);
    let dashboard = builder.token(READ).write_token(WRITE).build();
    dashboard.expect("a dashboard")
}

/// Sends a request of this caller through the layer.
async fn call(layer: &RateLimitLayer, caller: &str) -> StatusCode {
    let inner = service_fn(async |_: Request<Body>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
    });
    let request = Request::get("/").header("x-caller", caller);
    let request = request.body(Body::empty()).expect("a request");
    let response = layer.layer(inner).oneshot(request).await;
    response.expect("infallible").status()
}

/// A request with what every page of the dashboard sends.
fn ask(method: Method, path: &str, token: &str) -> request::Builder {
    let request = Request::builder().method(method).uri(path);
    request
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .header("sec-fetch-site", "same-origin")
        .header("x-tollgate-dashboard", "1")
}

async fn send(router: &Router, request: request::Builder, body: &str) -> (Parts, String) {
    let request = request.body(Body::from(body.to_owned()));
    respond(router, request.expect("a request")).await
}

/// Returns a response with its body, of a stream the first part.
async fn respond(router: &Router, request: Request<Body>) -> (Parts, String) {
    let response = router.clone().oneshot(request).await.expect("infallible");
    let (head, mut body) = response.into_parts();
    let is_stream = head.headers.get("content-type");
    let is_stream = is_stream.is_some_and(|value| value == "text/event-stream");
    let bytes = if is_stream {
        let frame = body.frame().await.expect("a state").expect("infallible");
        frame.into_data().expect("data")
    } else {
        body.collect().await.expect("a whole body").to_bytes()
    };
    (head, String::from_utf8(bytes.to_vec()).expect("text"))
}

async fn get(router: &Router, path: &str) -> Value {
    let (head, body) = send(router, ask(Method::GET, path, READ), "").await;
    assert_eq!(head.status, StatusCode::OK, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

async fn post(router: &Router, path: &str, body: &str) -> (StatusCode, Value) {
    let (head, body) = send(router, ask(Method::POST, path, WRITE), body).await;
    let value = match body.is_empty() {
        true => Value::Null,
        false => serde_json::from_str(&body).expect("JSON"),
    };
    (head.status, value)
}

fn key_of(identity: &str) -> Key {
    Key::new(identity)
}
