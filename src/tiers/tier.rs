//! The [`Tier`]: another quota for some callers of a policy.
//!
//! # Why does a tier keep the policy's name and key?
//!
//! If each tier had its own count, every change of plan would give a fresh quota, and a client could change back and forth. Under
//! one name, a change of tier is a change of limit: the spent share carries over, for windows the number, for logs the times.
//!
//! A tier prepares its policy once for each policy that it is used under, in a list inside the tier that only grows. So a charge
//! borrows the prepared policy like a rule's own. A request under a tier costs one more clone of a pointer.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{
    algorithm::{Algorithm, Counter, Quota},
    decision::PolicyName,
    error::{Error, ErrorKind},
    policy::Policy,
};

/// A quota for some callers, in place of the policy's own: free, pro, or that of a single customer.
///
/// Create each tier once and clone it. Clones are cheap, and share a cache of a few hundred bytes for each policy that the tier
/// is used with.
///
/// A caller with a tier is counted under the policy's own name and the same key. So a caller that changes tier keeps its
/// usage, as when a [limit changes](crate::algorithm#when-a-limit-changes): the used share of the burst for buckets, the count
/// for windows, the times for logs.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, tiers::Tier};
///
/// let pro = Tier::new("pro", Quota::per_minute(1_000).burst(200))?;
/// assert_eq!(pro.name().as_str(), "pro");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct Tier {
    data: Arc<TierData>,
}

struct TierData {
    name: PolicyName,
    grant: Grant,
    /// Policies of this tier, as a linked list: a program has few.
    derived: OnceLock<Box<DerivedPolicy>>,
}

#[derive(Clone, Copy, Debug)]
enum Grant {
    Forbid,
    /// The quota, and the algorithm if it is not the policy's.
    Limit(Quota, Option<Algorithm>),
    Unlimited,
}

impl Tier {
    /// Creates a tier with this name and quota, counted by the policy's algorithm.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] for a name that is not a valid [`PolicyName`], and [`ErrorKind::InvalidQuota`].
    /// [`Policy::under`] checks whether the policy's algorithm can count the quota.
    pub fn new(name: &str, quota: Quota) -> Result<Self, Error> {
        let algorithm = match quota.period() {
            Duration::ZERO => Algorithm::Concurrency {
                lease: Duration::from_secs(1),
            },
            _ => Algorithm::TokenBucket,
        };
        let name = PolicyName::checked("tier", name)?;
        check_quota(name, quota, algorithm)?;
        Ok(Self::with(name, Grant::Limit(quota, None)))
    }

    /// Creates a tier whose callers are not counted, as if the rule did not exist.
    #[must_use]
    pub fn unlimited() -> Self {
        let name = PolicyName::new("unlimited").expect("a usable name");
        Self::with(name, Grant::Unlimited)
    }

    /// Creates a tier whose callers get 403 and are not charged.
    ///
    /// If the tier is looked up, policies that are decided before the lookup stay
    /// [charged](crate::middleware#keys-and-tiers-that-are-looked-up).
    #[must_use]
    pub fn forbidden() -> Self {
        let name = PolicyName::new("forbidden").expect("a usable name");
        Self::with(name, Grant::Forbid)
    }

    /// Sets the algorithm that counts the tier.
    ///
    /// Default: the policy's. A key starts with a full quota when its algorithm changes, so use this only for callers that
    /// cannot change their tier at will.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] if the algorithm cannot count the quota, or the tier has none.
    pub fn algorithm(self, algorithm: Algorithm) -> Result<Self, Error> {
        let Grant::Limit(quota, _) = self.data.grant else {
            return Err(self.without_quota(ErrorKind::InvalidQuota));
        };
        check_quota(self.data.name, quota, algorithm)?;
        Ok(Self::with(
            self.data.name,
            Grant::Limit(quota, Some(algorithm)),
        ))
    }

