//! Keys from the matched route.
//!
//! # Why does `Route` count requests that no route serves?
//!
//! axum names no route for a mounted service or a fallback, so their requests look like invented paths. An earlier version
//! responded to both with 404: invented paths opened no counts, but every `nest_service` behind the layer failed. One count per
//! method does not let them open counts either, and breaks nothing. The key is still absent, so a rule that chooses to skip,
//! share or reject is respected.

use http::{Method, StatusCode};

use crate::{diagnosis::Code, key::Key, request::RequestHead};

use super::{caller_id::CallerId, extracted::Extracted, extractor::KeyExtractor};

/// The method and the matched route, such as `GET /users/{id}`: one count per endpoint.
///
/// The route is axum's `MatchedPath`, so `/users/1` and `/users/2` are counted together. HEAD is counted as GET, and all
/// methods that HTTP itself does not define are counted as `OTHER`.
///
/// # Requests without a route
///
/// axum reports no route for requests that `fallback_service` or `nest_service` serve (except the mount point itself), nor
/// for paths that end in a 404. Such requests are counted by their method alone, which adds at most nine counts, whatever
/// paths clients make up. With [`on_missing_key`](crate::rules::Rule::on_missing_key) the rule can choose otherwise;
/// if it rejects them, the response is 404.
///
/// A layer that wraps a whole router, instead of being added to it, never sees a route. That is reported as
/// [`Code::NoRoute`]: add the layer with `Router::layer` or `route_layer` after the routes, or use
/// [`or_unmatched`](Self::or_unmatched) to count by method on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route;

impl Route {
    /// Makes the same keys as [`Route`], without a warning if no request has a route.
    ///
    /// For services without a router, and for a layer that wraps a whole router. The key is never absent, so
    /// [`on_missing_key`](crate::rules::Rule::on_missing_key) has no effect.
    #[must_use]
    pub const fn or_unmatched(self) -> RouteOrUnmatched {
        RouteOrUnmatched
    }
}

impl KeyExtractor for Route {
    #[cfg(feature = "axum")]
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let route = head.extensions.get::<axum::extract::MatchedPath>();
        route
            .map(|route| Key::new(method_name(head.method)).and(&Key::new(route.as_str())))
            .into()
    }

    #[cfg(not(feature = "axum"))]
    fn extract(&self, _: &RequestHead<'_>) -> Extracted<Key> {
        Extracted::Absent
    }

    /// The key of a text such as `GET /users/{id}`.
    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        let route = caller.value().and_then(|text| text.split_once(' '));
        Vec::from_iter(route.map(|(method, route)| Key::new(method).and(&Key::new(route))))
    }

    /// One key per method for all requests without a route.
    fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
        Some(unmatched_key(head))
    }

    fn label(&self) -> &str {
        "route"
    }

    fn is_per_caller(&self) -> bool {
        false
    }

    /// 404: no route matched.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        StatusCode::NOT_FOUND
    }

    /// [`Code::NoRoute`] for a request that no router has handled yet.
    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        #[cfg(feature = "axum")]
        let is_routed = head
            .extensions
            .get::<axum::extract::OriginalUri>()
            .is_some();
        #[cfg(not(feature = "axum"))]
        let is_routed = false;
        let has_route = self.extract(head) != Extracted::Absent;
        (!has_route && !is_routed).then_some(Code::NoRoute)
    }
}

/// Returns the key of a method's requests without a route. No route has this key.
fn unmatched_key(head: &RequestHead<'_>) -> Key {
    Key::new(method_name(head.method)).and(&Key::UNIDENTIFIED)
}

// === RouteOrUnmatched ===

/// The method and the matched route, or the method alone without one: see [`Route::or_unmatched`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteOrUnmatched;

impl KeyExtractor for RouteOrUnmatched {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        Route.extract(head).or_else(|| unmatched_key(head).into())
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        Route.keys_of(caller)
    }

    fn label(&self) -> &str {
        "route"
    }

    fn is_per_caller(&self) -> bool {
        false
    }
}

/// Returns the name that a method is counted under, one of nine.
fn method_name(method: &Method) -> &str {
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
