//! Which endpoint a request is for.

#[cfg(feature = "axum")]
use http::Method;
use http::request::Parts;

use crate::key::Key;

use super::extractor::KeyExtractor;

/// The method and the route that matched, such as `GET /users/{id}`: one count per endpoint.
///
/// The route is axum's `MatchedPath`, so `/users/1` and `/users/2` count together. It is there for a layer on a route or
/// added with `route_layer` or `layer` after the routes; without it the key is missing, since counting by whole paths
/// would let a client open a new count with every path it makes up. For the same reason HEAD counts as GET, and all methods
/// that HTTP itself does not define count as one, `OTHER`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route;

impl KeyExtractor for Route {
    #[cfg(feature = "axum")]
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let route = parts.extensions.get::<axum::extract::MatchedPath>()?;
        Some(Key::new(family(&parts.method)).and(&Key::new(route.as_str())))
    }

    #[cfg(not(feature = "axum"))]
    fn extract(&self, _: &Parts) -> Option<Key> {
        None
    }

    fn label(&self) -> &str {
        "route"
    }

    fn tells_callers_apart(&self) -> bool {
        false
    }

    /// 404: no route matched.
    fn missing_status(&self) -> http::StatusCode {
        http::StatusCode::NOT_FOUND
    }
}

#[cfg(feature = "axum")]
fn family(method: &Method) -> &str {
    match *method {
        Method::HEAD => Method::GET.as_str(),
        Method::CONNECT
        | Method::DELETE
        | Method::GET
        | Method::OPTIONS
        | Method::PATCH
        | Method::POST
        | Method::PUT
        | Method::TRACE => method.as_str(),
        _ => "OTHER",
    }
}