    /// Returns the tier's name.
    #[must_use]
    pub fn name(&self) -> &PolicyName {
        &self.data.name
    }

    /// Returns the quota, or `None` for a tier that is unlimited or forbidden.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        match self.data.grant {
            Grant::Limit(quota, _) => Some(quota),
            Grant::Forbid | Grant::Unlimited => None,
        }
    }

    /// Returns whether the tier's callers are not counted.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        matches!(self.data.grant, Grant::Unlimited)
    }

    /// Returns whether the tier's callers get 403.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.data.grant, Grant::Forbid)
    }

    /// Returns the policy that charges the tier's callers in place of `base`. Derived at the first use.
    #[inline]
    pub(crate) fn policy(&self, base: &Policy) -> Result<&Policy, &Error> {
        let mut next = &self.data.derived;
        loop {
            let derived = next.get_or_init(|| Box::new(DerivedPolicy::new(self, base)));
            if derived.base.equals_except_quota(base) {
                return derived.policy.as_ref();
            }
            next = &derived.next;
        }
    }

    fn with(name: PolicyName, grant: Grant) -> Self {
        let data = TierData {
            name,
            grant,
            derived: OnceLock::new(),
        };
        Self {
            data: Arc::new(data),
        }
    }

    fn without_quota(&self, kind: ErrorKind) -> Error {
        let name = self.data.name;
        Error::new(kind, format!("tier {name:?} has no quota"))
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier")
            .field("name", &self.data.name)
            .field("grant", &self.data.grant)
            .finish()
    }
}

// === DerivedPolicy ===

/// A policy with a tier's quota, and the policy that it was derived from.
struct DerivedPolicy {
    base: Policy,
    policy: Result<Policy, Error>,
    next: OnceLock<Box<Self>>,
}

impl DerivedPolicy {
    fn new(tier: &Tier, base: &Policy) -> Self {
        Self {
            base: base.clone(),
            policy: derive(tier, base),
            next: OnceLock::new(),
        }
    }
}

/// Checks a tier's quota without a policy.
fn check_quota(name: PolicyName, quota: Quota, algorithm: Algorithm) -> Result<(), Error> {
    let error =
        |kind, why: &dyn fmt::Display| Err(Error::new(kind, format!("tier {name:?}: {why}")));
    if quota.count() == 0 {
        let advice =
            "quota of 0: to reject its callers, use Tier::forbidden(); otherwise allow at least 1";
        return error(ErrorKind::InvalidQuota, &advice);
    }
    match Counter::new(quota, algorithm) {
        Ok(_) => Ok(()),
        Err(cause) => error(cause.kind(), &cause),
    }
}

/// Returns a policy with the tier's quota, if it is valid.
fn derive(tier: &Tier, base: &Policy) -> Result<Policy, Error> {
    let Grant::Limit(quota, algorithm) = tier.data.grant else {
        return Err(tier.without_quota(ErrorKind::InvalidPolicy));
    };
    let policy = base.of_tier(tier.name(), quota, algorithm);
    let name_tier =
        |error: Error| Error::new(error.kind(), format!("tier {:?}: {error}", tier.name()));
    policy.validate().map_err(name_tier)?;
    Ok(policy)
}

impl Policy {
    /// Returns the same policy with a tier's quota, to check, peek at or reset the tier's callers without a layer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] if the algorithm cannot count the tier's quota; [`ErrorKind::InvalidPolicy`] if the tier has
    /// no quota, or one below the cost of a request.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, RateLimiter, tiers::Tier};
    ///
    /// # async fn example(limiter: RateLimiter, api: Policy) -> Result<(), tollgate::Error> {
    /// let pro = Tier::new("pro", Quota::per_minute(1_000))?;
    /// let decision = limiter.check(&[api.under(&pro)?.charge(Key::new("ada"))]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn under(&self, tier: &Tier) -> Result<Self, Error> {
        tier.policy(self).cloned().map_err(Clone::clone)
    }
}
