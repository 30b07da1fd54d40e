//! One policy, key and cost of a request.

use smallvec::SmallVec;

use crate::{key::Key, policy::Policy, ticket::Ticket};

/// One policy, key and cost of a request.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    policy: &'a Policy,
    key: Key,
    cost: u64,
    ticket: Option<Ticket>,
}

impl Policy {
    /// Returns a charge of this policy's cost to `key`.
    #[must_use]
    #[inline]
    pub fn charge(&self, key: Key) -> Charge<'_> {
        Charge {
            policy: self,
            key,
            cost: self.default_cost(),
            ticket: self.takes_slots().then(Ticket::random),
        }
    }
}

impl<'a> Charge<'a> {
    /// The same charge with another cost; 0 is a peek.
    ///
    /// A cost above the policy's burst is denied with [`Retry::Never`](crate::state::Retry::Never).
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// The policy that is charged.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Who is charged.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How much is charged.
    #[must_use]
    #[inline]
    pub fn units(&self) -> u64 {
        self.cost
    }

    /// Returns the ticket of the slots that this charge takes; `None` for a policy that is not on concurrency.
    #[must_use]
    #[inline]
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// The same charge under another ticket, if it takes slots.
    pub(crate) fn with_ticket(mut self, ticket: Ticket) -> Self {
        self.ticket = self.ticket.map(|_| ticket);
        self
    }

    /// A copy that can outlive the call, for answers that come later.
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

/// What one request is charged.
pub(crate) type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

// === OwnedCharge ===

/// A [`Charge`] with a policy of its own.
#[derive(Clone, Debug)]
pub struct OwnedCharge {
    policy: Policy,
    key: Key,
    cost: u64,
    ticket: Option<Ticket>,
}

impl OwnedCharge {
    /// The charge as a store takes it.
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
