//! Settings of a layer.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use crate::{
    decision::Decision,
    diagnosis::WarningLog,
    error::{Error, ErrorKind},
    hold::Hold,
    limiter::RateLimiter,
    rejection::Rejection,
};

use super::{
    admission::{CallAdmission, Deny, OnAdmitted},
    layer::CallLimitLayer,
    rule::CallRule,
    settle::{CompletedCall, EndHooks},
};

impl<R, T, E> CallLimitLayer<R, T, E> {
    /// Returns settings with a limiter and the outcome of rejected calls.
    ///
    /// `deny` takes the request and the reason, and returns a response or an error of the service's own types.
    pub fn builder(
        limiter: &RateLimiter,
        deny: impl Fn(R, &Rejection) -> Result<T, E> + Send + Sync + 'static,
    ) -> CallLimitLayerBuilder<R, T, E> {
        CallLimitLayerBuilder {
            rules: Vec::new(),
            limiter: limiter.clone(),
            deny: Box::new(deny),
            on_admitted: None,
            hooks: EndHooks {
                keep: None,
                price: None,
            },
        }
    }
}

/// Settings of a [`CallLimitLayer`].
#[must_use = "a builder does nothing until build() is called"]
pub struct CallLimitLayerBuilder<R, T, E> {
    rules: Vec<CallRule<R>>,
    limiter: RateLimiter,
    deny: Box<Deny<R, T, E>>,
    on_admitted: Option<Box<OnAdmitted<R>>>,
    hooks: EndHooks<T, E>,
}

impl<R, T, E> CallLimitLayerBuilder<R, T, E> {
    /// Adds a policy with its key: `Policy::new(..).key_of(|request: &R| ..)`. All policies of a layer are decided
    /// together.
    pub fn policy(mut self, rule: CallRule<R>) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets a closure that receives each admitted request and its decision, before the service gets the request.
    ///
    /// Default: none.
    pub fn on_admitted(mut self, call: impl Fn(&mut R, &Decision) + Send + Sync + 'static) -> Self {
        self.on_admitted = Some(Box::new(call));
        self
    }

    /// Sets a closure that puts the [`Hold`] of a call into its response, so that slots of
    /// [concurrency](crate::Policy::concurrency) policies stay taken until a streamed response has ended.
    ///
    /// Default: none; slots are released when the response is ready.
    pub fn hold_with(mut self, keep: impl Fn(&mut T, Hold) + Send + Sync + 'static) -> Self {
        self.hooks.keep = Some(Box::new(keep));
        self
    }

    /// Sets a closure that returns what a call really cost under each policy, once it has ended. The difference is
    /// refunded or charged.
    ///
    /// Default: the charge is final.
    ///
    /// The closure is called for every policy, concurrency policies included: match on [`CompletedCall::policy`], and
    /// return [`CompletedCall::charged`] for the others. If it panics, the charge is kept. A response that
    /// [keeps its `Hold`](Self::hold_with) is settled by [`Hold::settle`] instead. Over Redis, settling needs the Tokio
    /// runtime on which the call ends.
    ///
    /// Keep the charge when the caller goes away: a caller can drop every call.
    ///
    /// # Examples
    ///
    /// Charge the tokens that a response took, and nothing for an error:
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, RateLimiter};
    /// use tollgate::{call::{CallLimitLayer, CallOutcome, CompletedCall}, rejection::Rejection};
    ///
    /// struct Answer { tokens: u64 }
    ///
    /// let limiter = RateLimiter::builder().build()?;
    /// let layer = CallLimitLayer::builder(&limiter, |_: String, _: &Rejection| Err("busy"))
    ///     .policy(Policy::new("tokens", Quota::per_minute(50_000)).cost(1_000).key_of(|_| Some(Key::GLOBAL)))
    ///     .policy(Policy::concurrency("in-flight", 8).key_of(|_| Some(Key::GLOBAL)))
    ///     .settle(|call: &CompletedCall<'_, Answer, _>| match (call.policy.as_str(), call.outcome) {
    ///         ("tokens", CallOutcome::Responded(answer)) => answer.tokens,
    ///         ("tokens", CallOutcome::Failed(_)) => 0,
    ///         _ => call.charged,
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn settle(
        mut self,
        price: impl Fn(&CompletedCall<'_, T, E>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.hooks.price = Some(Box::new(price));
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NoPolicy`] without a policy.
    /// - [`ErrorKind::DuplicatePolicy`] if two policies have one name, or one has another quota in another layer on the
    ///   limiter.
    /// - The errors of [`Policy::validate`](crate::Policy::validate).
    pub fn build(self) -> Result<CallLimitLayer<R, T, E>, Error> {
        if self.rules.is_empty() {
            return Err(Error::new(
                ErrorKind::NoPolicy,
                "a layer without a policy limits nothing: add .policy(Policy::new(..).key_of(..))",
            ));
        }
        for rule in &self.rules {
            rule.policy().refuse_reserve()?;
        }
        let policies = self.rules.iter().map(|rule| rule.policy().clone());
        let limiter = self.limiter.with_policies(policies)?;
        let must_be_settled = |rule: &CallRule<R>| rule.policy().must_be_settled();
        Ok(CallLimitLayer {
            admission: Arc::new(CallAdmission {
                keeps_charges: self.hooks.price.is_some() || self.rules.iter().any(must_be_settled),
                rules: self.rules.into(),
                limiter,
                deny: self.deny,
                on_admitted: self.on_admitted,
                hooks: Arc::new(self.hooks),
                warnings: WarningLog::default(),
                has_logged_failure: AtomicBool::new(false),
            }),
        })
    }
}

impl<R, T, E> fmt::Debug for CallLimitLayerBuilder<R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLimitLayerBuilder")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
