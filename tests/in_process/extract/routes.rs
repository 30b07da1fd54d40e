//! Keys from axum's routes: parameters and endpoints, in every kind of nesting.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::Body,
    extract::{RawPathParams, Request},
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::{any, get},
};
use http::{HeaderMap, Method, StatusCode, request::Parts};
use proptest::prelude::*;
use tollgate::{
    Key, RequestHead,
    extract::{
        Extracted::{self, Absent, Ambiguous},
        KeyExtractor, PathParam, Route,
    },
};
use tower::{Layer, ServiceExt};

// === PathParam ===

#[tokio::test]
async fn path_parameter_is_what_stands_in_its_place() {
    let app = Router::new()
        .route("/users/{id}", any(fine))
        .route("/users/{id}/posts/{post}", any(fine))
        .route("/{{odd}}/v{id}", any(fine))
        .route("/files/{owner}/{*id}", any(fine));
    for (path, expected) in [
        ("/users/7", Some("7")),
        ("/users/7?id=8", Some("7")),
        ("/users/%37", Some("7")),
        ("/users/a+b", Some("a+b")),
        ("/users/%zz", Some("%zz")),
        ("/users/7/posts/9", Some("7")),
        ("/{odd}/v12", Some("12")),
        ("/files/ada/a/b/c", Some("a/b/c")),
        ("/files/ada/a//c/", Some("a//c/")),
        ("/nowhere/7", None),
    ] {
        let seen = seen(&app, PathParam::new("id"), path).await;
        assert_eq!(seen, expected.map(Key::new), "{path}");
    }
}

#[tokio::test]
async fn path_parameter_that_is_no_text_is_a_key_of_its_bytes() {
    let app = Router::new().route("/users/{id}", any(fine));
    let key = async |path| seen(&app, PathParam::new("id"), path).await;
    assert_eq!(key("/users/%FF%00").await, Some(Key::new(b"\xFF\0")));
    assert_eq!(key("/users/%7B%7D").await, Some(Key::new("{}")));
    let long = format!("/users/{}", "%61".repeat(10_000));
    assert_eq!(key(&long).await, Some(Key::new("a".repeat(10_000))));
}

#[tokio::test]
async fn path_parameter_that_the_route_lacks_is_absent_and_one_that_it_has_twice_ambiguous() {
    let twice = Router::new().route("/{id}", any(fine));
    let app = Router::new()
        .route("/teams/{team}", any(fine))
        .nest("/org/{id}", twice);
    for (path, expected) in [("/teams/7", Absent), ("/org/1/2", Ambiguous), ("/", Absent)] {
        let key = extracted(&app, PathParam::new("id"), path).await;
        assert_eq!(key, expected, "{path}");
    }
    let nothing = || axum::http::Request::new(()).into_parts().0;
    let missing = PathParam::new("id");
    assert_eq!(missing.extract(&RequestHead::from(&nothing())), Absent);
    assert_eq!(missing.label(), "path:id");
    assert_eq!(
        missing.missing_status(&RequestHead::from(&nothing())),
        StatusCode::NOT_FOUND
    );
}

/// A layer around the outer router sees the whole path; one inside a nested router sees its own part of it.
#[tokio::test]
async fn path_parameters_are_the_same_inside_and_outside_of_nested_routers() {
    for prefix in ["/org/{org}", "/org/{org}/"] {
        for (name, expected) in [("org", "acme"), ("user", "ada b"), ("rest", "x/y")] {
            let log = Log::default();
            let inner = Router::new()
                .route("/", any(fine))
                .route("/users/{user}", any(fine))
                .route("/users/{user}/{*rest}", any(fine))
                .layer(log.layer(PathParam::new(name)));
            let nested = Router::new()
                .nest(prefix, inner.clone())
                .layer(log.layer(PathParam::new(name)));
            let twice = Router::new().nest("/api/{version}", nested.clone());
            let mounted = Router::new().nest_service("/api/{version}", nested.clone());
            for (app, start) in [(&nested, ""), (&twice, "/api/v1"), (&mounted, "/api/v1")] {
                let path = format!("{start}/org/ac%6De/users/ada%20b/x/y");
                assert_eq!(status(app, &path).await, 200, "{path}");
                let expected = Some(Key::new(expected));
                assert_eq!(log.take(), [expected, expected], "{name} in {path}");
            }
        }
    }
}

#[tokio::test]
async fn path_parameters_of_a_nested_root_are_found() {
    let log = Log::default();
    let inner = Router::new()
        .route("/", any(fine))
        .layer(log.layer(PathParam::new("org")));
    let app = Router::new().nest("/org/{org}", inner.clone());
    let service = Router::new().nest_service("/org/{org}", inner);
    for (app, path) in [
        (&app, "/org/acme"),
        (&service, "/org/acme"),
        (&service, "/org/acme/"),
    ] {
        assert_eq!(status(app, path).await, 200, "{path}");
        assert_eq!(log.take(), [Some(Key::new("acme"))], "{path}");
    }
}

