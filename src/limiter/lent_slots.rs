//! Slots that policies lend: what decisions show of those that are needed.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    charge::Charge,
    decision::{Decision, PolicyState},
    policy::Loan,
};

/// A loan of slots that a request asks for, and the places of its two policies among the charges.
pub(super) struct LentSlots {
    loan: Arc<Loan>,
    whole: usize,
    others: usize,
}

impl LentSlots {
    /// Returns the loans that the charges ask for.
    pub fn in_charges(charges: &[Charge<'_>]) -> SmallVec<[Self; 1]> {
        let lent = charges.iter().enumerate().filter_map(|(whole, charge)| {
            let (_, rest) = (charge.loan()?, charge.policy().rest()?);
            let is_rest = |other: &Charge<'_>| {
                other.policy().name() == rest.name() && other.key() == charge.key()
            };
            Some(Self {
                loan: Arc::clone(rest.loan()?),
                whole,
                others: charges.iter().position(is_rest)?,
            })
        });
        lent.collect()
    }

    /// Notes how many slots the class with the reserve has.
    pub fn note(&self, decision: &Decision) {
        let usage = |place: usize| decision.states().get(place).and_then(PolicyState::usage);
        if let (Some(whole), Some(others)) = (usage(self.whole), usage(self.others)) {
            self.loan.note([whole, others], decision.decided_at());
        }
    }
}
