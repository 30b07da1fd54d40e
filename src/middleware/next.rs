//! What comes next for a request.

use std::time::Duration;

use crate::{charge::OwnedCharge, decision::Decision, store::Later};

use super::{
    finding::{Search, Stage},
    headers::{Fields, Terms},
    partial::{PartialDecision, RuleNumbers},
    rejection::Rejection,
    settling::Tab,
};

/// What comes next for a request that is not rejected.
pub(super) enum Next {
    /// Keys and tiers are looked up first.
    Find(Box<Stage>),
    /// It goes on, at once or when its turn has come.
    Go(Admitted),
    /// It waits for the store.
    Wait(Asking),
}

// === Asking ===

/// A decision that was asked for, with what must be remembered of its charges.
pub(super) struct Asking {
    pub(super) answer: Later<Decision>,
    pub(super) charged: Charged,
}

// === Charged ===

/// What must be remembered of a request's charges.
#[derive(Default)]
pub(super) struct Charged {
    /// What is to be settled, when anything is.
    pub(super) list: Option<Box<[OwnedCharge]>>,
    /// On which terms, when a tier made these other than the layer's.
    pub(super) terms: Option<Box<[Terms]>>,
    /// Whether any was a peek.
    pub(super) has_peeks: bool,
    /// The next step, unless the request simply goes on.
    pub(super) follow_up: Option<Box<FollowUp>>,
}

// === FollowUp ===

/// The next step for a request that the store admits, unless it simply goes on.
#[derive(Default)]
pub(super) struct FollowUp {
    /// The request is rejected all the same, since it has no key for another policy.
    pub(super) rejection: Option<Rejection>,
    /// More must be looked up and decided on.
    pub(super) search: Option<Box<Search>>,
    /// The decision before this one.
    pub(super) partial: Option<Box<PartialDecision>>,
    /// The number of each charge's rule.
    pub(super) rules: RuleNumbers,
}

impl FollowUp {
    /// Whether anything follows but that the request goes on.
    pub(super) fn is_needed(&self) -> bool {
        self.rejection.is_some() || self.search.is_some() || self.partial.is_some()
    }

    pub(super) fn rejection(rejection: Rejection) -> Box<Self> {
        Box::new(Self {
            rejection: Some(rejection),
            ..Self::default()
        })
    }
}

// === Refusal ===

/// The reason why a request may not go on, with the charges that stand nevertheless.
pub(super) struct Refusal {
    pub(super) rejection: Rejection,
    pub(super) tab: Option<Box<Tab>>,
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self {
            rejection,
            tab: None,
        }
    }
}

// === Admitted ===

/// What follows for a request that may go on.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// `None` when no rule counted it, or nothing is told.
    pub(super) fields: Option<Fields>,
    pub(super) tab: Option<Box<Tab>>,
    /// How long it waits for its turn.
    pub(super) delay: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Up to which size a value is copied without a call.
    const SMALL: usize = 128;

    #[test]
    fn what_moves_with_each_request_is_copied_without_a_call() {
        assert!(size_of::<Result<Decision, Error>>() <= SMALL);
        assert!(size_of::<Result<Next, Refusal>>() <= SMALL);
    }
}
