//! The states of a key, as JSON.

use serde::Serialize;

use crate::{
    block::ActiveBlock,
    clock::Timestamp,
    decision::{PolicyName, Usage},
    explain::{LastDenial, PolicyExplanation},
};

use super::{
    penalty_view::PenaltyView,
    policy_keys::{PolicyKey, PolicyWithoutKey},
};

/// A caller under each policy.
#[derive(Serialize)]
pub(super) struct KeyStates {
    pub(super) policies: Vec<KeyState>,
    pub(super) without_key: Vec<PolicyWithoutKey>,
}

/// A key under one policy. Times are in milliseconds from now.
#[derive(Serialize)]
pub(super) struct KeyState {
    policy: String,
    /// As it is counted.
    key: String,
    /// Whether the policy holds anything about the key: less than its full quota, a ban, a block, or a denial.
    has_state: bool,
    /// Whether callers may have another quota than this one, which is that of the policy.
    has_tiers: bool,
    outcome: &'static str,
    counted_by: &'static str,
    /// `None` if nothing counts the policy now.
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_millis: Option<u128>,
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
    pub(super) fn of(key: &PolicyKey, explained: &PolicyExplanation) -> Self {
        let (now, usage, block) = (explained.counted_at(), explained.usage(), explained.block());
        let from_now = |at: Timestamp| at.since(now).as_millis();
        let penalty = explained.policy().ban_penalty().zip(explained.ban_status());
        let last_denial = explained.last_denial();
        Self {
            policy: explained.name().as_str().to_owned(),
            key: key.key.as_str().to_owned(),
            has_state: usage.is_some_and(|usage| is_used(usage, now))
                || block.is_some()
                || penalty.is_some()
                || last_denial.is_some(),
            has_tiers: key.has_tiers,
            outcome: explained.outcome().name(),
            counted_by: explained.counted_by().name(),
            limit: usage.map(|usage| usage.limit),
            remaining: usage.map(|usage| usage.remaining),
            reset_millis: usage.map(|usage| from_now(usage.reset_at)),
            is_refundable: usage.is_some() && !explained.policy().is_concurrency(),
            penalty: penalty.map(|(penalty, ban_status)| PenaltyView::of(penalty, ban_status, now)),
            blocked_millis: block.map(|block| from_now(block.until())),
            block_reason: block.map(|block| block.reason().to_owned()),
            block_policy: block.and_then(policy_of).map(str::to_owned),
            last_denial: last_denial.map(|denial| DenialState::of(denial, now)),
        }
    }
}

/// Returns whether a key has less than its full quota.
fn is_used(usage: Usage, now: Timestamp) -> bool {
    usage.remaining < usage.limit || usage.reset_at > now
}

/// Returns the policy of a block; `None` if it holds under all.
pub(super) fn policy_of(block: &ActiveBlock) -> Option<&str> {
    let policy = block.target().policy.as_ref();
    policy.map(PolicyName::as_str)
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
