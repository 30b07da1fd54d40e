//! Admission of requests whose keys or tiers need lookups.
//!
//! The policies that need none are decided first, so that no lookup runs for a request over a limit:
//!
//! ```text
//! resolve --> first decision --> look_up --> (all lookups) --> resolve --> second decision --> admit
//!                 | denied                                        | denied: the first one is refunded
//! ```
//!
//! # Why do lookups need two decisions?
//!
//! A lookup is a query to a database. If all keys were found before anything is charged, a limit of five a minute per address
//! would let 1,000 requests through to the database, and then deny 995 of them. Peeking at the limits first works for one request
//! after another, but not for 1,000 at once. So policies that need only the request head are charged first, and only what they
//! admit causes lookups: all keys at the same time, then all tiers, within one time limit.
//!
//! The price is a second call that is not one step with the first. If it denies, the first charge is refunded, and until then
//! others may be denied because of it. The charge stays for a missing key, a forbidden tier and a client that hangs up: each has
//! caused a query, and clients would use any way to get queries for free. Handlers see one decision, in the order of the rules.

use std::{mem, sync::Arc};

use http::{Extensions, Request};
use tokio::time::sleep;

use crate::{
    charge::{Charges, OwnedCharge},
    decision::Decision,
    error::Error,
    rejection::Rejection,
    request::RequestHead,
};

#[cfg(feature = "body")]
use super::body_read::BodyRead;
#[cfg(not(feature = "body"))]
use super::no_body_read::BodyRead;
use super::{
    admission::{Admission, KeptCharges, Next, Pending, Rejected},
    first_decision::{FirstDecision, RuleNumbers},
    future::Step,
    resolve::{Lookups, Resolution},
    settle::PendingSettlement,
    waits,
};

