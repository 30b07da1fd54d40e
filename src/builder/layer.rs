//! Settings of a layer.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::Response;

use crate::{
    charge::{Charge, MAX_CHARGES},
    clock::Clock,
    decision::Decision,
    diagnosis::{Code, WarningLog},
    error::{Error, ErrorKind},
    headers::{HeaderWriter, Headers},
    limiter::RateLimiter,
    matching::IntoMatcher,
    middleware::{
        actual_cost::SettledPolicies,
        admission::Admission,
        current_rules::CurrentRules,
        handles::{Handles, SharedLimiter},
        layer::RateLimitLayer,
    },
    policy::Policy,
    rejection::{MakeRejection, Rejection, RejectionBody, RejectionFormat, RetryAfterJitter},
    request::RequestHead,
    rules::{ModeSwitch, RequestFilter, Rule, RuleMode},
    store::Store,
};

#[cfg(feature = "redis")]
use crate::remote::{RedisStoreBuilder, Regions};

#[cfg(feature = "rules")]
use crate::headers::ShownLimit;
#[cfg(feature = "reload")]
use crate::limiter::Replaceable;
#[cfg(feature = "top-keys")]
use crate::top_keys::TopKeys;

use super::limiter::RateLimiterBuilder;

impl RateLimitLayer {
    /// Returns the default settings: in process, without policies.
    pub fn builder() -> RateLimitLayerBuilder {
        RateLimitLayerBuilder::default()
    }
}

/// Settings of a [`RateLimitLayer`].
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RateLimitLayerBuilder {
    filter: RequestFilter,
    mode: ModeSwitch,
    rules: Vec<Rule>,
    lookup_timeout: Duration,
    limiter: Option<RateLimiter>,
    settings: Box<RateLimiterBuilder>,
    has_settings: bool,
    format: Arc<dyn MakeRejection>,
    headers: Headers,
    retry_after_jitter: RetryAfterJitter,
    exposes_decision: bool,
    shares_limiter: bool,
}

impl RateLimitLayerBuilder {
    /// Adds a policy with its key: `Policy::new(..).key(PeerIp)`. All policies of a layer are decided together.
    pub fn policy(mut self, rule: impl Into<Rule>) -> Self {
        self.rules.push(rule.into());
        self
    }

    /// Rejects requests that match, exactly or possibly, with 403. Nothing is charged.
    ///
    /// Default: none. If called repeatedly, one match is enough. See [`matching`](crate::matching) for lists of addresses
    /// and keys. Text is a path pattern, as in `.forbid("/admin/{*rest}")`.
    pub fn forbid(mut self, matcher: impl IntoMatcher) -> Self {
        self.filter.forbid(matcher);
        self
    }

    /// Does not limit requests that match exactly, unless they are forbidden.
    ///
    /// Default: none. If called repeatedly, one exact match is enough. Possible matches are limited. Text is a path pattern, as in
    /// `.skip("/health")`.
    pub fn skip(mut self, matcher: impl IntoMatcher) -> Self {
        self.filter.skip(matcher);
        self
    }

    /// As [`forbid`](Self::forbid), for requests for which a closure returns `true`. The closure names no types.
    pub fn forbid_fn(
        self,
        matches: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.forbid(matches)
    }

    /// As [`skip`](Self::skip), for requests for which a closure returns `true`. The closure names no types.
    pub fn skip_fn(
        self,
        matches: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.skip(matches)
    }

    /// Sets what the layer does with requests: deny them, only count them, or let them pass.
    ///
    /// Default: [`RuleMode::Enforce`]. Each rule has the weaker of this mode and its [own](Rule::mode). In shadow mode
    /// nothing is rejected, neither by [`forbid`](Self::forbid) nor for a missing key.
    /// [`RateLimitLayer::set_mode`] changes it while the service runs.
    pub fn mode(self, mode: RuleMode) -> Self {
        self.mode.set_mode(mode);
        self
    }

