//! Which key a policy counts by, on the HTTP side.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::request::Parts;

use crate::{
    extract::KeyExtractor,
    key::Key,
    policy::{Charge, Policy},
    telemetry,
};

use super::rejection::Rejection;

/// A policy with the extractor of its key.
#[derive(Clone)]
pub struct Rule {
    policy: Policy,
    extractor: Option<Arc<dyn KeyExtractor>>,
    missing: MissingKey,
    warned: Arc<AtomicBool>,
}

/// What happens to a request that does not tell whom to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Answer it at once, with the extractor's [`missing_status`](KeyExtractor::missing_status).
    #[default]
    Reject,
    /// Count it with all others that do not tell, in one shared bucket.
    Share,
    /// Do not count it for this policy.
    Skip,
}

impl Policy {
    /// Counts this policy by what the extractor finds.
    #[must_use]
    pub fn key(self, extractor: impl KeyExtractor) -> Rule {
        Rule {
            extractor: Some(Arc::new(extractor)),
            ..Rule::from(self)
        }
    }
}

impl Rule {
    /// Sets what happens to a request that does not tell whom to count.
    ///
    /// Default: [`MissingKey::Reject`], which shows a wrong set-up at the first request. In each case the first such
    /// request is logged.
    #[must_use]
    pub fn on_missing_key(mut self, choice: MissingKey) -> Self {
        self.missing = choice;
        self
    }

    /// The rule's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn has_key(&self) -> bool {
        self.extractor.is_some()
    }

    /// The charge for a request, or `None` when the rule does not count it.
    #[inline]
    pub(super) fn charge(&self, parts: &Parts) -> Result<Option<Charge<'_>>, Rejection> {
        let extractor = self
            .extractor
            .as_deref()
            .expect("a rule without a key does not pass build()");
        match extractor.extract(parts) {
            Some(key) => Ok(Some(self.policy.charge(key))),
            None => self.charge_unidentified(extractor),
        }
    }

    #[cold]
    fn charge_unidentified(
        &self,
        extractor: &dyn KeyExtractor,
    ) -> Result<Option<Charge<'_>>, Rejection> {
        let name = self.policy.name();
        let label = extractor.label();
        if !self.warned.swap(true, Ordering::Relaxed) {
            telemetry::warn(format_args!(
                "policy {name}: {label} is missing from a request; such requests are handled as {:?}",
                self.missing
            ));
        }
        match self.missing {
            MissingKey::Reject => Err(Rejection::missing_key(
                *name,
                label,
                extractor.missing_status(),
            )),
            MissingKey::Share => Ok(Some(self.policy.charge(Key::UNIDENTIFIED))),
            MissingKey::Skip => Ok(None),
        }
    }
}

impl From<Policy> for Rule {
    /// A rule that has no key yet; `build()` refuses it unless it gets one.
    fn from(policy: Policy) -> Self {
        Self {
            policy,
            extractor: None,
            missing: MissingKey::default(),
            warned: Arc::default(),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("policy", &self.policy)
            .field("key", &self.extractor.as_deref().map(KeyExtractor::label))
            .field("missing", &self.missing)
            .finish()
    }
}