impl Admission {
    /// Decides on the charges that are known: before the first lookup, so that none runs for a request over a limit, and
    /// again after all lookups. No lookup runs for a request without a key under another rule.
    // Out of line, for the size of the path without lookups.
    #[inline(never)]
    pub(super) fn resolve<A: 'static>(
        self: &Arc<Self>,
        mut resolution: Box<Resolution>,
        request: &mut Request<A>,
    ) -> Next {
        let head = RequestHead::from(&*request);
        resolution.advance(&self.rules, &self.limiter, &head);
        let is_open = resolution.is_open();
        if is_open && resolution.first.is_some() {
            return self.look_up(resolution, request);
        }
        let first = resolution.first.take();
        let numbered = match resolution.charges(&self.rules, &self.limiter, &head) {
            Ok(charges) => charges,
            Err(forbidden) => {
                return Err(Rejected {
                    settlement: first.and_then(|first| first.settlement),
                    ..forbidden.into()
                });
            }
        };
        if numbered.is_empty() {
            drop(numbered);
            resolution.first = first;
            return if is_open {
                self.look_up(resolution, request)
            } else {
                self.conclude_without_charge(*resolution, request.extensions_mut())
            };
        }
        let (numbers, charges): (RuleNumbers, Charges<'_>) = numbered.into_iter().unzip();
        let is_settled = is_open || self.must_keep(charges.iter().copied());
        let mut kept = KeptCharges::of(&charges, is_settled);
        kept.terms = match &first {
            Some(first) => self.headers.tier_terms(&first.with(&numbers, &charges)),
            None => self.headers.tier_terms(&charges),
        };
        let decision = waits::check(&self.limiter, &charges, request.extensions());
        drop(charges);
        if is_open || first.is_some() || resolution.rejection.is_some() {
            resolution.numbers = numbers;
            resolution.first = first;
            kept.resolution = Some(resolution);
        }
        self.decided_or_pending(decision, kept, request)
    }

    /// Starts the lookups that are due.
    fn look_up<A: 'static>(
        self: &Arc<Self>,
        mut resolution: Box<Resolution>,
        request: &mut Request<A>,
    ) -> Next {
        let pending =
            resolution.start_lookups(&self.rules, &self.limiter, &RequestHead::from(&*request));
        let body = resolution.begin_body(&self.rules);
        let body = body.and_then(|limits| BodyRead::take(request, limits));
        if pending.is_empty() && body.is_none() {
            return self.resolve(resolution, request);
        }
        if !pending.is_empty() {
            let begin = || Box::pin(sleep(self.lookup_timeout));
            resolution.time_left.get_or_insert_with(begin);
        }
        let lookups = Lookups::new(resolution, pending, body);
        Ok(Step::Pending(Pending::Lookups(lookups)))
    }

    /// Takes the step after a decision on a request that does not simply go on.
    #[inline(never)]
    pub(super) fn follow_up<A: 'static>(
        self: &Arc<Self>,
        decided: Result<Decision, Error>,
        mut kept: KeptCharges,
        mut resolution: Box<Resolution>,
        request: &mut Request<A>,
    ) -> Next {
        let decision = match decided {
            Ok(decision) if decision.is_allowed() => decision,
            Ok(denial) => {
                let denial = match resolution.first {
                    Some(first) => first.denied_by(&resolution.numbers, &denial),
                    None => denial,
                };
                return Err(self.not_admitted(denial, kept, request.extensions()));
            }
            Err(error) if kept.denies_nothing => {
                self.note_uncounted(error);
                if !resolution.is_open() {
                    return self.conclude_without_charge(*resolution, request.extensions_mut());
                }
                // The policies that lookups are for may deny the request.
                resolution.end_resolved();
                return self.look_up(resolution, request);
            }
            Err(error) => {
                if let Some(first) = resolution.first {
                    first.refund();
                }
                return Err(self.undecided(error));
            }
        };
        if resolution.is_open() {
            let first = self.first_decision(decision, kept, mem::take(&mut resolution.numbers));
            resolution.note_first(first);
            return self.look_up(resolution, request);
        }
        let list = kept.charges.take();
        let settlement = list.and_then(|list| self.pending_settlement(&list, &decision));
        let (decision, settlement) = match resolution.first {
            Some(first) => {
                kept.has_peeks |= first.has_peeks();
                first.join(Some((resolution.numbers, decision)), settlement)
            }
            None => (decision, settlement),
        };
        self.admit_or_reject(
            (decision, settlement),
            kept,
            resolution.rejection,
            request.extensions_mut(),
        )
    }

    fn first_decision(
        &self,
        decision: Decision,
        kept: KeptCharges,
        rules: RuleNumbers,
    ) -> FirstDecision {
        let charges = kept.charges.unwrap_or_default();
        let mut settlement = self.pending_settlement(&charges, &decision);
        if let Some(settlement) = &mut settlement {
            // A client that hangs up now has caused a lookup.
            settlement.set_standing(true);
        }
        FirstDecision {
            decision,
            rules,
            settlement,
            keeps_charges: self.must_keep(charges.iter().map(OwnedCharge::borrow)),
            charges,
            terms: kept.terms,
        }
    }

    /// Takes the step for a request that the store admits: it goes on, unless it has no key for another policy.
    fn admit_or_reject(
        self: &Arc<Self>,
        (decision, mut settlement): (Decision, Option<Box<PendingSettlement>>),
        kept: KeptCharges,
        rejection: Option<Rejection>,
        extensions: &mut Extensions,
    ) -> Next {
        if let Some(rejection) = rejection {
            return Err(Rejected {
                rejection: rejection.with_decision(decision),
                terms: kept.terms,
                settlement,
            });
        }
        if let Some(settlement) = &mut settlement {
            settlement.set_standing(false);
        }
        Ok(self.admit(decision, settlement, &kept, extensions))
    }

    /// Takes the step for a request that nothing more is charged for.
    fn conclude_without_charge(
        self: &Arc<Self>,
        resolution: Resolution,
        extensions: &mut Extensions,
    ) -> Next {
        match (resolution.first, resolution.rejection) {
            (Some(mut first), rejection) => {
                let kept = KeptCharges {
                    terms: first.terms.take(),
                    has_peeks: first.has_peeks(),
                    ..KeptCharges::default()
                };
                self.admit_or_reject(first.join(None, None), kept, rejection, extensions)
            }
            (None, Some(rejection)) => Err(rejection.into()),
            (None, None) => Ok(self.pass(extensions)),
        }
    }
}
