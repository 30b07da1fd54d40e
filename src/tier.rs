//! A quota for some of a policy's callers.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{
    algorithm::{Algorithm, Counter},
    error::{Error, ErrorKind},
    policy::Policy,
    policy_name::PolicyName,
    quota::Quota,
};

/// A quota for some callers, in place of the policy's own: free, pro, or one customer's.
///
/// Make each tier once and clone it: clones are cheap, and share what was worked out for the policies it was used under,
/// which is kept for as long as the tier is: a few hundred bytes for each policy.
///
/// A caller under a tier is counted under the policy's own name and the same key, so who changes tier takes along what
/// was spent: the share of the burst for buckets, the number for windows, the times for logs, as when a
/// [limit changes](crate::algorithm#when-a-limit-changes).
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
    repr: Arc<Repr>,
}

struct Repr {
    name: PolicyName,
    grant: Grant,
    /// The policies it was used under: as many as the program has, so a list does.
    made: OnceLock<Box<Made>>,
}

#[derive(Clone, Copy, Debug)]
enum Grant {
    Forbid,
    Limit(Quota, Option<Algorithm>),
    Unlimited,
}

impl Tier {
    /// A tier of this name and quota, counted by the policy's algorithm.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] for the name, by the rules of [`PolicyName`], and [`ErrorKind::InvalidQuota`].
    /// Whether a policy's algorithm can count the quota is known when both meet: see [`Policy::under`].
    pub fn new(name: &str, quota: Quota) -> Result<Self, Error> {
        let algorithm = match quota.period() {
            Duration::ZERO => Algorithm::Concurrency {
                lease: Duration::from_secs(1),
            },
            _ => Algorithm::TokenBucket,
        };
        let name = PolicyName::checked("tier", name)?;
        countable(name, quota, algorithm)?;
        Ok(Self::with(name, Grant::Limit(quota, None)))
    }

    /// A tier that is not counted at all: the policy is as if it were not there.
    #[must_use]
    pub fn unlimited() -> Self {
        let name = PolicyName::new("unlimited").expect("a usable name");
        Self::with(name, Grant::Unlimited)
    }

    /// A tier that is refused with 403, and charged nothing.
    ///
    /// Where the tier is looked up, the policies that were decided before the lookup stay
    /// [charged](crate::middleware#keys-and-tiers-that-are-looked-up).
    #[must_use]
    pub fn forbidden() -> Self {
        let name = PolicyName::new("forbidden").expect("a usable name");
        Self::with(name, Grant::Forbid)
    }

    /// Sets how the tier is counted.
    ///
    /// Default: as the policy. A key that comes to be counted in another way starts afresh, so take this for callers who
    /// cannot change tier at will.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] when the quota cannot be counted so, or there is none.
    pub fn algorithm(self, algorithm: Algorithm) -> Result<Self, Error> {
        let Grant::Limit(quota, _) = self.repr.grant else {
            return Err(self.without_quota(ErrorKind::InvalidQuota));
        };
        countable(self.repr.name, quota, algorithm)?;
        Ok(Self::with(
            self.repr.name,
            Grant::Limit(quota, Some(algorithm)),
        ))
    }

    /// The tier's name.
    #[must_use]
    pub fn name(&self) -> &PolicyName {
        &self.repr.name
    }

    /// The quota; `None` for a tier that is unlimited or denied.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        match self.repr.grant {
            Grant::Limit(quota, _) => Some(quota),
            Grant::Forbid | Grant::Unlimited => None,
        }
    }

    /// Whether its callers are not counted.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        matches!(self.repr.grant, Grant::Unlimited)
    }

    /// Whether its callers are refused.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.repr.grant, Grant::Forbid)
    }

    /// The policy that its callers are charged under, made at the first use.
    #[inline]
    pub(crate) fn policy(&self, base: &Policy) -> Result<&Policy, &Error> {
        let mut place = &self.repr.made;
        loop {
            let made = place.get_or_init(|| Box::new(Made::new(self, base)));
            if made.base.equals_except_quota(base) {
                return made.policy.as_ref();
            }
            place = &made.next;
        }
    }

    fn with(name: PolicyName, grant: Grant) -> Self {
        let repr = Repr {
            name,
            grant,
            made: OnceLock::new(),
        };
        Self {
            repr: Arc::new(repr),
        }
    }

    fn without_quota(&self, kind: ErrorKind) -> Error {
        let name = self.repr.name;
        Error::new(kind, format!("tier {name:?} has no quota to count by"))
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier")
            .field("name", &self.repr.name)
            .field("grant", &self.repr.grant)
            .finish()
    }
}

// === Made ===

/// A policy that a tier was used under, and what the tier makes of it.
struct Made {
    base: Policy,
    policy: Result<Policy, Error>,
    next: OnceLock<Box<Self>>,
}

impl Made {
    fn new(tier: &Tier, base: &Policy) -> Self {
        Self {
            base: base.clone(),
            policy: under(tier, base),
            next: OnceLock::new(),
        }
    }
}

/// Checks a tier's quota by itself.
fn countable(name: PolicyName, quota: Quota, algorithm: Algorithm) -> Result<(), Error> {
    let refuse =
        |kind, why: &dyn fmt::Display| Err(Error::new(kind, format!("tier {name:?}: {why}")));
    if quota.count() == 0 {
        let advice =
            "quota of 0: to refuse its callers, take Tier::forbidden(); else count at least 1";
        return refuse(ErrorKind::InvalidQuota, &advice);
    }
    match Counter::new(quota, algorithm) {
        Ok(_) => Ok(()),
        Err(error) => refuse(error.kind(), &error),
    }
}

fn under(tier: &Tier, base: &Policy) -> Result<Policy, Error> {
    let Grant::Limit(quota, algorithm) = tier.repr.grant else {
        return Err(tier.without_quota(ErrorKind::InvalidPolicy));
    };
    let policy = base.with_quota(quota, algorithm);
    let fault = |error: Error| Error::new(error.kind(), format!("tier {:?}: {error}", tier.name()));
    policy.validate().map_err(fault)?;
    Ok(policy)
}

impl Policy {
    /// The same policy with a tier's quota, to charge, look at or reset its callers without a layer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] when the algorithm cannot count the tier's quota, [`ErrorKind::InvalidPolicy`] when the
    /// tier has none, or less than a request costs.
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
