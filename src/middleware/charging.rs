//! What a rule does with a request: whether it counts it, by which key, at what cost.

use std::{fmt, sync::atomic::Ordering};

use http::request::Parts;

use crate::{
    extract::KeyExtractor,
    key::Key,
    policy::{Charge, Charges, Policy},
    telemetry,
    tier::Tier,
};

use super::{
    rejection::{Lack, Rejection},
    rule::{MissingKey, Rule, Source},
    watch::said,
};

impl Rule {
    /// Whether the rule counts a request.
    #[inline]
    pub(super) fn counts(&self, parts: &Parts) -> bool {
        if self.glance.is_due() {
            self.look_at_matchers(parts);
        }
        self.conditions.are_none() || self.conditions.hold(parts)
    }

    #[cold]
    fn look_at_matchers(&self, parts: &Parts) {
        let code = self.conditions.diagnose(parts);
        if let Some(code) = code.or_else(|| self.costs.diagnose(parts)) {
            let name = self.policy.name();
            self.watch
                .report(name, code, said(code, "a list of the rule"));
        }
    }

    /// Adds the charge for a request if the rule counts it. For rules that need not find anything.
    #[inline]
    pub(super) fn charge<'a>(
        &'a self,
        parts: &Parts,
        charges: &mut Charges<'a>,
    ) -> Result<(), Rejection> {
        let Some(Source::Now(extractor)) = &self.source else {
            unreachable!(
                "a rule without a key does not pass build(), and one that finds its key is not asked"
            )
        };
        if !self.counts(parts) {
            return Ok(());
        }
        let key = match self.key_of(extractor.as_ref(), parts) {
            None => self.unidentified(Lack::of(extractor.as_ref(), parts))?,
            key => key,
        };
        if let Some(key) = key {
            charges.push(self.price_of(self.policy.charge(key), parts));
        }
        Ok(())
    }

    /// The charge at what the request costs.
    #[inline]
    pub(super) fn price_of<'a>(&self, charge: Charge<'a>, parts: &Parts) -> Charge<'a> {
        match self.costs.of(parts, charge.units()) {
            Some(cost) => charge.cost(cost),
            None => charge,
        }
    }

    /// What the extractor finds, with a look at whether the set-up is right.
    #[inline]
    pub(super) fn key_of(&self, extractor: &dyn KeyExtractor, parts: &Parts) -> Option<Key> {
        let name = self.policy.name();
        let key = extractor.extract(parts);
        match &key {
            Some(key) => self.watch.look(name, extractor, (parts, key)),
            None => {
                let code = || extractor.diagnose(parts);
                let lack = || Lack::of(extractor, parts);
                self.watch.miss(name, lack, code, &self.missing);
            }
        }
        key
    }

    /// Looks at what a look-up found.
    #[inline]
    pub(super) fn note_found(&self, label: &str, key: &Key, parts: &Parts) {
        let name = self.policy.name();
        self.watch.look_at_found(name, label, (parts, key));
    }

    /// Reports that a look-up found no key.
    #[cold]
    pub(super) fn note_missing(&self, lack: &Lack<'_>) {
        let name = self.policy.name();
        self.watch
            .miss(name, || lack.clone(), || None, &self.missing);
    }

    /// Whom to count instead when the key is missing.
    #[cold]
    pub(super) fn unidentified(&self, lack: Lack<'_>) -> Result<Option<Key>, Rejection> {
        let name = self.policy.name();
        self.instead(|| Rejection::missing_key(*name, lack))
    }

    /// Whom to count instead when the key could not be looked up.
    #[cold]
    pub(super) fn not_looked_up(&self) -> Result<Option<Key>, Rejection> {
        self.instead(Rejection::unidentified)
    }

    fn instead(&self, rejection: impl FnOnce() -> Rejection) -> Result<Option<Key>, Rejection> {
        match self.missing {
            MissingKey::Reject => Err(rejection()),
            MissingKey::Share => Ok(Some(Key::UNIDENTIFIED)),
            MissingKey::Skip => Ok(None),
        }
    }

    /// Reports the first look-up that failed.
    pub(super) fn warn(&self, message: fmt::Arguments<'_>) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            telemetry::warn(message);
        }
    }

    /// The policy that a tier's callers are charged under.
    #[inline]
    pub(super) fn policy_under<'a>(&'a self, tier: &'a Tier) -> &'a Policy {
        match tier.policy(&self.policy) {
            Ok(policy) => policy,
            Err(error) => {
                self.watch.misfit(self.policy.name(), error);
                &self.policy
            }
        }
    }
}
