//! The token bucket, kept as GCRA.
//!
//! # Where the arithmetic comes from
//!
//! The generic cell rate algorithm (ITU-T I.371, ATM Forum TM 4.1, "virtual scheduling") keeps one time per key, the
//! *theoretical arrival time* (TAT): when the bucket will be full again. A request of cost `c` moves it `c` emission
//! intervals on; it conforms when the TAT then lies at most the *span* (capacity times interval) ahead of now. It
//! admits exactly what a token bucket of that capacity and rate admits.
//!
//! # Fractions
//!
//! The TAT is whole microseconds, and the interval of 3 a second is not. So the rate is kept as `units` per `micros`
//! in lowest terms, and a TAT moves along the lattice of points `at(k) = ceil(k * micros / units)`: which point it
//! stands at follows from the TAT itself (modulo `micros`), so the fraction needs no state of its own. A TAT between
//! two points keeps its distance to the lower one.
//!
//! # Bounds
//!
//! - In any span of `t` microseconds a key admits at most `capacity + rate * t` where the interval is whole
//!   microseconds, and less than `capacity + rate * (t + 3)` where it is not: the rounding does not add up over time. So two
//!   units of a bucket of capacity 1 are the interval apart, or less than 3 us closer: a step of the TAT is `floor(interval)`
//!   at least, the span `ceil(interval) + 1`.
//! - The whole capacity can be taken at once after idling, unit by unit or in one charge, at every moment.
//! - The long-run rate is exact, except for rates whose lowest terms do not fit (`units * micros >= 2^52`, such as
//!   999,983 a day): these are rounded to a slower rate by at most 1.5e-8.
//! - Every intermediate stays below 2^53, so the Lua twin computes the same in doubles until the year 2255.

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

/// A quota made ready for counting as a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    capacity: u64,
    /// How far ahead of now the TAT may lie: the time in which the whole capacity comes back.
    span: u64,
    /// How far ahead the TAT may lie for a charge that need not wait: the span, unless there is a queue.
    depth: u64,
    /// What tells this span from others, in the state of a key.
    quota_tag: u32,
}

