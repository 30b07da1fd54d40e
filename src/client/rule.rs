//! A policy for calls that go out.

use std::{fmt, sync::Arc};

use crate::{
    algorithm::RateReport,
    charge::Charge,
    error::{Error, ErrorKind},
    extract::{Extracted, KeyExtractor},
    key::Key,
    matching::IntoMatcher,
    policy::Policy,
    request::RequestHead,
    rules::RuleMatchers,
};

use super::adaptive::Adaptive;

/// A policy with the calls that it counts, and their key. Made by [`Policy::outgoing_key`].
#[derive(Clone)]
pub struct OutgoingRule {
    policy: Policy,
    key: Arc<dyn KeyExtractor>,
    matchers: RuleMatchers,
    skips_missing: bool,
    pauses: bool,
    reported_as: Option<Box<str>>,
    adaptive: Option<Adaptive>,
}

impl Policy {
    /// Counts this policy per key that the extractor finds in a request that goes out.
    ///
    /// All extractors of [`extract`](crate::extract) fit. The common ones:
    ///
    /// | calls are counted per | extractor |
    /// |---|---|
    /// | host | [`HostHeader`](crate::extract::HostHeader), which reads the authority of the URI |
    /// | credential, hashed | [`ApiKey::bearer`](crate::extract::ApiKey::bearer), [`ApiKey::header`](crate::extract::ApiKey::header) |
    /// | host and credential | `HostHeader.and(ApiKey::bearer())` |
    /// | anything else | a closure: `\|head: &RequestHead\| head.headers.get("x-tenant").map(Key::new)` |
    /// | nothing: one count for all | [`Global`](crate::extract::Global) |
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::{HostHeader, KeyExtractor}, matching::PathPattern};
    ///
    /// let search = Policy::new("search", Quota::per_minute(30))
    ///     .outgoing_key(HostHeader)
    ///     .when(PathPattern::prefix("/search"));
    /// ```
    #[must_use]
    pub fn outgoing_key(self, extractor: impl KeyExtractor) -> OutgoingRule {
        OutgoingRule {
            policy: self,
            key: Arc::new(extractor),
            matchers: RuleMatchers::default(),
            skips_missing: false,
            pauses: true,
            reported_as: None,
            adaptive: None,
        }
    }
}

impl OutgoingRule {
    /// Counts only requests that match, exactly or [possibly](crate::matching#ambiguous-matches).
    ///
    /// Default: all requests. If called repeatedly, all matchers must match.
    #[must_use]
    pub fn when(mut self, matcher: impl IntoMatcher) -> Self {
        self.matchers.when(matcher);
        self
    }

    /// Does not count requests that match exactly.
    ///
    /// Default: counts all requests. If called repeatedly, one exact match is enough.
    #[must_use]
    pub fn unless(mut self, matcher: impl IntoMatcher) -> Self {
        self.matchers.unless(matcher);
        self
    }

    /// Sets a function that returns the cost of a request from its head.
    ///
    /// Default: the policy's [`cost`](Policy::cost). A cost above the policy's limit fails without a wait.
    #[must_use]
    pub fn cost_by(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.matchers.cost_by(cost);
        self
    }

    /// Sets the cost of requests that match. The first matcher that matches exactly sets the cost.
    ///
    /// Default: the result of [`cost_by`](Self::cost_by), or the policy's [`cost`](Policy::cost).
    #[must_use]
    pub fn cost_when(mut self, matcher: impl IntoMatcher, units: u64) -> Self {
        self.matchers.cost_when(matcher, units);
        self
    }

    /// Does not count requests without a key.
    ///
    /// Default: they share one key, so that a call is never unlimited by mistake. For example, generated gRPC clients make
    /// requests without a host.
    #[must_use]
    pub fn skip_without_key(mut self) -> Self {
        self.skips_missing = true;
        self
    }

    /// Does not pause the rule's key when the API refuses a call.
    ///
    /// Default: a refusal pauses the keys of all rules that counted the call. Use it for a rule whose key counts calls to
    /// several APIs, such as a limit of all calls in flight: one API that refuses must not stop the calls to the others.
    #[must_use]
    pub fn never_paused(mut self) -> Self {
        self.pauses = false;
        self
    }

    /// Sets the name of the API's limit that this policy follows, such as `tokens` of `x-ratelimit-remaining-tokens`.
    ///
    /// Default: if the API shows a single limit of requests, and no other policy with a rate counted the call, the policy
    /// follows that. Otherwise it follows none.
    #[must_use]
    pub fn reported_as(mut self, name: impl Into<String>) -> Self {
        self.reported_as = Some(name.into().into());
        self
    }

    /// Finds the rate of an API that does not show its limit. The policy's quota is the highest rate.
    ///
    /// Default: the rate is that of the quota. See [`Adaptive`].
    #[must_use]
    pub fn adaptive(mut self, adaptive: Adaptive) -> Self {
        self.adaptive = Some(adaptive);
        self
    }

    /// Returns the rule's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the charge for a request, or `None` if the rule does not count it.
    pub(super) fn charge(&self, head: &RequestHead<'_>) -> Option<Charge<'_>> {
        if !self.matchers.counts(head) {
            return None;
        }
        let key = match self.key.extract(head) {
            Extracted::Found(key) => key,
            Extracted::Absent if self.skips_missing => return None,
            Extracted::Absent | Extracted::Ambiguous => Key::UNIDENTIFIED,
        };
        let charge = self.policy.charge(key);
        Some(match self.matchers.cost((head, None), charge.units()) {
            Some(cost) => charge.cost(cost),
            None => charge,
        })
    }

    /// Whether a refusal pauses the rule's key.
    pub(super) fn pauses(&self) -> bool {
        self.pauses
    }

    /// Whether the rule limits a rate, and not calls in flight.
    pub(super) fn is_rate(&self) -> bool {
        !self.policy.is_concurrency()
    }

    /// Returns the name of the limit that the policy follows.
    pub(super) fn reported_name(&self) -> Option<&str> {
        self.reported_as.as_deref()
    }

    /// Returns a report without any use, if the rate is adaptive.
    pub(super) fn unused_rate(&self) -> Option<RateReport> {
        Some(self.adaptive?.report(&self.policy))
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.key.validate()?;
        self.policy.validate()?;
        self.policy.refuse_reserve()?;
        if let Some(adaptive) = self.adaptive {
            adaptive.validate(&self.policy)?;
        }
        self.matchers.validate()?;
        let (most, limit) = (self.matchers.largest_cost(), self.policy.counter().limit());
        if most > limit {
            let message = format!(
                "policy {:?}: a call of cost {most} never has its turn, since the limit is {limit}: lower the cost",
                self.policy.name()
            );
            return Err(Error::new(ErrorKind::InvalidPolicy, message));
        }
        Ok(())
    }
}

impl fmt::Debug for OutgoingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingRule")
            .field("policy", &self.policy)
            .field("key", &self.key.label())
            .field("pauses", &self.pauses)
            .finish_non_exhaustive()
    }
}
