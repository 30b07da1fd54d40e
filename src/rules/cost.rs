//! The cost of a request under a rule.

use std::sync::Arc;

use http::request::Parts;

use crate::{
    diagnosis::Code,
    error::Error,
    matching::{Match, Matcher, RequestHead},
};

/// Costs that differ from the policy's own.
#[derive(Clone, Default)]
pub(super) struct Costs {
    by_head: Option<CostFn>,
    by_match: Vec<(Arc<dyn Matcher>, u64)>,
}

/// Returns the cost of a request from its head.
type CostFn = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

impl Costs {
    pub(super) fn set_by_head(&mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) {
        self.by_head = Some(Arc::new(cost));
    }

    pub(super) fn add_match(&mut self, matcher: impl Matcher, units: u64) {
        self.by_match.push((Arc::new(matcher), units));
    }

    /// Returns the cost of a request, or `None` if it is the policy's own.
    ///
    /// The first exact match sets the cost, or without one the default. A possible match before it raises the cost to its own.
    #[inline]
    pub(super) fn of(&self, head: &RequestHead<'_>, default: u64) -> Option<u64> {
        let mut possible = None;
        for (matcher, units) in &self.by_match {
            match matcher.matches(head) {
                Match::Miss => {}
                Match::Ambiguous => possible = possible.max(Some(*units)),
                Match::Exact => return possible.max(Some(*units)),
            }
        }
        let own = self.by_head.as_ref().map(|cost| cost(head));
        match possible {
            Some(possible) => Some(possible.max(own.unwrap_or(default))),
            None => own,
        }
    }

    /// Whether every request has the policy's own cost.
    pub(super) fn is_empty(&self) -> bool {
        self.by_head.is_none() && self.by_match.is_empty()
    }

    /// Returns the largest cost that a matcher sets.
    pub(super) fn largest_match(&self) -> u64 {
        let units = self.by_match.iter().map(|(_, units)| *units);
        units.max().unwrap_or(0)
    }

    pub(super) fn validate(&self) -> Result<(), Error> {
        let mut matchers = self.by_match.iter();
        matchers.try_for_each(|(matcher, _)| matcher.validate())
    }

    pub(super) fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let mut matchers = self.by_match.iter();
        matchers.find_map(|(matcher, _)| matcher.diagnose(parts))
    }
}
