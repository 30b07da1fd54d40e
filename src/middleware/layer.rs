//! The layer.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, request::Parts};
use smallvec::SmallVec;
use tower::Layer;

use crate::{
    decision::Decision,
    diagnosis::{Code, Ledger, Warning},
    error::Error,
    limiter::RateLimiter,
    policy::{Charge, OwnedCharge},
    state::PolicyName,
    store::{Answer, Health, Receipt},
    telemetry,
};

use super::{
    body::ResponseBody,
    headers::Fields,
    info::{self, Nested, Uncounted},
    rejection::{MakeRejection, Rejection},
    rule::Rule,
    service::RateLimit,
    settling::{Finished, Tab},
};

/// Limits the requests to any Tower service.
///
/// It has no type parameters, so it can stand in a struct field. Clones, and the services made from them, share their
/// counts. See the [module docs](crate::middleware) for what it promises.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};
///
/// let limit = RateLimitLayer::builder()
///     .policy(Policy::new("per-ip", Quota::per_minute(100).burst(20)).key(PeerIp))
///     .build()?;
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    shared: Arc<Shared>,
}

impl RateLimitLayer {
    /// Whether the layer works as configured, or without its shared store.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.limiter.health()
    }

    /// The limiter that decides, to look at keys, reset them, or charge for something that is no request.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.shared.limiter
    }

    /// What looked wrong about the set-up so far, by this layer and its store. Each was logged when it was seen.
    ///
    /// See [`diagnosis`](crate::diagnosis) for the codes, and for what is looked at.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.shared.ledger.warnings();
        warnings.extend(self.shared.limiter.warnings());
        warnings
    }

    pub(crate) fn with(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.shared))
    }
}

// === Shared ===

/// What all clones of a layer share.
pub(crate) struct Shared {
    pub(crate) rules: Box<[Rule]>,
    pub(crate) limiter: RateLimiter,
    pub(crate) rejection: Arc<dyn MakeRejection>,
    pub(crate) writes_headers: bool,
    /// Whether charges must be remembered until the request has ended.
    pub(crate) keeps_charges: bool,
    /// Whether a decision that failed was reported.
    pub(crate) warned: AtomicBool,
    pub(crate) ledger: Arc<Ledger>,
}

/// A decision that was asked for, with its charges when they must be remembered.
pub(super) struct Asking {
    pub(super) answer: Answer<Decision>,
    pub(super) charged: Charged,
}

/// What was charged, when it must be remembered.
pub(super) type Charged = Option<Box<[OwnedCharge]>>;

/// What follows for a request that may go on.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// `None` when no rule counted it.
    pub(super) fields: Option<Fields>,
    pub(super) tab: Option<Box<Tab>>,
    /// How long it waits for its turn.
    pub(super) delay: Option<Duration>,
}

impl Shared {
    /// Decides on a request by its head. `None` when no rule counts it.
    #[inline]
    pub(super) fn decide(&self, parts: &Parts) -> Result<Option<Asking>, Rejection> {
        let mut charges: SmallVec<[Charge<'_>; 2]> = SmallVec::new();
        for rule in &self.rules {
            charges.extend(rule.charge(parts)?);
        }
        if charges.is_empty() {
            return Ok(None);
        }
        let charged = self
            .keeps_charges
            .then(|| charges.iter().map(Charge::to_owned).collect());
        let answer = self.limiter.check(&charges);
        Ok(Some(Asking { answer, charged }))
    }

    /// What follows for a request that may go on; the request is given the decision.
    #[inline]
    pub(super) fn admit<A>(
        self: &Arc<Self>,
        decided: Result<Decision, Error>,
        charged: Charged,
        request: &mut Request<A>,
    ) -> Result<Admitted, Rejection> {
        match decided {
            Ok(decision) if decision.is_allowed() => {
                let fields = Some(self.fields(&decision));
                let (mut tab, mut delay) = (None, None);
                if let Some(charged) = charged {
                    tab = self.tab(&charged, &decision);
                    delay = decision.delay();
                }
                if let Some(nested) = info::leave(request.extensions_mut(), decision) {
                    self.note_nesting(&nested);
                }
                Ok(Admitted { fields, tab, delay })
            }
            Ok(decision) => Err(Rejection::denied(decision)),
            Err(error) => Err(self.undecided(error)),
        }
    }

    /// Lets the handler know that there is a layer, though no rule counted the request.
    pub(super) fn pass<A>(&self, request: &mut Request<A>) {
        request.extensions_mut().insert(Uncounted);
    }

    #[cold]
    fn note_nesting(&self, nested: &Nested<'_>) {
        if let Some(state) = nested.shared_policy() {
            let detail = "a layer around this one charged the same request under this name";
            let warning = Warning::new(Code::ChargedTwice, detail);
            self.ledger.report(warning.about(*state.policy()));
        }
    }

    #[inline]
    fn fields(&self, decision: &Decision) -> Fields {
        if self.writes_headers {
            Fields::of(decision)
        } else {
            Fields::default()
        }
    }

    fn tab(self: &Arc<Self>, charged: &[OwnedCharge], decision: &Decision) -> Option<Box<Tab>> {
        let charges: SmallVec<[Charge<'_>; 2]> = charged.iter().map(OwnedCharge::borrow).collect();
        let receipt = Receipt::of(&charges, decision)?;
        Some(Tab::open(receipt, self))
    }

    /// What a request really cost under a policy.
    pub(super) fn price(&self, policy: &PolicyName, finished: &Finished<'_>) -> u64 {
        self.rule(policy)
            .map_or(finished.charged, |rule| rule.price(finished))
    }

    /// Whether a policy is asked what a request really cost.
    pub(super) fn settles(&self, policy: &PolicyName) -> bool {
        self.rule(policy).is_some_and(Rule::settles)
    }

    fn rule(&self, policy: &PolicyName) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.policy().name() == policy)
    }

    /// The rejection for a store that could not decide, reported the first time.
    #[cold]
    fn undecided(&self, error: Error) -> Rejection {
        if !self.warned.swap(true, Ordering::Relaxed) {
            telemetry::warn(format_args!(
                "the store could not decide, so requests get 503: {error:?}"
            ));
        }
        Rejection::undecided(error)
    }

    /// The answer to a request that may not go on.
    #[cold]
    pub(super) fn reject<B>(&self, rejection: Rejection) -> Response<ResponseBody<B>> {
        let mut response = self.rejection.make(&rejection).map(ResponseBody::rejection);
        if let Some(decision) = rejection.decision() {
            self.fields(decision).write(response.headers_mut());
        }
        response.extensions_mut().insert(rejection);
        response
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("rules", &self.rules)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
