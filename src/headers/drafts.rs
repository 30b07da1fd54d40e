//! `RateLimit` and `RateLimit-Policy`, by the drafts.

use http::HeaderValue;

use crate::{
    charge::Charge, clock::whole_seconds, decision::Decision, policy::Policy, state::PolicyName,
    state::PolicyState,
};

use super::{
    choice::Family,
    terms::{Draft, PolicyTerms, named, write_unknown},
    value_buffer::ValueBuffer,
    values::HeaderValues,
};

/// The terms of a layer's policies, and what is mostly said about them.
#[derive(Debug)]
pub(super) struct Drafts {
    terms: Box<[PolicyTerms]>,
    /// `RateLimit-Policy` when all policies were asked, by draft 11 and by draft 6.
    usual: [Option<HeaderValue>; 2],
}

impl Drafts {
    pub(super) fn new<'a>(policies: impl Iterator<Item = &'a Policy>) -> Self {
        let terms: Box<[PolicyTerms]> = policies.map(PolicyTerms::of).collect();
        let usual = Draft::BOTH.map(|draft| {
            let mut text = ValueBuffer::default();
            terms.iter().for_each(|terms| terms.write(draft, &mut text));
            text.some_value()
        });
        Self { terms, usual }
    }

    pub(super) fn usual(&self, draft: Draft) -> Option<&HeaderValue> {
        self.usual[draft as usize].as_ref()
    }

    pub(super) fn has(&self, policy: &str) -> bool {
        self.terms
            .iter()
            .any(|terms| terms.name().as_str() == policy)
    }

    /// A policy's place among those of the layer.
    pub(super) fn place(&self, policy: &PolicyName) -> Option<u16> {
        let place = self.terms.iter().position(|terms| terms.name() == policy);
        place.and_then(|place| u16::try_from(place).ok())
    }

    pub(super) fn name(&self, place: u16) -> Option<&str> {
        let terms = self.terms.get(usize::from(place))?;
        Some(terms.name().as_str())
    }

    /// The terms of all charges when a tier made any of them other than the layer's.
    pub(super) fn changed(&self, charges: &[Charge<'_>]) -> Option<Box<[PolicyTerms]>> {
        let is_own = |charge: &Charge<'_>| {
            let mut own = self.terms.iter();
            own.any(|terms| terms.are_of(charge.policy()))
        };
        let changed = !charges.iter().all(is_own);
        changed.then(|| {
            charges
                .iter()
                .map(|charge| PolicyTerms::of(charge.policy()))
                .collect()
        })
    }

    /// What there is to tell about a decision, under terms of its own if it has any.
    pub(super) fn on<'a>(
        &'a self,
        decision: &'a Decision,
        changed: Option<&'a [PolicyTerms]>,
    ) -> DraftInput<'a> {
        DraftInput {
            drafts: self,
            decision,
            changed,
        }
    }
}

// === DraftInput ===

/// What the drafts have to tell about one decision.
pub(super) struct DraftInput<'a> {
    drafts: &'a Drafts,
    decision: &'a Decision,
    changed: Option<&'a [PolicyTerms]>,
}

impl DraftInput<'_> {
    /// Takes from the decision what a draft's headers will say beyond the narrowest policy's numbers.
    pub(super) fn told(&self, family: &Family, told: &mut HeaderValues) {
        if let Family::Draft11 = family {
            told.limits = self.limits(told.wait);
        }
        if told.policies.is_none() && !self.is_usual() {
            told.policies = Some(Box::new(Draft::BOTH.map(|draft| self.policies(draft))));
        }
    }

    /// Draft 11's `RateLimit`: the narrowest policy first.
    fn limits(&self, wait: u64) -> Option<HeaderValue> {
        let first = self.decision.narrowest();
        let is_other =
            |state: &&PolicyState| first.is_none_or(|first| !std::ptr::eq(first, *state));
        let others = self.decision.states().iter().filter(is_other);
        let latest = if wait > 0 { wait } else { u64::MAX };
        let mut text = ValueBuffer::default();
        for state in first.into_iter().chain(others) {
            self.write_limit(&mut text, state, latest);
        }
        text.some_value()
    }

    /// `"name";r=..;t=..`, unless nobody counted; without a `t` that lies behind `Retry-After`.
    fn write_limit(&self, text: &mut ValueBuffer, state: &PolicyState, latest: u64) {
        let Some(usage) = state.header_usage() else {
            return;
        };
        let text = named(text.next(), state.policy());
        text.text(";r=").integer(usage.remaining);
        let now = self.decision.decided_at();
        let span = match self.terms(state) {
            Some(terms) => terms.effective_window(state, now),
            None => Some(whole_seconds(usage.reset_at.since(now))),
        };
        if let Some(span) = span.filter(|span| *span <= latest) {
            text.text(";t=").integer(span);
        }
    }

    /// Whether all policies were asked, and on the layer's terms.
    fn is_usual(&self) -> bool {
        let (states, own) = (self.decision.states(), &self.drafts.terms);
        self.changed.is_none()
            && states.len() == own.len()
            && states
                .iter()
                .zip(own)
                .all(|(state, terms)| terms.fit(state))
    }

    /// `RateLimit-Policy` with the policies that were asked.
    fn policies(&self, draft: Draft) -> Option<HeaderValue> {
        let mut text = ValueBuffer::default();
        for state in self.decision.states() {
            match self.terms(state) {
                Some(terms) => terms.write(draft, &mut text),
                None => write_unknown(state, draft, &mut text),
            }
        }
        text.some_value()
    }

    fn terms(&self, state: &PolicyState) -> Option<&PolicyTerms> {
        let terms = self.changed.unwrap_or(&self.drafts.terms);
        terms.iter().find(|terms| terms.fit(state))
    }
}