/// A rewritten path may give no key, but never that of another.
#[tokio::test]
async fn path_rewritten_between_routers_gives_what_the_inner_route_saw() {
    let log = Log::default();
    let inner = Router::new()
        .route("/people/{id}", any(fine))
        .layer(log.layer(PathParam::new("id")));
    let rewritten = tower::util::MapRequestLayer::new(|mut request: Request| {
        let path = request.uri().path().replace("/users/", "/people/new-");
        *request.uri_mut() = path.parse().expect("it is a uri");
        request
    })
    .layer(inner);
    let app = Router::new().nest_service("/api", rewritten);
    assert_eq!(status(&app, "/api/users/7").await, 200);
    assert_eq!(log.take(), [Some(Key::new("new-7"))]);
}

#[tokio::test]
async fn path_rewritten_after_its_route_was_found_is_not_taken_for_another() {
    for (rewritten, expected) in [
        ("/users/8", Some("8")),
        ("/usersx/8", None),
        ("/user/8", None),
        ("/users", None),
        ("/8", None),
    ] {
        let log = Log::default();
        let rewrite = tower::util::MapRequestLayer::new(move |mut request: Request| {
            *request.uri_mut() = http::Uri::from_static(rewritten);
            request
        });
        let app = Router::new()
            .route("/users/{id}", any(fine))
            .layer(log.layer(PathParam::new("id")))
            .layer(rewrite);
        assert_eq!(status(&app, "/users/7").await, 200);
        assert_eq!(log.take(), [expected.map(Key::new)], "{rewritten}");
    }
}

fn segment() -> impl Strategy<Value = String> {
    "[a-c%.]{1,3}|%(41|6[12]|2F|7B)|v[0-9]"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The reference is axum: what its handlers get.
    #[test]
    fn path_parameters_are_those_that_handlers_get(
        segments in prop::collection::vec(segment(), 1..6),
        slash: bool,
    ) {
        let path = format!("/{}{}", segments.join("/"), if slash { "/" } else { "" });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for name in ["x", "y", "z", "rest"] {
                let inner = Router::new()
                    .route("/", any(parameters))
                    .route("/{y}", any(parameters))
                    .route("/a/{y}", any(parameters))
                    .route("/v{y}/{z}", any(parameters))
                    .route("/{y}/{z}/{*rest}", any(parameters));
                let log = Log::default();
                let app = Router::new()
                    .nest("/{x}", inner.clone().layer(log.layer(PathParam::new(name))))
                    .nest_service("/v1/b", inner.layer(log.layer(PathParam::new(name))))
                    .layer(log.layer(PathParam::new(name)));
                let response = app.oneshot(request(Method::GET, &path)).await.expect("infallible");
                let is_found = response.headers().contains_key("x-found");
                let of_handler = response
                    .headers()
                    .get(format!("x-{name}"))
                    .map(|value| Key::new(value.as_bytes()));
                let seen = log.take();
                if is_found {
                    // the layer around a mounted service sees no route
                    let innermost = seen.last().expect("a layer was there");
                    prop_assert_eq!(*innermost, of_handler, "{} in {}", name, &path);
                    prop_assert!(seen.iter().flatten().all(|key| Some(*key) == of_handler));
                }
            }
            Ok(())
        })?;
    }
}

/// Tells the parameters in headers.
async fn parameters(parameters: RawPathParams) -> impl IntoResponse {
    let mut headers = HeaderMap::new();
    headers.insert("x-found", http::HeaderValue::from_static("yes"));
    for (name, value) in &parameters {
        let name: http::HeaderName = format!("x-{name}").parse().expect("it is a name");
        let value = http::HeaderValue::from_bytes(value.as_bytes()).expect("HTTP allows it");
        headers.insert(name, value);
    }
    headers
}

// === Route ===

