//! Admission of calls.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll, ready},
};

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    decision::Decision,
    diagnosis::WarningLog,
    error::Error,
    limiter::RateLimiter,
    middleware::{
        future::{Admit, Next, Step},
        held::HeldCharges,
    },
    rejection::Rejection,
    store::StoreFuture,
};

use super::{
    rule::CallRule,
    settle::{CallSettlement, EndHooks},
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

/// A call that the store decides on.
pub struct UndecidedCall {
    decision: StoreFuture<Decision>,
    /// The charges, if they may be settled.
    charges: Option<Box<[OwnedCharge]>>,
    /// Whether all charges are only counted.
    denies_nothing: bool,
    /// The call is rejected even if the store admits it, since it has no key for another policy.
    rejection: Option<Rejection>,
}

impl fmt::Debug for UndecidedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("decision")
    }
}

type NextOfCall<T, E> = Next<UndecidedCall, Option<CallSettlement<T, E>>, Rejection>;

impl<R, T, E> CallAdmission<R, T, E> {
    /// Takes the step after a decision.
    #[inline]
    fn conclude(
        &self,
        decided: Result<Decision, Error>,
        call: &mut UndecidedCall,
        request: &mut R,
    ) -> NextOfCall<T, E> {
        let decision = match decided {
            Ok(decision) if decision.is_allowed() => decision,
            Ok(decision) => return Err(Rejection::of_decision(decision)),
            Err(error) if call.denies_nothing => {
                self.store_failed(error, "calls are not counted in shadow");
                return call.rejection.take().map_or(Ok(Step::Admitted(None)), Err);
            }
            Err(error) => return Err(self.store_failed(error, "calls are denied")),
        };
        let charges = call.charges.take();
        let held = charges.and_then(|list| HeldCharges::of(&self.limiter, &list, &decision));
        let mut settlement = held.map(|held| CallSettlement {
            held,
            hooks: Arc::clone(&self.hooks),
        });
        if let Some(rejection) = call.rejection.take() {
            // Ends like a call whose caller went away: slots are released, and the closure prices the rest.
            if let Some(settlement) = &mut settlement {
                settlement.held.start();
            }
            return Err(rejection.with_decision(decision));
        }
        if let Some(on_admitted) = &self.on_admitted {
            on_admitted(request, &decision);
        }
        let held = settlement.as_ref().map(|settlement| &settlement.held);
        let delay = held.and_then(|held| held.delay(&decision));
        Ok(Step::after(delay, settlement))
    }

    /// Notes that the store could not decide, and returns the rejection of a call that it might deny.
    #[cold]
    fn store_failed(&self, error: Error, effect: &str) -> Rejection {
        Rejection::store_failed(error, &self.has_logged_failure, effect)
    }
}

impl<R, T, E> Admit<R, T, E> for Arc<CallAdmission<R, T, E>> {
    type Response = T;
    type Pending = UndecidedCall;
    type Admitted = Option<CallSettlement<T, E>>;
    type Rejected = Rejection;

    #[inline]
    fn begin(&self, request: &mut R) -> NextOfCall<T, E> {
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
        let owned = || charges.iter().map(Charge::to_owned).collect();
        let mut call = UndecidedCall {
            decision: self.limiter.check(&charges[..]),
            charges: self.keeps_charges.then(owned),
            denies_nothing: charges.iter().all(Charge::is_shadow),
            rejection,
        };
        match call.decision.take_ready() {
            Some(decided) => self.conclude(decided, &mut call, request),
            None => Ok(Step::Pending(call)),
        }
    }

    fn poll(
        &self,
        call: &mut UndecidedCall,
        request: &mut R,
        context: &mut Context<'_>,
    ) -> Poll<NextOfCall<T, E>> {
        let decided = ready!(Pin::new(&mut call.decision).poll(context));
        Poll::Ready(self.conclude(decided, call, request))
    }

    #[inline]
    fn held(settlement: &mut Self::Admitted) -> Option<&mut HeldCharges> {
        let settlement = settlement.as_mut()?;
        Some(&mut settlement.held)
    }

    #[inline]
    fn end(settlement: Self::Admitted, mut outcome: Result<T, E>) -> Result<T, E> {
        if let Some(settlement) = settlement {
            settlement.end(&mut outcome);
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
