//! Which requests a policy counts, and by which key: the HTTP side.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use http::request::Parts;

use crate::{
    diagnosis::Ledger,
    error::{Error, ErrorKind},
    extract::{AsyncKeyExtractor, KeyExtractor},
    matching::Matcher,
    policy::Policy,
    tiers::{TierCache, TierChoice},
};

use super::{
    completed::CompletedRequest,
    conditions::{Conditions, Costs},
    on_missing_key::OnMissingKey,
    setup_check::{FirstMatches, FirstRequests},
};

/// A policy with the extractor of its key, and with which requests it counts.
#[derive(Clone)]
pub struct Rule {
    pub(super) policy: Policy,
    pub(crate) source: Option<KeySource>,
    /// The rule's choice for a request without a key; `None` leaves it to the extractor.
    pub(super) missing: Option<OnMissingKey>,
    pub(super) conditions: Conditions,
    pub(super) costs: Costs,
    pub(crate) choice: Option<Arc<dyn TierChoice>>,
    pub(crate) cache: Option<TierCache>,
    price: Option<Price>,
    pub(super) setup_check: FirstRequests,
    pub(super) first_matches: FirstMatches,
    /// Whether a look-up that failed was reported.
    pub(super) has_logged_lookup: Arc<AtomicBool>,
}

