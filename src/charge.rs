//! Charges: the policy, key and cost that a store decides on.

use smallvec::SmallVec;

use crate::{key::Key, policy::Policy, ticket::Ticket};

/// One policy, key and cost of a request.
///
/// [`Policy::charge`] creates one. A request has a charge for every policy that applies to it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    policy: &'a Policy,
    key: Key,
    cost: u64,
    ticket: Option<Ticket>,
}

impl Policy {
    /// Returns a charge of this policy's [cost](Policy::cost) to `key`.
    #[must_use]
    #[inline]
    pub fn charge(&self, key: Key) -> Charge<'_> {
        Charge {
            policy: self,
            key,
            cost: self.default_cost(),
            ticket: self.is_concurrency().then(Ticket::random),
        }
    }
}

impl<'a> Charge<'a> {
    /// Sets the cost in units; 0 makes the charge a peek.
    ///
    /// Default: the [cost](Policy::cost) of the policy. A cost above the policy's limit is denied with
    /// [`Retry::Never`](crate::state::Retry::Never).
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// Returns the policy.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the key.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the cost in units.
    #[must_use]
    #[inline]
    pub fn units(&self) -> u64 {
        self.cost
    }

    /// Returns the ticket of the charge's slots; `None` unless the policy limits concurrency.
    #[must_use]
    #[inline]
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Replaces the ticket, if the charge has one.
    pub(crate) fn with_ticket(mut self, ticket: Ticket) -> Self {
        self.ticket = self.ticket.map(|_| ticket);
        self
    }

    /// Returns the same charge under another policy, which must count in the same way.
    #[cfg(feature = "redis")]
    pub(crate) fn under<'b>(&self, policy: &'b Policy) -> Charge<'b> {
        Charge {
            policy,
            key: self.key,
            cost: self.cost,
            ticket: self.ticket,
        }
    }

    /// Returns a copy that owns its policy, for futures that outlive the call.
    #[must_use]
    pub fn to_owned(&self) -> OwnedCharge {
        OwnedCharge {
            policy: self.policy.clone(),
            key: self.key,
            cost: self.cost,
            ticket: self.ticket,
        }
    }
}

/// The charges of one request.
pub(crate) type Charges<'a> = SmallVec<[Charge<'a>; 4]>;

// === OwnedCharge ===

/// A [`Charge`] that owns its policy.
#[derive(Clone, Debug)]
pub struct OwnedCharge {
    policy: Policy,
    key: Key,
    cost: u64,
    ticket: Option<Ticket>,
}

impl OwnedCharge {
    /// Returns the charge with a borrowed policy, as a [`Store`](crate::store::Store) expects it.
    #[must_use]
    pub fn borrow(&self) -> Charge<'_> {
        Charge {
            policy: &self.policy,
            key: self.key,
            cost: self.cost,
            ticket: self.ticket,
        }
    }
}