impl TokenBucket {
    /// A bucket that holds the quota's capacity and refills at its rate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] when the quota is nothing, takes no time, or is beyond the documented limits.
    pub fn new(quota: Quota) -> Result<Self, Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidQuota, message));
        if quota.count() == 0 {
            return refuse(
                "quota of 0: to refuse everybody, take the route away; else count at least 1",
            );
        }
        if quota.capacity() == 0 {
            return refuse("burst of 0: nothing could ever pass; set a burst of at least 1");
        }
        if quota.period() < Duration::from_micros(1) {
            return refuse(
                "quota per no time: the period must be at least a microsecond; what is in flight is counted by Policy::concurrency",
            );
        }
        let per_nanos = u128::from(quota.count()) * 1_000;
        if per_nanos > quota.period().as_nanos() {
            return refuse("quota above 1,000,000 a second: divide the count and the cost");
        }
        if quota.period().as_micros() / u128::from(quota.count()) > u128::from(LONGEST_INTERVAL) {
            return refuse("quota below one in 366 days: shorten the period");
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
            _ => refuse("burst takes over 35 years to refill: lower it"),
        }
    }

    /// A leaky bucket: the same arithmetic, with room for one unit unless the quota sets a burst.
    ///
    /// A leaky bucket as a meter of this depth and a token bucket of this capacity admit the same requests (I.371 calls
    /// GCRA the continuous-state leaky bucket).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn leaky(quota: Quota) -> Result<Self, Error> {
        Self::new(quota.burst(quota.explicit_burst().unwrap_or(1)))
    }

    /// A leaky bucket whose excess waits: what it admits beyond its depth starts when its turn comes.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`ErrorKind::InvalidQuota`] for a queue of no length or no time.
    pub fn queue(quota: Quota, limits: QueueLimits) -> Result<Self, Error> {
        let leaky = Self::leaky(quota)?;
        let capacity = leaky.capacity.saturating_add(limits.length);
        let longest = limits.max_wait.map_or(u64::MAX, micros);
        if limits.length == 0 || longest == 0 {
            return Err(Error::new(
                ErrorKind::InvalidQuota,
                "a queue of no length or no time: count by the leaky bucket without one",
            ));
        }
        let whole = Self::new(quota.burst(capacity))?;
        let span = whole.span.min(leaky.span.saturating_add(longest));
        Ok(Self {
            // What the longest wait has no time for can never pass, and is to be told so.
            capacity: whole.capacity.min(whole.rate.fitting(0, span)),
            span,
            depth: leaky.span,
            quota_tag: quota_tag_of(span),
            ..whole
        })
    }

    /// Whether its excess waits.
    #[must_use]
    pub fn is_queue(&self) -> bool {
        self.depth < self.span
    }

    /// A bucket that admits nothing: what an unusable quota counts as until `build()` reports it.
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

    /// The most that can be taken at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The time in which the whole capacity comes back, in microseconds.
    #[must_use]
    #[inline]
    pub fn span(&self) -> u64 {
        self.span
    }

    /// Microseconds that the span has in hand: a TAT between lattice points can lose one against them while the burst is taken
    /// unit by unit.
    #[inline]
    pub(super) fn slack(&self) -> u16 {
        (!self.rate.is_whole()).into()
    }

    /// What tells this bucket's span from others, in the state of a key: the span cut to 26 significant bits.
    #[must_use]
    pub fn quota_tag(&self) -> u32 {
        self.quota_tag
    }

    /// The TAT under this bucket's span: a debt made under another span keeps its share of it.
    #[inline]
    fn tat(&self, state: BucketState, now: Timestamp) -> u64 {
        let now = now.as_micros();
        if state.quota_tag == self.quota_tag || state.tat <= now {
            return state.tat;
        }
        // A debt beyond the span, as a clock that was set back leaves it, is no more than all spent.
        let old = span_of(state.quota_tag);
        now + rescale(old.min(state.tat - now), self.span, old)
    }

    /// The time in which so many units come back, rounded up, at most 17 years.
    #[must_use]
    pub fn micros_up(&self, units: u64) -> u64 {
        self.rate.up(units).min(LONGEST_SPAN / 2)
    }

    /// The time in which so many units come back, rounded down, at most 17 years.
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
        self.taken(state, now, cost).is_some()
    }

    #[inline]
    fn charge(&self, state: &mut BucketState, now: Timestamp, cost: u64) {
        if let Some(tat) = self.taken(state, now, cost) {
            *state = self.state(tat);
        }
    }

    #[inline]
    fn take(&self, state: &mut BucketState, now: Timestamp, cost: u64) -> bool {
        match self.taken(state, now, cost) {
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
        *state = self.state(match cost <= self.capacity {
            true => self.rate.moved(from, cost).min(full),
            false => full,
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
            // Those behind were told their slots already: only the last can be taken back.
            state.tat -= if made == tat { back } else { 0 };
            return;
        }
        // Where the charge ends now, or earlier: those taken back since may all have stood before it. What stands behind
        // the whole debt is not of it: the key was forgotten in between.
        let ends = made.saturating_sub(mark.refunded_since(*refunded));
        let weight = if ends <= tat {
            ends.saturating_sub(now)
        } else {
            0
        };
        let back = back.min(weight);
        state.tat -= back;
        // Taking back the last moves no other.
        if ends < tat {
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
        let moved = self
            .rate
            .moved(self.tat(*state, now).max(now.as_micros()), cost);
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

    fn exhausted(&self, until: Timestamp) -> BucketState {
        self.state(until.as_micros())
    }
}

impl TokenBucket {
    /// The state of a key with this TAT.
    #[must_use]
    #[inline]
    pub fn state(&self, tat: u64) -> BucketState {
        BucketState {
            tat,
            quota_tag: self.quota_tag,
        }
    }

    /// The TAT after a charge that fits.
    #[inline]
    fn taken(&self, state: &BucketState, now: Timestamp, cost: u64) -> Option<u64> {
        let tat = self.tat(*state, now);
        if cost == 0 {
            return Some(tat);
        }
        if cost > self.capacity {
            return None;
        }
        let moved = self.rate.moved(tat.max(now.as_micros()), cost);
        (moved - now.as_micros() <= self.span).then_some(moved)
    }

    /// How far back the TAT goes when units of a charge are taken back that is known by the TAT after it.
    ///
    /// In a queue to where the charge found it, since whoever is the last again is known by that; else by the time alone,
    /// rounded down.
    #[must_use]
    pub fn micros_back(&self, made: Timestamp, units: u64) -> u64 {
        if !self.is_queue() {
            return self.micros_down(units);
        }
        self.rate.back(made.as_micros(), units.min(self.capacity))
    }
}

const LONGEST_INTERVAL: u64 = 366 * 86_400 * 1_000_000;
const LONGEST_SPAN: u64 = 1 << 50;

// === BucketState ===

/// When a bucket will be full again, and under which span the debt was made.
///
/// Packed, so that a key takes 24 bytes of the in-process store and not 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct BucketState {
    tat: u64,
    quota_tag: u32,
}

impl BucketState {
    /// The theoretical arrival time in microseconds, 0 when nothing was ever charged.
    #[must_use]
    pub fn tat(self) -> u64 {
        self.tat
    }

    /// Moves the TAT forwards by so many microseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.tat = self.tat.saturating_add(micros);
    }
}

/// A span cut to its 26 most significant bits, and how many bits were cut off.
fn quota_tag_of(span: u64) -> u32 {
    let mut exponent = 0_u32;
    while span >> exponent >= 1 << MANTISSA {
        exponent += 1;
    }
    // Invariant: a span is at most 2^50, so the exponent is at most 25 and fits in the six bits left.
    let mantissa = u32::try_from(span >> exponent).expect("below 2^26");
    (exponent << MANTISSA) | mantissa
}

/// The span that a shape stands for.
fn span_of(quota_tag: u32) -> u64 {
    let (exponent, mantissa) = (quota_tag >> MANTISSA, quota_tag & ((1 << MANTISSA) - 1));
    (u64::from(mantissa) << exponent).max(1)
}

const MANTISSA: u32 = 26;
