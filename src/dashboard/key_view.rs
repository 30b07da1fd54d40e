//! The states of a key, as JSON.

use serde_json::{Value, json};

use crate::{
    block::ActiveBlock,
    clock::Timestamp,
    decision::{PolicyName, Usage},
    explain::{LastDenial, PolicyExplanation},
    policy::{BanStatus, Penalty},
    store::KeyLease,
};

use super::policy_keys::PolicyKey;

/// Returns the state of a key under one policy. Times are in milliseconds from now.
pub(super) fn key_state(key: &PolicyKey, explained: &PolicyExplanation) -> Value {
    let (now, usage, block) = (explained.counted_at(), explained.usage(), explained.block());
    let from_now = |at: Timestamp| at.since(now).as_millis();
    let penalty = explained.policy().ban_penalty().zip(explained.ban_status());
    let last_denial = explained.last_denial();
    let has_state = usage.is_some_and(|usage| is_used(usage, now))
        || block.is_some()
        || penalty.is_some()
        || last_denial.is_some()
        || explained.paused_until().is_some()
        || explained.waiting_callers() > 0;
    json!({
        "policy": explained.name().as_str(),
        // As it is counted.
        "key": key.key.as_str(),
        // Whether the policy holds anything about the key: less than its full quota, a ban, a block, or a denial.
        "has_state": has_state,
        // Whether callers may have another quota than this one, which is that of the policy.
        "has_tiers": key.has_tiers,
        "outcome": explained.outcome().name(),
        "counted_by": explained.counted_by().name(),
        // Null if this instance has leased no units of the key.
        "lease": explained.lease().map(lease_state),
        // For how long requests are denied without asking Redis. Null if it is asked.
        "denied_millis": explained.denied_for().map(|time| time.as_millis()),
        // Null if nothing counts the policy now.
        "limit": usage.map(|usage| usage.limit),
        "remaining": usage.map(|usage| usage.remaining),
        "reset_millis": usage.map(|usage| from_now(usage.reset_at)),
        // Whether units can be refunded: not slots, and not while nothing counts the policy.
        "is_refundable": usage.is_some() && !explained.policy().is_concurrency(),
        // Null if the policy has no penalty, or if there is nothing to forgive.
        "penalty": penalty.map(|(penalty, status)| penalty_state(penalty, status, now)),
        // How long an operator has blocked the key. Null if it is not blocked.
        "blocked_millis": block.map(|block| from_now(block.until())),
        "block_reason": block.map(ActiveBlock::reason),
        // The policy of the block. Null if it holds under all.
        "block_policy": block.and_then(policy_of),
        // For how long the other side asked to pause the key. Null if it is not paused.
        "paused_millis": explained.paused_until().map(from_now),
        // Callers of this instance that wait for the key, and how long another one would wait. Null if that is not known.
        "waiting_callers": explained.waiting_callers(),
        "next_turn_millis": explained.next_turn().map(|turn| turn.as_millis()),
        // Null if the key was not denied by this instance, or if the limiter does not record denials.
        "last_denial": last_denial.map(|denial| denial_state(denial, now)),
    })
}

/// Returns the units that are leased to this instance, and to others.
fn lease_state(lease: KeyLease) -> Value {
    json!({
        "units": lease.units(),
        "leased_elsewhere": lease.leased_elsewhere(),
        // The age of the last report.
        "age_millis": lease.age().as_millis(),
    })
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

/// Returns the ban of a key, and its denials that count towards one. Times are in milliseconds from or before now.
fn penalty_state(penalty: &Penalty, status: &BanStatus, now: Timestamp) -> Value {
    let (until, since) = (status.banned_until(), status.banned_since());
    json!({
        // How long the key stays banned. Null if it is not.
        "banned_millis": until.map(|until| until.since(now).as_millis()),
        // How long it has been banned, or how long this instance knows it.
        "since_millis": since.map(|since| now.since(since).as_millis()),
        // Bans that are not forgiven, with the present one.
        "bans": status.bans(),
        // Denials that count towards the next ban, and how many lead to it.
        "denials": status.denials(),
        "most_denials": penalty.denials(),
        "forgiven_millis": status.forgiven_at().since(now).as_millis(),
    })
}

/// Returns the last denial of a key. Times are in milliseconds before now.
fn denial_state(denial: &LastDenial, now: Timestamp) -> Value {
    json!({
        "ago_millis": now.since(denial.at()).as_millis(),
        // Since the first one that is counted.
        "since_millis": now.since(denial.first_at()).as_millis(),
        "count": denial.count(),
        // Whether the request passed, since the policy was in shadow.
        "is_shadow": denial.is_shadow(),
        "counted_by": denial.counted_by().name(),
    })
}
