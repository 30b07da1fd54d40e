//! Results for single charges, between a shard and the decision.

use crate::{
    algorithm::{Counting, TokenBucket},
    charge::Charge,
    clock::Timestamp,
    state::{PolicyName, PolicyState, Retry, Usage},
};

/// The result for one charge: a [`PolicyState`] without the policy's name, which is only copied once this way.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeResult {
    pub(super) usage: Usage,
    retry: Retry,
    /// When an admitted request may start.
    start: Timestamp,
    pub(super) refunded_before: u64,
}

impl ChargeResult {
    // Always, because a result that is returned through memory costs more than the computation.
    #[inline(always)]
    pub(super) fn of<C: Counting>(
        counter: &C,
        charge: &Charge<'_>,
        state: &C::State,
        fits: bool,
        now: Timestamp,
    ) -> Self {
        let retry = if fits {
            Retry::Now
        } else {
            counter.retry(state, now, charge.units())
        };
        let start = if fits && charge.units() > 0 {
            counter.start_time(state, now)
        } else {
            now
        };
        Self {
            usage: counter.usage(state, now),
            retry,
            start,
            refunded_before: 0,
        }
    }

    #[inline]
    pub(super) fn into_state(self, charge: &Charge<'_>) -> PolicyState {
        charge.policy().counter().annotate(self.bare_state(charge))
    }

    /// As [`into_state`](Self::into_state), for a charge of a bucket.
    #[inline]
    pub(super) fn into_bucket_state(
        self,
        bucket: &TokenBucket,
        charge: &Charge<'_>,
    ) -> PolicyState {
        bucket.annotate(self.bare_state(charge))
    }

    #[inline]
    fn bare_state(self, charge: &Charge<'_>) -> PolicyState {
        PolicyState::counted(*charge.policy().name(), self.usage, self.retry)
            .with_start(self.start)
            .with_refunded_before(self.refunded_before)
    }
}

// === Precheck ===

/// Whether one of several charges fits, before it is known whether all are admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Precheck<'a> {
    pub(super) fits: bool,
    /// Whether there is memory for another request in flight, if the charge takes slots.
    pub(super) has_memory: bool,
    pub(super) takes_slots: bool,
    /// Index of the key's shard.
    pub(super) shard: usize,
    /// The policy in whose overflow state the charge may be counted.
    pub(super) overflow: Option<&'a PolicyName>,
    pub(super) units: u64,
}
