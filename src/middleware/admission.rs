//! Admission of HTTP requests: which are charged, what the store decides, and what becomes of each.
//!
//! ```text
//! begin: filter -> keys and costs of all rules -> store -> conclude -> Admitted | Queued | rejected
//!                   | a key or tier needs a lookup                ^
//!                   v                                             |
//!        resolve: store (policies without lookup) -> lookups -> store (the others)
//! ```
//!
//! # Why does a request without a key charge the other policies?
//!
//! It gets a response, and a limit by address bounds the responses. If it charged nothing, a client without credentials could get
//! a 401 as often as it liked. So the 401 is sent only if the other policies admit the request. Over its limit, the client gets a
//! 429 with the time to wait, and is not charged. The forbid list comes before all of this, and charges nothing.

#![expect(
    missing_debug_implementations,
    reason = "public only as parts of the future's type"
)]

use std::{
    fmt, mem,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Extensions, Request, Response};

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    decision::Decision,
    diagnosis::{Code, Warning, WarningLog},
    error::Error,
    headers::{HeaderWriter, PendingHeaders, PolicyTerms},
    limiter::{RateLimiter, unknown_policy},
    memory::MemoryStore,
    rejection::{MakeRejection, Rejection, RetryAfterJitter},
    request::RequestHead,
    rules::{ModeSwitch, RequestFilter, Rule, RuleMode},
    store::StoreFuture,
};

#[cfg(feature = "reload")]
use crate::rules::ModeSetting;

use super::{
    body::{ResponseBody, finish},
    future::{self, Admit, Step},
    handles::Handles,
    held::HeldCharges,
    info::{self, Nested},
    resolve::{Lookups, Resolution},
    respond::respond,
    settle::PendingSettlement,
    waits::{self, AwaitedDecision},
};

/// Decides on the requests of one layer. Shared by all its clones and services.
pub struct Admission {
    /// The store behind the [gate](super::gate); `None` if all requests must take the long way.
    pub(crate) gate: Option<MemoryStore>,
    pub(crate) filter: RequestFilter,
    /// The mode of the layer.
    pub(crate) mode: ModeSwitch,
    pub(crate) rules: Arc<[Rule]>,
    /// The modes and rollouts that the rules were built with.
    #[cfg(feature = "reload")]
    pub(crate) written_modes: Box<[ModeSetting]>,
    pub(crate) limiter: RateLimiter,
    pub(crate) format: Arc<dyn MakeRejection>,
    pub(crate) headers: Arc<HeaderWriter>,
    pub(crate) retry_after_jitter: RetryAfterJitter,
    /// Whether charges are kept until the request has ended.
    pub(crate) keeps_charges: bool,
    /// Whether handlers and inner layers find the decision in the request's extensions.
    pub(crate) exposes_decision: bool,
    /// The handles that handlers get beside the decision. `None` if there are none.
    pub(crate) handles: Option<Box<Handles>>,
    /// Whether a key or tier may need a lookup before a request can be charged.
    pub(crate) needs_lookups: bool,
    pub(crate) lookup_timeout: Duration,
    /// Whether a failed decision was logged.
    pub(crate) has_logged_failure: AtomicBool,
    pub(crate) warnings: Arc<WarningLog>,
}

pub(super) type Next = future::Next<Pending, Admitted, Rejected>;

impl Admission {
    /// Returns the rule with this policy.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if there is none.
    pub(super) fn rule(&self, policy: &str) -> Result<&Rule, Error> {
        let mut rules = self.rules.iter();
        let named = rules.find(|rule| rule.policy().name().as_str() == policy);
        named.ok_or_else(|| unknown_policy("layer", policy, self.rules.iter().map(Rule::policy)))
    }

