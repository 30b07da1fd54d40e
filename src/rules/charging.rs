//! The charge of a request under a rule: whether it is counted, by which key, at what cost.
//!
//! # Why is a candidate charged in place of the policy, and not beside it?
//!
//! A candidate shows what would happen if its quota were enforced. If it were charged only for requests that the present quota
//! admits, a larger candidate would never fill, and would seem to admit every request that is denied today. So a request that its
//! policy alone denies is charged to the candidate. A request that another policy denies is not, since the candidate would not
//! have changed that.
//!
//! Shadow policies are simpler: each would only add denials, so they are charged for admitted requests. The store gets both,
//! since only the store has all charges of a decision. In a cluster a candidate is in the slot of its policy, and does not see
//! a denial in another slot. Its charge is refunded then, unless its policy denies as well.

use std::{error::Error, sync::atomic::Ordering};

use crate::{
    charge::{Charge, Charges, Enforcement},
    diagnosis::log,
    extract::{AsyncKeyExtractor, Extracted, KeyExtractor},
    key::Key,
    policy::Policy,
    priority::priority::Priority,
    rejection::{MissingKeyDetail, Rejection},
    request::{BodyFault, RequestHead},
    tiers::Tier,
};

use super::{
    mode::{ModeSetting, RuleMode},
    on_missing_key::OnMissingKey,
    rule::{KeySource, Rule},
    setup_check::describe,
};

impl Rule {
    /// Returns whether the rule counts a request.
    #[inline]
    pub(crate) fn counts(&self, head: &RequestHead<'_>) -> bool {
        if self.first_matches.is_due() {
            self.check_matchers(head);
        }
        self.matchers.counts(head)
    }

    #[cold]
    fn check_matchers(&self, head: &RequestHead<'_>) {
        if let Some(code) = self.matchers.diagnose(head) {
            let name = self.policy.name();
            self.setup_check
                .report(name, code, describe(code, "a list of the rule"));
        }
    }

