//! The charges of one call.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    policy::Policy,
    request::RequestHead,
};

use super::{
    rates::{KeyRate, Rates},
    rule::OutgoingRule,
    subject::Subject,
};

/// The charges of a call, each with the number of its rule.
#[derive(Debug)]
pub(super) struct CallCharges {
    charges: SmallVec<[CallCharge; 1]>,
}

/// One charge of a call.
#[derive(Debug)]
pub(super) struct CallCharge {
    rule: usize,
    charge: OwnedCharge,
    /// The rate of the key, if it is adaptive.
    pub rate: Option<Arc<KeyRate>>,
}

impl CallCharge {
    /// Returns the charge at the present rate of its key.
    pub fn at_present(&self) -> OwnedCharge {
        self.charge.now().unwrap_or_else(|| self.charge.clone())
    }

    /// Returns the charge, whose policy has the highest rate.
    pub fn borrow(&self) -> Charge<'_> {
        self.charge.borrow()
    }
}

impl CallCharges {
    /// Returns what the rules charge for a request.
    pub fn of(rules: &[OutgoingRule], rates: &Rates, head: &RequestHead<'_>) -> Self {
        let charge = |(number, rule): (usize, &OutgoingRule)| {
            let charge = rule.charge(head)?;
            let rate = rule.unused_rate().map(|empty| rates.of(&charge, empty));
            let charge = match &rate {
                Some(rate) => OwnedCharge::following(&charge, &rate.present),
                None => charge.to_owned(),
            };
            Some(CallCharge {
                rule: number,
                charge,
                rate,
            })
        };
        Self {
            charges: rules.iter().enumerate().filter_map(charge).collect(),
        }
    }

    /// Returns the charges as the limiter takes them.
    pub fn borrow(&self) -> Charges<'_> {
        self.charges.iter().map(CallCharge::borrow).collect()
    }

    /// Returns the charges with their rules.
    pub fn with_rules<'a>(
        &'a self,
        rules: &'a [OutgoingRule],
    ) -> impl Iterator<Item = (&'a OutgoingRule, &'a CallCharge)> {
        let charges = self.charges.iter();
        charges.map(|charge| (&rules[charge.rule], charge))
    }

    /// Returns the charges of adaptive keys, with their rates.
    pub fn adaptive(&self) -> impl Iterator<Item = (&CallCharge, &Arc<KeyRate>)> {
        let charges = self.charges.iter();
        charges.filter_map(|charge| Some((charge, charge.rate.as_ref()?)))
    }

    /// Returns the key that has the budget and the refusals. `None` if the call is not counted.
    pub fn subject(&self, rules: &[OutgoingRule]) -> Option<Subject> {
        let main = self.main(rules);
        main.map(|(_, charge)| Subject::of(&charge.borrow()))
    }

    /// Returns the policy of the [subject](Self::subject), by which metrics count the call.
    pub fn policy<'a>(&'a self, rules: &'a [OutgoingRule]) -> Option<&'a Policy> {
        let main = self.main(rules);
        main.map(|(rule, _)| rule.policy())
    }

    /// Returns the first charge whose key can be paused, or the first one.
    fn main<'a>(&'a self, rules: &'a [OutgoingRule]) -> Option<(&'a OutgoingRule, &'a CallCharge)> {
        let paused = self.with_rules(rules).find(|(rule, _)| rule.pauses());
        paused.or_else(|| self.with_rules(rules).next())
    }
}
