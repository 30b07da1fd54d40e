//! The endpoints of the API. `router.rs` has their paths.

use std::{net::IpAddr, sync::Arc};

use axum::{
    body::Body,
    extract::{Extension, State},
    response::{IntoResponse, Response},
};
use http::{Request, StatusCode};
use serde::{Deserialize, Serialize};

use crate::{
    charge::Charge,
    decision::Decision,
    key::Key,
    log::event,
    policy::Policy,
    rules::RuleMode,
    state::{Outcome, PolicyState, Retry},
};

use super::{
    access::Access, api_error::ApiError, body::read_json, history_view::HistoryView, json, live,
    sampler, shared::Shared,
};

type Result<T = Response, E = ApiError> = std::result::Result<T, E>;

/// Returns what the page may do.
pub(super) fn session(shared: &Shared, access: Option<&Access>) -> Response {
    json::response(&Session {
        can_read: access.is_some(),
        can_write: access.is_some_and(Access::can_write),
        operator: access.and_then(Access::operator_name),
        has_modes: shared.watched.mode().is_some(),
        has_top_keys: has_top_keys(shared),
    })
}

/// Returns the present state.
pub(super) async fn state(State(shared): State<Arc<Shared>>) -> Response {
    sampler::start(&shared);
    json::response_of(sampler::state(&shared))
}

/// Returns the numbers of the last minutes and hours.
pub(super) async fn history(State(shared): State<Arc<Shared>>) -> Response {
    sampler::start(&shared);
    let history = shared.history.lock();
    json::response(&HistoryView::of(&history))
}

/// Follows the state, once a second.
pub(super) async fn live(State(shared): State<Arc<Shared>>) -> Result {
    sampler::start(&shared);
    let events = live::follow(&shared).ok_or_else(|| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_streams",
            "too many pages follow this dashboard: close one, or wait",
        )
    })?;
    Ok(events.into_response())
}

/// Returns the keys that were denied most often.
#[cfg(feature = "top-keys")]
pub(super) async fn top_keys(State(shared): State<Arc<Shared>>) -> Result {
    let Some(top_keys) = &shared.top_keys else {
        return Err(ApiError::not_found(
            "the dashboard was built without top keys",
        ));
    };
    let snapshot = top_keys.snapshot().truncated(MAX_TOP_KEYS);
    Ok(json::response(&super::top_keys_view::TopKeysView::of(
        &snapshot,
    )))
}

#[cfg(not(feature = "top-keys"))]
pub(super) async fn top_keys() -> Result {
    Err(ApiError::not_found(
        "tollgate was built without the feature top-keys",
    ))
}

#[cfg(feature = "top-keys")]
fn has_top_keys(shared: &Shared) -> bool {
    shared.top_keys.is_some()
}

#[cfg(not(feature = "top-keys"))]
fn has_top_keys(_: &Shared) -> bool {
    false
}

