//! Settings of a layer.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    acquire::Priority,
    error::{Error, ErrorKind},
    limiter::RateLimiter,
    matching::IntoMatcher,
    policy::Policy,
    request::RequestHead,
};

#[cfg(feature = "reload")]
use crate::limiter::Replaceable;

use super::{
    budget::RetryBudget,
    current::CurrentSettings,
    layer::OutgoingLayer,
    reaction::Reaction,
    request::BodyCopies,
    retry::{CallFailure, ClassifyError, RetrySettings},
    rule::OutgoingRule,
    shared::{FindPriority, Shared},
};

impl OutgoingLayer {
    /// Returns settings with a limiter.
    ///
    /// The limiter decides in process, or in Redis for all instances together.
    pub fn builder(limiter: &RateLimiter) -> OutgoingLayerBuilder {
        OutgoingLayerBuilder {
            limiter: limiter.clone(),
            rules: Vec::new(),
            max_wait: Duration::from_secs(30),
            max_pause: Duration::from_secs(600),
            priority: None,
            retry: RetrySettings {
                max_retries: 2,
                ..RetrySettings::default()
            },
            budget_percent: 10,
            copies: BodyCopies::default(),
        }
    }
}

/// Settings of an [`OutgoingLayer`].
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct OutgoingLayerBuilder {
    limiter: RateLimiter,
    rules: Vec<OutgoingRule>,
    max_wait: Duration,
    max_pause: Duration,
    priority: Option<Arc<FindPriority>>,
    retry: RetrySettings,
    budget_percent: u32,
    copies: BodyCopies,
}

impl OutgoingLayerBuilder {
    /// Adds a policy with its key: `Policy::new(..).outgoing_key(HostHeader)`. A call waits until all policies that count it
    /// admit it together.
    ///
    /// Default: none, and `build()` fails.
    pub fn policy(mut self, rule: OutgoingRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the longest time from the call to its last turn. A call whose turn would come later fails at once. One that waits for
    /// a slot fails after this time, because slots come back at an unknown time.
    ///
    /// Default: 30 s. With zero, a call has its turn now or fails. A response on its way is not timed out: put a
    /// timeout inside this layer for an attempt, and outside for the whole call.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Sets the class of a call in the line, by its request.
    ///
    /// Default: [`Priority::Normal`] for all calls.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimiter, RequestHead, acquire::Priority, client::OutgoingLayer, extract::HostHeader};
    ///
    /// let limiter = RateLimiter::builder().build()?;
    /// let layer = OutgoingLayer::builder(&limiter)
    ///     .policy(Policy::new("api", Quota::per_second(10)).outgoing_key(HostHeader))
    ///     .priority_by(|head: &RequestHead<'_>| match head.uri.path() {
    ///         "/export" => Priority::Low,
    ///         _ => Priority::Normal,
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn priority_by(
        mut self,
        priority: impl Fn(&RequestHead<'_>) -> Priority + Send + Sync + 'static,
    ) -> Self {
        self.priority = Some(Arc::new(priority));
        self
    }

    /// Sets the longest pause of a key after a refusal.
    ///
    /// Default: 10 minutes. An API may ask for more, by mistake or for a quota of a day. After `max_pause`, calls go out again. Until
    /// then, the error of a call contains the time that the API asked for.
    pub fn max_pause(mut self, max_pause: Duration) -> Self {
        self.max_pause = max_pause;
        self
    }

    /// Sets how often a request is sent again at most.
    ///
    /// Default: 2.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.retry.max_retries = retries;
        self
    }

    /// Retries after a refusal only requests that are safe.
    ///
    /// Default: a call that exceeded a limit, such as with 429, is retried with any method, since APIs refuse it before
    /// they do the work. After a 503 and other failures, only safe requests are retried.
    pub fn retry_only_safe(mut self) -> Self {
        self.retry.safe_only = true;
        self
    }

    /// Adds requests that are safe to repeat.
    ///
    /// Default: `GET`, `HEAD`, `OPTIONS`, `TRACE`, `PUT`, `DELETE`, and all requests with an `Idempotency-Key`. If called
    /// repeatedly, one exact match is enough.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimiter, client::OutgoingLayer, extract::Global, matching::PathPattern};
    ///
    /// let limiter = RateLimiter::builder().build()?;
    /// let layer = OutgoingLayer::builder(&limiter)
    ///     .policy(Policy::new("grpc", Quota::per_second(10)).outgoing_key(Global))
    ///     .safe_when(PathPattern::new("/library.Books/Find"))
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn safe_when(mut self, matcher: impl IntoMatcher) -> Self {
        self.retry.safe.push(Arc::new(matcher.into_matcher()));
        self
    }

    /// Sets a closure that classifies the errors of a client, by the type of its argument.
    ///
    /// Default: no error is retried, because the layer cannot know whether the request was sent. A closure for another type
    /// replaces none, so a layer can be put around clients of several types.
    ///
    /// # Examples
    ///
    /// For the client of hyper-util:
    ///
    /// ```
    /// use hyper_util::client::legacy::Error;
    /// use tollgate::{Policy, Quota, RateLimiter, client::{CallFailure, OutgoingLayer}, extract::HostHeader};
    ///
    /// let limiter = RateLimiter::builder().build()?;
    /// let layer = OutgoingLayer::builder(&limiter)
    ///     .policy(Policy::new("api", Quota::per_second(10)).outgoing_key(HostHeader))
    ///     .classify_errors(|error: &Error| match error.is_connect() {
    ///         true => CallFailure::NotSent,
    ///         false => CallFailure::Transient,
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn classify_errors<E: 'static>(
        mut self,
        classify: impl Fn(&E) -> CallFailure + Send + Sync + 'static,
    ) -> Self {
        let classify: ClassifyError<E> = Box::new(classify);
        self.retry.errors.insert(classify);
        self
    }

