//! A charge that a store was asked to make.

use crate::{charge::Charge, decision::PolicyName, key::Key};

/// A charge that a [`ScriptedStore`](super::ScriptedStore) was asked to make.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Policy, Quota, RateLimiter, testing::{AskedCharge, ScriptedStore}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let store = ScriptedStore::allowing();
/// let limiter = RateLimiter::new(store.clone(), [])?;
/// let policy = Policy::new("api", Quota::per_minute(10)).cost(2);
/// limiter.check(&[policy.charge(Key::new("ada"))]).await?;
/// assert_eq!(store.asked(), [[AskedCharge::new("api", Key::new("ada"), 2)]]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedCharge {
    policy: PolicyName,
    key: Key,
    units: u64,
}

impl AskedCharge {
    /// Creates a charge to compare with.
    ///
    /// # Panics
    ///
    /// Panics if no policy can have this name.
    #[must_use]
    #[track_caller]
    pub fn new(policy: &str, key: Key, units: u64) -> Self {
        let policy = PolicyName::new(policy).expect("the name of a policy");
        Self { policy, key, units }
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn policy(&self) -> &PolicyName {
        &self.policy
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the cost in units; 0 is a peek.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }
}

impl From<&Charge<'_>> for AskedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        Self {
            policy: *charge.policy().name(),
            key: *charge.key(),
            units: charge.units(),
        }
    }
}
