//! Which requests a layer limits, and which of them a rule counts.
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

use http::request::Parts;

use crate::{
    diagnosis::{Code, Warning, WarningLog},
    error::Error,
    matching::{Match, Matcher, RequestHead},
    rejection::Rejection,
};

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
    pub(crate) fn forbid(&mut self, matcher: impl Matcher) {
        self.forbid.push(Arc::new(matcher));
    }

    pub(crate) fn skip(&mut self, matcher: impl Matcher) {
        self.skip.push(Arc::new(matcher));
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let mut matchers = self.forbid.iter().chain(&self.skip);
        matchers.try_for_each(Matcher::validate)
    }

    /// Returns whether the layer limits a request.
    ///
    /// # Errors
    ///
    /// The rejection of a forbidden request.
    #[inline]
    pub(crate) fn limits(
        &self,
        head: &RequestHead<'_>,
        warnings: &WarningLog,
    ) -> Result<bool, Rejection> {
        if self.forbid.is_empty() && self.skip.is_empty() {
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
    pub(crate) fn is_forbidden(&self, head: &RequestHead<'_>) -> bool {
        let mut matchers = self.forbid.iter();
        matchers.any(|matcher| is_possible(matcher, head))
    }

    /// Returns whether the skip list contains a request.
    #[inline]
    pub(crate) fn is_skipped(&self, head: &RequestHead<'_>) -> bool {
        let mut matchers = self.skip.iter();
        matchers.any(|matcher| is_exact(matcher, head))
    }

    /// Reports misconfigured matchers.
    #[cold]
    fn check_setup(&self, parts: &Parts, warnings: &WarningLog) {
        for (list, matchers) in [("a forbid list", &self.forbid), ("a skip list", &self.skip)] {
            for matcher in matchers {
                if let Some(code) = matcher.diagnose(parts) {
                    warnings.report(Warning::new(code, describe(code, list)));
                }
            }
        }
    }
}

// === RuleFilter ===

/// Requests that a rule counts. A possible match is counted.
#[derive(Clone, Default)]
pub(super) struct RuleFilter {
    when: Vec<Arc<dyn Matcher>>,
    unless: Vec<Arc<dyn Matcher>>,
}

impl RuleFilter {
    pub(super) fn when(&mut self, matcher: impl Matcher) {
        self.when.push(Arc::new(matcher));
    }

    pub(super) fn unless(&mut self, matcher: impl Matcher) {
        self.unless.push(Arc::new(matcher));
    }

    /// Returns whether requests must match something to be counted.
    pub(super) fn is_conditional(&self) -> bool {
        !self.when.is_empty()
    }

    #[inline]
    pub(super) fn counts(&self, head: &RequestHead<'_>) -> bool {
        self.when.iter().all(|matcher| is_possible(matcher, head))
            && !self.unless.iter().any(|matcher| is_exact(matcher, head))
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

fn is_possible(matcher: &Arc<dyn Matcher>, head: &RequestHead<'_>) -> bool {
    matcher.matches(head) != Match::Miss
}

fn is_exact(matcher: &Arc<dyn Matcher>, head: &RequestHead<'_>) -> bool {
    matcher.matches(head) == Match::Exact
}