    /// Adds the charge for a request if the rule counts it. The rule must not need lookups.
    ///
    /// # Errors
    ///
    /// The rejection of a request without a usable key.
    #[inline]
    pub(crate) fn charge<'a>(
        &'a self,
        layer: RuleMode,
        head: &RequestHead<'_>,
        charges: &mut Charges<'a>,
    ) -> Result<(), Rejection> {
        let setting = self.mode.get().within(layer);
        let Some(KeySource::Extractor(extractor)) = &self.source else {
            unreachable!(
                "build() fails for a rule without a key, and rules that need lookups are resolved"
            )
        };
        if setting.is_off() || !self.counts(head) {
            return Ok(());
        }
        let extractor = extractor.as_ref();
        let caller = match extractor.extract(head) {
            // Charged where it was found: a key is 48 bytes, and each move of it takes as long as hashing it.
            Extracted::Found(ref key) => {
                let name = self.policy.name();
                self.setup_check.check(name, extractor, (head, key));
                self.add_charges(&self.policy, key, (setting, head, None), |charge| {
                    charges.push(charge);
                });
                return Ok(());
            }
            Extracted::Absent => self.absent(extractor, head),
            Extracted::Ambiguous => Err(self.ambiguous_in(extractor, head)),
        };
        let key = match caller {
            Ok(Caller::Known(key)) => key,
            Ok(Caller::Shared) => Key::UNIDENTIFIED,
            Ok(Caller::Uncounted) => return Ok(()),
            Err(rejection) if setting.is_enforced() => return Err(rejection),
            Err(_) => return Ok(()),
        };
        self.add_charges(&self.policy, &key, (setting, head, None), |charge| {
            charges.push(charge);
        });
        Ok(())
    }

    /// Adds the charges of a policy to a key: its own, that of the candidate if the policy is the rule's own, and that of the rest if
    /// the request may not use what is reserved. The number is the one in the body that sets the cost.
    #[inline]
    pub(crate) fn add_charges<'a>(
        &'a self,
        policy: &'a Policy,
        key: &Key,
        (setting, head, number): (ModeSetting, &RequestHead<'_>, Option<u64>),
        mut add: impl FnMut(Charge<'a>),
    ) {
        let charge = |policy: &'a Policy| self.with_cost(policy.charge(*key), (head, number));
        let enforced = |policy: &'a Policy| match setting.is_enforced() {
            true => charge(policy),
            // The name of the rule: a key is in or out for all of its policies.
            false => {
                let name = self.policy.name().as_bytes();
                charge(policy).enforcement(setting.enforcement(name, key))
            }
        };
        let is_outside =
            policy.has_reserve() && policy.is_outside_of_reserve(Priority::of(head.extensions));
        let whole = enforced(policy);
        add(if is_outside { whole.borrowing() } else { whole });
        if let Some(candidate) = &self.candidate
            && std::ptr::eq(policy, &raw const self.policy)
        {
            add(charge(candidate).enforcement(Enforcement::Candidate));
        }
        if is_outside && let Some(rest) = policy.rest() {
            add(enforced(rest).borrowing());
        }
    }

    /// Returns the charge with the request's cost.
    #[inline]
    fn with_cost<'a>(
        &self,
        charge: Charge<'a>,
        request: (&RequestHead<'_>, Option<u64>),
    ) -> Charge<'a> {
        match self.matchers.cost(request, charge.units()) {
            Some(cost) => charge.cost(cost),
            None => charge,
        }
    }

    /// Returns the caller that the extractor finds, and checks the first requests for misconfigurations.
    pub(crate) fn caller(
        &self,
        extractor: &dyn KeyExtractor,
        head: &RequestHead<'_>,
    ) -> Result<Caller, Rejection> {
        match extractor.extract(head) {
            Extracted::Found(key) => {
                let name = self.policy.name();
                self.setup_check.check(name, extractor, (head, &key));
                Ok(Caller::Known(key))
            }
            Extracted::Absent => self.absent(extractor, head),
            Extracted::Ambiguous => Err(self.ambiguous_in(extractor, head)),
        }
    }

    /// Returns the caller of a request without a key.
    #[cold]
    fn absent(
        &self,
        extractor: &dyn KeyExtractor,
        head: &RequestHead<'_>,
    ) -> Result<Caller, Rejection> {
        let name = self.policy.name();
        if self.missing.is_none()
            && let Some(key) = extractor.default_key(head)
        {
            self.setup_check.check(name, extractor, (head, &key));
            return Ok(Caller::Known(key));
        }
        let (label, code) = (
            || extractor.missing_label(head),
            || extractor.diagnose(head),
        );
        self.setup_check
            .report_missing_key(name, label, code, self.on_missing());
        self.without_key(|| Rejection::missing_key(*name, MissingKeyDetail::of(extractor, head)))
    }

    /// Returns the caller that a lookup found.
    pub(crate) fn looked_up(
        &self,
        extractor: &dyn AsyncKeyExtractor,
        found: Extracted<Key>,
        head: &RequestHead<'_>,
    ) -> Result<Caller, Rejection> {
        let name = self.policy.name();
        match found {
            Extracted::Found(key) => {
                let label = extractor.label();
                self.setup_check.check_found(name, label, (head, &key));
                Ok(Caller::Known(key))
            }
            Extracted::Absent => {
                let label = || extractor.label();
                self.setup_check
                    .report_missing_key(name, label, || None, self.on_missing());
                self.without_key(|| {
                    Rejection::missing_key(*name, MissingKeyDetail::of_lookup(extractor))
                })
            }
            Extracted::Ambiguous => Err(self.ambiguous(extractor.label())),
        }
    }

    /// Returns the rejection of a request whose key is ambiguous, or whose body cannot be read.
    #[cold]
    fn ambiguous_in(&self, extractor: &dyn KeyExtractor, head: &RequestHead<'_>) -> Rejection {
        match extractor.body_fault(head) {
            Some(fault) => self.unreadable(fault),
            None => self.ambiguous(extractor.missing_label(head)),
        }
    }

    /// Returns the number in the body that sets the cost; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The rejection of a request whose body cannot be read.
    pub(crate) fn number_in_body(&self, head: &RequestHead<'_>) -> Result<Option<u64>, Rejection> {
        let number = self.matchers.number_in_body(head);
        number.map_err(|fault| self.unreadable(fault))
    }

    #[cold]
    fn unreadable(&self, fault: BodyFault) -> Rejection {
        let name = self.policy.name();
        if fault == BodyFault::Unsupported && !self.has_logged_lookup.swap(true, Ordering::Relaxed)
        {
            let remedy = "a rule reads the body, and only axum's Body can be read: map the requests to it outside of the limit";
            log::event!(
                WARN,
                "a request body cannot be read",
                policy = name,
                remedy = remedy
            );
        }
        Rejection::unreadable_body(*name, fault)
    }

    /// Returns the rejection of an ambiguous key, which the rule's choice for missing keys does not change.
    #[cold]
    fn ambiguous(&self, label: &str) -> Rejection {
        let name = self.policy.name();
        self.setup_check.report_ambiguous_key(name, label);
        Rejection::ambiguous_key(*name, label)
    }

    fn without_key(&self, rejection: impl FnOnce() -> Rejection) -> Result<Caller, Rejection> {
        match self.on_missing() {
            OnMissingKey::Reject => Err(rejection()),
            OnMissingKey::Share => Ok(Caller::Shared),
            OnMissingKey::Skip => Ok(Caller::Uncounted),
        }
    }

    pub(crate) fn on_missing(&self) -> OnMissingKey {
        self.missing.unwrap_or_default()
    }

    /// Returns the caller of a request whose lookup failed, and logs the first one; `error` is `None` when it took too long.
    #[cold]
    pub(crate) fn lookup_failed(
        &self,
        error: Option<&(dyn Error + Send + Sync)>,
    ) -> Result<Caller, Rejection> {
        if !self.has_logged_lookup.swap(true, Ordering::Relaxed) {
            let policy = self.policy.name();
            match error {
                Some(error) => {
                    log::event!(WARN, "a key lookup failed", policy = policy, error = error);
                }
                None => log::event!(WARN, "a key lookup timed out", policy = policy),
            }
        }
        self.without_key(Rejection::unavailable)
    }

    /// Returns the policy with a tier's quota, or the rule's own if the tier does not fit.
    #[inline]
    pub(crate) fn policy_under<'a>(&'a self, tier: &'a Tier) -> &'a Policy {
        match tier.policy(&self.policy) {
            Ok(policy) => policy,
            Err(error) => {
                self.setup_check
                    .report_unfit_tier(self.policy.name(), error);
                &self.policy
            }
        }
    }
}

// === Caller ===

/// The caller that a rule counts a request for.
pub(crate) enum Caller {
    /// The caller with this key.
    Known(Key),
    /// All callers without a key, together.
    Shared,
    /// No caller: the request is not counted.
    Uncounted,
}
