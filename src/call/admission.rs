//! Admission of calls.

use std::{
    fmt, mem,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll, ready},
};

use crate::{
    charge::{Charge, Charges, OwnedCharge, Receipt},
    decision::Decision,
    diagnosis::WarningLog,
    error::Error,
    limiter::RateLimiter,
    middleware::future::{self, Admit, Step},
    rejection::Rejection,
    store::StoreFuture,
};

use super::{
    rule::CallRule,
    settle::{EndHooks, PendingCharge},
};

/// Decides on the calls of one layer. Shared by all its clones and services.
pub struct CallAdmission<R, T, E> {
    pub(super) rules: Box<[CallRule<R>]>,
    pub(super) limiter: RateLimiter,
    pub(super) deny: Box<Deny<R, T, E>>,
    pub(super) on_admitted: Option<Box<OnAdmitted<R>>>,
    pub(super) hooks: Arc<EndHooks<T, E>>,
    /// Whether charges are kept until the call has ended.
    pub(super) keeps_charges: bool,
    pub(super) warnings: WarningLog,
    /// Whether a failed decision was logged.
    pub(super) has_logged_failure: AtomicBool,
}

pub(super) type Deny<R, T, E> = dyn Fn(R, &Rejection) -> Result<T, E> + Send + Sync;
pub(super) type OnAdmitted<R> = dyn Fn(&mut R, &Decision) + Send + Sync;

/// A decision that takes time.
pub struct PendingDecision {
    decision: StoreFuture<Decision>,
    kept: KeptCharges,
}

impl fmt::Debug for PendingDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("decision")
    }
}

/// Kept of a call's charges while the store decides.
#[derive(Default)]
struct KeptCharges {
    /// The charges, if they may be settled.
    charges: Option<Box<[OwnedCharge]>>,
    /// The call is rejected even if the store admits it, since it has no key for another policy.
    rejection: Option<Rejection>,
}

type Next<T, E> = future::Next<PendingDecision, Option<PendingCharge<T, E>>, Rejection>;

impl<R, T, E> CallAdmission<R, T, E> {
    /// Begins with a call, and decides on it if nothing must be waited for.
    #[inline]
    pub(super) fn begin(&self, request: &mut R) -> Next<T, E> {
        let mut charges = Charges::new();
        let mut rejection = None;
        for rule in &self.rules {
            match rule.charge(request, &self.warnings) {
                Ok(charge) => charges.extend(charge),
                Err(fault) => {
                    rejection.get_or_insert(fault);
                }
            }
        }
        if charges.is_empty() {
            return rejection.map_or(Ok(Step::Admitted(None)), Err);
        }
        let list = self.keeps_charges;
        let kept = KeptCharges {
            charges: list.then(|| charges.iter().map(Charge::to_owned).collect()),
            rejection,
        };
        let mut decision = self.limiter.check(&charges);
        drop(charges);
        match decision.take_ready() {
            Some(decided) => self.conclude(decided, kept, request),
            None => Ok(Step::Pending(PendingDecision { decision, kept })),
        }
    }

    /// Takes the step after a decision.
    #[inline]
    fn conclude(
        &self,
        decided: Result<Decision, Error>,
        kept: KeptCharges,
        request: &mut R,
    ) -> Next<T, E> {
        let decision = match decided {
            Ok(decision) if decision.is_allowed() => decision,
            Ok(decision) => return Err(Rejection::of_decision(decision)),
            Err(error) => {
                return Err(Rejection::store_failed(
                    error,
                    &self.has_logged_failure,
                    "calls are denied",
                ));
            }
        };
        let charge = kept
            .charges
            .as_ref()
            .and_then(|charges| self.pending_charge(charges, &decision));
        if let Some(rejection) = kept.rejection {
            // Ends like a call whose caller went away: slots are released, and the closure prices the rest.
            drop(charge.map(PendingCharge::started));
            return Err(rejection.with_decision(decision));
        }
        if let Some(on_admitted) = &self.on_admitted {
            on_admitted(request, &decision);
        }
        let delay = kept.charges.and_then(|_| decision.delay());
        Ok(match delay {
            Some(delay) => Step::Queued(charge, delay),
            None => Step::Admitted(charge),
        })
    }

    fn pending_charge(
        &self,
        charges: &[OwnedCharge],
        decision: &Decision,
    ) -> Option<PendingCharge<T, E>> {
        let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
        let receipt = Receipt::of(&charges, decision)?;
        let hold = self.limiter.hold(receipt);
        Some(PendingCharge::new(hold, Arc::clone(&self.hooks)))
    }
}

impl<R, T, E> Admit<R, T, E> for Arc<CallAdmission<R, T, E>> {
    type Response = T;
    type Request = R;
    type Pending = PendingDecision;
    type Admitted = Option<PendingCharge<T, E>>;
    type Rejected = Rejection;

    fn poll(
        &self,
        pending: &mut PendingDecision,
        request: &mut R,
        context: &mut Context<'_>,
    ) -> Poll<Next<T, E>> {
        let decided = ready!(Pin::new(&mut pending.decision).poll(context));
        Poll::Ready(self.conclude(decided, mem::take(&mut pending.kept), request))
    }

    #[inline]
    fn start(charge: &mut Option<PendingCharge<T, E>>, request: R) -> R {
        if let Some(charge) = charge {
            charge.start();
        }
        request
    }

    #[inline]
    fn set_running(charge: &mut Option<PendingCharge<T, E>>, is_running: bool) {
        if let Some(charge) = charge {
            charge.set_running(is_running);
        }
    }

    #[inline]
    fn end(charge: Option<PendingCharge<T, E>>, mut outcome: Result<T, E>) -> Result<T, E> {
        if let Some(charge) = charge {
            charge.end(&mut outcome);
        }
        outcome
    }

    fn reject(&self, rejection: Rejection, request: R) -> Result<T, E> {
        (self.deny)(request, &rejection)
    }
}

impl<R, T, E> fmt::Debug for CallAdmission<R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallAdmission")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