    /// Sets the longest time that a request waits for all its lookups of keys and tiers.
    ///
    /// Default: 100 ms. After it, a key counts as [missing](crate::rules::OnMissingKey), and a caller has the last known
    /// tier or the policy's own quota. Lookups need a Tokio runtime with its timer enabled.
    pub fn lookup_timeout(mut self, timeout: Duration) -> Self {
        self.lookup_timeout = timeout;
        self
    }

    /// Counts in Redis, with a breaker, and with each policy's [`OnOutage`](crate::OnOutage) choice if Redis fails.
    ///
    /// Default: in process. Takes a URL, or a [`RedisStoreBuilder`] with settings.
    #[cfg(feature = "redis")]
    pub fn redis(self, server: impl Into<RedisStoreBuilder>) -> Self {
        self.configure(|limiter| limiter.redis(server))
    }

    /// Counts in Redis, in several regions that share each limit.
    ///
    /// Default: one region. Replaces [`redis`](Self::redis). See [`Regions`].
    #[cfg(feature = "redis")]
    pub fn regions(self, regions: Regions) -> Self {
        self.configure(|limiter| limiter.regions(regions))
    }

    /// Counts in a custom store, without a breaker or fallback: if it fails, requests get 503.
    ///
    /// Default: in process. Wrap a remote store in a `resilience::ResilientStore` to add a breaker and a fallback. A custom
    /// store has its own deadline, clock and `max_keys`: `build` fails if one is set here too.
    pub fn store(self, store: impl Store) -> Self {
        self.configure(|limiter| limiter.store(store))
    }

