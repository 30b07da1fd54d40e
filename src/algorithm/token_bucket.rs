//! The token bucket, computed as GCRA.
//!
//! # Where the arithmetic comes from
//!
//! The generic cell rate algorithm (ITU-T I.371; ATM Forum TM 4.1, "virtual scheduling") stores one time per key: the
//! *theoretical arrival time* (TAT), at which the bucket will be full again. A request of cost `c` advances the TAT by
//! `c` emission intervals. It is admitted if the TAT is then at most one *span* (capacity times interval) after now.
//! This admits exactly the requests that a token bucket of that capacity and rate admits.
//!
//! # Fractions
//!
//! The TAT is in whole microseconds, but the interval of 3 units a second is not. The rate is therefore stored in
//! lowest terms, as `units` per `micros`, and a TAT advances from one point to another of the lattice
//! `at(k) = ceil(k * micros / units)`. The TAT modulo `micros` identifies its point, so the fraction needs no state. A
//! TAT between two points keeps its distance from the lower one.
//!
//! # Bounds
//!
//! - In `t` microseconds a key is admitted at most `capacity + rate * t` units if the interval is whole microseconds,
//!   and less than `capacity + rate * (t + 3)` otherwise. Rounding errors do not add up: each charge advances the TAT by
//!   at least `floor(interval)`, and the span is `ceil(interval) + 1` for a capacity of 1. Two units of such a bucket are
//!   therefore less than 3 us closer together than the interval.
//! - After an idle span the whole capacity can be charged at once, unit by unit or in one charge.
//! - The long-run rate is exact, except for rates whose lowest terms do not fit (`units * micros >= 2^52`, such as
//!   999,983 a day). These are rounded down by at most 1.5e-8.
//! - Every intermediate value is below 2^53, so the Lua twin computes the same results in doubles until the year 2255.

use std::time::Duration;

use crate::{
    clock::{Timestamp, micros},
    error::{Error, ErrorKind},
    quota::Quota,
    state::{Retry, Usage},
};

use super::{
    choice::QueueLimits,
    counting::{ChargeMark, Counting, rescale},
    rate::Rate,
};

/// A quota that is counted as a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    capacity: u64,
    /// The longest time from now to the TAT: the time in which the whole capacity comes back.
    span: u64,
    /// The longest time from now to the TAT of a charge that need not wait. Equal to the span, unless there is a queue.
    depth: u64,
    /// Identifies the span in the state of a key.
    quota_tag: u32,
}

impl TokenBucket {
    /// Creates a bucket with the quota's capacity and rate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] if the count or the burst is 0, if the rate is above 1,000,000 a second or below one in
    /// 366 days, if the period is shorter than 1 us, or if the burst takes more than 35 years to refill.
    pub fn new(quota: Quota) -> Result<Self, Error> {
        let invalid = |message| Err(Error::new(ErrorKind::InvalidQuota, message));
        if quota.count() == 0 {
            return invalid(
                "quota of 0: set at least 1, or remove the route to reject all requests",
            );
        }
        if quota.capacity() == 0 {
            return invalid("burst of 0 admits nothing: set a burst of at least 1");
        }
        if quota.period() < Duration::from_micros(1) {
            return invalid(
                "period of 0: make it at least a microsecond; Policy::concurrency counts requests in flight",
            );
        }
        let per_nanos = u128::from(quota.count()) * 1_000;
        if per_nanos > quota.period().as_nanos() {
            return invalid("quota above 1,000,000 a second: divide the count and the cost");
        }
        if quota.period().as_micros() / u128::from(quota.count()) > u128::from(LONGEST_INTERVAL) {
            return invalid("quota below one in 366 days: shorten the period");
        }
        let rate = Rate::of(quota);
        let bucket = Self {
            rate,
            capacity: quota.capacity(),
            span: 0,
            depth: 0,
            quota_tag: 0,
        };
        match rate
            .at_checked(quota.capacity())
            .and_then(|span| span.checked_add(bucket.slack().into()))
        {
            Some(span) if span <= LONGEST_SPAN => Ok(Self {
                span,
                depth: span,
                quota_tag: quota_tag_of(span),
                ..bucket
            }),
            _ => invalid("burst takes over 35 years to refill: lower it"),
        }
    }

