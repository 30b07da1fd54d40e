//! The way of a request to its decision: its keys and tiers, its charges, and the next step.

use std::sync::Arc;

use http::request::Parts;
use tokio::time::sleep;

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    decision::Decision,
    error::Error,
    store::Later,
};

use super::{
    finding::{NumberedCharges, Search, Stage},
    headers::Fields,
    info::{self, Nested},
    next::{Admitted, Asking, Charged, FollowUp, Next, Refusal},
    partial::{PartialDecision, RuleNumbers},
    rejection::Rejection,
    settling::Tab,
    shared::Shared,
};

impl Shared {
    /// Decides on a request by its head, when nothing must be found first. The request is given the decision.
    #[inline]
    pub(super) fn decide(self: &Arc<Self>, parts: &mut Parts) -> Result<Next, Refusal> {
        if !self.gate.limits(parts, &self.ledger)? {
            return Ok(self.pass(&mut parts.extensions));
        }
        let mut charges = Charges::new();
        let mut rejection = None;
        for rule in &self.rules {
            if let Err(fault) = rule.charge(parts, &mut charges) {
                rejection.get_or_insert(fault);
            }
        }
        if charges.is_empty() {
            return match rejection {
                Some(rejection) => Err(rejection.into()),
                None => Ok(self.pass(&mut parts.extensions)),
            };
        }
        let charged = Charged {
            list: self.keeps_charges.then(|| owned(&charges)),
            terms: None,
            has_peeks: has_peeks(&charges),
            follow_up: rejection.map(FollowUp::rejection),
        };
        let answer = self.limiter.check(&charges).into_later();
        self.answered(answer, charged, parts)
    }

    /// Begins to find what is needed to decide on a request.
    // Out of line: its size is not for those to carry that need not find anything.
    #[inline(never)]
    pub(super) fn begin(self: &Arc<Self>, parts: &mut Parts) -> Result<Next, Refusal> {
        if !self.gate.limits(parts, &self.ledger)? {
            return Ok(self.pass(&mut parts.extensions));
        }
        self.find(Search::new(&self.rules), parts)
    }

    /// Goes on with a request whose keys and tiers were looked up, or are late.
    pub(super) fn resume(
        self: &Arc<Self>,
        stage: Stage,
        parts: &mut Parts,
    ) -> Result<Next, Refusal> {
        self.find(stage.into_search(), parts)
    }

    /// Decides on the known charges: before the first lookup, so that none runs for a request that is over a limit, and
    /// again when all lookups are done. No lookup runs for a request that has no key under another rule.
    fn find(self: &Arc<Self>, mut search: Box<Search>, parts: &mut Parts) -> Result<Next, Refusal> {
        let rejection = search.learn(&self.rules, parts);
        let is_open = rejection.is_none() && search.is_open();
        if is_open && search.partial.is_some() {
            return self.look_up(search, parts);
        }
        let mut follow_up = FollowUp {
            rejection,
            partial: search.partial.take(),
            ..FollowUp::default()
        };
        let charges = match search.charges(&self.rules, parts) {
            Ok(charges) => charges,
            Err(forbidden) => {
                let tab = follow_up.partial.and_then(|partial| partial.tab);
                return Err(Refusal {
                    rejection: forbidden,
                    tab,
                });
            }
        };
        if charges.is_empty() {
            drop(charges);
            return match is_open {
                true => self.look_up(search, parts),
                false => self.conclude_early(follow_up, parts),
            };
        }
        let (answer, charged) = self.ask_in_part(charges, is_open, &mut follow_up);
        follow_up.search = is_open.then_some(search);
        let charged = Charged {
            follow_up: follow_up.is_needed().then(|| Box::new(follow_up)),
            ..charged
        };
        self.answered(answer, charged, parts)
    }

