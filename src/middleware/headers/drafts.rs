//! `RateLimit` and `RateLimit-Policy`, by the drafts.

use http::{HeaderName, HeaderValue};

use crate::{
    decision::Decision,
    policy::{Charge, Policy},
    state::{PolicyState, Usage},
};

use super::{
    fields::{Fields, seconds_to, whole_seconds},
    terms::{Draft, Terms, named, write_unknown},
    text::Text,
};

/// The terms of a layer's policies, and what is the same for every answer.
#[derive(Debug)]
pub(super) struct Drafts {
    terms: Box<[Terms]>,
    /// `RateLimit-Policy` when all policies were asked, by draft 11 and by draft 6.
    named: Option<HeaderValue>,
    bare: Option<HeaderValue>,
}

impl Drafts {
    pub(super) fn new<'a>(policies: impl Iterator<Item = &'a Policy>) -> Self {
        let terms: Box<[Terms]> = policies.map(Terms::of).collect();
        let joined = |draft: Draft| {
            let text = Text::default();
            let text = terms
                .iter()
                .fold(text, |text, terms| terms.write(draft, text));
            text.some_value()
        };
        Self {
            named: joined(Draft::Eleven),
            bare: joined(Draft::Six),
            terms,
        }
    }

    pub(super) fn has(&self, policy: &str) -> bool {
        self.terms.iter().any(|terms| terms.name() == policy)
    }

    /// The terms of all charges when a tier made any of them other than the layer's.
    pub(super) fn changed(&self, charges: &[Charge<'_>]) -> Option<Box<[Terms]>> {
        let is_own = |charge: &Charge<'_>| {
            let mut own = self.terms.iter();
            own.any(|terms| terms.are_of(charge.policy()))
        };
        let changed = !charges.iter().all(is_own);
        changed.then(|| {
            charges
                .iter()
                .map(|charge| Terms::of(charge.policy()))
                .collect()
        })
    }

    /// What there is to tell about a decision, under terms of its own if it has any.
    pub(super) fn on<'a>(
        &'a self,
        decision: &'a Decision,
        changed: Option<&'a [Terms]>,
    ) -> Telling<'a> {
        Telling {
            drafts: self,
            decision,
            changed,
        }
    }
}

// === Telling ===

/// What the drafts have to tell about one decision.
pub(super) struct Telling<'a> {
    drafts: &'a Drafts,
    decision: &'a Decision,
    changed: Option<&'a [Terms]>,
}

impl Telling<'_> {
    /// As draft 11 says it: the narrowest policy first.
    pub(super) fn eleven(&self, fields: &mut Fields) {
        if let Some(policies) = self.policies(Draft::Eleven) {
            fields.push(POLICY, policies);
        }
        let first = self.decision.narrowest();
        let is_other =
            |state: &&PolicyState| first.is_none_or(|first| !std::ptr::eq(first, *state));
        let others = self.decision.states().iter().filter(is_other);
        let states = first.into_iter().chain(others);
        let latest = self.decision.retry_after().map_or(u64::MAX, whole_seconds);
        let text = states.fold(Text::default(), |text, state| {
            self.limit(text, state, latest)
        });
        if let Some(limits) = text.some_value() {
            fields.push(LIMITS, limits);
        }
    }

    /// As draft 6 says it: the narrowest policy's three.
    pub(super) fn six(&self, fields: &mut Fields, narrowest: Option<Usage>) {
        if let Some(usage) = narrowest {
            let integer = |number| Text::default().integer(number).value();
            fields.push(LIMIT, integer(usage.limit));
            fields.push(REMAINING, integer(usage.remaining));
            fields.push(RESET, integer(seconds_to(usage, self.decision)));
        }
        if let Some(policies) = self.policies(Draft::Six) {
            fields.push(POLICY, policies);
        }
    }

    /// `"name";r=..;t=..`, unless nobody counted; without a `t` that lies behind `Retry-After`.
    fn limit(&self, text: Text, state: &PolicyState, latest: u64) -> Text {
        let Some(usage) = state.usage() else {
            return text;
        };
        let text = named(text.next(), state.policy());
        let text = text.text(";r=").integer(usage.remaining);
        let now = self.decision.decided_at();
        let span = match self.terms(state) {
            Some(terms) => terms.effective_window(state, usage, now),
            None => Some(whole_seconds(usage.reset_at.since(now))),
        };
        match span.filter(|span| *span <= latest) {
            Some(span) => text.text(";t=").integer(span),
            None => text,
        }
    }

    /// `RateLimit-Policy` with the policies that were asked: made beforehand when these are all, in the layer's terms.
    fn policies(&self, draft: Draft) -> Option<HeaderValue> {
        let (states, own) = (self.decision.states(), &self.drafts.terms);
        let are_all = self.changed.is_none()
            && states.len() == own.len()
            && states
                .iter()
                .zip(own)
                .all(|(state, terms)| terms.fit(state));
        if are_all {
            let all = match draft {
                Draft::Eleven => &self.drafts.named,
                Draft::Six => &self.drafts.bare,
            };
            return all.clone();
        }
        let text = Text::default();
        let text = states
            .iter()
            .fold(text, |text, state| match self.terms(state) {
                Some(terms) => terms.write(draft, text),
                None => write_unknown(state, draft, text),
            });
        text.some_value()
    }

    fn terms(&self, state: &PolicyState) -> Option<&Terms> {
        let terms = self.changed.unwrap_or(&self.drafts.terms);
        terms.iter().find(|terms| terms.fit(state))
    }
}

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const LIMITS: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
