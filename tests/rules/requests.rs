//! Rules with matchers, skipped and forbidden requests, in process and on Redis.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tollgate::{
    Decision, Key, Policy, Quota, RateLimitLayer, RequestHead,
    extract::Global,
    matching::{HasHeader, Methods, PathPattern, Preflight},
    rejection::{Reason, Rejection},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::middleware::witness::{World, everywhere};

everywhere! {
    rule_counts_only_what_all_its_matchers_match
    costs_go_by_the_first_matcher_that_matches_and_in_doubt_by_the_dearest
    forbidden_request_gets_403_and_is_charged_nothing
    skipped_request_is_not_counted_and_carries_no_headers
    rules_with_different_matchers_are_decided_all_or_nothing
}

async fn rule_counts_only_what_all_its_matchers_match(world: World) {
    let rule = plan()
        .key(Global)
        .when(PathPattern::prefix("/api"))
        .when(Methods::new([Method::POST]))
        .unless(HasHeader::new("x-dry-run"))
        .unless(PathPattern::new("/api/free"))
        .unless(|head: &RequestHead| head.uri.query() == Some("free"));
    let app = world.layer([rule]).layer(service_fn(fine));
    for (method, uri, header, left) in [
        ("POST", "/api/x", "x-other", 9),
        ("POST", "/api", "x-other", 8),
        ("GET", "/api/x", "x-other", 8),
        ("POST", "/apis", "x-other", 8),
        ("POST", "/api/x", "x-dry-run", 8),
        ("POST", "/api/x?free", "x-other", 8),
        ("POST", "/api/x?paid", "x-other", 7),
        ("POST", "/api/free", "x-other", 7),
        ("POST", "/api/free/", "x-other", 6),
    ] {
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(header, "1").body(()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("it answers");
        assert_eq!(response.status(), 200);
        assert_eq!(
            world.remaining(&plan()).await,
            left,
            "{method} {uri} {header}"
        );
    }
}

async fn costs_go_by_the_first_matcher_that_matches_and_in_doubt_by_the_dearest(world: World) {
    let policy = Policy::new("plan", Quota::per_hour(1_000)).cost(2);
    let rule = policy
        .clone()
        .key(Global)
        .cost_by(|head: &RequestHead| if head.uri.query().is_some() { 3 } else { 2 })
        .cost_when(PathPattern::new("/reports/{id}"), 50)
        .cost_when(Methods::new([Method::POST]), 20)
        .cost_when(PathPattern::new("/reports/free"), 0)
        .cost_when(PathPattern::new("/cheap"), 1);
    let app = world.layer([rule]).layer(service_fn(fine));
    let mut left = 1_000;
    for (method, uri, cost) in [
        ("GET", "/", 2),
        ("GET", "/?q", 3),
        ("GET", "/reports/7", 50),
        ("POST", "/reports/7", 50),
        ("GET", "/reports/free", 50),
        ("POST", "/", 20),
        // written otherwise: what it could cost counts
        ("GET", "/Reports/7", 50),
        ("GET", "//reports/7", 50),
        ("POST", "/x/../reports/7", 50),
        ("GET", "/reports%2F7", 50),
        ("GET", "/cheap?q", 1),
        ("GET", "/Cheap", 2),
        ("GET", "/Cheap?q", 3),
    ] {
        ask(&app, method, uri).await;
        left -= cost;
        assert_eq!(world.remaining(&policy).await, left, "{method} {uri}");
    }
}

async fn rules_with_different_matchers_are_decided_all_or_nothing(world: World) {
    let login = Policy::new("login", Quota::per_hour(1));
    let app = world
        .layer([
            plan().key(Global),
            login.key(Global).when(PathPattern::new("/login")),
        ])
        .layer(service_fn(fine));
    let mut statuses = Vec::new();
    for uri in ["/login", "/login", "/", "//LOGIN/", "/"] {
        statuses.push(ask(&app, "GET", uri).await.status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 200, 429, 200]);
    assert_eq!(
        world.remaining(&plan()).await,
        7,
        "denied ones cost nothing"
    );
}

async fn forbidden_request_gets_403_and_is_charged_nothing(world: World) {
    let reached = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&reached);
    let rule = plan().key(move |_: &RequestHead| {
        asked.fetch_add(1, Ordering::Relaxed);
        Some(Key::GLOBAL)
    });
    let layer = RateLimitLayer::builder()
        .store(world.store.clone())
        .forbid(PathPattern::prefix("/admin"))
        .forbid(HasHeader::new("x-bad"))
        .skip(PathPattern::prefix("/admin"))
        .policy(rule)
        .build()
        .expect("it is well set up");
    let app = layer.layer(service_fn(fine));
    for uri in [
        "/admin",
        "/admin/users",
        "/ADMIN",
        "/%61dmin/users",
        "//admin/",
    ] {
        let response = ask(&app, "GET", uri).await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{uri}");
        let rejection = response.extensions().get::<Rejection>();
        let rejection = rejection.expect("outer layers see why");
        assert_eq!(rejection.reason(), &Reason::Forbidden { policy: None });
        assert_eq!(rejection.code(), "forbidden");
        assert!(rejection.decision().is_none());
        assert!(response.headers().get("x-ratelimit-limit").is_none());
        assert!(response.headers().get("retry-after").is_none());
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(
            body.to_bytes(),
            r#"{"error":"forbidden","message":"access denied","retry_after":null}"#
        );
    }
    let request = Request::get("/")
        .header("x-bad", "")
        .body(())
        .expect("a request");
    let response = app.clone().oneshot(request).await.expect("it answers");
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(reached.load(Ordering::Relaxed), 0, "no rule was asked");
    assert_eq!(world.remaining(&plan()).await, 10);
    assert_eq!(ask(&app, "GET", "/").await.status(), 200);
    assert_eq!(world.remaining(&plan()).await, 9);
}

async fn skipped_request_is_not_counted_and_carries_no_headers(world: World) {
    let layer = RateLimitLayer::builder()
        .store(world.store.clone())
        .skip(PathPattern::new("/health"))
        .skip(Preflight)
        .policy(plan().key(Global))
        .build()
        .expect("it is well set up");
    let app = layer.layer(service_fn(fine));
    for _ in 0..20 {
        let response = ask(&app, "GET", "/health").await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().get("x-ratelimit-limit").is_none());
        assert!(response.extensions().get::<Seen>().is_none(), "no decision");
    }
    assert_eq!(world.remaining(&plan()).await, 10);
    // written otherwise it is limited
    for (index, uri) in [
        "/health/",
        "/HEALTH",
        "//health",
        "/he%61lth",
        "/x/../health",
    ]
    .into_iter()
    .enumerate()
    {
        let response = ask(&app, "GET", uri).await;
        assert!(response.extensions().get::<Seen>().is_some());
        assert_eq!(world.remaining(&plan()).await, 9 - index as u64, "{uri}");
    }
}

fn plan() -> Policy {
    Policy::new("plan", Quota::per_hour(10))
}

/// Marks an answer whose request carried a decision.
#[derive(Clone)]
struct Seen;

async fn fine(request: Request<()>) -> Result<Response<Body>, std::convert::Infallible> {
    let mut response = Response::new(Body::empty());
    if request.extensions().get::<Decision>().is_some() {
        response.extensions_mut().insert(Seen);
    }
    Ok(response)
}

async fn ask<S, B>(app: &S, method: &str, uri: &str) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = std::convert::Infallible> + Clone,
{
    let request = Request::builder().method(method).uri(uri);
    let request = request.body(()).expect("a request");
    app.clone().oneshot(request).await.expect("it answers")
}
