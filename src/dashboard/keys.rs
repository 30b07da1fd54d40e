//! The endpoints of keys: their state, and what operators do with them.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Extension, State},
};
use http::Request;
use serde::{Deserialize, Serialize};

use crate::{
    block::{ActiveBlock, Block, BlockTarget},
    charge::{Charge, MAX_CHARGES},
    clock::Timestamp,
    decision::Decision,
    key::Key,
    limiter::RateLimiter,
    log::event,
    policy::Policy,
    state::{Outcome, PolicyState, Retry},
};

#[cfg(feature = "explain")]
use crate::explain::LastDenial;

use super::{
    access::Access,
    api::{Result, done},
    api_error::ApiError,
    body::read_json,
    json,
    penalty_view::PenaltyView,
    shared::Shared,
};

/// Returns the state of a key under each policy. Charges nothing.
pub(super) async fn look_up(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Result {
    let KeyRequest { key, form, policy } = read_json(request).await?;
    let key = parse_key(&shared, &key, form)?;
    let policies = chosen_policies(&shared, policy.as_deref())?;
    let limiter = shared.watched.limiter();
    // Without an answer, the blocks that are known.
    let _ = limiter.refresh_blocks().await;
    let mut blocks = limiter.blocks();
    blocks.retain(|block| block.target().key == key);
    let mut states = Vec::with_capacity(policies.len());
    // As many as one decision may have.
    for policies in policies.chunks(MAX_CHARGES) {
        let charges: Vec<Charge<'_>> = policies.iter().map(|policy| policy.charge(key)).collect();
        let decision = limiter.peek(&charges).await?;
        for (charge, state) in charges.iter().zip(decision.states()) {
            let mut key_state = KeyState::of(state, &decision, &blocks);
            if state.usage().is_some() {
                key_state
                    .add_penalty(limiter, charge, decision.decided_at())
                    .await?;
            }
            states.push(key_state);
        }
    }
    #[cfg(feature = "explain")]
    add_denials(limiter, &policies, key, &mut states).await?;
    Ok(json::response(&KeyStates { policies: states }))
}

/// Adds what the limiter has recorded of the denials of the key.
#[cfg(feature = "explain")]
async fn add_denials(
    limiter: &RateLimiter,
    policies: &[Policy],
    key: Key,
    states: &mut [KeyState],
) -> Result<()> {
    let chunks = policies.chunks(MAX_CHARGES);
    for (policies, states) in chunks.zip(states.chunks_mut(MAX_CHARGES)) {
        let charges = policies.iter().map(|policy| policy.charge(key).to_owned());
        let explained = limiter.explain_charges(charges.collect()).await?;
        for (state, policy) in states.iter_mut().zip(explained.policies()) {
            state.last_denial = policy
                .last_denial()
                .map(|denial| DenialState::of(denial, policy.counted_at()));
        }
    }
    Ok(())
}

/// Gives a key its full quota again and ends its ban, under one policy or all.
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
    log_change("reset", policy.as_deref(), &access);
    Ok(done())
}

/// Refunds units of a key under one policy.
pub(super) async fn refund(
    State(shared): State<Arc<Shared>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let RefundRequest {
        key,
        form,
        policy: name,
        units,
    } = read_json(request).await?;
    let key = parse_key(&shared, &key, form)?;
    let Some(policy) = chosen_policy(&shared, Some(&name))? else {
        return Err(ApiError::bad_request("a refund needs a policy"));
    };
    if policy.is_concurrency() {
        let message = "requests in flight hold their slots: only units of a quota are refunded";
        return Err(ApiError::bad_request(message));
    }
    if units == 0 {
        return Err(ApiError::bad_request("a refund has at least 1 unit"));
    }
    shared
        .watched
        .limiter()
        .refund(&policy, &key, units)
        .await?;
    log_change("refund", Some(&name), &access);
    Ok(done())
}

/// Denies a key for a time, under one policy or all.
pub(super) async fn block(
    State(shared): State<Arc<Shared>>,
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
    let key = parse_key(&shared, &key, form)?;
    let mut block = Block::new(key, Duration::from_secs(seconds)).reason(reason);
    if let Some(policy) = chosen_policy(&shared, name.as_deref())? {
        block = block.policy(&policy);
    }
    shared.watched.limiter().block(block).await?;
    log_change("block", name.as_deref(), &access);
    Ok(done())
}

