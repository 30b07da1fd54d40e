//! Results for single charges, between a shard and the decision.
//!
//! ```text
//! one charge        shard ── ChargeResult ──────────────────────────────────> PolicyState
//! several charges   shard ── Precheck per charge ── all fit? ── ChargeResult ──> PolicyState
//! ```

use crate::{
    algorithm::{Counting, TokenBucket},
    charge::Charge,
    clock::Timestamp,
    decision::{PolicyName, PolicyState, Retry, Usage},
    policy::Policy,
};

/// The result for one charge: a [`PolicyState`] without the policy's name, which is only copied once this way.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeResult {
    /// Quota left after the charge, or without it if it was denied.
    pub usage: Usage,
    /// [`Retry::Now`] if the charge fits.
    retry: Retry,
    /// When an admitted request may start.
    start: Timestamp,
    /// Total refunds on the key before the charge, for a later refund of it; for a queue, when its turn is over if it was given up
    /// before. Only buckets have one.
    pub refunded_before: u64,
}

impl ChargeResult {
    /// Returns the result of a charge from the key's state after it. `fits` is whether the charge is admitted.
    ///
    /// The total of refunds is 0; the shard sets it if the key has one.
    // Always inlined, because a result that is returned through memory costs more than the computation.
    #[inline(always)]
    pub fn of<C: Counting>(
        counter: &C,
        units: u64,
        state: &C::State,
        fits: bool,
        now: Timestamp,
    ) -> Self {
        let retry = if fits {
            Retry::Now
        } else {
            counter.retry(state, now, units)
        };
        let start = if fits && units > 0 {
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

    /// Returns the result of a charge of a queue that takes a turn which was given up.
    pub fn in_turn(mut self, bucket: &TokenBucket, over: Timestamp, now: Timestamp) -> Self {
        self.start = bucket.start_time(&bucket.state(over.as_micros()), now);
        self.refunded_before = over.as_micros();
        self
    }

    /// Adds the policy's name, and the properties of its algorithm.
    #[inline]
    pub fn into_state(self, charge: &Charge<'_>) -> PolicyState {
        let state = self.bare_state(charge.policy(), charge.is_shadow());
        charge.counter().annotate(state)
    }

    /// As [`into_state`](Self::into_state), for a charge that fits, but was counted as a denied one.
    #[cold]
    pub fn into_counted_denial(self, charge: &Charge<'_>) -> PolicyState {
        let retry = self.retry;
        let admitted = Self {
            retry: Retry::Now,
            ..self
        };
        let state = admitted.into_state(charge);
        if charge.is_shadow() || state.has_room_for(charge.units()) {
            return state;
        }
        state.with_retry(retry)
    }

    /// Adds the policy's name.
    #[inline]
    pub fn bare_state(self, policy: &Policy, is_shadow: bool) -> PolicyState {
        PolicyState::counted(*policy.name(), self.usage, self.retry)
            .with_start(self.start)
            .with_refunded_before(self.refunded_before)
            .with_shadow(is_shadow)
    }
}

/// Makes a charge if it fits. Returns whether it fits, and whether the state has changed.
// Always inlined: with the default features the compiler would not, and a decision under the lock takes 3 % more instructions.
#[inline(always)]
pub(super) fn take<C: Counting>(
    counter: &C,
    (policy, cost): (&Policy, u64),
    state: &mut C::State,
    now: Timestamp,
) -> (bool, bool) {
    if cost > 0 {
        counter.adopt(state, now);
    }
    let fits = counter.take(state, now, cost);
    let is_penalised = !fits && policy.counts_denied();
    if is_penalised {
        counter.charge_denied(state, now, cost);
    }
    (fits, is_penalised || (fits && cost > 0))
}

// === Denials ===

/// The enforced charges of a decision that do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denials {
    None,
    /// Only the charge with this index.
    One(usize),
    Several,
}

impl Denials {
    /// Returns those of a decision.
    #[inline]
    pub fn of(charges: &[Charge<'_>], prechecks: &[Precheck<'_>]) -> Self {
        let mut denials = Self::None;
        for (index, precheck) in prechecks.iter().enumerate() {
            if !precheck.fits && !charges[index].is_shadow() {
                denials = match denials {
                    Self::None => Self::One(index),
                    Self::One(_) | Self::Several => Self::Several,
                };
            }
        }
        denials
    }

    /// Returns whether the others let a charge that fits be made: there is none, or only that which it is a candidate for.
    #[inline]
    pub fn admit(self, charges: &[Charge<'_>], index: usize) -> bool {
        match self {
            Self::None => true,
            Self::One(denied) => denied + 1 == index && charges[index].is_candidate(),
            Self::Several => false,
        }
    }
}

// === Precheck ===

/// Whether one of several charges fits, before it is known whether all are admitted.
///
/// The later charges of the same decision read it: charges on one shard can need the same free slot or the same overflow
/// state, so each check assumes that the charges before it are admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Precheck<'a> {
    /// Whether the policy admits the charge.
    pub fits: bool,
    /// Whether the key is banned under the policy's penalty.
    pub is_banned: bool,
    /// Whether there is memory for another request in flight, if the charge takes slots.
    pub has_memory: bool,
    /// Whether the charge adds a request in flight.
    pub takes_slots: bool,
    /// Index of the key's shard.
    pub shard: usize,
    /// The policy in whose overflow state the charge may be counted.
    pub overflow: Option<&'a PolicyName>,
    /// Cost of the charge.
    pub units: u64,
}
