//! A policy for calls that are not HTTP.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    charge::{Charge, Enforcement},
    diagnosis::{Code, Warning, WarningLog},
    extract::{Extracted, IntoKey},
    key::Key,
    policy::Policy,
    rejection::{MissingKeyDetail, Rejection},
    rules::{OnMissingKey, RuleMode},
};

/// A policy with the function that finds its key in a request of type `R`.
pub struct CallRule<R> {
    policy: Policy,
    key: Box<FindKey<R>>,
    cost: Option<Box<FindCost<R>>>,
    missing: OnMissingKey,
    mode: RuleMode,
    warned: AtomicBool,
}

type FindKey<R> = dyn Fn(&R) -> Extracted<Key> + Send + Sync;
type FindCost<R> = dyn Fn(&R) -> u64 + Send + Sync;

impl Policy {
    /// Counts this policy per key that the function finds in a request that is not HTTP: a [`Key`], an `Option` of one, or
    /// an [`Extracted`].
    #[must_use]
    pub fn key_of<R, K>(self, key: impl Fn(&R) -> K + Send + Sync + 'static) -> CallRule<R>
    where
        K: IntoKey,
    {
        CallRule {
            policy: self,
            key: Box::new(move |request| key(request).into_key()),
            cost: None,
            missing: OnMissingKey::default(),
            mode: RuleMode::default(),
            warned: AtomicBool::new(false),
        }
    }
}

impl<R> CallRule<R> {
    /// Sets a function that returns the cost of a request.
    ///
    /// Default: the policy's [`cost`](Policy::cost). A cost of 0 is a peek. A cost above the policy's limit is always
    /// denied.
    #[must_use]
    pub fn cost_by(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Box::new(cost));
        self
    }

    /// Sets the choice for requests without a key. A request with an ambiguous key is always rejected.
    ///
    /// Default: [`OnMissingKey::Reject`]. The first such request is reported, unless the choice is [`OnMissingKey::Skip`].
    #[must_use]
    pub fn on_missing_key(mut self, choice: OnMissingKey) -> Self {
        self.missing = choice;
        self
    }

    /// Sets whether the rule denies calls, only counts them, or does nothing. It stays as it was built.
    ///
    /// Default: [`RuleMode::Enforce`]. In shadow, calls without a key are not rejected either.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, call::CallRule, rules::RuleMode};
    ///
    /// struct Job { tenant: u64 }
    ///
    /// let jobs = Policy::new("jobs", Quota::per_minute(100));
    /// let rule: CallRule<Job> = jobs.key_of(|job: &Job| Some(Key::from(job.tenant)));
    /// let tried = rule.mode(RuleMode::Shadow); // `Decision::would_deny` returns what it would deny
    /// ```
    #[must_use]
    pub fn mode(mut self, mode: RuleMode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the rule's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the charge for a request, or `None` if the rule does not count it.
    #[inline]
    pub(super) fn charge(
        &self,
        request: &R,
        warnings: &WarningLog,
    ) -> Result<Option<Charge<'_>>, Rejection> {
        if self.mode == RuleMode::Off {
            return Ok(None);
        }
        let charge = match (self.key)(request) {
            Extracted::Found(key) => Ok(Some(self.policy.charge(key))),
            Extracted::Absent => self.charge_unidentified(warnings),
            Extracted::Ambiguous => Err(self.ambiguous(warnings)),
        };
        let is_shadow = self.mode == RuleMode::Shadow;
        let mut charge = match charge {
            Ok(Some(charge)) => charge,
            Err(rejection) if !is_shadow => return Err(rejection),
            Ok(None) | Err(_) => return Ok(None),
        };
        if is_shadow {
            charge = charge.enforcement(Enforcement::Shadow);
        }
        if let Some(cost) = &self.cost {
            charge = charge.cost(cost(request));
        }
        Ok(Some(charge))
    }

    #[cold]
    fn charge_unidentified(&self, warnings: &WarningLog) -> Result<Option<Charge<'_>>, Rejection> {
        let name = *self.policy.name();
        if self.missing != OnMissingKey::Skip && !self.warned.swap(true, Ordering::Relaxed) {
            let effect = self.missing.effect();
            let detail = format!("a request has no key; such requests {effect}");
            warnings.report(Warning::new(Code::MissingKey, detail).with_policy(name));
        }
        match self.missing {
            OnMissingKey::Reject => Err(Rejection::missing_key(name, MissingKeyDetail::default())),
            OnMissingKey::Share => Ok(Some(self.policy.charge(Key::UNIDENTIFIED))),
            OnMissingKey::Skip => Ok(None),
        }
    }

    #[cold]
    fn ambiguous(&self, warnings: &WarningLog) -> Rejection {
        let name = *self.policy.name();
        let detail = "a request has more than one key, or keys that contradict each other";
        warnings.report(Warning::new(Code::AmbiguousKey, detail).with_policy(name));
        Rejection::ambiguous_key(name, MissingKeyDetail::default().label)
    }
}

impl<R> fmt::Debug for CallRule<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRule")
            .field("policy", &self.policy)
            .field("missing", &self.missing)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
