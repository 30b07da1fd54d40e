//! Slots that a policy lends: what decisions show of those that are needed.

use std::sync::Arc;

use crate::{
    charge::Charge,
    decision::{Decision, PolicyName, PolicyState},
    policy::Loan,
};

/// A loan of slots that a request asks for, and the places of its two policies among the charges.
pub(super) struct LentSlots {
    loan: Arc<Loan>,
    whole: usize,
    others: usize,
}

impl LentSlots {
    /// Returns the first loan that one of the charges asks for.
    pub fn in_charges(charges: &[Charge<'_>]) -> Option<Self> {
        let place = |name: &PolicyName| {
            let mut policies = charges.iter().map(|charge| charge.policy().name());
            policies.position(|other| other == name)
        };
        let mut rests = charges.iter().enumerate().filter_map(|(whole, charge)| {
            let (_, rest) = (charge.loan()?, charge.policy().rest()?);
            Some((whole, place(rest.name())?, rest.loan()?))
        });
        let (whole, others, loan) = rests.next()?;
        let loan = Arc::clone(loan);
        Some(Self {
            loan,
            whole,
            others,
        })
    }

    /// Notes how many slots the class with the reserve has.
    pub fn note(&self, decision: &Decision) {
        let usage = |place: usize| decision.states().get(place).and_then(PolicyState::usage);
        if let (Some(whole), Some(others)) = (usage(self.whole), usage(self.others)) {
            self.loan.note([whole, others], decision.decided_at());
        }
    }
}
