//! The layer.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Request, Response, request::Parts};
use smallvec::SmallVec;
use tower::Layer;

use crate::{
    decision::Decision,
    error::Error,
    limiter::RateLimiter,
    policy::Charge,
    store::{Answer, Health},
    telemetry,
};

use super::{
    body::ResponseBody,
    headers::Fields,
    rejection::{MakeRejection, Rejection},
    rule::Rule,
    service::RateLimit,
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
    pub(crate) warned: AtomicBool,
}

impl Shared {
    /// Decides on a request by its head. `None` when no rule counts it.
    #[inline]
    pub(super) fn decide(&self, parts: &Parts) -> Result<Option<Answer<Decision>>, Rejection> {
        let mut charges: SmallVec<[Charge<'_>; 2]> = SmallVec::new();
        for rule in &self.rules {
            charges.extend(rule.charge(parts)?);
        }
        Ok((!charges.is_empty()).then(|| self.limiter.check(&charges)))
    }

    /// What the answer to a request that may go on will carry; the request is given the decision.
    #[inline]
    pub(super) fn admit<A>(
        &self,
        decided: Result<Decision, Error>,
        request: &mut Request<A>,
    ) -> Result<Fields, Rejection> {
        match decided {
            Ok(decision) if decision.is_allowed() => {
                let fields = self.fields(&decision);
                request.extensions_mut().insert(decision);
                Ok(fields)
            }
            Ok(decision) => Err(Rejection::denied(decision)),
            Err(error) => Err(self.undecided(error)),
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
