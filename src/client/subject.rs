//! A key under a policy, by which budgets, refusals and rates are kept.

use crate::{charge::Charge, decision::PolicyName, key::Key};

/// A key under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    policy: PolicyName,
    key: Key,
}

impl Subject {
    /// All calls that no rule counts.
    pub const UNCOUNTED: Self = Self {
        policy: PolicyName::INVALID,
        key: Key::GLOBAL,
    };

    pub fn of(charge: &Charge<'_>) -> Self {
        Self {
            policy: *charge.policy().name(),
            key: *charge.key(),
        }
    }
}
