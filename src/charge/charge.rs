//! Charges: the policy, key and cost that a store decides on.
//!
//! # Why does a peek never write, and always pass?
//!
//! A peek is a charge of cost 0. It passes, because a cost of 0 fits every quota. If it wrote, looking at a key would
//! change the key. So a limiter that only peeks never changes a key in the store.

use std::sync::Arc;

use smallvec::SmallVec;

#[cfg(feature = "client")]
use crate::policy::PresentRate;
use crate::{
    algorithm::Counter,
    decision::{CountedBy, Decision, Outcome, PolicyState, Retry, Ticket},
    key::Key,
    policy::{LoanStep, Policy},
    priority::priority::Priority,
};

/// The most charges of one decision.
pub(crate) const MAX_CHARGES: usize = 16;

/// One policy, key and cost of a request.
///
/// [`Policy::charge`] creates one. A request has a charge for every policy that applies to it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    policy: &'a Policy,
    key: Key,
    cost: u64,
    ticket: Option<Ticket>,
    enforcement: Enforcement,
    /// How much it leaves of a limit that is lent to it; `None` if all is its own.
    loan: Option<LoanStep>,
    #[cfg(feature = "redis")]
    site: Site,
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
            enforcement: Enforcement::Enforced,
            loan: None,
            #[cfg(feature = "redis")]
            site: Site::Only,
        }
    }

    /// Returns the charges of a request of this class: one, and for a class without the [reserve](Policy::reserve) a second one, to the
    /// rest, unless a rate [lends](Policy::lend) its reserve. The charges are for the next decision: what is lent changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Percent, Policy, RateLimiter, overload::Priority};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let fleet = Policy::concurrency("fleet", 10).reserve(Priority::Critical, Percent::new(20.0));
    /// let limiter = RateLimiter::builder().policy(fleet.clone()).build()?;
    ///
    /// let mut permits = Vec::new();
    /// for _ in 0..8 {
    ///     let charges = fleet.charges(Key::GLOBAL, Priority::Normal);
    ///     permits.push(limiter.enforce(&charges).await.expect("8 of 10 are not reserved"));
    /// }
    /// let normal = fleet.charges(Key::GLOBAL, Priority::Normal);
    /// assert!(limiter.enforce(&normal).await.is_err());
    /// let critical = fleet.charges(Key::GLOBAL, Priority::Critical);
    /// assert!(limiter.enforce(&critical).await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn charges(&self, key: Key, priority: Priority) -> Vec<Charge<'_>> {
        if !self.is_outside_of_reserve(priority) {
            return vec![self.charge(key)];
        }
        let policies = std::iter::once(self).chain(self.rest());
        policies
            .map(|policy| policy.charge(key).borrowing())
            .collect()
    }
}

impl<'a> Charge<'a> {
    /// Sets the cost in units; 0 makes the charge a peek.
    ///
    /// Default: the [cost](Policy::cost) of the policy. A cost above the policy's limit is denied with
    /// [`Retry::Never`](crate::decision::Retry::Never).
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// Sets whether the charge can deny the request, or is only counted.
    ///
    /// Default: [`Enforcement::Enforced`].
    #[must_use]
    #[inline]
    pub fn enforcement(mut self, enforcement: Enforcement) -> Self {
        self.enforcement = enforcement;
        self
    }

    /// Returns whether the charge is only counted, and cannot deny the request.
    #[must_use]
    #[inline]
    pub fn is_shadow(&self) -> bool {
        self.enforcement != Enforcement::Enforced
    }

    /// Returns whether the charge is counted in place of the one before it.
    ///
    /// Slots of a request that is denied would never be released, so those of a concurrency policy are not.
    #[inline]
    pub(crate) fn is_candidate(&self) -> bool {
        self.enforcement == Enforcement::Candidate && !self.policy.is_concurrency()
    }

