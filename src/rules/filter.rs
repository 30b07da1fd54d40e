//! Which requests a layer limits, and which of them a rule counts at what cost.
//!
//! # Why are preflights counted by default?
//!
//! If a browser's preflight is denied, the request behind it fails without a visible reason. But two headers make an OPTIONS
//! request a preflight, and anyone can send them, so a default that skips preflights would be a way around the limit.
//! `.skip(Preflight)` is one line. It is better to put a CORS layer outside the limiter, which responds to preflights itself.
//!
//! # Why forbid first, then skip, then count?
//!
//! The stricter list wins, so a request from a skipped address can still be forbidden by its key. A forbidden request runs no
//! rule and asks no store, so it costs nothing to reject.

use std::sync::Arc;

use crate::{
    diagnosis::{Code, Warning, WarningLog},
    error::Error,
    matching::{IntoMatcher, Match, Matcher},
    rejection::Rejection,
    request::{BodyFault, BodyLimits, RequestHead},
};

#[cfg(feature = "body")]
use super::body_cost::BodyCost;
#[cfg(not(feature = "body"))]
use super::no_body_cost::BodyCost;
use super::setup_check::{FirstMatches, describe};

/// Requests that a layer forbids, and requests that it does not limit.
///
/// A possible match is forbidden and not skipped.
#[derive(Clone, Default)]
pub(crate) struct RequestFilter {
    forbid: Vec<Arc<dyn Matcher>>,
    skip: Vec<Arc<dyn Matcher>>,
    first_matches: FirstMatches,
}

impl RequestFilter {
    pub fn forbid(&mut self, matcher: impl IntoMatcher) {
        self.forbid.push(Arc::new(matcher.into_matcher()));
    }

    pub fn skip(&mut self, matcher: impl IntoMatcher) {
        self.skip.push(Arc::new(matcher.into_matcher()));
    }

    /// Whether the layer limits all requests.
    pub fn is_empty(&self) -> bool {
        self.forbid.is_empty() && self.skip.is_empty()
    }

    pub fn validate(&self) -> Result<(), Error> {
        let mut matchers = self.forbid.iter().chain(&self.skip);
        matchers.try_for_each(Matcher::validate)
    }

    /// Returns whether the layer limits a request.
    ///
    /// # Errors
    ///
    /// The rejection of a forbidden request.
    #[inline]
    pub fn limits(&self, head: &RequestHead<'_>, warnings: &WarningLog) -> Result<bool, Rejection> {
        if self.is_empty() {
            return Ok(true);
        }
        if self.first_matches.is_due() {
            self.check_setup(head, warnings);
        }
        if self.is_forbidden(head) {
            return Err(Rejection::forbidden(None));
        }
        Ok(!self.is_skipped(head))
    }

    /// Returns whether the forbid list contains a request.
    #[inline]
    pub fn is_forbidden(&self, head: &RequestHead<'_>) -> bool {
        let mut matchers = self.forbid.iter();
        matchers.any(|matcher| is_possible(matcher, head))
    }

    /// Returns whether the skip list contains a request.
    #[inline]
    pub fn is_skipped(&self, head: &RequestHead<'_>) -> bool {
        let mut matchers = self.skip.iter();
        matchers.any(|matcher| is_exact(matcher, head))
    }

    /// Reports misconfigured matchers.
    #[cold]
    fn check_setup(&self, head: &RequestHead<'_>, warnings: &WarningLog) {
        for (list, matchers) in [("a forbid list", &self.forbid), ("a skip list", &self.skip)] {
            for matcher in matchers {
                if let Some(code) = matcher.diagnose(head) {
                    warnings.report(Warning::new(code, describe(code, list)));
                }
            }
        }
    }
}

// === RuleMatchers ===

/// Requests that a rule counts, and their costs. A possible match is counted.
#[derive(Clone, Default)]
pub(crate) struct RuleMatchers {
    when: Vec<Arc<dyn Matcher>>,
    unless: Vec<Arc<dyn Matcher>>,
    /// Costs that differ from the policy's own.
    costs: Vec<(Arc<dyn Matcher>, u64)>,
    cost_by: Option<CostFn>,
    /// In place of `cost_by`.
    by_body: Option<BodyCost>,
}

