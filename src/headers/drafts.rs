//! `RateLimit` and `RateLimit-Policy` of the drafts.
//!
//! # Why is `t` a span for the units that remain, and not the time of a reset?
//!
//! Draft 11 calls `r` the available quota and `t` the effective window, because only a fixed window has a reset. A nearly full
//! bucket is full in a moment: with `r=99;t=1`, a client that reads a rate would send 99 a second against 100 a minute. So for a
//! bucket, `t` is the time in which `r` units come back, and `r / t` is its rate whatever it holds. When nothing is left, `t` is
//! the time until the next unit, and on a denial by the policy the wait. For windows and logs it is the time until everything is
//! back, the only time that all three kinds of state can report. It is at most `w`, because a sliding window may take two
//! windows. A property test checks the promise: the remaining units are available at any time of the span, and if nothing
//! remains, more is available after it.
//!
//! `q` is the burst, and `w` the time in whole seconds in which it comes back, so `r` is never above `q`. If the time is not
//! whole, `w` is rounded up, and `q` is what comes back in it: `per_second(50).burst(10)` sends `q=50;w=1`, because `q=10;w=1`
//! would announce a fifth of the rate.
//!
//! # Why are all policies in `RateLimit`?
//!
//! The draft allows a server to send only the policy that is nearest to exhaustion. Which one that is depends on how fast the
//! client intends to send. So all are sent, with the narrowest first for clients that read only one. The draft does not allow
//! `Retry-After` before the end of a `t`. So on a denial, a longer `t` of a policy that does not deny is left out.

use http::HeaderValue;

use crate::{
    charge::Charge,
    clock::whole_seconds,
    decision::{Decision, PolicyName, PolicyState},
    policy::Policy,
};

use super::{
    choice::ShownLimit,
    terms::{Draft, PolicyTerms, write_limit_only},
    value_buffer::ValueBuffer,
};

/// `RateLimit-Policy` by each draft, at the draft's index.
pub(super) type PolicyLists = [Option<HeaderValue>; Draft::ALL.len()];

// === LayerTerms ===

/// Terms of a layer's policies, in the layer's order.
#[derive(Debug)]
pub(super) struct LayerTerms {
    terms: Box<[PolicyTerms]>,
    /// Lists of all policies. Most decisions are about all of them, so their responses share these values.
    full_lists: PolicyLists,
    shown_limit: ShownLimit,
}

impl LayerTerms {
    pub fn new<'a>(policies: impl Iterator<Item = &'a Policy>, shown_limit: ShownLimit) -> Self {
        let terms = policies.map(|policy| PolicyTerms::of(policy, shown_limit));
        let terms: Box<[PolicyTerms]> = terms.collect();
        let full_lists = Draft::ALL.map(|draft| {
            let mut list = ValueBuffer::default();
            terms.iter().for_each(|terms| terms.write(draft, &mut list));
            list.value()
        });
        Self {
            terms,
            full_lists,
            shown_limit,
        }
    }

    /// `RateLimit-Policy` with all policies of the layer.
    pub fn full_list(&self, draft: Draft) -> Option<&HeaderValue> {
        self.full_lists[draft as usize].as_ref()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|terms| terms.name().as_str())
    }

    /// Index of a policy among those of the layer.
    pub fn index_of(&self, policy: &PolicyName) -> Option<u16> {
        let index = self.terms.iter().position(|terms| terms.name() == policy);
        index.and_then(|index| u16::try_from(index).ok())
    }

    pub fn name_at(&self, index: u16) -> Option<&str> {
        let terms = self.terms.get(usize::from(index))?;
        Some(terms.name().as_str())
    }

    /// Returns the terms of all charges if a tier changed those of one, else `None`.
    pub fn tier_terms(&self, charges: &[Charge<'_>]) -> Option<Box<[PolicyTerms]>> {
        let is_own = |charge: &Charge<'_>| {
            let mut own = self.terms.iter();
            own.any(|terms| terms.are_of(charge.policy(), self.shown_limit))
        };
        if charges.iter().all(is_own) {
            return None;
        }
        let policies = charges.iter().map(Charge::policy);
        let terms = policies.map(|policy| PolicyTerms::of(policy, self.shown_limit));
        Some(terms.collect())
    }
}

// === HeaderInput ===

/// A decision and the terms of its policies, from which headers are made.
pub(super) struct HeaderInput<'a> {
    pub layer: &'a LayerTerms,
    pub decision: &'a Decision,
    /// The terms that tiers changed.
    pub tier_terms: Option<&'a [PolicyTerms]>,
}

impl HeaderInput<'_> {
    /// Returns draft 11's `RateLimit`, with the narrowest policy first.
    pub fn rate_limit(&self, retry_after: Option<u64>) -> Option<HeaderValue> {
        let first = self.decision.narrowest();
        let is_other =
            |state: &&PolicyState| first.is_none_or(|first| !std::ptr::eq(first, *state));
        let others = self.decision.enforced_states().filter(is_other);
        let mut list = ValueBuffer::default();
        for state in first.into_iter().chain(others) {
            self.write_state(&mut list, state, retry_after);
        }
        list.value()
    }

    /// Returns `RateLimit-Policy` with the policies of the decision. `None` if that is the layer's full list.
    pub fn policy_lists(&self) -> Option<Box<PolicyLists>> {
        if self.is_full() {
            return None;
        }
        Some(Box::new(Draft::ALL.map(|draft| self.policy_list(draft))))
    }

    /// Returns the limit that headers show for a policy of the decision, if it is not the usage's own.
    pub fn shown_limit(&self, state: &PolicyState) -> Option<u64> {
        if self.layer.shown_limit == ShownLimit::AtOnce {
            return None;
        }
        self.terms_of(state).map(PolicyTerms::shown_limit)
    }

    /// Writes `"name";r=..;t=..` if the policy was counted. Omits a `t` that ends after `Retry-After`.
    fn write_state(&self, list: &mut ValueBuffer, state: &PolicyState, retry_after: Option<u64>) {
        let Some(usage) = state.header_usage() else {
            return;
        };
        let text = list.begin_member().name(state.policy());
        text.text(";r=").integer(usage.remaining);
        let now = self.decision.decided_at();
        let window = match self.terms_of(state) {
            Some(terms) => terms.effective_window(state, now),
            None => Some(whole_seconds(usage.reset_at.since(now))),
        };
        let is_timely =
            |seconds: &u64| retry_after.is_none_or(|retry_after| *seconds <= retry_after);
        if let Some(seconds) = window.filter(is_timely) {
            text.text(";t=").integer(seconds);
        }
    }

    /// Whether the decision is about all policies of the layer, on the layer's terms.
    fn is_full(&self) -> bool {
        let (mut states, mut own) = (self.decision.enforced_states(), self.layer.terms.iter());
        self.tier_terms.is_none()
            && own.all(|terms| states.next().is_some_and(|state| terms.apply_to(state)))
            && states.next().is_none()
    }

    fn policy_list(&self, draft: Draft) -> Option<HeaderValue> {
        let mut list = ValueBuffer::default();
        for state in self.decision.enforced_states() {
            match self.terms_of(state) {
                Some(terms) => terms.write(draft, &mut list),
                None => write_limit_only(state, draft, &mut list),
            }
        }
        list.value()
    }

    fn terms_of(&self, state: &PolicyState) -> Option<&PolicyTerms> {
        let terms = self.tier_terms.unwrap_or(&self.layer.terms);
        terms.iter().find(|terms| terms.apply_to(state))
    }
}
