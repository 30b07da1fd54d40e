//! Which endpoint a request is for.

use http::{Method, StatusCode, request::Parts};

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

impl Route {
    /// The same, and all requests without a route together, by method: at most nine counts more, whatever paths are
    /// made up.
    ///
    /// For a layer around a whole router, where fallbacks answer too, and for stacks that match no routes. No route can
    /// be called as what these are counted under.
    #[must_use]
    pub const fn or_unmatched(self) -> RouteOrUnmatched {
        RouteOrUnmatched
    }
}

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
    fn missing_status(&self) -> StatusCode {
        StatusCode::NOT_FOUND
    }
}

// === RouteOrUnmatched ===

/// The method and the route, or the method alone when no route matched: see [`Route::or_unmatched`]. Never missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteOrUnmatched;

impl KeyExtractor for RouteOrUnmatched {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let unmatched = || Key::new(family(&parts.method)).and(&Key::UNIDENTIFIED);
        Some(Route.extract(parts).unwrap_or_else(unmatched))
    }

    fn label(&self) -> &str {
        "route"
    }

    fn tells_callers_apart(&self) -> bool {
        false
    }
}

/// One of nine names.
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
