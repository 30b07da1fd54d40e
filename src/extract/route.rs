//! Which endpoint a request is for.

use http::{Method, StatusCode, request::Parts};

use crate::{diagnosis::Code, key::Key};

use super::{extracted::Extracted, extractor::KeyExtractor};

/// The method and the route that matched, such as `GET /users/{id}`: one count per endpoint.
///
/// The route is axum's `MatchedPath`, so `/users/1` and `/users/2` count together. HEAD counts as GET, and all methods that
/// HTTP itself does not define count as one, `OTHER`.
///
/// # Requests without a route
///
/// axum names no route for what `fallback_service` and `nest_service` serve (but for the mount point itself), nor for
/// paths that end in a 404. Such a request is served like any other, and counts by its method alone, together with all
/// others without a route: at most nine counts more, whatever paths are made up. With
/// [`on_missing_key`](crate::rules::Rule::on_missing_key) the rule chooses otherwise; rejected, they get 404.
///
/// A layer that is put around a whole router, and not on it, sees no route at all. That is reported as
/// [`Code::NoRoute`]: add it with `Router::layer` or `route_layer`, after the routes, or take
/// [`or_unmatched`](Self::or_unmatched) where one count per method is meant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route;

impl Route {
    /// The same key as that of [`Route`], without a warning where no request has a route.
    ///
    /// For stacks that match no routes, and for a layer around a whole router. The key is never absent, so
    /// [`on_missing_key`](crate::rules::Rule::on_missing_key) has no effect.
    #[must_use]
    pub const fn or_unmatched(self) -> RouteOrUnmatched {
        RouteOrUnmatched
    }
}

impl KeyExtractor for Route {
    #[cfg(feature = "axum")]
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        let route = parts.extensions.get::<axum::extract::MatchedPath>();
        route
            .map(|route| Key::new(family(&parts.method)).and(&Key::new(route.as_str())))
            .into()
    }

    #[cfg(not(feature = "axum"))]
    fn extract(&self, _: &Parts) -> Extracted<Key> {
        Extracted::Absent
    }

    /// All requests of the method that have no route, together.
    fn default_key(&self, parts: &Parts) -> Option<Key> {
        Some(unmatched(parts))
    }

    fn label(&self) -> &str {
        "route"
    }

    fn tells_callers_apart(&self) -> bool {
        false
    }

    /// 404: no route matched.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::NOT_FOUND
    }

    /// [`Code::NoRoute`] for a request that has been through no router.
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        #[cfg(feature = "axum")]
        let is_routed = parts
            .extensions
            .get::<axum::extract::OriginalUri>()
            .is_some();
        #[cfg(not(feature = "axum"))]
        let is_routed = false;
        let has_route = self.extract(parts) != Extracted::Absent;
        (!has_route && !is_routed).then_some(Code::NoRoute)
    }
}

/// No route can be called as what these are counted under.
fn unmatched(parts: &Parts) -> Key {
    Key::new(family(&parts.method)).and(&Key::UNIDENTIFIED)
}

// === RouteOrUnmatched ===

/// The method and the route, or the method alone when no route matched: see [`Route::or_unmatched`]. Never missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteOrUnmatched;

impl KeyExtractor for RouteOrUnmatched {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        Route.extract(parts).or_else(|| unmatched(parts).into())
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
