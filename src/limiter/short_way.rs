//! Verdicts in place of decisions: whether a bucket in process admits a charge.
//!
//! A decision has the usage of each policy and the time to wait. Where nobody reads them, a verdict of the store is enough, and the
//! text of a key is hashed without a [`Key`].

use std::any::Any;

use crate::{
    error::{Error, ErrorKind},
    key::{Key, KeyText},
    memory::{BucketCharge, MemoryStore, Verdict},
    policy::Policy,
    store::StoreFuture,
};

use super::limiter::RateLimiter;

impl RateLimiter {
    /// Charges the cost of a policy to a key, and returns whether the policy admits it.
    ///
    /// The short form of [`check`](Self::check), for one policy, and for callers who need neither the quota left nor the time to
    /// wait. It counts, and is recorded, in the same way. In process it takes about four fifths of the time.
    ///
    /// A text is counted as [`Key::new`] of it, also an empty one. For a [`Key`], pass `&key`. During an outage of Redis, the answer is that of the
    /// policy's [`OnOutage`](crate::OnOutage) setting; only a decision shows who counted it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let searches = Policy::new("searches", Quota::per_minute(1));
    /// let limiter = RateLimiter::builder().policy(searches.clone()).build()?;
    /// assert!(limiter.admits(&searches, "ada").await?);
    /// assert!(!limiter.admits(&searches, "ada").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - Those of [`check`](Self::check) for one charge.
    /// - [`ErrorKind::InvalidPolicy`] for a policy on concurrency, or with a queue: a caller who is admitted must know its slot, or
    ///   when its turn comes.
    ///
    /// # Cancel safety
    ///
    /// In process the charge is made by the call, whether or not the future is awaited. In Redis, as [`check`](Self::check).
    #[inline]
    pub fn admits<'a>(&self, policy: &Policy, key: impl Into<KeyText<'a>>) -> StoreFuture<bool> {
        let key = key.into();
        match self.admits_at_once(policy, &key) {
            Some(admits) => StoreFuture::ready(Ok(admits)),
            None => self.admits_by_decision(policy, key.into()),
        }
    }

    /// Returns the verdict of the store in process; `None`, with nothing charged, if a decision is needed.
    // One byte, where a future would be written to memory and read again.
    #[inline(never)]
    fn admits_at_once(&self, policy: &Policy, key: &KeyText<'_>) -> Option<bool> {
        if self.is_watched() {
            return None;
        }
        let charge = BucketCharge::of_text(policy, key)?;
        let verdict = self.memory()?.verdict(&charge, &mut 0);
        self.count(&[charge], &[verdict]);
        Some(verdict.fits())
    }

    #[inline(never)]
    fn admits_by_decision(&self, policy: &Policy, key: Key) -> StoreFuture<bool> {
        if policy.must_be_settled() {
            return StoreFuture::ready(Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {:?}: admits() cannot return a slot, nor a place in a queue: use check()",
                    policy.name()
                ),
            )));
        }
        let decided = self.check(&[policy.charge(key)]);
        decided.map(|decided| Ok(decided?.is_allowed()))
    }

    /// Returns the store, if it is the one in process.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&MemoryStore> {
        (&*self.store as &dyn Any).downcast_ref()
    }

    /// Returns whether keys may be blocked, or decisions must be shown to somebody. Otherwise verdicts are enough.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.blocks.is_needed() || self.observer.needs_decisions()
    }

    /// Counts decisions in the metrics.
    #[inline]
    pub(crate) fn count(&self, charges: &[BucketCharge<'_>], verdicts: &[Verdict]) {
        #[cfg(feature = "metrics")]
        self.observer.count_verdicts(
            charges
                .iter()
                .zip(verdicts)
                .map(|(charge, verdict)| (charge.policy(), verdict.outcome())),
        );
        #[cfg(not(feature = "metrics"))]
        let _ = (charges, verdicts);
    }
}
