//! Which key a policy counts by, on the HTTP side.

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::{
    diagnosis::Ledger,
    extract::KeyExtractor,
    key::Key,
    policy::{Charge, Policy},
};

use super::{
    rejection::Rejection,
    settling::{Finished, Pricing},
    watch::Watch,
};

/// A policy with the extractor of its key.
#[derive(Clone)]
pub struct Rule {
    policy: Policy,
    extractor: Option<Arc<dyn KeyExtractor>>,
    missing: MissingKey,
    cost: Option<Costing>,
    pricing: Option<Pricing>,
    watch: Watch,
}

/// Says what a request costs, by its head.
type Costing = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

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

    /// Sets what a request costs, by its head: by method, route, or a header that tells its size.
    ///
    /// Default: the policy's [`cost`](Policy::cost). 0 is a peek; a cost above the policy's limit is denied for good.
    #[must_use]
    pub fn cost_by(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Sets what a request really cost, once it is answered; the difference is given back or charged.
    ///
    /// Default: what was charged. The closure is asked when the head of the answer is there; or, without a status, when
    /// there will be none, since the handler panicked or failed or the client went away. When it panics, the charge
    /// stands. The handler's own word by [`ActualCost`](super::ActualCost) goes before it. The settlement is sent when
    /// the body of the answer has ended or was dropped, and delays nobody. Over Redis it needs the Tokio runtime that
    /// drops the body.
    ///
    /// # Examples
    ///
    /// Failures of ours cost nothing:
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::PeerIp, middleware::Finished};
    ///
    /// let rule = Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp).settle(
    ///     |finished: &Finished<'_>| match finished.status {
    ///         Some(status) if status.is_server_error() => 0,
    ///         Some(_) => finished.charged,
    ///         None => 0,
    ///     },
    /// );
    /// ```
    #[must_use]
    pub fn settle(mut self, price: impl Fn(&Finished<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.pricing = Some(Arc::new(price));
        self
    }

    /// Whether the charges of this rule must be remembered until the request has ended.
    pub(crate) fn keeps_charges(&self) -> bool {
        self.policy.must_end() || self.settles()
    }

    /// Whether what a request really cost is asked for.
    pub(super) fn settles(&self) -> bool {
        self.pricing.is_some()
    }

    /// What a request really cost.
    pub(super) fn price(&self, finished: &Finished<'_>) -> u64 {
        match &self.pricing {
            Some(price) => price(finished),
            None => finished.charged,
        }
    }

    /// The rule's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Reports what looks wrong to the ledger of the layer that the rule is on.
    pub(crate) fn report_to(&mut self, ledger: &Arc<Ledger>) {
        self.watch.report_to(ledger);
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
        let charge = match extractor.extract(parts) {
            Some(key) => {
                let name = self.policy.name();
                self.watch.look(name, extractor, (parts, &key));
                Some(self.policy.charge(key))
            }
            None => self.charge_unidentified(extractor, parts)?,
        };
        Ok(match &self.cost {
            Some(cost) => charge.map(|charge| charge.cost(cost(parts))),
            None => charge,
        })
    }

    #[cold]
    fn charge_unidentified(
        &self,
        extractor: &dyn KeyExtractor,
        parts: &Parts,
    ) -> Result<Option<Charge<'_>>, Rejection> {
        let name = self.policy.name();
        let code = || extractor.diagnose(parts);
        self.watch
            .miss(name, extractor.label(), code, &self.missing);
        match self.missing {
            MissingKey::Reject => Err(Rejection::missing_key(
                *name,
                extractor.label(),
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
            cost: None,
            pricing: None,
            watch: Watch::default(),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("policy", &self.policy)
            .field("key", &self.extractor.as_deref().map(KeyExtractor::label))
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}