/// Returns what a request really cost.
type Price = Arc<dyn Fn(&CompletedRequest<'_>) -> u64 + Send + Sync>;

/// Where the key comes from.
#[derive(Clone)]
pub(crate) enum KeySource {
    Extractor(Arc<dyn KeyExtractor>),
    Lookup(Arc<dyn AsyncKeyExtractor>),
}

impl Policy {
    /// Counts this policy by what the extractor finds.
    #[must_use]
    pub fn key(self, extractor: impl KeyExtractor) -> Rule {
        Rule {
            source: Some(KeySource::Extractor(Arc::new(extractor))),
            ..Rule::from(self)
        }
    }

    /// Counts this policy by what the extractor looks up.
    ///
    /// All keys and tiers of a layer are looked up at the same time, once the policies that need no lookup have
    /// [admitted](crate::middleware#keys-and-tiers-that-are-looked-up) the request. A lookup that fails, or takes longer than
    /// the layer's [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout), counts as a missing key: what
    /// happens then is the [`OnMissingKey`] choice, and [`OnMissingKey::Reject`] answers 503 and `unavailable`.
    #[must_use]
    pub fn key_async(self, extractor: impl AsyncKeyExtractor) -> Rule {
        Rule {
            source: Some(KeySource::Lookup(Arc::new(extractor))),
            ..Rule::from(self)
        }
    }
}

impl Rule {
    /// Sets what happens to a request whose key is absent.
    ///
    /// Default: what the extractor has for it, as [`Route`](crate::extract::Route) does, else [`OnMissingKey::Reject`], which
    /// shows a misconfiguration at the first request. The first such request is logged, unless the choice is
    /// [`OnMissingKey::Skip`].
    #[must_use]
    pub fn on_missing_key(mut self, choice: OnMissingKey) -> Self {
        self.missing = Some(choice);
        self
    }

    /// Counts only requests that the matcher matches, and those that resemble them: see
    /// [In doubt](crate::matching#in-doubt-a-request-is-counted).
    ///
    /// Default: all. Said more than once, all matchers must agree.
    #[must_use]
    pub fn when(mut self, matcher: impl Matcher) -> Self {
        self.conditions.when(matcher);
        self
    }

    /// Does not count requests that the matcher matches. Those that only resemble them are counted.
    ///
    /// Default: none. Said more than once, none of the matchers must match.
    #[must_use]
    pub fn unless(mut self, matcher: impl Matcher) -> Self {
        self.conditions.unless(matcher);
        self
    }

    /// Sets what a request costs, by its head: by method, route, or a header that tells its size.
    ///
    /// Default: the policy's [`cost`](Policy::cost). 0 is a peek; a cost above the policy's limit is denied for good.
    #[must_use]
    pub fn cost_by(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.costs.by(cost);
        self
    }

    /// Sets what the requests that a matcher matches cost: of several matchers the first that matches counts.
    ///
    /// Default: what [`cost_by`](Self::cost_by) says, or the policy's [`cost`](Policy::cost). A request that only resembles
    /// costs the most of what it could. More than the policy's limit is refused at `build()`, unless tiers may have more;
    /// whose tier has less is denied for good then.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Method;
    /// use tollgate::{Policy, Quota, extract::PeerIp, matching::{Methods, PathPattern}};
    ///
    /// let rule = Policy::new("api", Quota::per_minute(600))
    ///     .key(PeerIp)
    ///     .cost_when(PathPattern::new("/reports/{id}"), 50)
    ///     .cost_when(Methods::new([Method::POST, Method::PUT, Method::DELETE]), 5);
    /// ```
    #[must_use]
    pub fn cost_when(mut self, matcher: impl Matcher, units: u64) -> Self {
        self.costs.when(matcher, units);
        self
    }

    /// Sets which tier a caller has, as far as that is known without waiting.
    ///
    /// Default: none, and the policy's own quota holds. See [`tiers`](crate::tiers).
    #[must_use]
    pub fn tier_by(mut self, choice: impl TierChoice) -> Self {
        self.choice = Some(Arc::new(choice));
        self
    }

    /// Sets where a caller's tier is looked up when [`tier_by`](Self::tier_by) does not say.
    ///
    /// Default: nowhere. See [`tiers`](crate::tiers).
    #[must_use]
    pub fn tier_cache(mut self, cache: TierCache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Sets a closure that returns what a request really cost, once it has ended. The difference is refunded or charged.
    ///
    /// Default: what was charged.
    ///
    /// The closure runs after the body of the response has ended and was dropped, or after a request without a response
    /// was dropped. It delays nobody. If it panics, the charge stands. An [`ActualCost`](crate::middleware::ActualCost) that the
    /// handler sets takes precedence. A request of cost 0 is not settled: to count failures only, charge each request and
    /// return 0 for the others. Over Redis the settlement needs the Tokio runtime that drops the body.
    ///
    /// Keep the charge when the client [goes away](super::RequestOutcome#charge-a-client-that-goes-away): a client can
    /// hang up on every request.
    ///
    /// # Examples
    ///
    /// Refund a request that failed through no fault of the client:
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::PeerIp};
    /// use tollgate::{rules::{CompletedRequest, RequestOutcome}};
    ///
    /// let rule = Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp).settle(
    ///     |request: &CompletedRequest<'_>| match request.outcome {
    ///         RequestOutcome::Failed | RequestOutcome::Panicked => 0,
    ///         RequestOutcome::Responded { status, .. } if status.is_server_error() => 0,
    ///         _ => request.charged, // also for a client that hung up
    ///     },
    /// );
    /// ```
    #[must_use]
    pub fn settle(
        mut self,
        price: impl Fn(&CompletedRequest<'_>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.price = Some(Arc::new(price));
        self
    }

    /// Whether the charges of this rule must be remembered until the request has ended.
    pub(crate) fn keeps_charges(&self) -> bool {
        self.policy.must_end() || self.settles()
    }

    /// Whether more than the head of a request is needed to know the charge, or another policy may be charged.
    pub(crate) fn needs_lookups(&self) -> bool {
        matches!(self.source, Some(KeySource::Lookup(_)))
            || self.choice.is_some()
            || self.cache.is_some()
    }

    /// Says what keeps the rule from working.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        if let Some(KeySource::Extractor(extractor)) = &self.source {
            extractor.validate()?;
        }
        self.policy.validate()?;
        if self.settles() && self.costs.are_usual() && self.policy.default_cost() == 0 {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {:?}: a request costs nothing, and what was not charged is not settled: charge it, and settle \
                     what is to be free at 0",
                    self.policy.name()
                ),
            ));
        }
        self.conditions.validate()?;
        self.costs.validate()?;
        let (most, limit) = (self.costs.most(), self.policy.counter().limit());
        let may_have_more = self.choice.is_some() || self.cache.is_some();
        if most > limit && !may_have_more {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {:?}: cost_when() says {most} units and at most {limit} can be taken at once, so such a request \
                     could never pass: raise the burst, or reject them with forbid()",
                    self.policy.name()
                ),
            ));
        }
        match &self.choice {
            Some(choice) => choice.validate(&self.policy),
            None => Ok(()),
        }
    }

    /// Whether what a request really cost is asked for.
    pub(crate) fn settles(&self) -> bool {
        self.price.is_some()
    }

    /// What a request really cost.
    pub(crate) fn price(&self, completed: &CompletedRequest<'_>) -> u64 {
        match &self.price {
            Some(price) => price(completed),
            None => completed.charged,
        }
    }

    /// The rule's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Reports what looks wrong to the ledger of the layer that the rule is on.
    pub(crate) fn report_to(&mut self, ledger: &Arc<Ledger>) {
        self.setup_check.report_to(ledger);
    }

    pub(crate) fn has_key(&self) -> bool {
        self.source.is_some()
    }
}

impl From<Policy> for Rule {
    /// A rule that has no key yet; `build()` refuses it unless it gets one.
    fn from(policy: Policy) -> Self {
        Self {
            policy,
            source: None,
            missing: None,
            conditions: Conditions::default(),
            costs: Costs::default(),
            choice: None,
            cache: None,
            price: None,
            setup_check: FirstRequests::default(),
            first_matches: FirstMatches::default(),
            has_logged_lookup: Arc::default(),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.source.as_ref().map(|source| match source {
            KeySource::Lookup(extractor) => extractor.label(),
            KeySource::Extractor(extractor) => extractor.label(),
        });
        f.debug_struct("Rule")
            .field("policy", &self.policy)
            .field("key", &key)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}
