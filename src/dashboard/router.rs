//! The routes, and what all responses have in common.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    middleware::{Next, from_fn, from_fn_with_state, map_response},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use http::{
    HeaderName, Request, StatusCode, Uri,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        X_FRAME_OPTIONS,
    },
};

use super::{
    access::Access,
    api::{self, Result},
    api_error::ApiError,
    guard::ApiGuard,
    keys, page,
    shared::SharedDashboard,
};

#[cfg(feature = "reload")]
use super::rules;

/// Returns the routes of the page and of its API.
pub(super) fn routes(shared: Arc<SharedDashboard>, guard: Arc<ApiGuard>) -> Router {
    let writes = Router::new()
        .route("/api/blocks", get(keys::blocks))
        .route("/api/key/block", post(keys::block))
        .route("/api/key/refund", post(keys::refund))
        .route("/api/key/reset", post(keys::reset))
        .route("/api/key/unblock", post(keys::unblock))
        .route("/api/mode", post(api::set_mode))
        .route("/api/overload/mode", post(api::set_overload_mode))
        .route("/api/rollout", post(api::set_rollout));
    #[cfg(feature = "reload")]
    let writes = writes
        .route("/api/rules/push", post(rules::push))
        .route("/api/rules/roll-back", post(rules::roll_back));
    let writes = writes
        .method_not_allowed_fallback(api::wrong_method)
        .layer(from_fn(require_write));
    let session = Router::new()
        .route("/api/session", get(api::session))
        .method_not_allowed_fallback(api::wrong_method)
        .with_state((Arc::clone(&shared), Arc::clone(&guard)));
    let reads = Router::new()
        .route("/api/state", get(api::state))
        .route("/api/history", get(api::history))
        .route("/api/live", get(api::live))
        .route("/api/top-keys", get(api::top_keys))
        .route("/api/key", post(keys::look_up))
        .route("/api/{*unknown}", any(api::unknown));
    #[cfg(feature = "reload")]
    let reads = reads
        .route("/api/rules", get(rules::versions))
        .route("/api/rules/{version}", get(rules::version));
    let api = reads
        .merge(writes)
        .method_not_allowed_fallback(api::wrong_method)
        .with_state(shared)
        .layer(from_fn_with_state(Arc::clone(&guard), admit));
    Router::new()
        .route("/", get(async |uri: Uri| page::part(uri.query())))
        .route("/assets/{module}", get(page::module))
        .merge(session)
        .merge(api)
        .layer(from_fn_with_state(guard, check_host))
        .layer(map_response(secured))
}

/// Passes a request to a host of the dashboard.
async fn check_host(
    State(guard): State<Arc<ApiGuard>>,
    request: Request<Body>,
    next: Next,
) -> Result {
    let (parts, body) = request.into_parts();
    guard.hosts.check(&parts)?;
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Passes a request with rights to the API.
async fn admit(State(guard): State<Arc<ApiGuard>>, request: Request<Body>, next: Next) -> Result {
    let (mut parts, body) = request.into_parts();
    let access = guard.admit(&parts)?;
    parts.extensions.insert(guard.reader(&parts, &access));
    parts.extensions.insert::<Access>(access);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Refuses a request that may only read. All routes that change something are behind it.
async fn require_write(request: Request<Body>, next: Next) -> Result {
    let access = request.extensions().get::<Access>();
    if access.is_some_and(Access::can_write) {
        return Ok(next.run(request).await);
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "read_only",
        "this needs write access: use the write token",
    ))
}

/// Adds the headers of all responses: nothing is cached or framed, and nothing from elsewhere is loaded or sent.
async fn secured(response: Response) -> Response {
    (HEADERS, response).into_response()
}

const HEADERS: [(HeaderName, &str); 7] = [
    (CACHE_CONTROL, "no-store"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
];
