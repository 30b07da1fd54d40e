//! A policy for HTTP requests.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use crate::{
    algorithm::Quota,
    diagnosis::{Code, WarningLog},
    error::{Error, ErrorKind},
    extract::{AsyncKeyExtractor, KeyExtractor},
    matching::IntoMatcher,
    policy::Policy,
    request::{BodyLimits, RequestHead},
    tiers::{TierCache, TierChoice},
};

#[cfg(feature = "body")]
use crate::extract::FromBody;

#[cfg(feature = "body")]
use super::body_cost::BodyCost;
use super::{
    completed::{CompletedRequest, RequestOutcome},
    filter::RuleMatchers,
    mode::{ModeSwitch, RuleMode},
    on_missing_key::OnMissingKey,
    price::{Condition, Price},
    setup_check::{FirstMatches, FirstRequests},
};

/// A policy with its key extractor, the requests it counts, and their cost.
///
/// Made by [`Policy::key`] and [`Policy::key_async`]; a layer takes it with
/// [`policy`](crate::builder::RateLimitLayerBuilder::policy).
#[derive(Clone)]
pub struct Rule {
    pub(super) policy: Policy,
    pub(crate) source: Option<KeySource>,
    /// Choice for a request without a key; `None` leaves it to the extractor.
    pub(crate) missing: Option<OnMissingKey>,
    pub(crate) matchers: RuleMatchers,
    pub(crate) choice: Option<Arc<dyn TierChoice>>,
    pub(crate) cache: Option<TierCache>,
    pub(super) price: Option<Price>,
    /// Which responses clear what has counted for the key.
    pub(super) clears: Option<Condition>,
    pub(crate) mode: ModeSwitch,
    /// The policy with the quota to try, counted beside the rule's own.
    pub(crate) candidate: Option<Policy>,
    /// An invalid setting is kept as an error until `build()` reports it.
    fault: Option<Error>,
    pub(super) setup_check: FirstRequests,
    pub(super) first_matches: FirstMatches,
    /// Whether a failed lookup was logged.
    pub(super) has_logged_lookup: Arc<AtomicBool>,
}

/// Source of a rule's keys.
#[derive(Clone)]
pub(crate) enum KeySource {
    Extractor(Arc<dyn KeyExtractor>),
    Lookup(Arc<dyn AsyncKeyExtractor>),
}

impl KeySource {
    /// Returns the label of the extractor.
    pub fn label(&self) -> &str {
        match self {
            Self::Extractor(extractor) => extractor.label(),
            Self::Lookup(extractor) => extractor.label(),
        }
    }
}

impl Policy {
    /// Counts this policy per key that the extractor finds in a request.
    ///
    /// A closure must name the type of its argument here: `|head: &RequestHead| ..`. [`key_fn`](Self::key_fn) takes one without.
    #[must_use]
    pub fn key(self, extractor: impl KeyExtractor) -> Rule {
        Rule {
            source: Some(KeySource::Extractor(Arc::new(extractor))),
            ..Rule::from(self)
        }
    }

    /// Counts this policy per key that the extractor looks up.
    ///
    /// All keys and tiers of a layer are looked up at the same time, once the policies that need no lookup have
    /// [admitted](crate::middleware#keys-and-tiers-that-are-looked-up) the request. A lookup that fails, or takes longer than
    /// the layer's [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout), counts as a missing key, except
    /// that [`OnMissingKey::Reject`] responds with 503 and `unavailable`.
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
    /// Default: the extractor's [default key](KeyExtractor::default_key) if it has one, otherwise [`OnMissingKey::Reject`],
    /// which shows a misconfiguration at the first request. The first such request is logged, unless the choice is
    /// [`OnMissingKey::Skip`].
    #[must_use]
    pub fn on_missing_key(mut self, choice: OnMissingKey) -> Self {
        self.missing = Some(choice);
        self
    }

    /// Counts only requests that match, exactly or [possibly](crate::matching#ambiguous-matches).
    ///
    /// Default: all requests. If called repeatedly, all matchers must match. Text is a path pattern, as in `.when("/login")`.
    /// [`when_fn`](Self::when_fn) takes a closure without types.
    #[must_use]
    pub fn when(mut self, matcher: impl IntoMatcher) -> Self {
        self.matchers.when(matcher);
        self
    }

    /// Does not count requests that match exactly. Possible matches are counted.
    ///
    /// Default: counts all requests. If called repeatedly, one exact match is enough.
    #[must_use]
    pub fn unless(mut self, matcher: impl IntoMatcher) -> Self {
        self.matchers.unless(matcher);
        self
    }

