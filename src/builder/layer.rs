//! Settings of a layer.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use crate::{
    clock::Clock,
    diagnosis::{Code, Ledger},
    error::{Error, ErrorKind},
    headers::{HeaderWriter, Headers},
    limiter::RateLimiter,
    matching::Matcher,
    middleware::{actual_cost::SettledPolicies, admission::Admission, layer::RateLimitLayer},
    rejection::{MakeRejection, RejectionFormat},
    rules::{RequestFilter, Rule},
    store::Store,
};

#[cfg(feature = "redis")]
use crate::remote::RedisStoreBuilder;

use super::limiter::RateLimiterBuilder;

impl RateLimitLayer {
    /// Settings to start from: in process, without policies.
    pub fn builder() -> RateLimitLayerBuilder {
        RateLimitLayerBuilder::default()
    }
}

/// Settings of a [`RateLimitLayer`].
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RateLimitLayerBuilder {
    filter: RequestFilter,
    rules: Vec<Rule>,
    lookup_timeout: Duration,
    limiter: Option<RateLimiter>,
    settings: Box<RateLimiterBuilder>,
    has_settings: bool,
    rejection: Arc<dyn MakeRejection>,
    headers: Headers,
}

impl RateLimitLayerBuilder {
    /// Adds a policy with its key: `Policy::new(..).key(PeerIp)`. All policies of a layer are decided together.
    pub fn policy(mut self, rule: impl Into<Rule>) -> Self {
        self.rules.push(rule.into());
        self
    }

    /// Refuses requests that the matcher matches, or that resemble them, with 403. Nothing is charged.
    ///
    /// Default: none. Said more than once, each matcher refuses. See [`matching`](crate::matching) for lists of addresses
    /// and keys.
    pub fn forbid(mut self, matcher: impl Matcher) -> Self {
        self.filter.forbid(matcher);
        self
    }

    /// Lets requests that the matcher matches pass without limit, unless they are to be denied.
    ///
    /// Default: none. Said more than once, each matcher lets pass. Those that only resemble are limited.
    pub fn skip(mut self, matcher: impl Matcher) -> Self {
        self.filter.skip(matcher);
        self
    }

    /// Sets how long a request may wait in all for keys and tiers that are looked up.
    ///
    /// Default: 100 ms. A key that is late is a [missing](crate::rules::OnMissingKey) one; in place of a tier the last
    /// known one holds, or the policy's own quota. It takes a Tokio runtime with its timer.
    pub fn lookup_timeout(mut self, timeout: Duration) -> Self {
        self.lookup_timeout = timeout;
        self
    }

    /// Counts in Redis, with a breaker before it and each policy's outage choice behind.
    ///
    /// Default: in process. Takes a URL, or a [`RedisStoreBuilder`] with settings.
    #[cfg(feature = "redis")]
    pub fn redis(self, server: impl Into<RedisStoreBuilder>) -> Self {
        self.configure(|limiter| limiter.redis(server))
    }

    /// Counts in a store of your own, as it is: when it fails, requests get 503.
    ///
    /// Default: in process.
    pub fn store(self, store: impl Store) -> Self {
        self.configure(|limiter| limiter.store(store))
    }

