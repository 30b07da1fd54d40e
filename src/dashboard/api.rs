//! The endpoints of the state and of modes. `router.rs` has their paths.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension, State},
    response::{IntoResponse, Response},
};
use http::{Request, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::{diagnosis::log::event, rules::RuleMode};

use super::{
    access::Access,
    api_error::ApiError,
    guard::ApiGuard,
    history_view::HistoryView,
    json::{self, RequestBody, read_json},
    live,
    permits::PageReader,
    sampler,
    shared::SharedDashboard,
};

pub(super) type Result<T = Response, E = ApiError> = std::result::Result<T, E>;

/// Returns the rights of a request, also of one that has none: so the page learns that it must ask for a token.
pub(super) async fn session(
    State((shared, guard)): State<(Arc<SharedDashboard>, Arc<ApiGuard>)>,
    request: Request<Body>,
) -> Result {
    let (parts, _) = request.into_parts();
    let access = guard.rights(&parts)?;
    let access = access.as_ref();
    #[cfg(feature = "top-keys")]
    let has_top_keys = shared.watched.limiter().top_keys().is_some();
    #[cfg(not(feature = "top-keys"))]
    let has_top_keys = false;
    #[cfg(feature = "reload")]
    let has_rules = shared.rules.is_some();
    #[cfg(not(feature = "reload"))]
    let has_rules = false;
    Ok(json::response(&json!({
        "can_read": access.is_some(),
        "can_write": access.is_some_and(Access::can_write),
        "operator": access.and_then(Access::operator_name),
        "accepts_tokens": guard.accepts_tokens(),
        "has_modes": shared.watched.mode().is_some(),
        "has_top_keys": has_top_keys,
        "has_rules": has_rules,
    })))
}

/// Returns the present state.
pub(super) async fn state(State(shared): State<Arc<SharedDashboard>>) -> Response {
    sampler::start(&shared);
    json::response(&sampler::state(&shared))
}

/// Returns the numbers of the last minutes and hours.
pub(super) async fn history(State(shared): State<Arc<SharedDashboard>>) -> Response {
    sampler::start(&shared);
    let history = shared.history.lock();
    json::response(&HistoryView::of(&history))
}

/// Follows the state, once a second.
pub(super) async fn live(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(reader): Extension<PageReader>,
) -> Result {
    sampler::start(&shared);
    // Otherwise nginx collects events until its buffer is full.
    let no_buffer = [("x-accel-buffering", "no")];
    Ok((no_buffer, live::follow(&shared, reader)?).into_response())
}

/// Returns the keys that were denied most often.
#[cfg(feature = "top-keys")]
pub(super) async fn top_keys(State(shared): State<Arc<SharedDashboard>>) -> Result {
    let Some(snapshot) = shared.watched.limiter().top_keys() else {
        return Err(ApiError::not_found(
            "the limiter does not record top keys: build it with top_keys(..)",
        ));
    };
    let snapshot = snapshot.truncated(MAX_TOP_KEYS);
    Ok(json::response(&super::top_keys_view::top_keys(&snapshot)))
}

#[cfg(not(feature = "top-keys"))]
pub(super) async fn top_keys() -> Result {
    Err(ApiError::not_found(
        "tollgate was built without the feature top-keys",
    ))
}

/// Changes the mode of a rule or of the layer.
pub(super) async fn set_mode(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let ModeRequest { policy, mode } = read_json(request).await?;
    let layer = shared.watched.required_layer()?;
    match &policy {
        Some(policy) => layer.set_rule_mode(policy, mode)?,
        None => layer.set_mode(mode),
    }
    event!(
        INFO,
        "dashboard: mode changed",
        policy = policy.as_deref().unwrap_or("all"),
        mode = mode.name(),
        operator = access.operator_name().unwrap_or("unknown"),
    );
    Ok(done())
}

/// Changes the mode of the overload limit.
pub(super) async fn set_overload_mode(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let OverloadModeRequest { mode } = read_json(request).await?;
    let Some(overload) = &shared.overload else {
        return Err(ApiError::not_found(
            "this dashboard shows no overload limit: build it with overload(..)",
        ));
    };
    overload.set_mode(mode);
    event!(
        INFO,
        "dashboard: mode of the overload limit changed",
        mode = mode.name(),
        operator = access.operator_name().unwrap_or("unknown"),
    );
    Ok(done())
}

/// Changes the percentage of keys for which a rule denies requests.
pub(super) async fn set_rollout(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let RolloutRequest { policy, percent } = read_json(request).await?;
    let layer = shared.watched.required_layer()?;
    layer.set_rollout(&policy, percent)?;
    event!(
        INFO,
        "dashboard: rollout changed",
        policy = policy,
        percent = percent,
        operator = access.operator_name().unwrap_or("unknown"),
    );
    Ok(done())
}

pub(super) async fn unknown() -> ApiError {
    ApiError::not_found("the API has no such path")
}

pub(super) async fn wrong_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong_method",
        "this path of the API has another method",
    )
}

pub(super) fn done() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

// === Bodies ===

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModeRequest {
    #[serde(default)]
    policy: Option<String>,
    #[serde(with = "ModeName")]
    mode: RuleMode,
}

impl RequestBody for ModeRequest {
    const EXAMPLE: &str = r#"{"mode":"shadow"}"#;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverloadModeRequest {
    #[serde(with = "ModeName")]
    mode: RuleMode,
}

impl RequestBody for OverloadModeRequest {
    const EXAMPLE: &str = r#"{"mode":"shadow"}"#;
}

#[derive(Deserialize)]
#[serde(remote = "RuleMode", rename_all = "snake_case")]
enum ModeName {
    Off,
    Shadow,
    Enforce,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RolloutRequest {
    policy: String,
    percent: f64,
}

impl RequestBody for RolloutRequest {
    const EXAMPLE: &str = r#"{"policy":"api","percent":30}"#;
}

/// The longest list of a policy.
#[cfg(feature = "top-keys")]
const MAX_TOP_KEYS: usize = 20;