    /// Creates a leaky bucket: a token bucket with a capacity of 1, unless the quota sets a burst.
    ///
    /// A leaky bucket (as a meter) and a token bucket of the same capacity admit the same requests: I.371 calls GCRA the
    /// continuous-state leaky bucket.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn leaky(quota: Quota) -> Result<Self, Error> {
        Self::new(quota.burst(quota.explicit_burst().unwrap_or(1)))
    }

    /// Creates a leaky bucket with a queue: requests beyond its depth wait for their turn.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`ErrorKind::InvalidQuota`] if the queue's length or its longest wait is 0.
    pub fn queue(quota: Quota, limits: QueueLimits) -> Result<Self, Error> {
        let leaky = Self::leaky(quota)?;
        let capacity = leaky.capacity.saturating_add(limits.length);
        let longest = limits.max_wait.map_or(u64::MAX, micros);
        if limits.length == 0 || longest == 0 {
            return Err(Error::new(
                ErrorKind::InvalidQuota,
                "queue length or max_wait of 0: use Algorithm::LeakyBucket, or set both above 0",
            ));
        }
        let whole = Self::new(quota.burst(capacity))?;
        let span = whole.span.min(leaky.span.saturating_add(longest));
        Ok(Self {
            // A cost that takes longer than the longest wait can never be admitted.
            capacity: whole.capacity.min(whole.rate.fitting(0, span)),
            span,
            depth: leaky.span,
            quota_tag: quota_tag_of(span),
            ..whole
        })
    }

    /// Returns whether requests beyond the depth wait in a queue.
    #[must_use]
    pub fn is_queue(&self) -> bool {
        self.depth < self.span
    }

    /// A bucket that admits nothing. Takes the place of an invalid quota until `build()` reports it.
    pub(crate) const fn closed() -> Self {
        Self {
            rate: Rate {
                units: 1,
                micros: 1,
            },
            capacity: 0,
            span: 0,
            depth: 0,
            quota_tag: 0,
        }
    }

    /// Returns the most units that can be charged at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the time in which the whole capacity comes back, in microseconds.
    #[must_use]
    #[inline]
    pub fn span(&self) -> u64 {
        self.span
    }

    /// Returns the spare microseconds of the span: 1 if the interval is fractional.
    ///
    /// A TAT between lattice points may lose one microsecond to rounding while the burst is charged unit by unit.
    #[inline]
    pub(super) fn slack(&self) -> u16 {
        (!self.rate.is_whole()).into()
    }

    /// Returns the tag that identifies the span in the state of a key: the span cut to 26 significant bits.
    #[must_use]
    pub fn quota_tag(&self) -> u32 {
        self.quota_tag
    }

    /// Returns the TAT under this span. A debt made under another span keeps its share of the span.
    #[inline]
    fn tat(&self, state: BucketState, now: Timestamp) -> u64 {
        let now = now.as_micros();
        if state.quota_tag == self.quota_tag || state.tat <= now {
            return state.tat;
        }
        // A clock that was set back leaves a debt beyond the span: it counts as the whole span.
        let old = span_of(state.quota_tag);
        now + rescale(old.min(state.tat - now), self.span, old)
    }

    /// Returns the time in which this number of units comes back, in microseconds, rounded up, at most 17 years.
    #[must_use]
    pub fn micros_up(&self, units: u64) -> u64 {
        self.rate.up(units).min(LONGEST_SPAN / 2)
    }

    /// Returns the time in which this number of units comes back, in microseconds, rounded down, at most 17 years.
    #[must_use]
    pub fn micros_down(&self, units: u64) -> u64 {
        self.rate.down(units).min(LONGEST_SPAN / 2)
    }

    /// Returns the refill rate in lowest terms: a number of units, and the microseconds in which that many come back.
    #[must_use]
    #[inline]
    pub fn refill(&self) -> (u64, u64) {
        (self.rate.units, self.rate.micros)
    }
}

impl Counting for TokenBucket {
    type State = BucketState;

    #[inline]
    fn adopt(&self, state: &mut BucketState, now: Timestamp) {
        if state.quota_tag != self.quota_tag && state.tat > now.as_micros() {
            *state = self.state(self.tat(*state, now));
        }
    }

    #[inline]
    fn admits(&self, state: &BucketState, now: Timestamp, cost: u64) -> bool {
        self.tat_after(state, now, cost).is_some()
    }

    #[inline]
    fn charge(&self, state: &mut BucketState, now: Timestamp, cost: u64) {
        if let Some(tat) = self.tat_after(state, now, cost) {
            *state = self.state(tat);
        }
    }

    #[inline]
    fn take(&self, state: &mut BucketState, now: Timestamp, cost: u64) -> bool {
        match self.tat_after(state, now, cost) {
            Some(_) if cost == 0 => true,
            Some(tat) => {
                *state = self.state(tat);
                true
            }
            None => false,
        }
    }

    fn charge_denied(&self, state: &mut BucketState, now: Timestamp, cost: u64) {
        let from = self.tat(*state, now).max(now.as_micros());
        let full = from.max(now.as_micros() + self.span);
        *state = self.state(if cost <= self.capacity {
            self.rate.advance(from, cost).min(full)
        } else {
            full
        });
    }

    fn force_charge(&self, state: &mut BucketState, now: Timestamp, cost: u64) {
        let from = self.tat(*state, now).max(now.as_micros());
        let most = from.max(now.as_micros() + LONGEST_SPAN / 2);
        *state = self.state((from + self.micros_up(cost)).min(most));
    }

