//! What is decided before any rule is asked: who is refused, and who is not limited.

use std::sync::Arc;

use http::request::Parts;

use crate::{
    diagnosis::{Ledger, Warning},
    error::Error,
    matching::{Match, Matcher},
    rejection::Rejection,
};

use super::setup_check::{FirstMatches, describe};

/// The deny and skip lists of a layer, in this order. What is in doubt is denied, and not skipped.
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

    /// Whether a request is to be limited.
    #[inline]
    pub(crate) fn limits(&self, parts: &Parts, ledger: &Ledger) -> Result<bool, Rejection> {
        if self.forbid.is_empty() && self.skip.is_empty() {
            return Ok(true);
        }
        if self.first_matches.is_due() {
            self.check_setup(parts, ledger);
        }
        let is_refused = |matcher: &Arc<dyn Matcher>| matcher.matches(parts) != Match::Miss;
        let is_free = |matcher: &Arc<dyn Matcher>| matcher.matches(parts) == Match::Exact;
        if self.forbid.iter().any(is_refused) {
            return Err(Rejection::forbidden(None));
        }
        Ok(!self.skip.iter().any(is_free))
    }

    /// Looks for signs of a wrong set-up.
    #[cold]
    fn check_setup(&self, parts: &Parts, ledger: &Ledger) {
        for (list, matchers) in [("a deny list", &self.forbid), ("a skip list", &self.skip)] {
            for matcher in matchers {
                if let Some(code) = matcher.diagnose(parts) {
                    ledger.report(Warning::new(code, describe(code, list)));
                }
            }
        }
    }
}
