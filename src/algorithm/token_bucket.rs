//! The token bucket, kept as GCRA.
//!
//! # Where the arithmetic comes from
//!
//! The generic cell rate algorithm (ITU-T I.371, ATM Forum TM 4.1, "virtual scheduling") keeps one time per key, the
//! *theoretical arrival time* (TAT): the time at which the bucket is full again. A charge of `c` units moves the TAT `c`
//! emission intervals forward. The charge is admitted when the new TAT is at most the *span* (capacity times interval)
//! ahead of now. This admits exactly what a token bucket of that capacity and rate admits.
//!
//! ```text
//! Quota::per_second(10).burst(5): interval 100 ms, span 500 ms, 3 of 5 units left
//!
//!        now                 TAT                         now + span
//! --------|-------------------|------------------------------|------> time
//!         |<---- 200 ms ----->|<---------- 300 ms ---------->|
//!            2 units spent            3 units left
//! ```
//!
//! # Fractions
//!
//! The TAT is a whole number of microseconds, but the interval of 3 per second is not. The rate is therefore kept as
//! `units` per `micros` in lowest terms, and the TAT moves along the lattice of points `at(k) = ceil(k * micros / units)`.
//! The TAT modulo `micros` determines its lattice point, so no fraction has to be stored. A TAT between two points keeps
//! its distance to the lower one.
//!
//! # Bounds
//!
//! - In any `t` microseconds, a key admits at most `capacity + rate * t` if the interval is a whole number of
//!   microseconds, and less than `capacity + rate * (t + 3)` otherwise: rounding does not accumulate. For a capacity of
//!   1, two units are at most 3 us closer than the interval, because the TAT advances by at least `floor(interval)` and
//!   the span is `ceil(interval) + 1`.
//! - After an idle period, the whole capacity can be taken at once, unit by unit or in one charge.
//! - The long-run rate is exact, except for rates whose lowest terms do not fit (`units * micros >= 2^52`, such as
//!   999,983 a day). Such a rate is rounded down by at most 1.5e-8.
//! - Every intermediate result is below 2^53, so the Lua twin computes the same numbers in doubles until the year 2255.

use std::time::Duration;

use super::quota::Quota;
use crate::{
    clock::{Timestamp, micros},
    decision::{PolicyState, Retry, Usage},
    error::{Error, ErrorKind},
};

#[cfg(feature = "client")]
use super::adaptive::MicroRate;
use super::{
    choice::QueueLimits,
    counting::{Admitted, Counting, RefundToken, Refunded, rescale},
    free_turns::FreeTurns,
    rate::Rate,
    span_tag::{quota_tag_of, span_of},
};

/// A quota as a token bucket counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    capacity: u64,
    /// Microseconds in which the whole capacity comes back: the largest distance from now to the TAT.
    span: u64,
    /// Largest distance from now to the TAT of a charge that starts at once: the span, unless there is a queue.
    depth: u64,
    /// Identifies the span in the state of a key.
    quota_tag: u32,
}

