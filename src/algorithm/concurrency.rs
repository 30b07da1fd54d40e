//! Concurrency: how many requests are in flight.
//!
//! # Bounds
//!
//! At most `limit` units are in flight, counted from the decision until the slot is released.
//!
//! - In process this is exact. A slot that no [`Hold`](crate::Hold) keeps comes back when its lease ends.
//! - In Redis every slot has a lease, so the slots of a crashed process come back when the lease ends. A live holder
//!   renews it. A holder that stops for longer than its lease is not counted until it renews, and is counted again
//!   afterwards.
//!
//! # Why are slots in Redis a sorted set?
//!
//! One string with all slots of a key is smaller, at 18 bytes per slot, but every operation reads and writes all of it. With
//! 10,000 slots taken, a take cost Redis 957 us and a release 1,220 us (Redis 7.0). A sorted set is ordered by the ends of the
//! leases: a take finds ended leases at its start, and a renewal or a release finds its tickets by name. With 100,000 slots
//! taken, a take, a release and a renewal cost about 20 us each, and a denial 8 us.
//!
//! The score of a separate member is the total, so nothing adds slots up. A take removes at most 32 ended leases, and each
//! further one counts as one slot less, so that Redis is not slow when many end together. The price is memory: from 128 slots on,
//! 100 bytes per slot on Redis 7.0 and 76 on Valkey 9.1. Below that, 26 and 24 bytes.

use std::{ops::RangeInclusive, time::Duration};

use super::quota::Quota;
use crate::{
    clock::Timestamp,
    decision::{Retry, Usage},
    error::{Error, ErrorKind},
};

use super::counting::{Admitted, Counting, RefundToken, Refunded};

/// A quota on requests in flight, ready to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    pub(super) limit: u64,
    /// The limit while no class needs what is lent of it.
    pub(super) most: u64,
    lease: Duration,
}

/// The number of units in flight of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotState {
    used: u64,
}

impl Concurrency {
    /// The largest limit: 100,000 slots per key.
    pub const MAX_LIMIT: u64 = 100_000;

    /// Creates a counter with one slot per unit of the quota.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] if the quota has a period or a burst, if its count is 0 or above
    /// [`MAX_LIMIT`](Self::MAX_LIMIT), or if the lease is not a whole number of milliseconds from 100 ms to 24 h.
    pub fn new(quota: Quota, lease: Duration) -> Result<Self, Error> {
        let invalid = |message| Err(Error::new(ErrorKind::InvalidQuota, message));
        if !quota.period().is_zero() || quota.explicit_burst().is_some() {
            return invalid(
                "concurrency limits requests in flight, not requests per time: use Quota::in_flight(..) without burst()",
            );
        }
        if quota.count() == 0 {
            return invalid(
                "the limit of a concurrency policy must be 1 to 100,000 slots: set at least 1, or remove the route to \
                 reject all requests",
            );
        }
        if quota.count() > Self::MAX_LIMIT {
            return invalid("the limit of a concurrency policy must be 1 to 100,000 slots");
        }
        let millis = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        if !LEASE_MILLIS.contains(&millis) || Duration::from_millis(millis) != lease {
            return invalid(
                "the lease must be a whole number of milliseconds, from 100 ms to 24 h",
            );
        }
        Ok(Self {
            limit: quota.count(),
            most: quota.count(),
            lease,
        })
    }

    /// Returns the most units that can be in flight.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how long a slot stays taken that is not held or, in Redis, renewed.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the state of a key with `used` units in flight.
    #[must_use]
    pub fn state(&self, used: u64) -> SlotState {
        SlotState { used }
    }
}

impl SlotState {
    /// Returns the number of units in flight.
    #[must_use]
    pub fn used(self) -> u64 {
        self.used
    }
}

impl Counting for Concurrency {
    type State = SlotState;

    fn adopt(&self, _state: &mut SlotState, _now: Timestamp) {
        // Units in flight stay in flight, whatever the new limit is.
    }

    #[inline]
    fn admits(&self, state: &SlotState, _now: Timestamp, cost: u64) -> bool {
        cost == 0 || state.used.saturating_add(cost) <= self.limit
    }

    #[inline]
    fn charge(&self, state: &mut SlotState, _now: Timestamp, cost: u64) {
        state.used = state.used.saturating_add(cost);
    }

    fn charge_denied(&self, _state: &mut SlotState, _now: Timestamp, _cost: u64) {
        // A denied request is not in flight.
    }

    fn merge(&self, state: &mut SlotState, now: Timestamp, admitted: Admitted) {
        state.used += admitted.part_within(now, state.used, self.limit);
    }

    fn refund(
        &self,
        state: &mut SlotState,
        _refunded: &mut Refunded,
        _now: Timestamp,
        _mark: RefundToken,
        units: u64,
    ) {
        state.used = state.used.saturating_sub(units);
    }

    #[inline]
    fn usage(&self, state: &SlotState, now: Timestamp) -> Usage {
        Usage::new(self.limit, self.limit.saturating_sub(state.used), now)
    }

    fn retry(&self, _state: &SlotState, now: Timestamp, cost: u64) -> Retry {
        if cost > self.most {
            Retry::Never
        } else {
            // When another request ends cannot be known.
            Retry::At(now)
        }
    }

    fn owes_until(state: &SlotState) -> u64 {
        if state.used == 0 { 0 } else { u64::MAX }
    }

    fn restored(&self, usage: Usage, _now: Timestamp) -> SlotState {
        self.state(self.limit.saturating_sub(usage.remaining))
    }

    fn exhausted(&self, _until: Timestamp) -> SlotState {
        self.state(self.limit)
    }
}

const LEASE_MILLIS: RangeInclusive<u64> = 100..=86_400_000;
