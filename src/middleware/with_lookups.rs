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

use std::sync::Arc;

use http::request::Parts;
use tokio::time::sleep;

use crate::{
    charge::{Charges, OwnedCharge},
    decision::Decision,
    error::Error,
    rejection::Rejection,
};

use super::{
    admission::{
        Admission, KeptCharges, Next, Pending, Rejected, denies_nothing, has_peeks, owned,
    },
    first_decision::{FirstDecision, RuleNumbers},
    future::Step,
    resolve::{FollowUp, Lookups, Resolution},
    settle::PendingSettlement,
    waits,
};

impl Admission {
    /// Decides on the charges that are known: before the first lookup, so that none runs for a request over a limit, and
    /// again after all lookups. No lookup runs for a request without a key under another rule.
    // Out of line, for the size of the path without lookups.
    #[inline(never)]
    pub(super) fn resolve(
        self: &Arc<Self>,
        mut resolution: Box<Resolution>,
        parts: &mut Parts,
    ) -> Next {
        let rejection = resolution.advance(&self.rules, &self.limiter, parts);
        let is_open = rejection.is_none() && resolution.needs_lookups();
        if is_open && resolution.first.is_some() {
            return self.look_up(resolution, parts);
        }
        let mut follow_up = FollowUp {
            rejection,
            first: resolution.first.take(),
            ..FollowUp::default()
        };
        let numbered = match resolution.charges(&self.rules, &self.limiter, parts) {
            Ok(charges) => charges,
            Err(forbidden) => {
                return Err(Rejected {
                    rejection: forbidden,
                    terms: None,
                    settlement: follow_up.first.and_then(|first| first.settlement),
                });
            }
        };
        if numbered.is_empty() {
            drop(numbered);
            return if is_open {
                self.look_up(resolution, parts)
            } else {
                self.conclude_without_charge(follow_up, parts)
            };
        }
        let (rules, charges): (RuleNumbers, Charges<'_>) = numbered.into_iter().unzip();
        let terms = match &follow_up.first {
            Some(first) => self.headers.tier_terms(&first.with(&rules, &charges)),
            None => self.headers.tier_terms(&charges),
        };
        let keeps_charges = is_open || self.must_keep(&charges);
        let list = keeps_charges.then(|| owned(&charges));
        let has_peeks = has_peeks(&charges);
        let denies_nothing = denies_nothing(&charges);
        let decision = waits::check(&self.limiter, &charges, &parts.extensions);
        drop(charges);
        follow_up.rules = rules;
        follow_up.resolution = is_open.then_some(resolution);
        let kept = KeptCharges {
            charges: list,
            terms,
            has_peeks,
            denies_nothing,
            follow_up: follow_up.is_needed().then(|| Box::new(follow_up)),
        };
        self.decided_or_pending(decision, kept, parts)
    }

    /// Starts the lookups that are due.
    fn look_up(self: &Arc<Self>, mut resolution: Box<Resolution>, parts: &mut Parts) -> Next {
        let pending = resolution.start_lookups(&self.rules, &self.limiter, parts);
        if pending.is_empty() {
            return self.resolve(resolution, parts);
        }
        let begin = || Box::pin(sleep(self.lookup_timeout));
        resolution.time_left.get_or_insert_with(begin);
        let lookups = Lookups::new(resolution, pending);
        Ok(Step::Pending(Pending::Lookups(lookups)))
    }

    /// Takes the step after a decision on a request that does not simply go on.
    #[inline(never)]
    pub(super) fn follow_up(
        self: &Arc<Self>,
        decided: Result<Decision, Error>,
        mut kept: KeptCharges,
        mut follow_up: FollowUp,
        parts: &mut Parts,
    ) -> Next {
        let decided = match decided {
            Err(error) if kept.denies_nothing => {
                self.note_uncounted(error);
                return match follow_up.resolution.take() {
                    // The policies that lookups are for may deny the request.
                    Some(mut resolution) => {
                        resolution.end_resolved();
                        self.look_up(resolution, parts)
                    }
                    None => self.conclude_without_charge(follow_up, parts),
                };
            }
            decided => decided,
        };
        let (decision, first) = match (decided, follow_up.first) {
            (Ok(decision), first) if decision.is_allowed() => (decision, first),
            (Ok(denial), Some(first)) => {
                let denial = first.denied_by(&follow_up.rules, &denial);
                return Err(self.not_admitted(denial, kept, parts));
            }
            (Ok(denial), None) => return Err(self.not_admitted(denial, kept, parts)),
            (Err(error), first) => {
                if let Some(first) = first {
                    first.refund();
                }
                return Err(self.undecided(error));
            }
        };
        if let Some(mut resolution) = follow_up.resolution {
            let charges = kept.charges.unwrap_or_default();
            let settlement = self.pending_settlement(&charges, &decision);
            let borrowed: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
            let keeps_charges = self.must_keep(&borrowed);
            drop(borrowed);
            resolution.note_first(Box::new(FirstDecision::new(
                decision,
                (follow_up.rules, charges),
                (settlement, keeps_charges),
                kept.terms,
            )));
            return self.look_up(resolution, parts);
        }
        let list = kept.charges.take();
        let settlement = list.and_then(|list| self.pending_settlement(&list, &decision));
        let (decision, settlement) = match first {
            Some(first) => {
                kept.has_peeks |= first.has_peeks();
                first.join(Some((follow_up.rules, decision)), settlement)
            }
            None => (decision, settlement),
        };
        self.admit_or_reject((decision, settlement), kept, follow_up.rejection, parts)
    }

    /// Takes the step for a request that the store admits: it goes on, unless it has no key for another policy.
    fn admit_or_reject(
        self: &Arc<Self>,
        (decision, mut settlement): (Decision, Option<Box<PendingSettlement>>),
        kept: KeptCharges,
        rejection: Option<Rejection>,
        parts: &mut Parts,
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
        Ok(self.admit(decision, settlement, &kept, parts))
    }

    /// Takes the step for a request that nothing more is charged for.
    fn conclude_without_charge(self: &Arc<Self>, follow_up: FollowUp, parts: &mut Parts) -> Next {
        match (follow_up.first, follow_up.rejection) {
            (Some(mut first), rejection) => {
                let kept = KeptCharges {
                    terms: first.terms.take(),
                    has_peeks: first.has_peeks(),
                    ..KeptCharges::default()
                };
                self.admit_or_reject(first.join(None, None), kept, rejection, parts)
            }
            (None, Some(rejection)) => Err(rejection.into()),
            (None, None) => Ok(self.pass(&mut parts.extensions)),
        }
    }
}
