//! The states of a key, as JSON.

use serde::Serialize;

use crate::{
    block::ActiveBlock,
    charge::Charge,
    clock::Timestamp,
    decision::Decision,
    limiter::RateLimiter,
    state::{Outcome, PolicyState, Retry, Usage},
};

#[cfg(feature = "explain")]
use crate::explain::LastDenial;

use super::{
    api::Result,
    penalty_view::PenaltyView,
    policy_keys::{PolicyKey, PolicyWithoutKey},
};

/// What each policy holds about a caller.
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
    pub(super) fn of(
        PolicyKey { key, has_tiers, .. }: &PolicyKey,
        state: &PolicyState,
        decision: &Decision,
        blocks: &[ActiveBlock],
    ) -> Self {
        let usage = state.usage();
        let from_now = |at: Timestamp| at.since(decision.decided_at()).as_millis();
        let own = blocks.iter().filter(|block| {
            let target = block.target();
            let is_of_policy = |policy| policy == *state.policy();
            target.key == *key && target.policy.is_none_or(is_of_policy)
        });
        let block = own.max_by_key(|block| block.until());
        let is_exhausted = usage.is_some_and(|usage| usage.remaining == 0);
        Self {
            policy: state.policy().as_str().to_owned(),
            key: key.as_str().to_owned(),
            has_state: block.is_some() || usage.is_some_and(|usage| is_used(usage, decision)),
            has_tiers: *has_tiers,
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
    pub(super) async fn add_penalty(
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
        self.has_state = true;
        Ok(())
    }

    /// Adds the last denial of the key.
    #[cfg(feature = "explain")]
    pub(super) fn add_denial(&mut self, denial: &LastDenial, now: Timestamp) {
        self.last_denial = Some(DenialState::of(denial, now));
        self.has_state = true;
    }
}

/// Returns whether a key has less than its full quota.
fn is_used(usage: Usage, decision: &Decision) -> bool {
    usage.remaining < usage.limit || usage.reset_at > decision.decided_at()
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