    fn refund(
        &self,
        state: &mut BucketState,
        refunded: &mut u64,
        now: Timestamp,
        mark: ChargeMark,
        units: u64,
    ) {
        let (tat, now) = (state.tat, now.as_micros());
        if state.quota_tag != self.quota_tag || tat <= now {
            return;
        }
        let back = self.micros_back(mark.reset_at, units);
        let made = mark.reset_at.as_micros();
        if self.is_queue() {
            // Later requests already have their start times, so only the last one can be refunded.
            state.tat -= if made == tat { back } else { 0 };
            return;
        }
        // The end of the charge in today's debt, or earlier: all refunds since may have been of charges before it. An end
        // after the TAT belongs to a debt that was evicted in between.
        let end = made.saturating_sub(mark.refunded_since(*refunded));
        let outstanding = if end <= tat {
            end.saturating_sub(now)
        } else {
            0
        };
        let back = back.min(outstanding);
        state.tat -= back;
        // A refund of the last charge moves no other charge.
        if end < tat {
            *refunded = (*refunded + back) % ChargeMark::MODULUS;
        }
    }

    #[inline]
    fn usage(&self, state: &BucketState, now: Timestamp) -> Usage {
        let from = self.tat(*state, now).max(now.as_micros());
        let room = (now.as_micros() + self.span).checked_sub(from);
        let remaining = room.map_or(0, |room| self.rate.fitting(from, room).min(self.capacity));
        Usage::new(self.capacity, remaining, Timestamp::from_micros(from))
    }

    fn retry(&self, state: &BucketState, now: Timestamp, cost: u64) -> Retry {
        if cost > self.capacity {
            return Retry::Never;
        }
        let advanced = self
            .rate
            .advance(self.tat(*state, now).max(now.as_micros()), cost);
        Retry::At(Timestamp::from_micros(advanced.saturating_sub(self.span)).max(now))
    }

    #[inline]
    fn start_time(&self, state: &BucketState, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(state.tat.saturating_sub(self.depth)).max(now)
    }

    #[inline]
    fn owes_until(state: &BucketState) -> u64 {
        state.tat
    }

    fn exhausted(&self, until: Timestamp) -> BucketState {
        self.state(until.as_micros())
    }
}

impl TokenBucket {
    /// Returns the state of a key with this TAT.
    #[must_use]
    #[inline]
    pub fn state(&self, tat: u64) -> BucketState {
        BucketState {
            tat,
            quota_tag: self.quota_tag,
        }
    }

    /// Returns the TAT after a charge, or `None` if the charge does not fit.
    #[inline]
    fn tat_after(&self, state: &BucketState, now: Timestamp, cost: u64) -> Option<u64> {
        let tat = self.tat(*state, now);
        if cost == 0 {
            return Some(tat);
        }
        if cost > self.capacity {
            return None;
        }
        let advanced = self.rate.advance(tat.max(now.as_micros()), cost);
        (advanced - now.as_micros() <= self.span).then_some(advanced)
    }

    /// Returns by how many microseconds a refund moves the TAT back, for a charge after which the TAT was `made`.
    ///
    /// In a queue, the TAT returns to its exact value before the charge: that value identifies the request that is last
    /// again. Otherwise it moves by the units' time, rounded down.
    #[must_use]
    pub fn micros_back(&self, made: Timestamp, units: u64) -> u64 {
        if !self.is_queue() {
            return self.micros_down(units);
        }
        self.rate.rewind(made.as_micros(), units.min(self.capacity))
    }
}

const LONGEST_INTERVAL: u64 = 366 * 86_400 * 1_000_000;
const LONGEST_SPAN: u64 = 1 << 50;

// === BucketState ===

/// The time at which a bucket will be full again, and the span under which the debt was made.
///
/// Packed: a key takes 24 bytes of the in-process store instead of 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct BucketState {
    tat: u64,
    quota_tag: u32,
}

impl BucketState {
    /// Returns the theoretical arrival time in microseconds since the Unix epoch; 0 if nothing was ever charged.
    #[must_use]
    pub fn tat(self) -> u64 {
        self.tat
    }

    /// Moves the TAT `micros` microseconds later.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.tat = self.tat.saturating_add(micros);
    }
}

/// Returns the tag of a span: its 26 most significant bits, and the number of bits below them.
fn quota_tag_of(span: u64) -> u32 {
    let mut exponent = 0_u32;
    while span >> exponent >= 1 << MANTISSA {
        exponent += 1;
    }
    // Invariant: a span is at most 2^50, so the exponent is at most 25 and fits in the six bits left.
    let mantissa = u32::try_from(span >> exponent).expect("below 2^26");
    (exponent << MANTISSA) | mantissa
}

/// Returns the span of a tag.
fn span_of(quota_tag: u32) -> u64 {
    let (exponent, mantissa) = (quota_tag >> MANTISSA, quota_tag & ((1 << MANTISSA) - 1));
    (u64::from(mantissa) << exponent).max(1)
}

const MANTISSA: u32 = 26;