    /// Sets how many retries 100 calls to a key pay for.
    ///
    /// Default: 10. `n` calls cause at most `n * percent / 100 + 10` retries, per key and process. `build()` fails above 1,000.
    pub fn retry_percent(mut self, percent: u32) -> Self {
        self.budget_percent = percent;
        self
    }

    /// Sets a closure that copies a body, by the type of its argument. It returns `None` for a body that can be sent only once.
    ///
    /// Default: `Full<Bytes>` and `Empty<Bytes>` of http-body-util, `Bytes`, `String` and `()`. Requests with other bodies are
    /// not retried. A body is copied before it is sent, if its request may be retried.
    ///
    /// # Examples
    ///
    /// For bodies of axum, if they are empty:
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # fn example() -> Result<(), tollgate::Error> {
    /// use axum::body::{Body, HttpBody};
    /// use tollgate::{Policy, Quota, RateLimiter, client::OutgoingLayer, extract::HostHeader};
    ///
    /// let limiter = RateLimiter::builder().build()?;
    /// let layer = OutgoingLayer::builder(&limiter)
    ///     .policy(Policy::new("api", Quota::per_second(10)).outgoing_key(HostHeader))
    ///     .copy_bodies(|body: &Body| body.is_end_stream().then(Body::empty))
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_bodies<B: 'static>(
        mut self,
        copy: impl Fn(&B) -> Option<B> + Send + Sync + 'static,
    ) -> Self {
        self.copies.insert(copy);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NoPolicy`] without a policy.
    /// - [`ErrorKind::DuplicatePolicy`] if two policies have one name, or one has another quota in another layer on the
    ///   limiter.
    /// - [`ErrorKind::InvalidConfig`] for a [`retry_percent`](Self::retry_percent) above 1,000.
    /// - The errors of [`Policy::validate`](crate::Policy::validate), of extractors, and of matchers.
    pub fn build(self) -> Result<OutgoingLayer, Error> {
        let shared = Arc::new(self.build_shared()?);
        Ok(OutgoingLayer {
            limiter: shared.reaction.limiter.clone(),
            settings: CurrentSettings::Fixed(shared),
        })
    }

    /// Builds a layer whose settings can be replaced.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    #[cfg(feature = "reload")]
    pub(crate) fn build_replaceable(
        self,
    ) -> Result<(OutgoingLayer, Arc<Replaceable<Shared>>), Error> {
        let shared = self.build_shared()?;
        let limiter = shared.reaction.limiter.clone();
        let replaceable = Arc::new(Replaceable::new(shared, limiter.clone()));
        let settings = CurrentSettings::Replaceable(Arc::clone(&replaceable));
        Ok((OutgoingLayer { limiter, settings }, replaceable))
    }

    /// Builds the settings that follow others. Their limiter stays, and so do the pauses, the rates and the retry budgets.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build). Nothing has changed then.
    #[cfg(feature = "reload")]
    pub(crate) fn build_successor(self, old: &Shared) -> Result<Shared, Error> {
        self.validate()?;
        let limiter = old.reaction.limiter.clone();
        limiter.replace_policies(old.reaction.policies(), self.policies())?;
        Ok(self.shared(limiter, Some(old)))
    }

    /// Checks that [`build_successor`](Self::build_successor) would succeed.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    #[cfg(all(feature = "redis", feature = "reload"))]
    pub(crate) fn check_successor(&self, old: &Shared) -> Result<(), Error> {
        self.validate()?;
        let limiter = &old.reaction.limiter;
        limiter.check_replacement(old.reaction.policies(), self.policies())
    }

    fn build_shared(self) -> Result<Shared, Error> {
        self.validate()?;
        let limiter = self.limiter.clone().with_policies(self.policies())?;
        Ok(self.shared(limiter, None))
    }

    /// Returns the settings over a limiter. The state of the keys is that of the old settings.
    fn shared(self, limiter: RateLimiter, old: Option<&Shared>) -> Shared {
        let budget = old.map(|old| Arc::clone(&old.budget));
        let budget = budget.filter(|budget| budget.has_percent(self.budget_percent));
        let state = old.map(|old| &old.reaction);
        Shared {
            reaction: Reaction {
                limiter,
                rules: self.rules.into(),
                max_pause: self.max_pause,
                refusals: state.map_or_else(Arc::default, |old| Arc::clone(&old.refusals)),
                rates: state.map_or_else(Arc::default, |old| Arc::clone(&old.rates)),
                records: state.map_or_else(Arc::default, |old| Arc::clone(&old.records)),
            },
            max_wait: self.max_wait,
            priority: self.priority,
            retry: self.retry,
            budget: budget.unwrap_or_else(|| Arc::new(RetryBudget::new(self.budget_percent))),
            copies: self.copies,
        }
    }

    fn policies(&self) -> impl Iterator<Item = Policy> {
        self.rules.iter().map(|rule| rule.policy().clone())
    }

    /// # Errors
    ///
    /// The first setting that cannot work.
    fn validate(&self) -> Result<(), Error> {
        if self.rules.is_empty() {
            let message = "a layer without a policy limits nothing: add .policy(Policy::new(..).outgoing_key(..))";
            return Err(Error::new(ErrorKind::NoPolicy, message));
        }
        if self.budget_percent > MAX_PERCENT {
            let message = format!(
                "retry_percent({}): use at most {MAX_PERCENT}, which is ten retries for each call",
                self.budget_percent
            );
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        self.rules.iter().try_for_each(OutgoingRule::validate)?;
        self.retry.validate()
    }
}

impl fmt::Debug for OutgoingLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingLayerBuilder")
            .field("rules", &self.rules)
            .field("max_wait", &self.max_wait)
            .field("max_pause", &self.max_pause)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

const MAX_PERCENT: u32 = 1_000;
