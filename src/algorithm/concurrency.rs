//! Concurrency: how many requests are in flight.
//!
//! # Bounds
//!
//! Never more units in flight than the limit, counted from the decision until the slot is given back. In process that is
//! exact, and a slot that nobody holds comes back by its lease. In Redis every slot carries a lease, so that those of a
//! process that died come back when it ends; who holds one renews it. A holder that is stopped for longer than its lease
//! is counted out until it renews, and counted in again then.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    quota::Quota,
    state::{Retry, Usage},
};

use super::counting::{ChargeMark, Counting};

/// A quota made ready for counting what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    lease: Duration,
}

/// How much of a key is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotState {
    used: u64,
}

impl Concurrency {
    /// The most slots that a key can have.
    pub const MAX_LIMIT: u64 = 100_000;

    /// As many slots as the quota counts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] when the quota has a period or a burst, counts none or above
    /// [`MAX_LIMIT`](Self::MAX_LIMIT), or the lease is no whole number of milliseconds from 100 ms to a day.
    pub fn new(quota: Quota, lease: Duration) -> Result<Self, Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidQuota, message));
        if !quota.period().is_zero() || quota.own_burst().is_some() {
            return refuse(
                "concurrency counts what is in flight, not what comes per time: say Quota::in_flight(..)",
            );
        }
        if quota.count() == 0 || quota.count() > Self::MAX_LIMIT {
            return refuse(
                "a key has 1 to 100,000 slots: to refuse everybody, take the route away; else allow at least 1 in flight",
            );
        }
        let millis = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        if !LEASES.contains(&millis) || Duration::from_millis(millis) != lease {
            return refuse("a lease is whole milliseconds, from 100 ms to a day");
        }
        Ok(Self {
            limit: quota.count(),
            lease,
        })
    }

    /// The most that can be in flight.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a slot stays taken that nobody holds, and in Redis one whose holder does not renew it.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The state of a key with so much in flight.
    #[must_use]
    pub fn state(&self, used: u64) -> SlotState {
        SlotState { used }
    }
}

impl SlotState {
    /// Units in flight.
    #[must_use]
    pub fn used(self) -> u64 {
        self.used
    }
}

impl Counting for Concurrency {
    type State = SlotState;

    fn adopt(&self, _state: &mut SlotState, _now: Timestamp) {
        // What is in flight is in flight, whatever the limit.
    }

    #[inline]
    fn admits(&self, state: &SlotState, _now: Timestamp, cost: u64) -> bool {
        cost == 0 || state.used.saturating_add(cost) <= self.limit
    }

    #[inline]
    fn charge(&self, state: &mut SlotState, _now: Timestamp, cost: u64) {
        state.used = state.used.saturating_add(cost);
    }

    fn penalise(&self, _state: &mut SlotState, _now: Timestamp, _cost: u64) {
        // A denied request is not in flight.
    }

    fn overcharge(&self, state: &mut SlotState, now: Timestamp, cost: u64) {
        self.charge(state, now, cost);
    }

    fn refund(
        &self,
        state: &mut SlotState,
        _returned: &mut u64,
        _now: Timestamp,
        _mark: ChargeMark,
        units: u64,
    ) {
        state.used = state.used.saturating_sub(units);
    }

    #[inline]
    fn usage(&self, state: &SlotState, now: Timestamp) -> Usage {
        Usage::new(self.limit, self.limit.saturating_sub(state.used), now)
    }

    fn retry(&self, _state: &SlotState, now: Timestamp, cost: u64) -> Retry {
        match cost > self.limit {
            true => Retry::Never,
            // As soon as somebody has finished, which nobody knows.
            false => Retry::At(now),
        }
    }

    fn owes_until(state: &SlotState) -> u64 {
        match state.used {
            0 => 0,
            _ => u64::MAX,
        }
    }

    fn spent(&self, _until: Timestamp) -> SlotState {
        self.state(self.limit)
    }
}

const LEASES: std::ops::RangeInclusive<u64> = 100..=86_400_000;
