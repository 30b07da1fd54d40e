//! The charges of one call.

use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    decision::PolicyName,
    key::Key,
    policy::Policy,
    request::RequestHead,
};

use super::rule::OutgoingRule;

/// The charges of a call, each with the number of its rule.
#[derive(Debug)]
pub(super) struct CallCharges {
    charges: SmallVec<[(usize, OwnedCharge); 1]>,
}

impl CallCharges {
    /// Returns what the rules charge for a request.
    pub fn of(rules: &[OutgoingRule], head: &RequestHead<'_>) -> Self {
        let charge = |(number, rule): (usize, &OutgoingRule)| {
            let charge = rule.charge(head)?;
            Some((number, charge.to_owned()))
        };
        Self {
            charges: rules.iter().enumerate().filter_map(charge).collect(),
        }
    }

    /// Returns the charges as the limiter takes them.
    pub fn borrow(&self) -> Charges<'_> {
        let charges = self.charges.iter();
        charges.map(|(_, charge)| charge.borrow()).collect()
    }

    /// Returns the charges with their rules.
    pub fn with_rules<'a>(
        &'a self,
        rules: &'a [OutgoingRule],
    ) -> impl Iterator<Item = (&'a OutgoingRule, Charge<'a>)> {
        let charges = self.charges.iter();
        charges.map(|(number, charge)| (&rules[*number], charge.borrow()))
    }

    /// Returns the key that has the budget and the refusals. `None` if the call is not counted.
    pub fn subject(&self, rules: &[OutgoingRule]) -> Option<Subject> {
        let main = self.main(rules);
        main.map(|(_, charge)| Subject::of(&charge))
    }

    /// Returns the policy of the [subject](Self::subject), by which metrics count the call.
    pub fn policy<'a>(&'a self, rules: &'a [OutgoingRule]) -> Option<&'a Policy> {
        let main = self.main(rules);
        main.map(|(rule, _)| rule.policy())
    }

    /// Returns the first charge whose key can be paused, or the first one.
    fn main<'a>(&'a self, rules: &'a [OutgoingRule]) -> Option<(&'a OutgoingRule, Charge<'a>)> {
        let paused = self.with_rules(rules).find(|(rule, _)| rule.pauses());
        paused.or_else(|| self.with_rules(rules).next())
    }
}

/// A key under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    policy: PolicyName,
    key: Key,
}

impl Subject {
    /// All calls that no rule counts.
    pub const UNCOUNTED: Self = Self {
        policy: PolicyName::INVALID,
        key: Key::GLOBAL,
    };

    pub fn of(charge: &Charge<'_>) -> Self {
        Self {
            policy: *charge.policy().name(),
            key: *charge.key(),
        }
    }
}