/// Ends the block of a key under one policy, or that under all.
pub(super) async fn unblock(
    State(shared): State<Arc<Shared>>,
    Extension(access): Extension<Access>,
    request: Request<Body>,
) -> Result {
    let KeyRequest {
        key,
        form,
        policy: name,
    } = read_json(request).await?;
    let key = parse_key(&shared, &key, form)?;
    let policy = chosen_policy(&shared, name.as_deref())?;
    let target = BlockTarget::new(key, policy.as_ref());
    shared.watched.limiter().unblock(target).await?;
    log_change("unblock", name.as_deref(), &access);
    Ok(done())
}

/// Returns the blocks in force; those that are known, if the store does not answer. Their keys are shown as they are counted,
/// so this needs write access.
pub(super) async fn blocks(State(shared): State<Arc<Shared>>) -> Result {
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

fn chosen_policy(shared: &Shared, name: Option<&str>) -> Result<Option<Policy>> {
    let Some(name) = name else { return Ok(None) };
    let policy = shared.watched.policy(name);
    let unknown = || ApiError::bad_request("there is no policy of this name");
    policy.ok_or_else(unknown).map(Some)
}

fn chosen_policies(shared: &Shared, name: Option<&str>) -> Result<Vec<Policy>> {
    Ok(match chosen_policy(shared, name)? {
        Some(policy) => vec![policy],
        None => shared.watched.policies(),
    })
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
    /// Whether units can be refunded: not slots, and not while nothing counts the policy.
    is_refundable: bool,
    /// `None` if the policy has no penalty, or if there is nothing to forgive.
    penalty: Option<PenaltyView>,
    /// How long an operator has blocked the key; `None` if it is not blocked.
    blocked_millis: Option<u128>,
    block_reason: Option<String>,
    /// The policy of the block; `None` if it holds under all.
    block_policy: Option<String>,
    /// `None` if the key was not denied by this instance, or if the limiter does not record denials.
    last_denial: Option<DenialState>,
}

impl KeyState {
    fn of(state: &PolicyState, decision: &Decision, blocks: &[ActiveBlock]) -> Self {
        let usage = state.usage();
        let from_now = |at: Timestamp| at.since(decision.decided_at()).as_millis();
        let own = blocks.iter().filter(|block| {
            let policy = block.target().policy;
            policy.is_none_or(|policy| policy == *state.policy())
        });
        let block = own.max_by_key(|block| block.until());
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
            is_refundable: usage.is_some() && !state.is_concurrency(),
            penalty: None,
            blocked_millis: block.map(|block| from_now(block.until())),
            block_reason: block.map(|block| block.reason().to_owned()),
            block_policy: block
                .and_then(|block| block.target().policy)
                .map(|policy| policy.as_str().to_owned()),
            last_denial: None,
        }
    }

    /// Adds the ban of the key, which denies its requests whatever quota is left.
    async fn add_penalty(
        &mut self,
        limiter: &RateLimiter,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<()> {
        let policy = charge.policy();
        let Some(penalty) = policy.ban_penalty() else {
            return Ok(());
        };
        let Some(standing) = limiter.standing_at(policy, charge.key(), now).await? else {
            return Ok(());
        };
        if let Some(until) = standing.banned_until().filter(|_| charge.units() > 0) {
            self.outcome = Outcome::Limited.name();
            self.retry_millis = self.retry_millis.max(Some(until.since(now).as_millis()));
        }
        self.penalty = Some(PenaltyView::of(penalty, &standing, now));
        Ok(())
    }
}

// === DenialState ===

/// The last denial of a key. Times are in milliseconds before now.
#[derive(Serialize)]
struct DenialState {
    ago_millis: u128,
    /// Since the first one that is counted.
    since_millis: u128,
    count: u64,
    /// Whether the request passed, since the policy was in shadow.
    is_shadow: bool,
    counted_by: &'static str,
}

#[cfg(feature = "explain")]
impl DenialState {
    fn of(denial: &LastDenial, now: Timestamp) -> Self {
        Self {
            ago_millis: now.since(denial.at()).as_millis(),
            since_millis: now.since(denial.first_at()).as_millis(),
            count: denial.count(),
            is_shadow: denial.is_shadow(),
            counted_by: denial.counted_by().name(),
        }
    }
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
            policy: target.policy.map(|policy| policy.as_str().to_owned()),
            since: block.since().as_micros() / 1_000,
            until: block.until().as_micros() / 1_000,
            reason: block.reason().to_owned(),
        }
    }
}

/// In bytes.
const MAX_KEY: usize = 1_024;
/// The most blocks in one response.
const MAX_BLOCKS: usize = 100;