#[tokio::test]
async fn unmatched_requests_share_a_count_by_method_and_matched_ones_do_not() {
    let app = Router::new()
        .route("/users/{id}", any(fine))
        .route("/{unmatched}", any(fine))
        .fallback(fine);
    let key = async |method: &str, path: &str| {
        let log = Log::default();
        let app = app.clone().layer(log.layer(Route.or_unmatched()));
        let method = Method::from_bytes(method.as_bytes()).expect("it is a method");
        let response = app.oneshot(request(method, path)).await;
        assert_eq!(response.expect("infallible").status(), 200);
        log.take()[0].expect("it is never missing")
    };
    assert_eq!(key("GET", "/users/1").await.as_str(), "GET|/users/%7Bid%7D");
    assert_eq!(key("GET", "/a/b").await.as_str(), "GET|?");
    assert_eq!(key("GET", "/a/c?d").await, key("HEAD", "/b/c").await);
    assert_eq!(key("BREW", "/a/b").await, key("WHEN", "/b/c").await);
    assert_ne!(key("GET", "/a/b").await, key("POST", "/a/b").await);
    for look in ["/%3F", "/unmatched"] {
        assert_ne!(key("GET", look).await, key("GET", "/a/b").await, "{look}");
    }
}

#[test]
fn made_up_methods_and_paths_open_ten_counts_at_most_where_nothing_matches() {
    let mut keys = std::collections::HashSet::new();
    let methods = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW",
        "get", "G", "OTHER",
    ];
    for method in methods {
        for path in ["/", "/a", "/b?c", "/%7B"] {
            let request = request(
                Method::from_bytes(method.as_bytes()).expect("a method"),
                path,
            );
            keys.insert(
                Route
                    .or_unmatched()
                    .extract(&RequestHead::from(&request.into_parts().0))
                    .found(),
            );
        }
    }
    assert!(keys.len() <= 9, "{}", keys.len());
    assert!(!keys.contains(&None));
}

#[tokio::test]
async fn route_in_nested_routers_is_the_whole_route() {
    let log = Log::default();
    let inner = Router::new()
        .route("/users/{id}", get(fine))
        .layer(log.layer(Route));
    let nested = Router::new().nest("/api/{version}", inner.clone());
    let mounted = Router::new().nest_service("/api/{version}", inner);
    for app in [nested, mounted] {
        assert_eq!(status(&app, "/api/v1/users/7").await, 200);
        let expected = Key::new("GET").and(&Key::new("/api/{version}/users/{id}"));
        assert_eq!(log.take(), [Some(expected)]);
    }
}

/// What a layer around a mounted service can know: there is no route yet.
#[tokio::test]
async fn layer_around_a_mounted_service_sees_no_route() {
    let log = Log::default();
    let service = Router::new().route("/users/{id}", get(fine));
    let app = Router::new()
        .nest_service("/api", service)
        .layer(log.layer(Route))
        .layer(log.layer(Route.or_unmatched()));
    assert_eq!(status(&app, "/api/users/7").await, 200);
    assert_eq!(
        log.take(),
        [Some(Key::new("GET").and(&Key::UNIDENTIFIED)), None]
    );
}

// === What layers see ===

/// The keys that layers found, outermost first.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<Extracted<Key>>>>);

impl Log {
    fn layer<E: KeyExtractor + Clone>(
        &self,
        extractor: E,
    ) -> impl Layer<
        axum::routing::Route,
        Service: tower::Service<
            Request,
            Response = axum::response::Response,
            Error = std::convert::Infallible,
            Future: Send + 'static,
        > + Clone
                     + Send
                     + Sync
                     + 'static,
    > + Clone
    + Send
    + Sync
    + 'static {
        let log = self.clone();
        from_fn(move |request: Request, next: Next| {
            let (head, body) = request.into_parts();
            log.add(extractor.extract(&RequestHead::from(&head)));
            next.run(Request::from_parts(head, body))
        })
    }

    fn add(&self, key: Extracted<Key>) {
        self.0.lock().expect("no panic holds it").push(key);
    }

    fn take(&self) -> Vec<Option<Key>> {
        let keys = std::mem::take(&mut *self.0.lock().expect("no panic holds it"));
        keys.into_iter().map(Extracted::found).collect()
    }
}

/// What a layer around the router finds.
async fn extracted(
    app: &Router,
    extractor: impl KeyExtractor + Clone,
    path: &str,
) -> Extracted<Key> {
    let log = Log::default();
    status(&app.clone().layer(log.layer(extractor)), path).await;
    let keys = log.0.lock().expect("no panic holds it");
    keys[0]
}

/// The key that a layer around the router finds.
async fn seen(app: &Router, extractor: impl KeyExtractor + Clone, path: &str) -> Option<Key> {
    let log = Log::default();
    status(&app.clone().layer(log.layer(extractor)), path).await;
    log.take()[0]
}

async fn status(app: &Router, path: &str) -> u16 {
    let response = app.clone().oneshot(request(Method::GET, path)).await;
    response.expect("infallible").status().as_u16()
}

fn request(method: Method, path: &str) -> Request {
    let request = Request::builder().method(method).uri(path);
    request.body(Body::empty()).expect("it is well formed")
}

async fn fine(head: Parts) -> &'static str {
    drop(head);
    "fine"
}
