//! Which requests a rule counts, and at what cost.

use std::sync::Arc;

use http::request::Parts;

use crate::{
    diagnosis::Code,
    error::Error,
    matching::{Match, Matcher},
};

/// Which requests a rule counts. What is in doubt is counted.
#[derive(Clone, Default)]
pub(super) struct Conditions {
    when: Vec<Arc<dyn Matcher>>,
    unless: Vec<Arc<dyn Matcher>>,
}

impl Conditions {
    pub(super) fn when(&mut self, matcher: impl Matcher) {
        self.when.push(Arc::new(matcher));
    }

    pub(super) fn unless(&mut self, matcher: impl Matcher) {
        self.unless.push(Arc::new(matcher));
    }

    #[inline]
    pub(super) fn are_none(&self) -> bool {
        self.when.is_empty() && self.unless.is_empty()
    }

    pub(super) fn hold(&self, parts: &Parts) -> bool {
        let is_meant = |matcher: &Arc<dyn Matcher>| matcher.matches(parts) != Match::Miss;
        let is_free = |matcher: &Arc<dyn Matcher>| matcher.matches(parts) == Match::Exact;
        self.when.iter().all(is_meant) && !self.unless.iter().any(is_free)
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        let mut matchers = self.when.iter().chain(&self.unless);
        matchers.try_for_each(Matcher::validate)
    }

    pub(super) fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let mut matchers = self.when.iter().chain(&self.unless);
        matchers.find_map(|matcher| matcher.diagnose(parts))
    }
}

// === Costs ===

/// What requests cost.
#[derive(Clone, Default)]
pub(super) struct Costs {
    by: Option<Costing>,
    when: Vec<(Arc<dyn Matcher>, u64)>,
}

/// Says what a request costs, by its head.
type Costing = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

impl Costs {
    pub(super) fn by(&mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) {
        self.by = Some(Arc::new(cost));
    }

    pub(super) fn when(&mut self, matcher: impl Matcher, units: u64) {
        self.when.push((Arc::new(matcher), units));
    }

    /// What a request costs, if it is not what the policy says. In doubt it is the most.
    #[inline]
    pub(super) fn of(&self, parts: &Parts, policy: u64) -> Option<u64> {
        let mut doubtful = None;
        for (matcher, units) in &self.when {
            match matcher.matches(parts) {
                Match::Miss => {}
                Match::Possible => doubtful = doubtful.max(Some(*units)),
                Match::Exact => return doubtful.max(Some(*units)),
            }
        }
        let usual = self.by.as_ref().map(|by| by(parts));
        match doubtful {
            Some(doubtful) => Some(doubtful.max(usual.unwrap_or(policy))),
            None => usual,
        }
    }

    /// Whether all requests cost what the policy says.
    pub(super) fn are_usual(&self) -> bool {
        self.by.is_none() && self.when.is_empty()
    }

    /// The most that a matcher's requests cost.
    pub(super) fn most(&self) -> u64 {
        let units = self.when.iter().map(|(_, units)| *units);
        units.max().unwrap_or(0)
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        let mut matchers = self.when.iter();
        matchers.try_for_each(|(matcher, _)| matcher.validate())
    }

    pub(super) fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let mut matchers = self.when.iter();
        matchers.find_map(|(matcher, _)| matcher.diagnose(parts))
    }
}
