//! The endpoints of keys: their state, and what operators do with them.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Extension, State},
};
use futures_util::future::join_all;
use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    block::{ActiveBlock, Block, BlockTarget},
    diagnosis::log::event,
    error::Error,
};

use super::{
    access::Access,
    api::{Result, done},
    api_error::ApiError,
    json::{self, RequestBody, read_json},
    key_view::{key_state, policy_of},
    policy_keys::{KeyForm, PolicyKey, PolicyKeys},
    shared::SharedDashboard,
};

/// Returns the state of a key under each policy. Charges nothing.
pub(super) async fn look_up(
    State(shared): State<Arc<SharedDashboard>>,
    request: Request<Body>,
) -> Result {
    let KeyRequest { key, form, policy } = read_json(request).await?;
    let keys = PolicyKeys::new(&shared, &key, form, policy.as_deref())?;
    let charges = keys.keys.iter().map(|key| key.charge().to_owned());
    let explaining = shared.watched.limiter().explain_charges(charges.collect());
    let explained = explaining.await?;
    let states = keys.keys.iter().zip(explained.policies());
    let states: Vec<Value> = states
        .map(|(key, explained)| key_state(key, explained))
        .collect();
    Ok(json::response(
        &json!({ "policies": states, "without_key": keys.without_key }),
    ))
}

/// Gives a key its full quota again and ends its ban, under one policy or all.
pub(super) async fn reset(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let KeyRequest { key, form, policy } = read_json(request).await?;
    let keys = PolicyKeys::new(&shared, &key, form, policy.as_deref())?;
    let limiter = shared.watched.limiter();
    let keys = keys.required()?.iter();
    // Also those after one that fails: in an outage, each is still reset as this process counts it.
    let resets = join_all(keys.map(|PolicyKey { policy, key, .. }| limiter.reset(policy, key)));
    resets.await.into_iter().collect::<Result<(), Error>>()?;
    log_change("reset", policy.as_deref(), &access);
    Ok(done())
}

/// Refunds units of a key under one policy.
pub(super) async fn refund(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let RefundRequest {
        key,
        form,
        policy: name,
        units,
    } = read_json(request).await?;
    let keys = PolicyKeys::new(&shared, &key, form, Some(&name))?;
    let keys = keys.required()?;
    if keys.iter().any(|key| key.policy.is_concurrency()) {
        let message = "requests in flight hold their slots: only units of a quota are refunded";
        return Err(ApiError::bad_request(message));
    }
    if units == 0 {
        return Err(ApiError::bad_request("a refund has at least 1 unit"));
    }
    for PolicyKey { policy, key, .. } in keys {
        shared.watched.limiter().refund(policy, key, units).await?;
    }
    log_change("refund", Some(&name), &access);
    Ok(done())
}

/// Denies a key for a time, under one policy or all.
pub(super) async fn block(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let BlockRequest {
        key,
        form,
        policy: name,
        seconds,
        reason,
    } = read_json(request).await?;
    let keys = PolicyKeys::new(&shared, &key, form, name.as_deref())?;
    for (key, policy) in keys.targets()? {
        let mut block = Block::new(key, Duration::from_secs(seconds)).reason(&reason);
        if let Some(policy) = policy {
            block = block.policy(policy);
        }
        shared.watched.limiter().block(block).await?;
    }
    log_change("block", name.as_deref(), &access);
    Ok(done())
}

/// Ends the block of a key under one policy, or that under all.
pub(super) async fn unblock(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let KeyRequest {
        key,
        form,
        policy: name,
    } = read_json(request).await?;
    let keys = PolicyKeys::new(&shared, &key, form, name.as_deref())?;
    for (key, policy) in keys.targets()? {
        let target = BlockTarget::new(key, policy);
        shared.watched.limiter().unblock(target).await?;
    }
    log_change("unblock", name.as_deref(), &access);
    Ok(done())
}

/// Returns the active blocks; those that are known, if the store does not answer. Their keys are shown as they are counted,
/// so this needs write access.
pub(super) async fn blocks(State(shared): State<Arc<SharedDashboard>>) -> Result {
    let limiter = shared.watched.limiter();
    let refreshed = limiter.refresh_blocks().await;
    let blocks = limiter.blocks();
    let first: Vec<Value> = blocks.iter().take(MAX_BLOCKS).map(block_state).collect();
    Ok(json::response(&json!({
        // Why the list may not be current.
        "store_error": refreshed.err().map(|error| error.to_string()),
        // Number of all blocks.
        "count": blocks.len(),
        // Those that end first.
        "blocks": first,
    })))
}

/// Returns a block. Times are in milliseconds since the Unix epoch.
fn block_state(block: &ActiveBlock) -> Value {
    json!({
        "key": block.target().key.as_str(),
        // Null for all policies.
        "policy": policy_of(block),
        "since": block.since().as_micros() / 1_000,
        "until": block.until().as_micros() / 1_000,
        "reason": block.reason(),
    })
}

/// Logs what was done with a key, without the key, which is personal data.
fn log_change(change: &'static str, policy: Option<&str>, access: &Access) {
    event!(
        INFO,
        "dashboard: key changed",
        change = change,
        policy = policy.unwrap_or("all"),
        operator = access.operator_name().unwrap_or("unknown"),
    );
}

// === Bodies ===

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

impl RequestBody for KeyRequest {
    const EXAMPLE: &str = r#"{"key":"ada"}"#;
}

/// A key, a policy, and the units that are refunded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefundRequest {
    key: String,
    #[serde(default)]
    form: KeyForm,
    policy: String,
    units: u64,
}

impl RequestBody for RefundRequest {
    const EXAMPLE: &str = r#"{"key":"ada","policy":"api","units":1}"#;
}

/// A key, and for how long it is denied.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockRequest {
    key: String,
    #[serde(default)]
    form: KeyForm,
    #[serde(default)]
    policy: Option<String>,
    seconds: u64,
    #[serde(default)]
    reason: String,
}

impl RequestBody for BlockRequest {
    const EXAMPLE: &str = r#"{"key":"ada","seconds":60}"#;
}

/// The most blocks in one response.
const MAX_BLOCKS: usize = 100;
