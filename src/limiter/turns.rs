//! Waiting for a turn, and what makes others wait.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::limiter::{RateLimiter, validate_charges};
#[cfg(feature = "client")]
use crate::algorithm::{MicroRate, RateReport};
use crate::{
    acquire::{Acquire, MaxWait},
    charge::{AsCharges, Charge, OwnedCharge},
    error::Error,
    store::StoreFuture,
};

impl RateLimiter {
    /// Waits until all charges are made, all or nothing, and holds their slots until the [`Permit`](crate::acquire::Permit) is dropped.
    ///
    /// Takes one charge, or a slice. Set [`max_wait`](Acquire::max_wait) and [`priority`](Acquire::priority) before you await
    /// it. [`acquire`](crate::acquire) states the order of callers, over a fleet too.
    ///
    /// # Errors
    ///
    /// An [`AcquireError`](crate::acquire::AcquireError): the turn is later than you wait, the key is blocked, the cost is above the limit, or the store
    /// cannot decide. Then nothing is charged.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, RateLimiter};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let github = Policy::new("github", Quota::per_hour(5_000).burst(10));
    /// let limiter = RateLimiter::builder().policy(github.clone()).build()?;
    /// let permit = limiter.acquire(github.charge(Key::new("our-token"))).await?;
    /// println!("waited for {:?}", permit.waited());
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire<'a>(&self, charges: impl AsCharges<'a>) -> Acquire {
        self.acquire_within(&charges, MaxWait::For(MAX_WAIT))
    }

    /// Makes all charges now, or returns an error at once. Overtakes nobody who waits for the same charges.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire<'a>(&self, charges: impl AsCharges<'a>) -> Acquire {
        self.acquire_within(&charges, MaxWait::For(Duration::ZERO))
    }

    /// As [`acquire`](Self::acquire), until a time.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_until<'a>(&self, deadline: Instant, charges: impl AsCharges<'a>) -> Acquire {
        self.acquire_within(&charges, MaxWait::Until(deadline))
    }

    fn acquire_within<'a>(&self, charges: &impl AsCharges<'a>, wait: MaxWait) -> Acquire {
        Acquire::new(&self.lines, waiting_form(charges.as_charges()), wait)
    }

    /// Lets no caller that [waits](Self::acquire) for the charge's key start for this long, at any instance.
    ///
    /// For what the other side of a call returns, such as `Retry-After`. An earlier pause that ends later stays. A bucket is
    /// emptied as of then: [`check`](Self::check) denies until then too, and no burst follows. Under other algorithms, `check` does not heed it.
    ///
    /// # Errors
    ///
    /// Those of the store: then nothing is paused. [`InvalidConfig`](crate::ErrorKind::InvalidConfig) from a custom store that
    /// cannot pause.
    pub fn pause(&self, charge: &Charge<'_>, length: Duration) -> StoreFuture<()> {
        self.pause_or_prolong(charge, length, true)
    }

    /// As [`pause`](Self::pause). Only a new pause is counted.
    pub(crate) fn pause_or_prolong(
        &self,
        charge: &Charge<'_>,
        length: Duration,
        is_new: bool,
    ) -> StoreFuture<()> {
        if let Err(error) = validate_charges(std::slice::from_ref(charge)) {
            return StoreFuture::ready(Err(error));
        }
        let length = length.min(LONGEST_PAUSE);
        self.lines.note_pause(charge, length);
        let (waits, policy) = (Arc::clone(&self.lines.waits), charge.policy().clone());
        self.store.pause(charge, length).map(move |paused| {
            if is_new {
                waits.count_pause(&policy, paused.is_ok());
            }
            if paused.is_ok() {
                waits.note_pause(&policy, length);
            }
            paused
        })
    }

    /// Takes a report on how an adaptive key was used. Returns its rate for all instances.
    #[cfg(feature = "client")]
    pub(crate) fn adapt(&self, charge: &Charge<'_>, report: RateReport) -> StoreFuture<MicroRate> {
        self.store.adapt(charge, report)
    }

    /// Lowers what is left of the charge's quota to `remaining` units. What is less stays.
    ///
    /// For what the other side of a call returns, such as `RateLimit: r=3`. Slots of a concurrency policy are not lowered.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    pub fn lower(&self, charge: &Charge<'_>, remaining: u64) -> StoreFuture<()> {
        if charge.policy().is_concurrency() {
            return StoreFuture::ready(Ok(()));
        }
        match validate_charges(std::slice::from_ref(charge)) {
            Ok(()) => self.store.lower(charge, remaining),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }
}

/// Returns the charges as callers that wait make them.
fn waiting_form(charges: &[Charge<'_>]) -> Result<Arc<[OwnedCharge]>, Error> {
    validate_charges(charges)?;
    let waiting = charges.iter().map(OwnedCharge::for_waiting);
    Ok(waiting.collect())
}

const MAX_WAIT: Duration = Duration::from_secs(30);
/// Longer than any pause that somebody means.
const LONGEST_PAUSE: Duration = Duration::from_secs(366 * 24 * 3_600);