impl TokenBucket {
    /// Returns a bucket that holds the quota's capacity and refills at its rate.
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
                "period of 0: make it at least a microsecond; Policy::concurrency limits requests in flight",
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
        let span = rate
            .at_checked(quota.capacity())
            .and_then(|span| span.checked_add(rate.slack().into()))
            .filter(|span| *span <= LONGEST_SPAN);
        let Some(span) = span else {
            return invalid("burst takes over 35 years to refill: lower it");
        };
        Ok(Self {
            rate,
            capacity: quota.capacity(),
            span,
            depth: span,
            quota_tag: quota_tag_of(span),
        })
    }

    /// Returns a leaky bucket: the same arithmetic, with a capacity of 1 unless the quota sets a burst.
    ///
    /// A leaky bucket (as a meter) of this depth and a token bucket of this capacity admit the same requests: I.371
    /// describes GCRA as the continuous-state leaky bucket.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn leaky(quota: Quota) -> Result<Self, Error> {
        Self::new(quota.burst(quota.explicit_burst().unwrap_or(1)))
    }

    /// Returns a leaky bucket whose excess waits in a queue: a request beyond its depth is admitted with a later start.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`ErrorKind::InvalidQuota`] when the length or the longest wait of the queue is 0.
    pub fn queue(quota: Quota, limits: QueueLimits) -> Result<Self, Error> {
        let leaky = Self::leaky(quota)?;
        let capacity = leaky.capacity.saturating_add(limits.length);
        let longest = micros(limits.max_wait);
        if limits.length == 0 || longest == 0 {
            return Err(Error::new(
                ErrorKind::InvalidQuota,
                "queue length or max_wait of 0: set both above 0, or use Algorithm::LeakyBucket",
            ));
        }
        let whole = Self::new(quota.burst(capacity))?;
        let span = whole.span.min(leaky.span.saturating_add(longest));
        Ok(Self {
            // A cost that the longest wait leaves no time for can never pass, so it is above the capacity.
            capacity: whole.capacity.min(whole.rate.fitting(0, span)),
            span,
            depth: leaky.span,
            quota_tag: quota_tag_of(span),
            ..whole
        })
    }

    /// Returns a bucket of this many units of the capacity, which refills at the same part of the rate.
    ///
    /// It takes as long to refill as the whole bucket. So a TAT means the same fill level in both, but for a rounding of
    /// the rate by at most one part in 2^25.
    #[must_use]
    pub(super) fn part(&self, units: u64) -> Self {
        if units == 0 || self.capacity == 0 {
            return Self::closed();
        }
        let capacity = units.min(self.capacity);
        let rate = self.rate.part(capacity, self.capacity);
        let span = rate.at(capacity) + u64::from(rate.slack());
        // The units of a queue are in the same proportion as those of the whole bucket.
        let depth = if self.is_queue() {
            self.depth.min(span - 1)
        } else {
            span
        };
        Self {
            rate,
            capacity,
            span,
            depth,
            quota_tag: quota_tag_of(span),
        }
    }

    /// Returns a bucket of another rate and capacity whose states are those of this bucket.
    ///
    /// A TAT is a point in time at every rate: the next charge moves it on by the time that its units take at the rate of that
    /// charge. So instances with different rates share a state, and no unit starts before the one before it has ended. With a burst
    /// above one, what is left of it is worth more units at a higher rate, and less at a lower one.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    #[cfg(feature = "client")]
    pub(crate) fn at_rate(&self, rate: MicroRate, capacity: u64) -> Result<Self, Error> {
        let bucket = Self::new(rate.quota().burst(capacity))?;
        Ok(Self {
            quota_tag: self.quota_tag,
            ..bucket
        })
    }

    /// Returns a bucket that leaves so many units free. Its states are those of this bucket.
    pub(super) fn leaving(&self, units: u64) -> Self {
        let capacity = self.capacity.saturating_sub(units);
        let span = self.rate.at(capacity) + u64::from(self.rate.slack());
        Self {
            capacity,
            span,
            depth: span,
            ..*self
        }
    }

    /// Returns the bucket without its queue: requests beyond the depth are denied. Its states are those of this bucket.
    pub(crate) fn without_queue(&self) -> Self {
        Self {
            capacity: self.capacity.min(self.rate.fitting(0, self.depth)),
            span: self.depth,
            ..*self
        }
    }

    /// Returns the bucket as one whose charges are turns, so that a refund moves no other charge.
    pub(crate) fn with_turns(&self) -> Self {
        Self {
            depth: self.depth.min(self.span.saturating_sub(1)),
            ..*self
        }
    }

    /// Returns what the turns of two buckets must have in common to be exchanged.
    pub(crate) fn turn_shape(&self) -> TurnShape {
        TurnShape {
            refill: self.refill(),
            span: self.span,
            depth: self.depth,
        }
    }

    /// Returns whether requests beyond the depth wait in a queue.
    #[must_use]
    pub fn is_queue(&self) -> bool {
        self.depth < self.span
    }

    /// Returns a bucket that admits nothing, for an unusable quota until `build()` reports it.
    pub(crate) const fn closed() -> Self {
        let (units, micros) = (1, 1);
        Self {
            rate: Rate::whole(units, micros),
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

    /// Adds to a state how far the slack of the span rounds its reset time up.
    #[inline]
    pub(crate) fn annotate(&self, state: PolicyState) -> PolicyState {
        state.with_reset_rounding(self.rate.slack())
    }

    /// Returns the tag that identifies the span in the state of a key: the span cut to 26 significant bits.
    #[must_use]
    pub fn quota_tag(&self) -> u32 {
        self.quota_tag
    }

    /// Returns the time in which `units` come back, in microseconds, rounded up, at most 17 years.
    #[must_use]
    pub fn micros_up(&self, units: u64) -> u64 {
        self.rate.up(units).min(LONGEST_SPAN / 2)
    }

    /// Returns the time in which `units` come back, in microseconds, rounded down, at most 17 years.
    #[must_use]
    pub fn micros_down(&self, units: u64) -> u64 {
        self.rate.down(units).min(LONGEST_SPAN / 2)
    }

    /// Returns how many microseconds the TAT moves back when `units` of a charge are refunded.
    ///
    /// In a queue, the TAT moves back to where the charge found it, because that value identifies the charge before.
    /// Otherwise the units are converted to time, rounded down.
    #[must_use]
    pub fn micros_back(&self, reset_at: Timestamp, units: u64) -> u64 {
        if !self.is_queue() {
            return self.micros_down(units);
        }
        self.rate
            .rewind(reset_at.as_micros(), units.min(self.capacity))
    }

    /// Returns the refill rate in lowest terms: a number of units, and the microseconds in which that many come back.
    #[must_use]
    #[inline]
    pub fn refill(&self) -> (u64, u64) {
        (self.rate.units, self.rate.micros)
    }

    /// Returns the state of a key with this TAT.
    #[must_use]
    #[inline]
    pub fn state(&self, tat: u64) -> BucketState {
        BucketState {
            tat,
            quota_tag: self.quota_tag,
        }
    }

    /// Returns the TAT, converted to this bucket's span. A debt made under another span keeps its share of the span.
    #[inline]
    pub(crate) fn tat(&self, state: BucketState, now: Timestamp) -> u64 {
        let now = now.as_micros();
        if state.quota_tag == self.quota_tag || state.tat <= now {
            return state.tat;
        }
        // A debt can exceed its span when the clock was set back: then the whole span is spent.
        let old = span_of(state.quota_tag);
        now + rescale(old.min(state.tat - now), self.whole_span(), old)
    }

    /// Returns the span that the tag is of, from which a bucket that [leaves](Self::leaving) units admits less.
    fn whole_span(&self) -> u64 {
        self.span.max(span_of(self.quota_tag))
    }

    /// Returns the TAT after a charge of `cost` units, or `None` when the charge does not fit.
    #[inline]
    fn tat_after(&self, state: &BucketState, now: Timestamp, cost: u64) -> Option<u64> {
        let tat = self.tat(*state, now);
        if cost == 0 {
            return Some(tat);
        }
        if cost > self.capacity {
            return None;
        }
        let moved = self.rate.advance(tat.max(now.as_micros()), cost);
        (moved - now.as_micros() <= self.span).then_some(moved)
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
        let tat = self.tat_after(state, now, cost);
        if let Some(tat) = tat
            && cost > 0
        {
            *state = self.state(tat);
        }
        tat.is_some()
    }

    fn charge_denied(&self, state: &mut BucketState, now: Timestamp, cost: u64) {
        let from = self.tat(*state, now).max(now.as_micros());
        let full = from.max(now.as_micros() + self.span);
        let fits = cost <= self.capacity;
        let moved = fits.then(|| self.rate.advance(from, cost).min(full));
        *state = self.state(moved.unwrap_or(full));
    }

    fn force_charge(&self, state: &mut BucketState, now: Timestamp, cost: u64) {
        let from = self.tat(*state, now).max(now.as_micros());
        let most = from.max(now.as_micros() + LONGEST_SPAN / 2);
        *state = self.state((from + self.micros_up(cost)).min(most));
    }

    fn merge(&self, state: &mut BucketState, now: Timestamp, admitted: Admitted) {
        let tat = self.tat(*state, now);
        let from = tat.max(now.as_micros());
        let most = from.max(now.as_micros() + self.span);
        let merged = tat.max(admitted.from).saturating_add(admitted.amount);
        if now < admitted.until && merged > from {
            *state = self.state(merged.min(most));
        }
    }

    fn refund(
        &self,
        state: &mut BucketState,
        refunded: &mut Refunded,
        now: Timestamp,
        mark: RefundToken,
        units: u64,
    ) {
        let (tat, now) = (state.tat, now.as_micros());
        if state.quota_tag != self.quota_tag || tat <= now {
            return;
        }
        let back = self.micros_back(mark.reset_at, units);
        let reset_at = mark.reset_at.as_micros();
        refunded.turns.keep_under(self.quota_tag);
        if self.is_queue() {
            // Later requests already have their turns, so the queue moves back only at its end.
            let turn = (reset_at.saturating_sub(back), reset_at);
            if reset_at == tat {
                state.tat = refunded.turns.take_back(turn.0);
            } else if reset_at < tat && reset_at > now {
                refunded.turns.keep(turn, now);
            }
            return;
        }
        // Those of a queue with the same span, which the policy was before.
        refunded.turns = FreeTurns::default();
        // The time when this charge's debt ends: refunds of charges before it have made that earlier. Which refunds those
        // were is not stored, so all refunds since are subtracted, and the result may be too early. A time after the TAT
        // belongs to a state that was evicted since, so the charge has no weight here.
        let ends = reset_at.saturating_sub(mark.refunded_since(refunded.total));
        let weight = if ends <= tat {
            ends.saturating_sub(now)
        } else {
            0
        };
        let back = back.min(weight);
        state.tat -= back;
        // A refund of the last charge shifts no other one.
        if ends < tat {
            refunded.total = (refunded.total + back) % RefundToken::MODULUS;
        }
    }

    fn take_turn(
        &self,
        state: &BucketState,
        turns: &mut FreeTurns,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        turns.keep_under(self.quota_tag);
        if !self.is_queue() || cost == 0 || cost > self.capacity {
            return None;
        }
        let now = now.as_micros();
        let latest = state.tat.min(now + self.span);
        let over = turns.take((now, latest), |from| self.rate.advance(from, cost))?;
        Some(Timestamp::from_micros(over))
    }

    #[inline]
    fn usage(&self, state: &BucketState, now: Timestamp) -> Usage {
        let from = self.tat(*state, now).max(now.as_micros());
        let room = (now.as_micros() + self.span).checked_sub(from);
        let remaining = room.map_or(0, |room| self.rate.fitting(from, room).min(self.capacity));
        Usage::new(self.capacity, remaining, Timestamp::from_micros(from))
    }

    #[inline]
    fn retry(&self, state: &BucketState, now: Timestamp, cost: u64) -> Retry {
        if cost > self.capacity {
            return Retry::Never;
        }
        let moved = self
            .rate
            .advance(self.tat(*state, now).max(now.as_micros()), cost);
        Retry::At(Timestamp::from_micros(moved.saturating_sub(self.span)).max(now))
    }

    #[inline]
    fn start_time(&self, state: &BucketState, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(state.tat.saturating_sub(self.depth)).max(now)
    }

    #[inline]
    fn owes_until(state: &BucketState) -> u64 {
        state.tat
    }

    fn restored(&self, usage: Usage, _now: Timestamp) -> BucketState {
        self.state(usage.reset_at.as_micros())
    }

    fn exhausted(&self, until: Timestamp) -> BucketState {
        self.state(until.as_micros())
    }
}

const LONGEST_INTERVAL: u64 = 366 * 86_400 * 1_000_000;
const LONGEST_SPAN: u64 = 1 << 50;

/// The length of a turn in a queue, and when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TurnShape {
    refill: (u64, u64),
    span: u64,
    depth: u64,
}

// === BucketState ===

/// TAT of a key, and the span under which its debt was made.
///
/// Packed, so that a key takes 24 bytes in the in-process store instead of 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct BucketState {
    tat: u64,
    quota_tag: u32,
}

impl BucketState {
    /// Returns the theoretical arrival time in microseconds since the Unix epoch; 0 for a key without charges.
    #[must_use]
    pub fn tat(self) -> u64 {
        self.tat
    }

    /// Returns the tag of the span under which the debt was made, as in [`TokenBucket::quota_tag`].
    pub(crate) fn quota_tag(self) -> u32 {
        self.quota_tag
    }

    /// Returns the same state with another TAT.
    pub(crate) fn with_tat(self, tat: u64) -> Self {
        Self { tat, ..self }
    }

    /// Moves the TAT forward by `micros` microseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.tat = self.tat.saturating_add(micros);
    }
}