    /// Sets a function that returns the cost of a request from its head: its method, route, or a header with its size.
    ///
    /// Default: the policy's [`cost`](Policy::cost). A cost of 0 is a peek. A cost above the policy's limit is always
    /// denied.
    #[must_use]
    pub fn cost_by(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.matchers.cost_by(cost);
        self
    }

    /// Sets a function that returns the cost of a request from its body, such as the tokens that it asks for.
    ///
    /// Default: the policy's [`cost`](Policy::cost). It takes the place of [`cost_by`](Self::cost_by): the one that is set last
    /// applies. The function gets the whole body as it was sent. A request whose body is larger, too slow, or breaks off is rejected with 413,
    /// 408 or 400. The request must have axum's `Body`. See [`FromBody`](crate::extract::FromBody).
    ///
    /// # Examples
    ///
    /// As many units as a completion may have tokens:
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::{ApiKey, BodyLimits}};
    ///
    /// let limits = BodyLimits::default().bytes(1 << 20);
    /// let tokens = Policy::new("tokens", Quota::per_minute(100_000)).key(ApiKey::bearer()).cost_by_body(limits, |body| {
    ///     let request: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    ///     request["max_tokens"].as_u64().unwrap_or(4_096)
    /// });
    /// ```
    #[cfg(feature = "body")]
    #[must_use]
    pub fn cost_by_body(
        mut self,
        limits: BodyLimits,
        cost: impl Fn(&[u8]) -> u64 + Send + Sync + 'static,
    ) -> Self {
        let cost = BodyCost::Function(limits, Arc::new(cost));
        self.matchers.cost_by_body(cost);
        self
    }

    /// Sets the field of the body whose number is the cost of a request, such as the tokens that it asks for.
    ///
    /// Default: the policy's [`cost`](Policy::cost), which is also the cost without such a field, and the least: a client that
    /// states 0 pays it too. It takes the place of [`cost_by`](Self::cost_by) and [`cost_by_body`](Self::cost_by_body). A body with
    /// something else than a whole number there, or with two numbers, is rejected with 400, and one that cannot be read as its
    /// [`FromBody`] does it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::{ApiKey, FromBody}};
    ///
    /// let tokens = Policy::new("tokens", Quota::per_minute(100_000))
    ///     .cost(500) // without the field
    ///     .key(ApiKey::bearer())
    ///     .cost_field(FromBody::json("/max_tokens").limit(1 << 20));
    /// ```
    #[cfg(feature = "body")]
    #[must_use]
    pub fn cost_field(mut self, field: FromBody) -> Self {
        self.matchers.cost_by_body(BodyCost::Field(Box::new(field)));
        self
    }

    /// Sets the cost of requests that match. The first matcher that matches exactly sets the cost.
    ///
    /// Default: the result of [`cost_by`](Self::cost_by), or the policy's [`cost`](Policy::cost). A
    /// [possible match](crate::matching#ambiguous-matches) costs the highest of the costs that could apply: `/Reports/7` costs
    /// the 50 units below. `build()` fails for a cost above the policy's limit, unless the rule
    /// has tiers, whose limit may be higher. A caller whose tier has a lower limit is always denied.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Method;
    /// use tollgate::{Policy, Quota, extract::PeerIp, matching::Methods};
    ///
    /// let rule = Policy::new("api", Quota::per_minute(600))
    ///     .key(PeerIp)
    ///     .cost_when("/reports/{id}", 50)
    ///     .cost_when(Methods::new([Method::POST, Method::PUT, Method::DELETE]), 5);
    /// ```
    #[must_use]
    pub fn cost_when(mut self, matcher: impl IntoMatcher, units: u64) -> Self {
        self.matchers.cost_when(matcher, units);
        self
    }

    /// Sets a function that returns a caller's tier without waiting.
    ///
    /// Default: none, so the quota of the policy applies. See [`tiers`](crate::tiers). [`tier_fn`](Self::tier_fn) takes a closure
    /// without types.
    #[must_use]
    pub fn tier_by(mut self, choice: impl TierChoice) -> Self {
        self.choice = Some(Arc::new(choice));
        self
    }

    /// Sets the lookup of a caller's tier if [`tier_by`](Self::tier_by) returns none.
    ///
    /// Default: no lookup. See [`tiers`](crate::tiers).
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
    /// was dropped. It delays no response. If it panics, the charge is kept. An
    /// [`ActualCost`](crate::middleware::ActualCost) that the handler sets takes precedence. A request of cost 0 is not
    /// settled. To count failures only, use [`count_failures`](Self::count_failures). Over Redis the settlement
    /// needs the Tokio runtime that drops the body.
    ///
    /// Keep the charge when the client [goes away](super::RequestOutcome#charge-a-client-that-goes-away): a client can
    /// hang up on every request.
    ///
    /// # Examples
    ///
    /// Refund a request that failed through no fault of the client:
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::PeerIp, rules::RequestOutcome};
    ///
    /// let rule = Policy::new("per-ip", Quota::per_minute(100))
    ///     .key(PeerIp)
    ///     .settle(|request| match request.outcome {
    ///         RequestOutcome::Failed | RequestOutcome::Panicked => 0,
    ///         RequestOutcome::Responded { status, .. } if status.is_server_error() => 0,
    ///         _ => request.charged, // also for a client that hung up
    ///     });
    /// ```
    #[must_use]
    pub fn settle(
        mut self,
        price: impl Fn(&CompletedRequest<'_>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.price = Some(Price::Settled(Arc::new(price)));
        self
    }

    /// Settles each request by the [`ActualCost`](crate::middleware::ActualCost) that its handler sets.
    ///
    /// Default: what was charged. A request whose handler set no cost keeps its charge, for example after an error of the server or
    /// when the client hung up, since the handler may have done its work by then. The exception is a response with a status of
    /// 4xx that nobody priced: it is refunded, because validation, routing or an extractor rejected the request before the handler
    /// could do its work. Replaces [`settle`](Self::settle), which is for other choices.
    ///
    /// A client that only sends invalid requests is never charged by this rule. Put a policy by address beside it, which counts
    /// them all.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimitLayer, extract::{ApiKey, PeerIp}, middleware::ActualCost};
    ///
    /// async fn complete(cost: ActualCost) -> &'static str {
    ///     cost.set("tokens", 1_234);
    ///     "done"
    /// }
    ///
    /// let tokens = Policy::new("tokens", Quota::per_hour(100_000)).cost(1_000); // charged until the cost is known
    /// let layer = RateLimitLayer::builder()
    ///     .policy(tokens.key(ApiKey::bearer()).settle_by_handler())
    ///     .policy(Policy::new("per-ip", Quota::per_minute(300)).key(PeerIp))
    ///     .build()?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn settle_by_handler(self) -> Self {
        self.settle(|request| match request.outcome {
            RequestOutcome::Responded { status, .. } if status.is_client_error() => 0,
            _ => request.charged,
        })
    }

    /// Sets whether the rule denies requests, only counts them, or does nothing.
    ///
    /// Default: [`RuleMode::Enforce`]. [`RateLimitLayer::set_rule_mode`](crate::RateLimitLayer::set_rule_mode) changes it while
    /// the service runs.
    #[must_use]
    pub fn mode(self, mode: RuleMode) -> Self {
        self.mode.set_mode(mode);
        self
    }

    /// Sets the percentage of keys for which the rule denies requests. The others are counted as in
    /// [shadow mode](RuleMode::Shadow).
    ///
    /// Default: 100. A key is always in or out, in all instances, and a larger percentage only adds keys. `build()` fails for
    /// a number outside 0 to 100. A request without a key is rejected only if the percentage is 100.
    #[must_use]
    pub fn rollout(mut self, percent: f64) -> Self {
        let result = self.mode.set_rollout(percent);
        self.fault = result.err().or(self.fault);
        self
    }

    /// Counts another quota beside the policy's, by the same algorithm and at the same cost, to see what it would admit.
    ///
    /// Default: none. It denies nothing: [`Decision::would_deny`](crate::Decision::would_deny) contains it, under the
    /// policy's name and `.candidate`, where it would have denied. A request that only the policy itself denies is charged
    /// to the candidate as well, so that a larger quota can be tried too, unless it limits requests in flight. Both are
    /// decided in one call. Requests under a [tier](crate::tiers) are not counted.
    ///
    /// `build()` fails if the algorithm cannot count the quota, or if the policy's name has more than 29 characters.
    #[must_use]
    pub fn candidate(mut self, quota: Quota) -> Self {
        match self.policy.candidate(quota) {
            Ok(candidate) => self.candidate = Some(candidate),
            Err(error) => self.fault = Some(error),
        }
        self
    }

    /// Returns the policy, and that of the rest if a part is reserved.
    pub(crate) fn enforced_policies(&self) -> impl Iterator<Item = &Policy> {
        std::iter::once(&self.policy).chain(self.policy.rest())
    }

    /// Returns all policies that the rule counts.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.enforced_policies().chain(&self.candidate)
    }

    /// Returns whether a policy is one that the rule counts.
    pub(crate) fn has_policy(&self, policy: &Policy) -> bool {
        self.policies().any(|own| own.name() == policy.name())
    }

    /// Whether the charges of this rule are kept until the request has ended.
    pub(crate) fn keeps_charges(&self) -> bool {
        self.policy.must_be_settled() || self.settles()
    }

    /// Returns how much of the body the key and the cost need; `None` if they need none.
    pub(crate) fn body_limits(&self) -> Option<BodyLimits> {
        let of_cost = self.matchers.body_limits();
        let of_key = match &self.source {
            Some(KeySource::Extractor(extractor)) => extractor.body_limits(),
            Some(KeySource::Lookup(_)) | None => None,
        };
        BodyLimits::larger(of_key, of_cost)
    }

    /// Whether the key or the cost of this request needs its body.
    pub(crate) fn needs_body(&self, head: &RequestHead<'_>) -> bool {
        let key_does = || match &self.source {
            Some(KeySource::Extractor(extractor)) => extractor.needs_body(head),
            Some(KeySource::Lookup(_)) | None => false,
        };
        self.matchers.body_limits().is_some() || key_does()
    }

    /// Whether a charge may need a lookup or the body, or have another quota.
    pub(crate) fn needs_lookups(&self) -> bool {
        matches!(self.source, Some(KeySource::Lookup(_)))
            || self.body_limits().is_some()
            || self.choice.is_some()
            || self.cache.is_some()
    }

    /// Whether the rule charges the cost of its policy, a bucket, for all requests, and keeps nothing until their end.
    pub(crate) fn is_simple(&self) -> bool {
        let policy = &self.policy;
        let is_bucket = policy.counter().bucket().is_some() && policy.is_countable();
        is_bucket
            && !policy.notes_denied()
            && policy.default_cost() > 0
            && !self.needs_lookups()
            && !self.keeps_charges()
            && self.candidate.is_none()
            && !policy.has_reserve()
            && self.matchers.is_empty()
    }

    /// Returns the extractor of a simple rule that is enforced for all keys, and has checked its first requests.
    #[inline]
    pub(crate) fn settled_extractor(&self) -> Option<&dyn KeyExtractor> {
        match &self.source {
            Some(KeySource::Extractor(extractor))
                if self.mode.get().is_enforced() && self.setup_check.is_done() =>
            {
                Some(&**extractor)
            }
            _ => None,
        }
    }

    /// # Errors
    ///
    /// The first setting that cannot work.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        if let Some(KeySource::Extractor(extractor)) = &self.source {
            extractor.validate()?;
        }
        self.policies().try_for_each(Policy::validate)?;
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.settles() && !self.matchers.has_costs() && self.policy.default_cost() == 0 {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {:?}: its cost is 0, and only a charge can be settled, or counted by its outcome: set a cost, which \
                     settle() or the outcome gives back for requests that are free",
                    self.policy.name()
                ),
            ));
        }
        self.validate_outcomes()?;
        self.matchers.validate()?;
        let (most, limit) = (self.matchers.largest_cost(), self.policy.counter().limit());
        let may_have_more = self.choice.is_some() || self.cache.is_some();
        if most > limit && !may_have_more {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {:?}: cost_when() sets {most} units and the limit is {limit}, so such a request is always \
                     denied: raise the burst, or reject it with forbid()",
                    self.policy.name()
                ),
            ));
        }
        match &self.choice {
            Some(choice) => choice.validate(&self.policy),
            None => Ok(()),
        }
    }

    /// Whether the rule settles charges by the real cost.
    pub(crate) fn settles(&self) -> bool {
        self.price.is_some()
    }

    /// Returns the rule's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Reports misconfigurations to a layer's warnings from now on.
    pub(crate) fn report_to(&mut self, ledger: &Arc<WarningLog>) {
        self.setup_check.report_to(ledger);
        if let Some(finding) = self.policy.short_ban() {
            let name = self.policy.name();
            self.setup_check.report(name, Code::ShortBan, finding);
        }
    }

    /// Reports that a slot was released because a connection was upgraded.
    pub(crate) fn report_upgrade(&self) {
        self.setup_check.report_upgrade(self.policy.name());
    }
}

impl From<Policy> for Rule {
    /// Makes a rule without a key. `build()` fails for it with
    /// [`PolicyWithoutKey`](crate::ErrorKind::PolicyWithoutKey).
    fn from(policy: Policy) -> Self {
        Self {
            policy,
            source: None,
            missing: None,
            matchers: RuleMatchers::default(),
            choice: None,
            cache: None,
            price: None,
            clears: None,
            mode: ModeSwitch::default(),
            candidate: None,
            fault: None,
            setup_check: FirstRequests::default(),
            first_matches: FirstMatches::default(),
            has_logged_lookup: Arc::default(),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("policy", &self.policy)
            .field("key", &self.source.as_ref().map(KeySource::label))
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}