    /// Sets how long one decision may take in all when it is made in Redis.
    ///
    /// Default: 50 ms, or what the [`RedisStoreBuilder`] says.
    #[cfg(feature = "redis")]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.configure(|limiter| limiter.deadline(deadline))
    }

    /// Sets how many keys in debt this process tells apart: those counted in process, and during an outage.
    ///
    /// Default: 1,000,000, which takes at most 32 MB of buckets; [`memory`](crate::memory#memory) has the caps of all that is
    /// counted.
    pub fn max_keys(self, keys: usize) -> Self {
        self.configure(|limiter| limiter.max_keys(keys))
    }

    /// Sets the clock that this process counts by. Redis counts by its own.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(self, clock: Clock) -> Self {
        self.configure(|limiter| limiter.clock(clock))
    }

    /// Decides with a limiter that exists already, so that several layers share connections, breaker and counts.
    ///
    /// Default: a limiter of the layer's own. The store is the limiter's then: setting one here too fails at
    /// [`build`](Self::build).
    pub fn limiter(mut self, limiter: &RateLimiter) -> Self {
        self.limiter = Some(limiter.clone());
        self
    }

    /// Sets what makes the answer to a request that may not go on: a ready-made [`RejectionFormat`], or a closure
    /// `Fn(&Rejection) -> Response<T>`, with text or bytes for `T`.
    ///
    /// Default: [`RejectionFormat::json`], with the rejection's status.
    pub fn on_rejection(mut self, make: impl MakeRejection) -> Self {
        self.rejection = Arc::new(make);
        self
    }

    /// Sets which headers answers carry.
    ///
    /// Default: [`Headers::legacy`], which is `X-RateLimit-*` and `Retry-After`.
    pub fn headers(mut self, choice: impl Into<Headers>) -> Self {
        self.headers = choice.into();
        self
    }

    /// Does not report this code: what it stands for is meant.
    ///
    /// Default: every code is reported, each once per policy. A [limiter](Self::limiter) that several layers share, or a
    /// store of your own, still logs what it sees.
    pub fn mute(mut self, code: Code) -> Self {
        let muted = &mut self.settings.backend.muted;
        *muted = muted.with(code);
        self
    }

    /// Makes the layer.
    ///
    /// # Errors
    ///
    /// One [`ErrorKind`] per mistake, with a sentence that says what to do: no policy, a policy without a key or with an
    /// extractor whose settings cannot work, unusable or duplicate policies, an unparsable URL, a deadline of zero, and the like.
    pub fn build(mut self) -> Result<RateLimitLayer, Error> {
        if self.rules.is_empty() {
            return Err(Error::new(
                ErrorKind::NoPolicy,
                "a layer without a policy limits nothing: add .policy(Policy::new(..).key(..))",
            ));
        }
        if let Some(rule) = self.rules.iter().find(|rule| !rule.has_key()) {
            return Err(Error::new(
                ErrorKind::PolicyWithoutKey,
                format!(
                    "policy {:?} has no key: say whom it counts, as in Policy::new(..).key(PeerIp)",
                    rule.policy().name()
                ),
            ));
        }
        self.filter.validate()?;
        self.rules.iter().try_for_each(Rule::validate)?;
        if self.lookup_timeout.is_zero() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "lookup_timeout of zero: no key or tier could be looked up in time; the default is 100 ms",
            ));
        }
        // Before the limiter hears of the policies: a layer that is refused leaves no name behind.
        let headers = HeaderWriter::new(self.headers, self.rules.iter().map(Rule::policy))?;
        let policies = self.rules.iter().map(|rule| rule.policy().clone());
        let muted = self.settings.backend.muted;
        let limiter = match self.limiter {
            Some(_) if self.has_settings => {
                return Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "a layer with a limiter has its store from there: set store, deadline, clock and max_keys on the limiter",
                ));
            }
            Some(limiter) => limiter.for_policies(policies)?,
            None => policies
                .fold(*self.settings, RateLimiterBuilder::policy)
                .build()?,
        };
        let warnings = Arc::new(Ledger::new(muted));
        for rule in &mut self.rules {
            rule.report_to(&warnings);
        }
        let settled = self.rules.iter().filter(|rule| rule.settles());
        let names: Box<[_]> = settled.map(|rule| *rule.policy().name()).collect();
        let settled = SettledPolicies {
            names,
            warnings: Arc::clone(&warnings),
        };
        Ok(RateLimitLayer::with(Admission {
            filter: self.filter,
            needs_lookups: self.rules.iter().any(Rule::needs_lookups),
            lookup_timeout: self.lookup_timeout,
            headers: Arc::new(headers),
            keeps_charges: self.rules.iter().any(Rule::keeps_charges),
            settled: (!settled.names.is_empty()).then(|| Arc::new(settled)),
            rules: self.rules.into(),
            limiter,
            rejection: self.rejection,
            has_logged_failure: AtomicBool::new(false),
            warnings,
        }))
    }

    fn configure(mut self, change: impl FnOnce(RateLimiterBuilder) -> RateLimiterBuilder) -> Self {
        *self.settings = change(std::mem::take(&mut self.settings));
        self.has_settings = true;
        self
    }
}

impl Default for RateLimitLayerBuilder {
    fn default() -> Self {
        Self {
            filter: RequestFilter::default(),
            rules: Vec::new(),
            lookup_timeout: Duration::from_millis(100),
            limiter: None,
            settings: Box::default(),
            has_settings: false,
            rejection: Arc::new(RejectionFormat::json()),
            headers: Headers::default(),
        }
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder")
            .field("rules", &self.rules)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
