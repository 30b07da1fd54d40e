//! What is decided before any rule is asked: who is refused, and who is not limited.

use std::sync::Arc;

use http::request::Parts;

use crate::{
    diagnosis::{Ledger, Warning},
    error::Error,
    matching::{Match, Matcher},
};

use super::{
    rejection::Rejection,
    watch::{Glance, said},
};

/// The deny and skip lists of a layer, in this order. What is in doubt is denied, and not skipped.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    deny: Vec<Arc<dyn Matcher>>,
    skip: Vec<Arc<dyn Matcher>>,
    glance: Glance,
}

impl Gate {
    pub(crate) fn deny(&mut self, matcher: impl Matcher) {
        self.deny.push(Arc::new(matcher));
    }

    pub(crate) fn skip(&mut self, matcher: impl Matcher) {
        self.skip.push(Arc::new(matcher));
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let mut matchers = self.deny.iter().chain(&self.skip);
        matchers.try_for_each(Matcher::validate)
    }

    /// Whether a request is to be limited.
    #[inline]
    pub(super) fn limits(&self, parts: &Parts, ledger: &Ledger) -> Result<bool, Rejection> {
        if self.deny.is_empty() && self.skip.is_empty() {
            return Ok(true);
        }
        if self.glance.is_due() {
            self.look(parts, ledger);
        }
        let is_refused = |matcher: &Arc<dyn Matcher>| matcher.matches(parts) != Match::Miss;
        let is_free = |matcher: &Arc<dyn Matcher>| matcher.matches(parts) == Match::Exact;
        if self.deny.iter().any(is_refused) {
            return Err(Rejection::forbidden(None));
        }
        Ok(!self.skip.iter().any(is_free))
    }

    /// Looks for signs of a wrong set-up.
    #[cold]
    fn look(&self, parts: &Parts, ledger: &Ledger) {
        for (list, matchers) in [("a deny list", &self.deny), ("a skip list", &self.skip)] {
            for matcher in matchers {
                if let Some(code) = matcher.diagnose(parts) {
                    ledger.report(Warning::new(code, said(code, list)));
                }
            }
        }
    }
}
