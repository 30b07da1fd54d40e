//! The endpoints of the rule set: its versions, and how to replace it.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension, Path, State, rejection::PathRejection},
    response::Response,
};
use http::{Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    config::{
        Format,
        reload::{NewRules, ReloadError, RuleVersion, RulesHandle},
    },
    diagnosis::log::event,
    error::ErrorKind,
};

use super::{
    access::Access,
    api::Result,
    api_error::ApiError,
    json::{self, MAX_RULES, RequestBody, read_json, read_json_up_to},
    shared::SharedDashboard,
};

/// Returns the versions, without their texts. If the source is unavailable, only the current one.
pub(super) async fn versions(State(shared): State<Arc<SharedDashboard>>) -> Result {
    let rules = handle(&shared)?;
    let (history, source_error) = match rules.history().await {
        Ok(history) => (history, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let state = rules.state();
    let present = state.version().number();
    let stored = history.last().map_or(0, RuleVersion::number);
    // A version in an unknown format is not in the history.
    let latest = rules.latest().await.unwrap_or(present).max(stored);
    let mut versions: Vec<Value> = history.iter().map(version_state).collect();
    if !history.iter().any(|version| version.number() == present) {
        versions.push(version_state(state.version()));
    }
    versions.reverse();
    Ok(json::response(&json!({
        // The number of the current version.
        "present": present,
        // The number of the version that a push replaces: the latest one that is stored, also if it was refused here.
        "latest": latest,
        // Whether rules can be pushed: not to a file.
        "can_push": !rules.is_of_file(),
        // Why the latest rules of the source were refused.
        "last_error": state.last_error().map(ToString::to_string),
        // Why only the current version is known.
        "source_error": source_error,
        // From the latest.
        "versions": versions,
    })))
}

/// Returns one version with its text.
pub(super) async fn version(
    State(shared): State<Arc<SharedDashboard>>,
    number: std::result::Result<Path<u64>, PathRejection>,
) -> Result {
    let rules = handle(&shared)?;
    let Path(number) = number.map_err(|_| unknown_version())?;
    let present = rules.version();
    let version = match present.number() == number {
        true => Some(present),
        false => {
            let history = rules.history().await?;
            history
                .into_iter()
                .find(|version| version.number() == number)
        }
    };
    let version = version.ok_or_else(unknown_version)?;
    let mut state = version_state(&version);
    state["text"] = json!(version.text());
    Ok(json::response(&state))
}

/// Replaces the rules by others.
pub(super) async fn push(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let PushRequest {
        text,
        format,
        replacing,
        comment,
    } = read_json_up_to(MAX_RULES, request).await?;
    let new = NewRules::new(format, text).replacing(replacing);
    let mut new = new.author(author(&access));
    if let Some(comment) = comment {
        new = new.comment(comment);
    }
    let version = changeable(&shared)?.push(new).await?;
    Ok(changed(&version, &access))
}

/// Applies an earlier version again, as a new version.
pub(super) async fn roll_back(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let RollBackRequest { version } = read_json(request).await?;
    let rules = changeable(&shared)?;
    let version = rules.roll_back(version, author(&access)).await?;
    Ok(changed(&version, &access))
}

fn handle(shared: &SharedDashboard) -> Result<&RulesHandle> {
    shared.rules.as_ref().ok_or_else(|| {
        ApiError::not_found("the dashboard was built without the handle of the rules")
    })
}

/// Returns the handle of rules that can be replaced from here.
fn changeable(shared: &SharedDashboard) -> Result<&RulesHandle> {
    let rules = handle(shared)?;
    if rules.is_of_file() {
        return Err(ApiError::new(
            StatusCode::CONFLICT,
            "rules_from_file",
            "the rules come from a file: edit that file",
        ));
    }
    Ok(rules)
}

fn unknown_version() -> ApiError {
    ApiError::not_found("the history has no such version")
}

/// Returns the author of a version: a token has no name.
fn author(access: &Access) -> &str {
    access.operator_name().unwrap_or("dashboard")
}

fn changed(version: &RuleVersion, access: &Access) -> Response {
    event!(
        INFO,
        "dashboard: rules replaced",
        version = version.number(),
        operator = access.operator_name().unwrap_or("unknown"),
    );
    json::response(&version_state(version))
}

/// Returns a version without its text. The time is in milliseconds since the Unix epoch.
fn version_state(version: &RuleVersion) -> Value {
    json!({
        "number": version.number(),
        "time": version.time().as_micros() / 1_000,
        "author": version.author(),
        "comment": version.comment(),
        "format": version.format().name(),
    })
}

impl From<ReloadError> for ApiError {
    fn from(error: ReloadError) -> Self {
        let (status, code) = match &error {
            ReloadError::Conflict { .. } => (StatusCode::CONFLICT, "conflict"),
            ReloadError::Layer(_) | ReloadError::Rules(_) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "rules_refused")
            }
            // A comment that is too long.
            ReloadError::Source(error) if error.kind() == ErrorKind::InvalidConfig => {
                (StatusCode::UNPROCESSABLE_ENTITY, "rules_refused")
            }
            ReloadError::Source(_) => (StatusCode::SERVICE_UNAVAILABLE, "source_failed"),
            ReloadError::UnknownVersion { .. } => (StatusCode::NOT_FOUND, "not_found"),
        };
        Self::new(status, code, error.to_string())
    }
}

// === Bodies ===

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PushRequest {
    text: String,
    #[serde(with = "FormatName")]
    format: Format,
    /// The version that the operator has seen.
    replacing: u64,
    #[serde(default)]
    comment: Option<String>,
}

impl RequestBody for PushRequest {
    const EXAMPLE: &str = r#"{"text":"..","format":"yaml","replacing":1}"#;
}

#[derive(Deserialize)]
#[serde(remote = "Format", rename_all = "snake_case")]
enum FormatName {
    Json,
    Toml,
    Yaml,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBackRequest {
    version: u64,
}

impl RequestBody for RollBackRequest {
    const EXAMPLE: &str = r#"{"version":1}"#;
}
