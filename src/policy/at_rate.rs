//! Policies whose rate is found while calls go out.

use crate::{
    algorithm::{Counter, MicroRate},
    error::{Error, ErrorKind},
};

use super::{policy::Policy, present_rate::PresentRate};

impl Policy {
    /// Returns the policy for charges that follow a rate. The quota is the highest one.
    pub(crate) fn following(&self, rate: &PresentRate) -> Self {
        let mut policy = self.clone();
        policy.present_rate = Some(rate.clone());
        policy
    }

    /// Returns the policy as it counts a charge of this cost at the present rate. `None` if it follows none.
    pub(crate) fn at_present(&self, cost: u64) -> Option<Self> {
        let rate = self.present_rate.as_ref()?.get();
        let mut policy = self.clone();
        // The floor was checked. A rate below it may be so low that the policy admits nothing.
        policy.counter = self.at_rate(rate, cost);
        Some(policy)
    }

    /// Returns a counter of this rate whose states are those of the policy. The burst is 1, unless the quota sets one, or a charge
    /// costs more.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] unless the policy is a bucket without a queue, and those of quotas.
    pub(crate) fn at_rate(&self, rate: MicroRate, cost: u64) -> Result<Counter, Error> {
        match self.counter() {
            Counter::Bucket(bucket) if !bucket.is_queue() => {
                let burst = self.quota().explicit_burst().unwrap_or(1).max(cost);
                Ok(Counter::Bucket(bucket.at_rate(rate, burst)?))
            }
            _ => Err(self.error(
                ErrorKind::InvalidPolicy,
                "only a token bucket or a leaky bucket can be adaptive",
            )),
        }
    }

    /// Returns the policy as it counts a charge of one unit at a rate.
    ///
    /// # Panics
    ///
    /// If it is not a bucket without a queue.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn at_rate_for_test(&self, rate: MicroRate) -> Self {
        let mut policy = self.clone();
        policy.counter = Ok(self.at_rate(rate, 1).expect("a bucket"));
        policy
    }
}