/// Returns the cost of a request from its head.
type CostFn = Arc<dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync>;

impl RuleMatchers {
    pub fn when(&mut self, matcher: impl IntoMatcher) {
        self.when.push(Arc::new(matcher.into_matcher()));
    }

    pub fn unless(&mut self, matcher: impl IntoMatcher) {
        self.unless.push(Arc::new(matcher.into_matcher()));
    }

    pub fn cost_when(&mut self, matcher: impl IntoMatcher, units: u64) {
        self.costs.push((Arc::new(matcher.into_matcher()), units));
    }

    pub fn cost_by(&mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) {
        self.cost_by = Some(Arc::new(cost));
        self.by_body = None;
    }

    /// Sets where in the body the cost is found.
    #[cfg(feature = "body")]
    pub(super) fn cost_by_body(&mut self, cost: BodyCost) {
        self.cost_by = None;
        self.by_body = Some(cost);
    }

    /// Returns the limits of the body that the cost needs.
    pub fn body_limits(&self) -> Option<BodyLimits> {
        self.by_body.as_ref().and_then(BodyCost::limits)
    }

    /// Returns the number in the body that sets the cost; `None` if there is none.
    pub fn number_in_body(&self, head: &RequestHead<'_>) -> Result<Option<u64>, BodyFault> {
        let cost = self.by_body.as_ref();
        cost.map_or(Ok(None), |cost| cost.number(head))
    }

    /// Whether all requests are counted, at the policy's own cost.
    pub fn is_empty(&self) -> bool {
        self.unless.is_empty() && !self.is_conditional() && !self.has_costs()
    }

    /// Returns whether requests must match something to be counted.
    pub fn is_conditional(&self) -> bool {
        !self.when.is_empty()
    }

    #[inline]
    pub fn counts(&self, head: &RequestHead<'_>) -> bool {
        self.when.iter().all(|matcher| is_possible(matcher, head))
            && !self.unless.iter().any(|matcher| is_exact(matcher, head))
    }

    /// Returns the cost of a request with this number in its body, or `None` if it is the policy's own.
    ///
    /// The first exact match sets the cost, or without one the default. A possible match before it raises the cost to its own.
    #[inline]
    pub fn cost(
        &self,
        (head, number): (&RequestHead<'_>, Option<u64>),
        default: u64,
    ) -> Option<u64> {
        let mut possible = None;
        for (matcher, units) in &self.costs {
            match matcher.matches(head) {
                Match::Miss => {}
                Match::Ambiguous => possible = possible.max(Some(*units)),
                Match::Exact => return possible.max(Some(*units)),
            }
        }
        let own = match &self.by_body {
            Some(cost) => number.map(|number| cost.units(number, default)),
            None => self.cost_by.as_ref().map(|cost| cost(head)),
        };
        match possible {
            Some(possible) => Some(possible.max(own.unwrap_or(default))),
            None => own,
        }
    }

    /// Whether a request may have another cost than the policy's own.
    pub fn has_costs(&self) -> bool {
        self.cost_by.is_some() || self.by_body.is_some() || !self.costs.is_empty()
    }

    /// Returns the largest cost that a matcher sets.
    pub fn largest_cost(&self) -> u64 {
        let units = self.costs.iter().map(|(_, units)| *units);
        units.max().unwrap_or(0)
    }

    pub fn validate(&self) -> Result<(), Error> {
        self.by_body.as_ref().map_or(Ok(()), BodyCost::validate)?;
        self.all().try_for_each(Matcher::validate)
    }

    pub fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        self.all().find_map(|matcher| matcher.diagnose(head))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Matcher>> {
        let costs = self.costs.iter().map(|(matcher, _)| matcher);
        self.when.iter().chain(&self.unless).chain(costs)
    }
}

fn is_possible(matcher: &Arc<dyn Matcher>, head: &RequestHead<'_>) -> bool {
    matcher.matches(head) != Match::Miss
}

fn is_exact(matcher: &Arc<dyn Matcher>, head: &RequestHead<'_>) -> bool {
    matcher.matches(head) == Match::Exact
}