    /// Returns the policy.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns what the charge must fit.
    #[must_use]
    #[inline]
    #[doc(hidden)]
    pub fn counter(&self) -> &'a Counter {
        match self.loan {
            Some(step) => self.policy.lent_counter(step),
            None => self.policy.counter(),
        }
    }

    /// Returns the charge as one of a class without the reserve: it gets what the policy lends now, if it lends anything.
    #[inline]
    pub(crate) fn borrowing(mut self) -> Self {
        self.loan = self.policy.loan().map(|loan| loan.step());
        self
    }

    /// Returns what it leaves of a limit that is lent to it.
    pub(crate) fn loan(&self) -> Option<LoanStep> {
        self.loan
    }

    /// Returns the charge as one that may use the whole limit.
    #[cfg(feature = "redis")]
    pub(crate) fn owning(mut self) -> Self {
        self.loan = None;
        self
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

    /// Returns the state of this charge, which was made, after another policy has denied the request: the charge is refunded
    /// unless its policy counts denied requests. `decision` is the one that made it.
    pub(crate) fn after_denial(&self, state: PolicyState, decision: &Decision) -> PolicyState {
        let Some(usage) = state
            .usage()
            .filter(|_| state.outcome() == Outcome::Allowed)
        else {
            return state;
        };
        if !self.policy.counts_denied() {
            return state.refunded(self.cost);
        }
        let counted_by = state.counted_by().unwrap_or(decision.counted_by());
        let retry = match self.counter() {
            _ if usage.remaining >= self.cost => Retry::Now,
            // The numbers are those of this instance's share.
            _ if counted_by == CountedBy::Fallback => Retry::At(usage.reset_at),
            counter => counter.retry_under(usage, self.cost, decision.decided_at()),
        };
        state.with_retry(retry)
    }

    /// Returns the same charge under another policy, which must count in the same way.
    pub(crate) fn under<'b>(&self, policy: &'b Policy) -> Charge<'b> {
        Charge {
            policy,
            key: self.key,
            cost: self.cost,
            ticket: self.ticket,
            enforcement: self.enforcement,
            loan: self.loan,
            #[cfg(feature = "redis")]
            site: self.site,
        }
    }

    /// Returns where the key is counted, if several regions share the limit.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn site(&self) -> Site {
        self.site
    }

    /// Sets where the key is counted.
    #[cfg(feature = "redis")]
    pub(crate) fn at(mut self, site: Site) -> Self {
        self.site = site;
        self
    }

    /// Returns a copy that owns its policy, for futures that outlive the call.
    #[must_use]
    pub fn to_owned(&self) -> OwnedCharge {
        OwnedCharge {
            policy: self.policy.clone(),
            key: self.key,
            cost: self.cost,
            ticket: self.ticket,
            enforcement: self.enforcement,
            loan: self.loan,
            #[cfg(feature = "redis")]
            site: self.site,
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
    enforcement: Enforcement,
    loan: Option<LoanStep>,
    #[cfg(feature = "redis")]
    site: Site,
}

impl OwnedCharge {
    /// Returns a charge as a caller that waits makes it.
    pub(crate) fn for_waiting(charge: &Charge<'_>) -> Self {
        Self {
            policy: charge.policy.for_waiting(),
            // What is lent changes while it waits.
            loan: charge.loan.map(|_| LoanStep::LAST),
            ..charge.to_owned()
        }
    }

    /// Returns a charge that follows a rate while it waits.
    #[cfg(feature = "client")]
    pub(crate) fn following(charge: &Charge<'_>, rate: &PresentRate) -> Self {
        Self {
            policy: charge.policy.following(rate),
            ..charge.to_owned()
        }
    }

    /// Returns charges as they are counted at the present rates of their keys.
    pub(crate) fn at_present(charges: &Arc<[Self]>) -> Arc<[Self]> {
        #[cfg(feature = "client")]
        if charges.iter().any(|charge| charge.now().is_some()) {
            let now = |charge: &Self| charge.now().unwrap_or_else(|| charge.clone());
            return charges.iter().map(now).collect();
        }
        Arc::clone(charges)
    }

    /// Returns the charge at the present rate of its key. `None` if it follows none.
    #[cfg(feature = "client")]
    pub(crate) fn now(&self) -> Option<Self> {
        let policy = self.policy.at_present(self.cost)?;
        Some(Self {
            policy,
            ..self.clone()
        })
    }

    /// Returns the charge with a borrowed policy, as a [`Store`](crate::store::Store) expects it.
    #[must_use]
    pub fn borrow(&self) -> Charge<'_> {
        Charge {
            policy: &self.policy,
            key: self.key,
            cost: self.cost,
            ticket: self.ticket,
            enforcement: self.enforcement,
            loan: self.loan,
            #[cfg(feature = "redis")]
            site: self.site,
        }
    }

    /// Moves the charge to another place.
    #[cfg(feature = "redis")]
    pub(crate) fn set_site(&mut self, site: Site) {
        self.site = site;
    }
}

// === Site ===

/// Where the key of a charge is counted.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Site {
    /// At the server of the store, which no other region shares.
    #[default]
    Only,
    /// At the server of this region, from which other regions lease units.
    Home,
    /// In another region, from which this one has leased units.
    Away(Away),
}

/// A charge of units that a region has leased from another one.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Away {
    /// If the home cannot be reached, the part of the limit that is admitted without it, in 1/1000; above 1,000 everything.
    pub share: u16,
    /// Whether the request has asked before, and is counted already.
    pub is_again: bool,
}

#[cfg(feature = "redis")]
impl Charge<'_> {
    /// Returns whether the units are those that were leased from another region.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        matches!(self.site, Site::Away(_))
    }

    /// Returns whether a part of the limit is admitted without the home.
    pub(crate) fn has_share(&self) -> bool {
        matches!(self.site, Site::Away(away) if away.share > 0)
    }
}

// === Enforcement ===

/// Whether a charge can deny a request.
///
/// | | denies the request | is made |
/// |---|---|---|
/// | `Enforced` | yes | if all enforced charges of the decision fit |
/// | `Shadow` | no | if it fits and all enforced charges fit |
/// | `Candidate` | no | if it fits and all enforced charges but the one before it fit |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// Counted in place of the enforced charge that comes just before it, to see what another quota would admit.
    ///
    /// A candidate of a [concurrency](Policy::concurrency) policy counts as `Shadow`: a request that is denied holds no
    /// slots.
    Candidate,
    /// Counted, and denies the request if it does not fit.
    #[default]
    Enforced,
    /// Counted, but never denies the request.
    Shadow,
}
