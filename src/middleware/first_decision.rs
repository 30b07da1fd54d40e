//! The first of two decisions on a request, before the lookups that other policies need.

use smallvec::SmallVec;

use crate::{
    charge::{Charge, OwnedCharge},
    decision::{Decision, PolicyState},
    headers::PolicyTerms,
};

use super::settle::PendingSettlement;

/// A decision that admits the request, made and charged before the lookups.
///
/// ```text
/// admitted, charged --> lookups --> the second decision admits          --> both become one decision
///                               --> the second decision denies or fails --> refunded
///                               --> no key, forbidden, or client gone   --> the charge is kept
/// ```
pub(super) struct FirstDecision {
    pub decision: Decision,
    pub charges: Box<[OwnedCharge]>,
    /// Number of each charge's rule.
    pub rules: RuleNumbers,
    /// Settles the charges; `None` if nothing was charged.
    pub settlement: Option<Box<PendingSettlement>>,
    /// Whether the charges are kept until the request has ended.
    pub keeps_charges: bool,
    pub terms: Option<Box<[PolicyTerms]>>,
}

/// Numbers of rules, one for each charge.
pub(super) type RuleNumbers = SmallVec<[usize; 2]>;

impl FirstDecision {
    /// Returns these charges and those of the second decision, in the order of the rules.
    pub fn with<'a>(
        &'a self,
        rules: &[usize],
        charges: &[Charge<'a>],
    ) -> SmallVec<[Charge<'a>; 4]> {
        let own = self.charges.iter().map(OwnedCharge::borrow);
        let own = self.rules.iter().copied().zip(own);
        in_order(own.chain(rules.iter().copied().zip(charges.iter().copied())))
    }

    /// Joins both decisions and their charges. `second` admits too, or is `None`.
    pub fn join(
        self,
        second: Option<(RuleNumbers, Decision)>,
        settlement: Option<Box<PendingSettlement>>,
    ) -> (Decision, Option<Box<PendingSettlement>>) {
        let own = match (self.settlement, self.keeps_charges) {
            (Some(own), false) => {
                own.keep();
                None
            }
            (own, _) => own,
        };
        let settlement = match (own, settlement) {
            (Some(mut own), Some(other)) => {
                own.join(*other);
                Some(own)
            }
            (own, other) => own.or(other),
        };
        let decision = match second {
            Some((rules, second)) => {
                let states = self.decision.states().to_vec();
                one_of((&self.rules, states, &self.decision), (&rules, &second))
            }
            None => self.decision,
        };
        (decision, settlement)
    }

    /// Joins both decisions if the second denies, and refunds the charges of this one.
    pub fn denied_by(self, rules: &[usize], second: &Decision) -> Decision {
        let states = self.decision.states().iter().zip(&self.charges);
        let states =
            states.map(|(state, charge)| charge.borrow().after_denial(*state, &self.decision));
        let states = states.collect();
        let decision = one_of((&self.rules, states, &self.decision), (rules, second));
        self.refund();
        decision
    }

    /// Whether a charge costs 0.
    pub fn has_peeks(&self) -> bool {
        let mut charges = self.charges.iter();
        charges.any(|charge| charge.borrow().units() == 0)
    }

    /// Refunds the charges.
    pub fn refund(self) {
        if let Some(settlement) = self.settlement {
            settlement.refund();
        }
    }
}

fn one_of(
    (rules, states, first): (&[usize], Vec<PolicyState>, &Decision),
    (other_rules, second): (&[usize], &Decision),
) -> Decision {
    let own = rules.iter().copied().zip(states);
    let others = other_rules
        .iter()
        .copied()
        .zip(second.states().iter().copied());
    Decision::new(
        first.counted_by().least(second.counted_by()),
        second.decided_at(),
        in_order(own.chain(others)),
    )
    .timed_as(second)
}

/// Sorts items by the numbers of their rules.
fn in_order<T>(numbered: impl Iterator<Item = (usize, T)>) -> SmallVec<[T; 4]> {
    let mut numbered: SmallVec<[(usize, T); 4]> = numbered.collect();
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, item)| item).collect()
}
