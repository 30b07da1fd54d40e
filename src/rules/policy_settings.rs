//! Settings of a rule's policy that are made after its key.

use std::time::Duration;

use crate::{
    algorithm::Algorithm,
    policy::{
        Backoff, Penalty, Policy,
        consistency::{Consistency, Percent},
        on_outage::OnOutage,
    },
    priority::priority::Priority,
};

use super::rule::Rule;

/// Settings of the policy, in any order with the key.
impl Rule {
    /// As [`Policy::algorithm`].
    #[must_use]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        self.with_policy(|policy| policy.algorithm(algorithm))
    }

    /// As [`Policy::backoff`].
    #[must_use]
    pub fn backoff(self, backoff: impl Into<Option<Backoff>>) -> Self {
        self.with_policy(|policy| policy.backoff(backoff))
    }

    /// As [`Policy::consistency`].
    #[must_use]
    pub fn consistency(self, consistency: Consistency) -> Self {
        self.with_policy(|policy| policy.consistency(consistency))
    }

    /// As [`Policy::cost`].
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        self.with_policy(|policy| policy.cost(units))
    }

    /// As [`Policy::count_denied`].
    #[must_use]
    pub fn count_denied(self, count: bool) -> Self {
        self.with_policy(|policy| policy.count_denied(count))
    }

    /// As [`Policy::lend`].
    #[must_use]
    pub fn lend(self, within: Duration) -> Self {
        self.with_policy(|policy| policy.lend(within))
    }

    /// As [`Policy::on_outage`].
    #[must_use]
    pub fn on_outage(self, choice: OnOutage) -> Self {
        self.with_policy(|policy| policy.on_outage(choice))
    }

    /// As [`Policy::penalty`].
    #[must_use]
    pub fn penalty(self, penalty: impl Into<Option<Penalty>>) -> Self {
        self.with_policy(|policy| policy.penalty(penalty))
    }

    /// As [`Policy::reserve`].
    #[must_use]
    pub fn reserve(self, classes: impl Into<Vec<Priority>>, part: Percent) -> Self {
        self.with_policy(|policy| policy.reserve(classes, part))
    }

    /// As [`Policy::unit`].
    #[must_use]
    pub fn unit(self, unit: impl AsRef<str>) -> Self {
        self.with_policy(|policy| policy.unit(unit))
    }

    /// Changes the policy, and its candidate, which has all of its settings but the quota.
    fn with_policy(mut self, change: impl FnOnce(Policy) -> Policy) -> Self {
        self.policy = change(self.policy);
        match self.candidate.take() {
            Some(candidate) => self.candidate(candidate.quota()),
            None => self,
        }
    }
}