/// Returns the state of a key under each policy. Charges nothing.
pub(super) async fn look_up(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Result {
    let KeyRequest { key, form, policy } = read_json(request).await?;
    let key = parse_key(&shared, &key, form)?;
    let policies = chosen_policies(&shared, policy.as_deref())?;
    let mut states = Vec::with_capacity(policies.len());
    // As many as one decision may have.
    for policies in policies.chunks(MAX_CHARGES) {
        let charges: Vec<Charge<'_>> = policies.iter().map(|policy| policy.charge(key)).collect();
        let decision = shared.watched.limiter().peek(&charges).await?;
        let state = |state| KeyState::of(state, &decision);
        states.extend(decision.states().iter().map(state));
    }
    Ok(json::response(&KeyStates { policies: states }))
}

/// Gives a key its full quota again, under one policy or all.
pub(super) async fn reset(
    State(shared): State<Arc<Shared>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let KeyRequest { key, form, policy } = read_json(request).await?;
    let key = parse_key(&shared, &key, form)?;
    for policy in chosen_policies(&shared, policy.as_deref())? {
        shared.watched.limiter().reset(&policy, &key).await?;
    }
    // Without the key, which is personal data.
    event!(
        INFO,
        "dashboard: key reset",
        policy = policy.as_deref().unwrap_or("all"),
        operator = access.operator_name().unwrap_or("unknown"),
    );
    Ok(done())
}

/// Changes the mode of a rule or of the layer.
pub(super) async fn set_mode(
    State(shared): State<Arc<Shared>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let ModeRequest { policy, mode } = read_json(request).await?;
    let mode = RuleMode::from(mode);
    shared.watched.set_mode(policy.as_deref(), mode)?;
    event!(
        INFO,
        "dashboard: mode changed",
        policy = policy.as_deref().unwrap_or("all"),
        mode = mode.name(),
        operator = access.operator_name().unwrap_or("unknown"),
    );
    Ok(done())
}

/// Changes the percentage of keys for which a rule denies requests.
pub(super) async fn set_rollout(
    State(shared): State<Arc<Shared>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let RolloutRequest { policy, percent } = read_json(request).await?;
    shared.watched.set_rollout(&policy, percent)?;
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
    ApiError::not_found("the API has no such path or method")
}

fn done() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

fn chosen_policies(shared: &Shared, name: Option<&str>) -> Result<Vec<Policy>> {
    match name {
        None => Ok(shared.watched.policies()),
        Some(name) => match shared.watched.policy(name) {
            Some(policy) => Ok(vec![policy]),
            None => Err(ApiError::bad_request("there is no policy of this name")),
        },
    }
}

fn parse_key(shared: &Shared, text: &str, form: KeyForm) -> Result<Key> {
    if text.is_empty() || text.len() > MAX_KEY {
        let message = format!("a key has 1 to {MAX_KEY} bytes");
        return Err(ApiError::bad_request(message));
    }
    match form {
        KeyForm::Address => parse_address(text).ok_or_else(|| {
            ApiError::bad_request("the key is not an IP address")
        }),
        KeyForm::Counted => Key::of_identity(text).ok_or_else(|| {
            ApiError::bad_request(
                "the key is not in the form in which keys are counted: 1 to 46 characters, others escaped",
            )
        }),
        KeyForm::Secret => Ok(match &shared.hash_secret {
            Some(secret) => Key::secret_with(secret, text),
            None => Key::secret(text),
        }),
        KeyForm::Text => Ok(Key::new(text)),
    }
}

/// Returns the key of an address as extractors count it by default: an IPv6 address by its /64 network.
fn parse_address(text: &str) -> Option<Key> {
    let address: IpAddr = text.parse().ok()?;
    Some(Key::from(match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::from(network.to_be_bytes())
        }
        address => address,
    }))
}

// === Bodies ===

#[derive(Serialize)]
struct Session<'a> {
    can_read: bool,
    can_write: bool,
    operator: Option<&'a str>,
    has_modes: bool,
    has_top_keys: bool,
}

/// A key, and one policy or all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    key: String,
    #[serde(default)]
    form: KeyForm,
    #[serde(default)]
    policy: Option<String>,
}

/// The form in which an operator knows a key.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeyForm {
    /// An IP address.
    Address,
    /// As it is counted, and as top keys in plain text show it.
    Counted,
    /// An API key, which is hashed.
    Secret,
    /// Any other text.
    #[default]
    Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModeRequest {
    #[serde(default)]
    policy: Option<String>,
    mode: ModeName,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModeName {
    Off,
    Shadow,
    Enforce,
}

impl From<ModeName> for RuleMode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Off => Self::Off,
            ModeName::Shadow => Self::Shadow,
            ModeName::Enforce => Self::Enforce,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RolloutRequest {
    policy: String,
    percent: f64,
}

#[derive(Serialize)]
struct KeyStates {
    policies: Vec<KeyState>,
}

/// A key under one policy. Times are in milliseconds from now.
#[derive(Serialize)]
struct KeyState {
    policy: String,
    outcome: &'static str,
    counted_by: &'static str,
    /// `None` if nothing counts the policy now.
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_millis: Option<u128>,
    retry_millis: Option<u128>,
}

impl KeyState {
    fn of(state: &PolicyState, decision: &Decision) -> Self {
        let usage = state.usage();
        let from_now = |at: crate::clock::Timestamp| at.since(decision.decided_at()).as_millis();
        let is_exhausted = usage.is_some_and(|usage| usage.remaining == 0);
        Self {
            policy: state.policy().as_str().to_owned(),
            outcome: if is_exhausted {
                Outcome::Limited
            } else {
                state.outcome()
            }
            .name(),
            counted_by: decision.counted_by().name(),
            limit: usage.map(|usage| usage.limit),
            remaining: usage.map(|usage| usage.remaining),
            reset_millis: usage.map(|usage| from_now(usage.reset_at)),
            retry_millis: match state.retry() {
                Retry::At(at) => Some(from_now(at)),
                Retry::Never | Retry::Now => None,
            },
        }
    }
}

/// In bytes.
const MAX_KEY: usize = 1_024;
/// The most charges of one decision.
const MAX_CHARGES: usize = 16;
/// The longest list of a policy.
#[cfg(feature = "top-keys")]
const MAX_TOP_KEYS: usize = 20;