    /// Asks the store about the known charges, which may be a part of all.
    fn ask_in_part(
        &self,
        numbered: NumberedCharges<'_>,
        is_open: bool,
        follow_up: &mut FollowUp,
    ) -> (Answered, Charged) {
        let (rules, charges): (RuleNumbers, Charges<'_>) = numbered.into_iter().unzip();
        let terms = match &follow_up.partial {
            Some(partial) => self.headers.changed(&partial.with(&rules, &charges)),
            None => self.headers.changed(&charges),
        };
        follow_up.rules = rules;
        let keeps_charges = is_open || self.must_keep(&charges);
        let charged = Charged {
            list: keeps_charges.then(|| owned(&charges)),
            terms,
            has_peeks: has_peeks(&charges),
            follow_up: None,
        };
        (self.limiter.check(&charges).into_later(), charged)
    }

    /// Starts the lookups that are due.
    fn look_up(
        self: &Arc<Self>,
        mut search: Box<Search>,
        parts: &mut Parts,
    ) -> Result<Next, Refusal> {
        let pending = search.look_up(&self.rules, parts);
        if pending.is_empty() {
            return self.find(search, parts);
        }
        let time = search.time.take();
        let time = time.unwrap_or_else(|| Box::pin(sleep(self.lookup_timeout)));
        Ok(Next::Find(Stage::new(search, pending, time)))
    }

    /// Goes on with the store's answer when that is there at once.
    #[inline]
    fn answered(
        self: &Arc<Self>,
        answer: Answered,
        charged: Charged,
        parts: &mut Parts,
    ) -> Result<Next, Refusal> {
        match answer {
            Ok(decided) => self.follow(decided, charged, parts),
            Err(answer) => Ok(Next::Wait(Asking { answer, charged })),
        }
    }

    /// Takes the next step after a decision.
    #[inline]
    pub(super) fn follow(
        self: &Arc<Self>,
        decided: Result<Decision, Error>,
        mut charged: Charged,
        parts: &mut Parts,
    ) -> Result<Next, Refusal> {
        if let Some(follow_up) = charged.follow_up.take() {
            return self.follow_up(decided, charged, *follow_up, parts);
        }
        let decision = match decided {
            Ok(decision) if decision.is_allowed() => decision,
            Ok(decision) => return Err(self.denied(decision, charged, parts)),
            Err(error) => return Err(self.undecided(error)),
        };
        let tab = charged.list.take();
        let tab = tab.and_then(|list| self.tab(&list, &decision));
        let admitted = self.admit(decision, tab, &charged, parts);
        Ok(Next::Go(admitted))
    }

    /// Takes the next step after a decision, for requests that do not simply go on.
    #[inline(never)]
    fn follow_up(
        self: &Arc<Self>,
        decided: Result<Decision, Error>,
        mut charged: Charged,
        follow_up: FollowUp,
        parts: &mut Parts,
    ) -> Result<Next, Refusal> {
        let (decision, partial) = match (decided, follow_up.partial) {
            (Ok(decision), partial) if decision.is_allowed() => (decision, partial),
            (Ok(denial), Some(partial)) => {
                let denial = partial.denied(&follow_up.rules, &denial);
                return Err(self.denied(denial, charged, parts));
            }
            (Ok(denial), None) => return Err(self.denied(denial, charged, parts)),
            (Err(error), partial) => {
                if let Some(partial) = partial {
                    partial.give_back();
                }
                return Err(self.undecided(error));
            }
        };
        if let Some(mut search) = follow_up.search {
            let partial = PartialDecision::new(decision, charged, follow_up.rules, self);
            search.note_decided(Box::new(partial));
            return self.look_up(search, parts);
        }
        let list = charged.list.take();
        let tab = list.and_then(|list| self.tab(&list, &decision));
        let (decision, tab) = match partial {
            Some(partial) => {
                charged.has_peeks |= partial.has_peeks();
                partial.joined(Some((follow_up.rules, decision)), tab)
            }
            None => (decision, tab),
        };
        self.conclude((decision, tab), charged, follow_up.rejection, parts)
    }

    /// Ends the way of a request that the store admits: it goes on, unless it has no key for another policy.
    fn conclude(
        self: &Arc<Self>,
        (decision, mut tab): (Decision, Option<Box<Tab>>),
        charged: Charged,
        rejection: Option<Rejection>,
        parts: &mut Parts,
    ) -> Result<Next, Refusal> {
        if let Some(rejection) = rejection {
            let rejection = rejection.decided(decision).under(charged.terms);
            return Err(Refusal { rejection, tab });
        }
        if let Some(tab) = &mut tab {
            tab.stand(false);
        }
        Ok(Next::Go(self.admit(decision, tab, &charged, parts)))
    }

    /// Ends the way of a request that nothing more is charged for.
    fn conclude_early(
        self: &Arc<Self>,
        follow_up: FollowUp,
        parts: &mut Parts,
    ) -> Result<Next, Refusal> {
        match (follow_up.partial, follow_up.rejection) {
            (Some(mut partial), rejection) => {
                let charged = Charged {
                    terms: partial.terms.take(),
                    has_peeks: partial.has_peeks(),
                    ..Charged::default()
                };
                self.conclude(partial.joined(None, None), charged, rejection, parts)
            }
            (None, Some(rejection)) => Err(rejection.into()),
            (None, None) => Ok(self.pass(&mut parts.extensions)),
        }
    }

    /// Lets a request go on, and gives it the decision.
    #[inline]
    fn admit(
        self: &Arc<Self>,
        mut decision: Decision,
        tab: Option<Box<Tab>>,
        charged: &Charged,
        parts: &mut Parts,
    ) -> Admitted {
        let terms = charged.terms.as_deref();
        let mut fields = Fields::of(&self.headers, &decision, terms);
        let delay = tab.is_some().then(|| decision.delay()).flatten();
        self.offer(&mut parts.extensions);
        if charged.has_peeks {
            decision.note_peeks();
        }
        if let Some(nested) = info::leave(&mut parts.extensions, decision) {
            self.note_nesting(&nested);
            fields = Fields::nested(&self.headers, nested.decision(), terms);
        }
        Admitted { fields, tab, delay }
    }

    #[cold]
    fn denied(&self, mut decision: Decision, charged: Charged, parts: &Parts) -> Refusal {
        if charged.has_peeks {
            decision.note_peeks();
        }
        if let Some(nested) = Nested::denied(&parts.extensions, &decision) {
            self.note_nesting(&nested);
        }
        Rejection::denied(decision).under(charged.terms).into()
    }

    #[cold]
    fn undecided(&self, error: Error) -> Refusal {
        Rejection::undecided(error, &self.warned, "requests get 503").into()
    }

    /// Whether charges must be remembered until the request has ended: a tier may be counted in a way that its policy is
    /// not.
    pub(super) fn must_keep(&self, charges: &[Charge<'_>]) -> bool {
        self.keeps_charges || charges.iter().any(|charge| charge.policy().must_end())
    }
}

/// The store's answer, if it is there at once.
type Answered = Result<Result<Decision, Error>, Later<Decision>>;

fn owned(charges: &[Charge<'_>]) -> Box<[OwnedCharge]> {
    charges.iter().map(Charge::to_owned).collect()
}

fn has_peeks(charges: &[Charge<'_>]) -> bool {
    charges.iter().any(|charge| charge.units() == 0)
}