    /// Goes on with the decision if there is one already.
    #[inline]
    pub(super) fn decided_or_pending<A: 'static>(
        self: &Arc<Self>,
        mut decision: StoreFuture<Decision>,
        kept: KeptCharges,
        request: &mut Request<A>,
    ) -> Next {
        match decision.take_ready() {
            Some(decided) => self.conclude(decided, kept, request),
            None => Ok(Step::Pending(Pending::Decision {
                decision: AwaitedDecision::new(decision),
                kept,
            })),
        }
    }

    /// Takes the step after a decision.
    #[inline]
    fn conclude<A: 'static>(
        self: &Arc<Self>,
        decided: Result<Decision, Error>,
        mut kept: KeptCharges,
        request: &mut Request<A>,
    ) -> Next {
        if let Some(resolution) = kept.resolution.take() {
            return self.follow_up(decided, kept, resolution, request);
        }
        let decision = match decided {
            Ok(decision) if decision.is_allowed() => decision,
            Ok(decision) => return Err(self.not_admitted(decision, kept, request.extensions())),
            Err(error) if kept.denies_nothing => {
                self.note_uncounted(error);
                return Ok(self.pass(request.extensions_mut()));
            }
            Err(error) => return Err(self.undecided(error)),
        };
        let list = kept.charges.take();
        let settlement = list.and_then(|list| self.pending_settlement(&list, &decision));
        Ok(self.admit(decision, settlement, &kept, request.extensions_mut()))
    }

    /// Lets a request go on, with the decision in its extensions.
    #[inline]
    pub(super) fn admit(
        &self,
        mut decision: Decision,
        settlement: Option<Box<PendingSettlement>>,
        kept: &KeptCharges,
        extensions: &mut Extensions,
    ) -> Step<Pending, Admitted> {
        let held = settlement.as_ref().map(|settlement| &settlement.held);
        let delay = held.and_then(|held| held.delay(&decision));
        if kept.has_peeks {
            decision.set_has_peeks();
        }
        let terms = kept.terms.as_deref();
        let admitted = self.admitted(decision, (settlement, terms), extensions);
        Step::after(delay, admitted)
    }

    /// As [`admit`](Self::admit), without the queue.
    #[inline]
    pub(super) fn admitted(
        &self,
        decision: Decision,
        (settlement, terms): (Option<Box<PendingSettlement>>, Option<&[PolicyTerms]>),
        extensions: &mut Extensions,
    ) -> Admitted {
        let mut headers = PendingHeaders::new(&self.headers, &decision, terms);
        self.attach_handles(extensions);
        if self.exposes_decision
            && let Some(nested) = info::insert(extensions, decision)
        {
            self.warn_of_double_charge(&nested);
            headers = PendingHeaders::nested(&self.headers, nested.decision(), terms);
        }
        Admitted {
            headers,
            settlement,
        }
    }

    /// Lets a request go on that no rule counts.
    pub(super) fn pass(&self, extensions: &mut Extensions) -> Step<Pending, Admitted> {
        if self.exposes_decision {
            info::insert_uncounted(extensions);
        }
        self.attach_handles(extensions);
        Step::Admitted(Admitted::default())
    }

    /// Gives the handler its handles, even if nothing was charged.
    #[inline]
    fn attach_handles(&self, extensions: &mut Extensions) {
        if let Some(handles) = &self.handles {
            handles.attach(extensions);
        }
    }

    #[cold]
    pub(super) fn not_admitted(
        &self,
        mut decision: Decision,
        kept: KeptCharges,
        extensions: &Extensions,
    ) -> Rejected {
        if kept.has_peeks {
            decision.set_has_peeks();
        }
        if let Some(nested) = Nested::not_admitted(extensions, &decision) {
            self.warn_of_double_charge(&nested);
        }
        Rejected {
            rejection: Rejection::of_decision(decision),
            terms: kept.terms,
            settlement: None,
        }
    }

    #[cold]
    pub(super) fn undecided(&self, error: Error) -> Rejected {
        Rejection::store_failed(error, &self.has_logged_failure, "requests get 503").into()
    }

    /// Notes that a request cannot be decided, and goes on, since none of its policies could deny it.
    #[cold]
    pub(super) fn note_uncounted(&self, error: Error) {
        let effect = "requests are not counted in shadow";
        let has_logged = &self.has_logged_failure;
        // Only its log event is of use.
        drop(Rejection::store_failed(error, has_logged, effect));
    }

    #[cold]
    fn warn_of_double_charge(&self, nested: &Nested<'_>) {
        if let Some(state) = nested.shared_policy() {
            let detail = "a layer around this one charged the same request under this name";
            let warning = Warning::new(Code::ChargedTwice, detail);
            self.warnings.report(warning.with_policy(*state.policy()));
        }
    }

    /// Keeps the charges of a decision until the request has ended. They are refunded unless it starts.
    pub(super) fn pending_settlement(
        &self,
        charges: &[OwnedCharge],
        decision: &Decision,
    ) -> Option<Box<PendingSettlement>> {
        let held = HeldCharges::of(&self.limiter, charges, decision)?;
        Some(PendingSettlement::new(held, Arc::clone(&self.rules)))
    }

    /// Whether charges are kept until the request has ended. A tier's algorithm may need it where the policy's does not.
    pub(super) fn must_keep<'a>(&self, mut charges: impl Iterator<Item = Charge<'a>>) -> bool {
        self.keeps_charges || charges.any(|charge| charge.policy().must_be_settled())
    }

    /// Makes the response to a rejected request, and settles the charges that are kept.
    #[cold]
    pub(super) fn respond<A, B>(
        &self,
        rejected: Rejected,
        request: Request<A>,
    ) -> Response<ResponseBody<B>> {
        let Rejected {
            mut rejection,
            terms,
            settlement,
        } = rejected;
        rejection.spread_wait(self.retry_after_jitter);
        let headers = (&*self.headers, terms.as_deref());
        let (parts, text) = respond(rejection, &*self.format, headers, request);
        let response = Response::from_parts(parts, ResponseBody::rejection(text));
        if let Some(settlement) = settlement {
            settlement.reject(&response);
        }
        response
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("rules", &self.rules)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

impl<A: 'static, B, E> Admit<Request<A>, Response<B>, E> for Arc<Admission> {
    type Response = Response<ResponseBody<B>>;
    type Pending = Pending;
    type Admitted = Admitted;
    type Rejected = Rejected;

    #[inline]
    fn begin(&self, request: &mut Request<A>) -> Next {
        let mode = self.mode.get().mode();
        if mode == RuleMode::Off {
            return Ok(self.pass(request.extensions_mut()));
        }
        let mut charges = Charges::new();
        let mut rejection = None;
        let head = &RequestHead::from(&*request);
        let is_limited = self.filter.limits(head, &self.warnings);
        if matches!(is_limited, Ok(true)) && !self.needs_lookups {
            for rule in &*self.rules {
                if let Err(fault) = rule.charge(mode, head, &mut charges) {
                    rejection.get_or_insert(fault);
                }
            }
        }
        match is_limited {
            Ok(true) => {}
            Err(rejection) if mode == RuleMode::Enforce => return Err(rejection.into()),
            Ok(false) | Err(_) => return Ok(self.pass(request.extensions_mut())),
        }
        if self.needs_lookups {
            return self.resolve(Resolution::new(&self.rules, mode), request);
        }
        if charges.is_empty() {
            return match rejection {
                Some(rejection) => Err(rejection.into()),
                None => Ok(self.pass(request.extensions_mut())),
            };
        }
        let mut kept = KeptCharges::of(&charges, self.keeps_charges);
        kept.resolution = rejection.map(Resolution::rejecting);
        let decision = waits::check(&self.limiter, &charges, request.extensions());
        drop(charges);
        self.decided_or_pending(decision, kept, request)
    }

    fn poll(
        &self,
        pending: &mut Pending,
        request: &mut Request<A>,
        context: &mut Context<'_>,
    ) -> Poll<Next> {
        Poll::Ready(match pending {
            Pending::Lookups(lookups) => {
                let resolution = ready!(lookups.poll(context));
                if let Some(read) = lookups.body.take() {
                    (*read).end(request);
                }
                self.resolve(resolution, request)
            }
            Pending::Decision { decision, kept } => {
                let extensions = request.extensions_mut();
                let decided = ready!(decision.poll(&self.limiter, extensions, context));
                self.conclude(decided, mem::take(kept), request)
            }
        })
    }

    #[inline]
    fn held(admitted: &mut Admitted) -> Option<&mut HeldCharges> {
        let settlement = admitted.settlement.as_mut()?;
        Some(&mut settlement.held)
    }

    #[inline]
    fn start(admitted: &mut Admitted, request: &mut Request<A>) {
        if let Some(settlement) = &mut admitted.settlement {
            settlement.start(request);
        }
    }

    // Always inlined, as `finish`: a response that is returned through memory once more costs 5 ns.
    #[inline(always)]
    fn end(admitted: Admitted, outcome: Result<Response<B>, E>) -> Result<Self::Response, E> {
        finish(outcome, admitted.headers, admitted.settlement)
    }

    fn reject(
        &self,
        rejected: Rejected,
        request: Request<A>,
    ) -> Result<Response<ResponseBody<B>>, E> {
        Ok(self.respond(rejected, request))
    }
}

