//! The layer, and its settings.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tower::Layer;

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    decision::Decision,
    diagnosis::{Ledger, Warning},
    error::{Error, ErrorKind},
    hold::Hold,
    limiter::RateLimiter,
    middleware::Rejection,
    store::{Receipt, StoreFuture},
};

use super::{
    completed::CompletedCall,
    rule::CallRule,
    service::CallLimit,
    slip::{Price, Slip},
};

/// Limits calls with requests `R` to a service that answers with `T` or fails with `E`.
///
/// Clones, and the services made from them, share their counts. See the [module docs](super).
pub struct CallLimitLayer<R, T, E> {
    shared: Arc<Shared<R, T, E>>,
}

impl<R, T, E> CallLimitLayer<R, T, E> {
    /// Settings to start from: what decides, and what a denied call gets.
    ///
    /// The closure takes the request and says why it may not go on; it answers or fails as the service itself would.
    pub fn builder(
        limiter: &RateLimiter,
        deny: impl Fn(R, &Rejection) -> Result<T, E> + Send + Sync + 'static,
    ) -> CallLimitLayerBuilder<R, T, E> {
        CallLimitLayerBuilder {
            rules: Vec::new(),
            limiter: limiter.clone(),
            hooks: Hooks {
                deny: Box::new(deny),
                admitted: None,
                hold: None,
                price: None,
            },
        }
    }

    /// The limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.shared.limiter
    }

    /// What looked wrong about the set-up so far, by this layer and its store; see [`diagnosis`](crate::diagnosis).
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.shared.ledger.warnings();
        warnings.extend(self.shared.limiter.warnings());
        warnings
    }
}

impl<S, R, T, E> Layer<S> for CallLimitLayer<R, T, E> {
    type Service = CallLimit<S, R, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        CallLimit::new(inner, Arc::clone(&self.shared))
    }
}

// By hand: a derive would ask the same of the types that are only named.
impl<R, T, E> Clone for CallLimitLayer<R, T, E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<R, T, E> fmt::Debug for CallLimitLayer<R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLimitLayer")
            .field("rules", &self.shared.rules)
            .finish_non_exhaustive()
    }
}

// === CallLimitLayerBuilder ===

/// Settings of a [`CallLimitLayer`].
#[must_use = "a builder does nothing until build() is called"]
pub struct CallLimitLayerBuilder<R, T, E> {
    rules: Vec<CallRule<R>>,
    limiter: RateLimiter,
    hooks: Hooks<R, T, E>,
}

impl<R, T, E> CallLimitLayerBuilder<R, T, E> {
    /// Adds a policy with its key: `Policy::new(..).key_of(|request: &R| ..)`. All policies of a layer are decided
    /// together.
    pub fn policy(mut self, rule: CallRule<R>) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets how an admitted request is told the decision, before the service gets it.
    ///
    /// Default: it is not.
    pub fn on_admitted(mut self, tell: impl Fn(&mut R, &Decision) + Send + Sync + 'static) -> Self {
        self.hooks.admitted = Some(Box::new(tell));
        self
    }

    /// Sets who keeps the slots of [concurrency](crate::Policy::concurrency) policies once there is a response: one that
    /// streams puts the [`Hold`] where it is dropped at the stream's end.
    ///
    /// Default: nobody; they are given back when the response is there.
    pub fn hold_with(mut self, keep: impl Fn(&mut T, Hold) + Send + Sync + 'static) -> Self {
        self.hooks.hold = Some(Box::new(keep));
        self
    }

