//! The policies under which this instance counts its share of a quota.
//!
//! A limit of 10 over 4 instances has two policies here: one of two units and one of three. They are made once, so that a
//! local decision allocates nothing.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use crate::policy::Policy;

/// The policies of shares, by the whole policy and the number of units.
#[derive(Debug, Default)]
pub(super) struct SharePolicies {
    /// By the hash of the policy's name and the units. Tiers give one name several quotas.
    by_name: RwLock<HashMap<NameAndUnits, Vec<Arc<SharePolicy>>>>,
}

/// The hash of a policy's name, and the units of a share.
type NameAndUnits = (u64, u64);

/// A policy, and the one under which this instance counts its share.
#[derive(Debug)]
pub(super) struct SharePolicy {
    pub whole: Policy,
    pub part: Policy,
}

impl SharePolicy {
    /// Returns whether a policy counts like the whole one.
    #[inline]
    pub fn is_of(&self, policy: &Policy) -> bool {
        self.whole.counter() == policy.counter()
            && self.whole.counts_denied() == policy.counts_denied()
            && self.whole.ban_penalty() == policy.ban_penalty()
    }
}

impl SharePolicies {
    /// Returns the policy of an instance that grants this many units of a policy's limit.
    pub fn part_of(&self, policy: &Policy, units: u64) -> Arc<SharePolicy> {
        let name = (policy.name_hash().low, units);
        let known = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        let all = known.get(&name);
        let found = all.and_then(|all| all.iter().find(|one| one.is_of(policy)));
        if let Some(found) = found {
            return Arc::clone(found);
        }
        drop(known);
        self.add(policy, name)
    }

    #[cold]
    fn add(&self, policy: &Policy, (name, units): NameAndUnits) -> Arc<SharePolicy> {
        let part = Arc::new(SharePolicy {
            whole: policy.clone(),
            part: policy.part(units),
        });
        let mut known = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        // Policies come from the configuration, but a custom tier may make quotas without end.
        if known.len() >= MAX_POLICIES
            || known
                .get(&(name, units))
                .is_some_and(|all| all.len() >= MAX_TIERS)
        {
            known.clear();
        }
        let all = known.entry((name, units)).or_default();
        all.push(Arc::clone(&part));
        part
    }
}

/// The most names and units, and the most quotas of one name, before all policies are made anew.
const MAX_POLICIES: usize = 4_096;
const MAX_TIERS: usize = 64;

#[cfg(test)]
mod tests {
    use crate::algorithm::Quota;

    use super::*;

    #[test]
    fn policy_of_a_share_is_made_once_for_each_quota() {
        let shares = SharePolicies::default();
        let policy = Policy::new("ip", Quota::per_minute(10));
        let part = shares.part_of(&policy, 2);
        assert_eq!(part.part.counter().limit(), 2);
        assert!(Arc::ptr_eq(&part, &shares.part_of(&policy.clone(), 2)));
        let tier = policy.of_tier(policy.name(), Quota::per_minute(100), None);
        assert!(!Arc::ptr_eq(&part, &shares.part_of(&tier, 2)));
        for count in 1..10_000 {
            shares.part_of(
                &policy.of_tier(policy.name(), Quota::per_minute(count), None),
                2,
            );
        }
        let known = shares.by_name.read().expect("no panic");
        assert!(known.values().all(|all| all.len() <= MAX_TIERS));
    }
}
