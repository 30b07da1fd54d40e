//! The endpoints of keys: their state, and what operators do with them.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Extension, State},
};
use http::Request;
use serde::{Deserialize, Serialize};

use crate::{
    block::{ActiveBlock, Block, BlockTarget},
    diagnosis::log::event,
};

use super::{
    access::Access,
    api::{Result, done},
    api_error::ApiError,
    body::read_json,
    json,
    key_view::{KeyState, KeyStates, policy_of},
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
    Ok(json::response(&KeyStates {
        policies: states
            .map(|(key, explained)| KeyState::of(key, explained))
            .collect(),
        without_key: keys.without_key,
    }))
}

/// Gives a key its full quota again and ends its ban, under one policy or all.
pub(super) async fn reset(
    State(shared): State<Arc<SharedDashboard>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let KeyRequest { key, form, policy } = read_json(request).await?;
    let keys = PolicyKeys::new(&shared, &key, form, policy.as_deref())?;
    for PolicyKey { policy, key, .. } in keys.required()? {
        shared.watched.limiter().reset(policy, key).await?;
    }
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
    let list = BlockList {
        store_error: refreshed.err().map(|error| error.to_string()),
        count: blocks.len(),
        blocks: blocks.iter().take(MAX_BLOCKS).map(BlockState::of).collect(),
    };
    Ok(json::response(&list))
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

// === BlockState ===

#[derive(Serialize)]
struct BlockList {
    /// Why the list may not be current.
    store_error: Option<String>,
    /// Number of all blocks.
    count: usize,
    /// Those that end first.
    blocks: Vec<BlockState>,
}

/// A block. Times are in milliseconds since the Unix epoch.
#[derive(Serialize)]
struct BlockState {
    key: String,
    /// `None` for all policies.
    policy: Option<String>,
    since: u64,
    until: u64,
    reason: String,
}

impl BlockState {
    fn of(block: &ActiveBlock) -> Self {
        let target = block.target();
        Self {
            key: target.key.as_str().to_owned(),
            policy: policy_of(block).map(str::to_owned),
            since: block.since().as_micros() / 1_000,
            until: block.until().as_micros() / 1_000,
            reason: block.reason().to_owned(),
        }
    }
}

/// The most blocks in one response.
const MAX_BLOCKS: usize = 100;