// === Pending ===

/// Lookups or a decision that a request waits for.
pub enum Pending {
    /// The store's decision.
    Decision {
        decision: AwaitedDecision,
        kept: KeptCharges,
    },
    /// Lookups of keys and tiers.
    Lookups(Box<Lookups>),
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decision { .. } => "decision",
            Self::Lookups(_) => "lookups",
        })
    }
}

// === Admitted ===

/// Kept of an admitted request until it has ended.
#[derive(Debug, Default)]
pub struct Admitted {
    /// `None` when no rule counted the request, or the layer writes no headers.
    headers: Option<PendingHeaders>,
    settlement: Option<Box<PendingSettlement>>,
}

// === Rejected ===

/// A rejection, with the charges that are kept nevertheless.
pub struct Rejected {
    pub(super) rejection: Rejection,
    /// The terms of the decision, if a tier changed the layer's.
    pub(super) terms: Option<Box<[PolicyTerms]>>,
    pub(super) settlement: Option<Box<PendingSettlement>>,
}

impl From<Rejection> for Rejected {
    fn from(rejection: Rejection) -> Self {
        Self {
            rejection,
            terms: None,
            settlement: None,
        }
    }
}

// === KeptCharges ===

/// Kept of a request's charges while the store decides.
#[derive(Default)]
pub struct KeptCharges {
    /// The charges, if they may be settled.
    pub(super) charges: Option<Box<[OwnedCharge]>>,
    /// Their terms, if a tier changed the layer's.
    pub(super) terms: Option<Box<[PolicyTerms]>>,
    /// Whether a charge costs 0.
    pub(super) has_peeks: bool,
    /// Whether all charges are only counted.
    pub(super) denies_nothing: bool,
    /// Work after an admitting decision; `None` if the request simply goes on.
    pub(super) resolution: Option<Box<Resolution>>,
}

impl KeptCharges {
    /// Keeps the charges themselves if `is_settled`.
    #[inline]
    pub(super) fn of(charges: &[Charge<'_>], is_settled: bool) -> Self {
        Self {
            charges: is_settled.then(|| charges.iter().map(Charge::to_owned).collect()),
            has_peeks: charges.iter().any(|charge| charge.units() == 0),
            denies_nothing: charges.iter().all(Charge::is_shadow),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values up to this size are copied without a call.
    const SMALL: usize = 128;

    #[test]
    fn values_that_move_with_each_request_are_copied_without_a_call() {
        assert!(size_of::<Result<Decision, Error>>() <= SMALL);
        assert!(size_of::<Next>() <= SMALL);
    }
}