    /// Sets the longest time of one decision in Redis.
    ///
    /// Default: 50 ms, or the deadline of the [`RedisStoreBuilder`].
    #[cfg(feature = "redis")]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.configure(|limiter| limiter.deadline(deadline))
    }

    /// Sets the number of instances that share Redis, each of which grants its share of a quota during an outage.
    ///
    /// Default: learned from Redis, where each instance registers. With a fixed number `n`, shares are rounded up: a limit
    /// of `q` becomes at most `q + n - 1` over the fleet.
    #[cfg(feature = "redis")]
    pub fn instances(self, count: u64) -> Self {
        self.configure(|limiter| limiter.instances(count))
    }

    /// Sets the number of keys whose last state in Redis is kept, so that an outage continues from it.
    ///
    /// Default: 100,000, which takes 2.6 MB (26 bytes for each key). With 0, a key starts an outage with its full share.
    #[cfg(feature = "redis")]
    pub fn warm_keys(self, count: usize) -> Self {
        self.configure(|limiter| limiter.warm_keys(count))
    }

    /// Sets the number of keys in debt that this process counts separately, in process or during an outage.
    ///
    /// Default: 1,000,000, which takes at most 32 MB for token buckets. [`memory`](crate::memory#memory) lists the caps of
    /// the other algorithms.
    pub fn max_keys(self, keys: usize) -> Self {
        self.configure(|limiter| limiter.max_keys(keys))
    }

    /// Sets the clock of the in-process store. Redis counts by its own clock.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(self, clock: Clock) -> Self {
        self.configure(|limiter| limiter.clock(clock))
    }

    /// Keeps the last denial of each key, for this many pairs of policy and key.
    ///
    /// Default: none. See [`RateLimiterBuilder::record_denials`](super::RateLimiterBuilder::record_denials).
    #[cfg(feature = "explain")]
    pub fn record_denials(self, pairs: usize) -> Self {
        self.configure(|limiter| limiter.record_denials(pairs))
    }

    /// Calls a function with the charges and the result of each decision.
    ///
    /// Default: none. See [`RateLimiterBuilder::on_decision`](super::RateLimiterBuilder::on_decision).
    pub fn on_decision(
        self,
        hook: impl Fn(&[Charge<'_>], &Result<Decision, Error>) + Send + Sync + 'static,
    ) -> Self {
        self.configure(|limiter| limiter.on_decision(hook))
    }

    /// Records denied requests, to find the keys that are denied most often.
    ///
    /// Default: none are recorded. See
    /// [`RateLimiterBuilder::top_keys`](super::RateLimiterBuilder::top_keys).
    #[cfg(feature = "top-keys")]
    pub fn top_keys(self, top_keys: TopKeys) -> Self {
        self.configure(|limiter| limiter.top_keys(top_keys))
    }

    /// Shares the top keys with the other instances through Redis.
    ///
    /// Default: not shared. See
    /// [`RateLimiterBuilder::share_top_keys`](super::RateLimiterBuilder::share_top_keys).
    #[cfg(all(feature = "redis", feature = "top-keys"))]
    pub fn share_top_keys(self) -> Self {
        self.configure(RateLimiterBuilder::share_top_keys)
    }

    /// Decides with an existing limiter, so that several layers share connections, breaker and counts.
    ///
    /// Default: a new limiter. The limiter has its own store: [`build`](Self::build) fails if one is set here too.
    pub fn limiter(mut self, limiter: &RateLimiter) -> Self {
        self.limiter = Some(limiter.clone());
        self
    }

    /// Decides in process by this clock, whatever limiter or store was chosen.
    #[cfg(feature = "test-util")]
    pub(crate) fn in_process_by(mut self, clock: Clock) -> Self {
        self.limiter = None;
        self.configure(|limiter| limiter.in_process_by(clock))
    }

    /// Sets the response to rejected requests: a [`RejectionFormat`], or a closure `Fn(&Rejection) -> Response<T>` where
    /// `T` is text or bytes.
    ///
    /// Default: [`RejectionFormat::json`]. A closure must name the type of its argument here.
    /// [`on_rejection_fn`](Self::on_rejection_fn) takes one without.
    pub fn on_rejection(mut self, make: impl MakeRejection) -> Self {
        self.format = Arc::new(make);
        self
    }

    /// Sets a closure that makes the response to rejected requests. As [`on_rejection`](Self::on_rejection), but the closure
    /// names no types.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::RateLimitLayer;
    ///
    /// let builder = RateLimitLayer::builder()
    ///     .on_rejection_fn(|rejection| rejection.response(rejection.message()));
    /// ```
    pub fn on_rejection_fn<T: RejectionBody>(
        self,
        make: impl Fn(&Rejection) -> Response<T> + Send + Sync + 'static,
    ) -> Self {
        self.on_rejection(make)
    }

    /// Sets the rate limit headers of responses.
    ///
    /// Default: [`Headers::legacy`]: `X-RateLimit-*` and `Retry-After`.
    pub fn headers(mut self, choice: impl Into<Headers>) -> Self {
        self.headers = choice.into();
        self
    }

    /// Changes which limit of a bucket the headers show.
    #[cfg(feature = "rules")]
    pub(crate) fn shown_limit(mut self, shown: ShownLimit) -> Self {
        self.headers = self.headers.limit(shown);
        self
    }

    /// Spreads the waits of denied clients: each is longer by a random part, from nothing to this share of it.
    ///
    /// Default: 0.0, which adds nothing. At most 0.3. Use it if many clients are denied at the same time, for example by one limit for
    /// all of them, and come back together after equal waits. With 0.3, half of the clients that have to wait 3 s get
    /// `Retry-After: 3` and half get 4, and a wait of 60 s becomes 60 to 78 s. A wait of 0.5 s stays 1 in whole seconds.
    ///
    /// No wait is shorter than without it. `Retry-After`, the body, and `RetryInfo` and pushback of gRPC show the same wait. The
    /// resets and spans of other headers stay, since they describe the quota.
    pub fn retry_after_jitter(mut self, share: f64) -> Self {
        self.retry_after_jitter = RetryAfterJitter::new(share);
        self
    }

    /// Sets whether the decision is in the request's extensions, for handlers and inner layers.
    ///
    /// Default: yes. Without it a request saves an allocation, and
    ///
    /// - handlers cannot extract [`RateLimitInfo`](crate::middleware::RateLimitInfo);
    /// - limit, remaining and reset of an inner layer stay, even if this layer has less quota left;
    /// - an inner layer does not report [double charges](Code::ChargedTwice).
    pub fn expose_decision(mut self, expose: bool) -> Self {
        self.exposes_decision = expose;
        self
    }

    /// Puts the limiter into the extensions of requests, so that handlers can decide on more than the rules.
    ///
    /// Default: it is not there, and costs nothing. With axum, a handler then extracts a [`RateLimiter`], without a state. It costs
    /// an allocation per request.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, RateLimitLayer, RateLimiter, extract::PeerIp, rejection::Rejection};
    ///
    /// async fn search(limiter: RateLimiter, term: String) -> Result<String, Rejection> {
    ///     let searches = Policy::new("searches-by-term", Quota::per_minute(10));
    ///     limiter.enforce(searches.charge(Key::new(&term))).await?;
    ///     Ok(format!("results for {term}"))
    /// }
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp))
    ///     .share_limiter()
    ///     .build()?;
    /// # #[cfg(feature = "axum")]
    /// let app: axum::Router = axum::Router::new().route("/", axum::routing::post(search)).layer(layer);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn share_limiter(mut self) -> Self {
        self.shares_limiter = true;
        self
    }

    /// Silences a warning that is expected in this setup.
    ///
    /// Default: every code is reported once per policy. A shared [limiter](Self::limiter) and a custom store still log
    /// their own warnings.
    pub fn silence(mut self, code: Code) -> Self {
        let silenced = &mut self.settings.backend.silenced;
        *silenced = silenced.with(code);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// One [`ErrorKind`] per mistake, with a remedy in the message: no policy, a policy without a key, an extractor,
    /// matcher, policy or URL that cannot work, two policies with one name, more than 1,000 policies, more than 16 that
    /// count every request, a timeout of zero, or a jitter above 0.3. A request that more than 16 policies count gets 503.
    pub fn build(self) -> Result<RateLimitLayer, Error> {
        let rules = CurrentRules::Fixed(Arc::new(self.build_admission()?));
        Ok(RateLimitLayer { rules })
    }

    /// Builds a layer whose rules can be replaced.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    #[cfg(feature = "reload")]
    pub(crate) fn build_replaceable(
        self,
    ) -> Result<(RateLimitLayer, Arc<Replaceable<Admission>>), Error> {
        let admission = self.build_admission()?;
        let limiter = admission.limiter.clone();
        let replaceable = Arc::new(Replaceable::new(admission, limiter));
        let rules = CurrentRules::Replaceable(Arc::clone(&replaceable));
        Ok((RateLimitLayer { rules }, replaceable))
    }

    /// Builds the admission that follows another one, with its limiter, its warnings, and what was changed while the service ran.
    /// Settings of the limiter here have no effect.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build). Nothing has changed then.
    #[cfg(feature = "reload")]
    pub(crate) fn build_successor(self, old: &Admission) -> Result<Admission, Error> {
        self.validate()?;
        let headers = self.header_writer()?;
        let limiter = old.limiter.clone();
        let old_policies = old.rules.iter().flat_map(Rule::policies);
        limiter.replace_policies(old_policies, self.policies())?;
        let admission = self.admission(headers, limiter, Arc::clone(&old.warnings));
        admission.take_over_settings(old);
        Ok(admission)
    }

    /// Checks that [`build_successor`](Self::build_successor) would succeed.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    #[cfg(all(feature = "redis", feature = "reload"))]
    pub(crate) fn check_successor(&self, old: &Admission) -> Result<(), Error> {
        self.validate()?;
        self.header_writer()?;
        let old_policies = old.rules.iter().flat_map(Rule::policies);
        old.limiter.check_replacement(old_policies, self.policies())
    }

    fn build_admission(mut self) -> Result<Admission, Error> {
        self.validate()?;
        // Before the limiter adds the policies: a layer that fails to build must not leave its names there.
        let headers = self.header_writer()?;
        let silenced = self.settings.backend.silenced;
        let limiter = match self.limiter.take() {
            Some(limiter) => limiter.with_policies(self.policies())?,
            None => {
                let settings = std::mem::take(&mut *self.settings);
                self.policies()
                    .fold(settings, RateLimiterBuilder::policy)
                    .build()?
            }
        };
        Ok(self.admission(headers, limiter, Arc::new(WarningLog::new(silenced))))
    }

    fn header_writer(&self) -> Result<HeaderWriter, Error> {
        HeaderWriter::new(
            self.headers.clone(),
            self.rules.iter().flat_map(Rule::enforced_policies),
        )
    }

    /// Returns the policies that the limiter gets. It adds the rests of reserves.
    fn policies(&self) -> impl Iterator<Item = Policy> {
        let rules = self.rules.iter();
        let of = |rule: &Rule| [Some(rule.policy().clone()), rule.candidate.clone()];
        rules.flat_map(of).flatten()
    }

    fn admission(
        mut self,
        headers: HeaderWriter,
        limiter: RateLimiter,
        warnings: Arc<WarningLog>,
    ) -> Admission {
        for rule in &mut self.rules {
            rule.report_to(&warnings);
        }
        let settled = self.rules.iter().filter(|rule| rule.settles());
        let names: Box<[_]> = settled.map(|rule| *rule.policy().name()).collect();
        let settled = SettledPolicies {
            names,
            warnings: Arc::clone(&warnings),
        };
        let rules = self.rules.iter();
        let handles = Handles {
            settled: (!settled.names.is_empty()).then(|| Arc::new(settled)),
            has_slots: rules.flat_map(Rule::policies).any(Policy::is_concurrency),
            limiter: self.shares_limiter.then(|| SharedLimiter::new(&limiter)),
        };
        let gate = Admission::gate_of(&self.rules, &limiter);
        let gate = gate.filter(|_| self.filter.is_empty());
        Admission {
            gate,
            filter: self.filter,
            mode: self.mode,
            needs_lookups: self.rules.iter().any(Rule::needs_lookups),
            lookup_timeout: self.lookup_timeout,
            headers: Arc::new(headers),
            retry_after_jitter: self.retry_after_jitter,
            keeps_charges: self.rules.iter().any(Rule::keeps_charges),
            exposes_decision: self.exposes_decision,
            handles: handles.some(),
            #[cfg(feature = "reload")]
            written_modes: self.rules.iter().map(|rule| rule.mode.get()).collect(),
            rules: self.rules.into(),
            limiter,
            format: self.format,
            has_logged_failure: AtomicBool::new(false),
            warnings,
        }
    }

    /// # Errors
    ///
    /// The first setting that cannot work.
    fn validate(&self) -> Result<(), Error> {
        if self.rules.is_empty() {
            return Err(Error::new(
                ErrorKind::NoPolicy,
                "a layer without a policy limits nothing: add .policy(Policy::new(..).key(..))",
            ));
        }
        if let Some(rule) = self.rules.iter().find(|rule| rule.source.is_none()) {
            return Err(Error::new(
                ErrorKind::PolicyWithoutKey,
                format!(
                    "policy {:?} has no key: add an extractor, as in Policy::new(..).key(PeerIp)",
                    rule.policy().name()
                ),
            ));
        }
        let rules = self.rules.iter();
        let rules = rules.filter(|rule| !rule.matchers.is_conditional());
        let unconditional = rules.flat_map(Rule::policies).count();
        if unconditional > MAX_CHARGES {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "{unconditional} policies count every request, and a decision takes at most {MAX_CHARGES}: add .when(..) \
                     to some, or put them into another layer"
                ),
            ));
        }
        self.filter.validate()?;
        self.retry_after_jitter.validate()?;
        self.rules.iter().try_for_each(Rule::validate)?;
        if self.lookup_timeout.is_zero() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "lookup_timeout of zero: no lookup could end in time; the default is 100 ms",
            ));
        }
        if self.limiter.is_some() && self.has_settings {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "a layer with a limiter uses its store: set redis, store, deadline, clock, max_keys, warm_keys, top_keys, share_top_keys, instances, regions, record_denials and on_decision on the limiter",
            ));
        }
        Ok(())
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
            mode: ModeSwitch::default(),
            rules: Vec::new(),
            lookup_timeout: Duration::from_millis(100),
            limiter: None,
            settings: Box::default(),
            has_settings: false,
            format: Arc::new(RejectionFormat::json()),
            headers: Headers::default(),
            retry_after_jitter: RetryAfterJitter::default(),
            exposes_decision: true,
            shares_limiter: false,
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
