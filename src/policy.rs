//! A named quota with all that a store must know to count it.

use crate::{
    algorithm::TokenBucket,
    clock::Timestamp,
    error::{Error, ErrorKind},
    key::Key,
    name::PolicyName,
    quota::Quota,
    state::{PolicyState, Retry},
};

/// A named quota, with what a request costs and what to do when nobody can count.
///
/// The name is part of where the count is kept: two limiters that use one name, one key and one store share the
/// count. A policy is counted as a token bucket: the burst at once, then the sustained rate.
///
/// # Examples
///
/// ```
/// use tollgate::{OnOutage, Policy, Quota};
///
/// let uploads = Policy::new("uploads", Quota::per_hour(100).burst(20))
///     .cost(5)
///     .on_outage(OnOutage::Refuse);
/// assert_eq!(uploads.name().as_str(), "uploads");
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    name: PolicyName,
    quota: Quota,
    bucket: TokenBucket,
    cost: u64,
    on_outage: OnOutage,
    fault: Option<Error>,
}

impl Policy {
    /// A policy of this name and quota.
    ///
    /// A name or quota that cannot work is reported when the limiter or layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>, quota: Quota) -> Self {
        let mut fault = None;
        let name = PolicyName::new(name.as_ref()).unwrap_or_else(|error| {
            fault = Some(error);
            PolicyName::placeholder()
        });
        let bucket = TokenBucket::new(quota).unwrap_or_else(|error| {
            fault.get_or_insert(error);
            TokenBucket::closed()
        });
        Self {
            name,
            quota,
            bucket,
            cost: 1,
            on_outage: OnOutage::default(),
            fault,
        }
    }

    /// Sets how many units a request takes.
    ///
    /// Default: 1. A cost of 0 is a peek: it tells the state and takes nothing.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// Sets what happens while the shared store is away.
    ///
    /// Default: [`OnOutage::Local`].
    #[must_use]
    pub fn on_outage(mut self, choice: OnOutage) -> Self {
        self.on_outage = choice;
        self
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &PolicyName {
        &self.name
    }

    /// The policy's quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// What happens while the shared store is away.
    #[must_use]
    pub fn outage_choice(&self) -> OnOutage {
        self.on_outage
    }

    /// The quota made ready for counting.
    #[must_use]
    #[inline]
    pub fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    /// A charge of this policy's cost to `key`.
    #[must_use]
    #[inline]
    pub fn charge(&self, key: Key) -> Charge<'_> {
        Charge {
            policy: self,
            key,
            cost: self.cost,
        }
    }

    /// Whether name and quota can be counted at all.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.fault.is_none()
    }

    /// Says what keeps the policy from working.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] or [`ErrorKind::InvalidQuota`], with what to do.
    pub fn validate(&self) -> Result<(), Error> {
        if let Some(fault) = &self.fault {
            // An unusable name says so itself.
            return Err(match fault.kind() {
                ErrorKind::InvalidPolicy => fault.clone(),
                kind => Error::new(kind, format!("policy {:?}: {fault}", self.name)),
            });
        }
        if self.cost > self.quota.capacity() {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {:?}: a request costs {} and the burst is {}, so none could ever pass: raise the burst",
                    self.name,
                    self.cost,
                    self.quota.capacity()
                ),
            ));
        }
        Ok(())
    }
}

// === OnOutage ===

/// What a policy does while the shared store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnOutage {
    /// Let everything pass uncounted: for limits that only smooth traffic.
    Allow,
    /// Count in this process alone: each instance enforces the whole quota by itself.
    #[default]
    Local,
    /// Refuse everything with 503: for limits that protect something which must not be exceeded.
    Refuse,
}

// === Charge ===

/// One policy, key and cost of a request.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    policy: &'a Policy,
    key: Key,
    cost: u64,
}

impl<'a> Charge<'a> {
    /// The same charge with another cost; 0 is a peek.
    ///
    /// A cost above the policy's burst is denied with [`Retry::Never`].
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

    /// A copy that can outlive the call, for answers that come later.
    #[must_use]
    pub fn to_owned(&self) -> OwnedCharge {
        OwnedCharge {
            policy: self.policy.clone(),
            key: self.key,
            cost: self.cost,
        }
    }

    /// The policy's state for a decision, from the TAT that is stored after it.
    ///
    /// `admitted` says whether the policy itself had room; when another policy denied, the TAT is the old one.
    #[must_use]
    #[inline]
    pub fn state(&self, admitted: bool, tat: u64, now: Timestamp) -> PolicyState {
        let bucket = self.policy.bucket();
        let retry = if admitted {
            Retry::Now
        } else {
            bucket.retry(tat, now, self.cost)
        };
        PolicyState::counted(self.policy.name, bucket.usage(tat, now), retry)
    }
}

// === OwnedCharge ===

/// A [`Charge`] with a policy of its own.
#[derive(Clone, Debug)]
pub struct OwnedCharge {
    policy: Policy,
    key: Key,
    cost: u64,
}

impl OwnedCharge {
    /// The charge as a store takes it.
    #[must_use]
    pub fn borrow(&self) -> Charge<'_> {
        Charge {
            policy: &self.policy,
            key: self.key,
            cost: self.cost,
        }
    }
}