    /// Sets a closure that returns what a call really cost under each policy, once it has ended. The difference is
    /// refunded or charged.
    ///
    /// Default: what was charged.
    ///
    /// The closure is called for every policy, also for those of [concurrency](crate::Policy::concurrency): match on
    /// [`CompletedCall::policy`], and return [`CompletedCall::charged`] for the others. If it panics, the charge stands.
    /// A response whose [`Hold`] somebody [keeps](Self::hold_with) is settled by them, with [`Hold::settle`]. Over Redis
    /// the settlement needs the Tokio runtime on which the call ends.
    ///
    /// Keep the charge when the caller goes away: a caller can drop every call.
    ///
    /// # Examples
    ///
    /// Charge the tokens that a response took, and nothing for an error:
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, RateLimiter};
    /// use tollgate::middleware::{Rejection, call::{CallLimitLayer, CallOutcome, CompletedCall}};
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
        self.hooks.price = Some(Arc::new(price));
        self
    }

    /// Makes the layer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoPolicy`] without a policy, [`ErrorKind::DuplicatePolicy`] when two bear one name or one has
    /// another quota in another layer on the limiter, and what [`Policy::validate`](crate::Policy::validate) says.
    pub fn build(self) -> Result<CallLimitLayer<R, T, E>, Error> {
        if self.rules.is_empty() {
            return Err(Error::new(
                ErrorKind::NoPolicy,
                "a layer without a policy limits nothing: add .policy(Policy::new(..).key_of(..))",
            ));
        }
        let policies = self.rules.iter().map(|rule| rule.policy().clone());
        let limiter = self.limiter.for_policies(policies)?;
        let must_end = |rule: &CallRule<R>| rule.policy().must_end();
        Ok(CallLimitLayer {
            shared: Arc::new(Shared {
                keeps_charges: self.hooks.price.is_some() || self.rules.iter().any(must_end),
                rules: self.rules.into(),
                limiter,
                hooks: self.hooks,
                ledger: Ledger::default(),
                warned: AtomicBool::new(false),
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

// === Shared ===

/// What all clones of a layer share.
pub(super) struct Shared<R, T, E> {
    rules: Box<[CallRule<R>]>,
    limiter: RateLimiter,
    hooks: Hooks<R, T, E>,
    /// Whether charges must be remembered until the call has ended.
    keeps_charges: bool,
    ledger: Ledger,
    /// Whether a decision that failed was reported.
    warned: AtomicBool,
}

/// What closures say where HTTP has a way of its own.
struct Hooks<R, T, E> {
    deny: Box<Deny<R, T, E>>,
    admitted: Option<Box<Tell<R>>>,
    hold: Option<Box<Keep<T>>>,
    price: Option<Arc<Price<T, E>>>,
}

type Deny<R, T, E> = dyn Fn(R, &Rejection) -> Result<T, E> + Send + Sync;
type Tell<R> = dyn Fn(&mut R, &Decision) + Send + Sync;
type Keep<T> = dyn Fn(&mut T, Hold) + Send + Sync;

/// A decision that was asked for, with what must be remembered of its charges.
pub(super) struct Asking {
    pub(super) answer: StoreFuture<Decision>,
    pub(super) charged: Charged,
}

/// The charges of a call, as far as they must be remembered.
#[derive(Default)]
pub(super) struct Charged {
    /// The charges, when they must be remembered until the call has ended.
    list: Option<Box<[OwnedCharge]>>,
    /// Why the call is denied though the store admits it: it has no key for another policy.
    rejection: Option<Rejection>,
}

/// What follows for a call that may go on.
pub(super) struct Admitted<T, E> {
    pub(super) slip: Option<Slip<T, E>>,
    /// How long it waits for its turn.
    pub(super) delay: Option<Duration>,
}

impl<R, T, E> Shared<R, T, E> {
    /// Decides on a request. `None` when no rule counts it.
    #[inline]
    pub(super) fn decide(&self, request: &R) -> Result<Option<Asking>, Rejection> {
        let mut charges = Charges::new();
        let mut rejection = None;
        for rule in &self.rules {
            match rule.charge(request, &self.ledger) {
                Ok(charge) => charges.extend(charge),
                Err(fault) => {
                    rejection.get_or_insert(fault);
                }
            }
        }
        if charges.is_empty() {
            return rejection.map_or(Ok(None), Err);
        }
        let list = self.keeps_charges;
        let charged = Charged {
            list: list.then(|| charges.iter().map(Charge::to_owned).collect()),
            rejection,
        };
        let answer = self.limiter.check(&charges);
        Ok(Some(Asking { answer, charged }))
    }

    /// What follows for a call that may go on; its request is told the decision.
    #[inline]
    pub(super) fn admit(
        &self,
        decided: Result<Decision, Error>,
        charged: Charged,
        request: &mut R,
    ) -> Result<Admitted<T, E>, Rejection> {
        let decision = match decided {
            Ok(decision) if decision.is_allowed() => decision,
            Ok(decision) => return Err(Rejection::denied(decision)),
            Err(error) => {
                return Err(Rejection::undecided(
                    error,
                    &self.warned,
                    "calls are denied",
                ));
            }
        };
        let mut admitted = Admitted {
            slip: None,
            delay: None,
        };
        if let Some(list) = charged.list {
            admitted.slip = self.slip(&list, &decision);
            admitted.delay = decision.delay();
        }
        if let Some(rejection) = charged.rejection {
            // Ends as a call whose caller went away: its slots are released, and the closure prices the rest.
            drop(admitted.slip.map(Slip::start));
            return Err(rejection.decided(decision));
        }
        if let Some(tell) = &self.hooks.admitted {
            tell(request, &decision);
        }
        Ok(admitted)
    }

    /// What a denied call gets.
    #[cold]
    pub(super) fn deny(&self, request: R, rejection: &Rejection) -> Result<T, E> {
        (self.hooks.deny)(request, rejection)
    }

    /// Ends a call that something came out of.
    #[inline]
    pub(super) fn end(&self, slip: Option<Slip<T, E>>, outcome: &mut Result<T, E>) {
        let Some(slip) = slip else {
            return;
        };
        match (outcome, &self.hooks.hold) {
            (Ok(response), Some(keep)) => {
                if let Some(hold) = slip.into_hold() {
                    keep(response, hold);
                }
            }
            (outcome, _) => slip.end(outcome.as_ref()),
        }
    }

    fn slip(&self, charged: &[OwnedCharge], decision: &Decision) -> Option<Slip<T, E>> {
        let charges: Charges<'_> = charged.iter().map(OwnedCharge::borrow).collect();
        let receipt = Receipt::of(&charges, decision)?;
        Some(Slip::new(
            self.limiter.hold(receipt),
            self.hooks.price.clone(),
        ))
    }
}

impl<R, T, E> fmt::Debug for Shared<R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
