//! One lock's worth of keys, and the operations on them.
//!
//! ```text
//! MemoryStore ── the fingerprint of (policy, key) selects a shard ──> Mutex<Shard>
//!
//! Shard
//!  ├─ buckets    [ fingerprint 12 B | TAT 8 B | span 4 B ] ..  + overflow, one state per policy
//!  ├─ windows    [ fingerprint      | end, count         ] ..  + overflow
//!  ├─ slides     [ fingerprint      | end, two counts    ] ..  + overflow
//!  ├─ logs       [ fingerprint      | deque of entries   ] ..  + overflow
//!  ├─ in_flight  tickets by key, each until its lease ends or it is released
//!  ├─ bans       [ fingerprint      | denials, ban       ]  only of keys that a policy with a penalty denied
//!  ├─ refunds    [ fingerprint | total or free turns ]  only of keys whose charges overlap and are refunded
//!  └─ step       the step of the clock that all these times include
//! ```
//!
//! Each algorithm has its own table, so that a bucket does not take the space of a log.
//!
//! A charge alone in its decision is decided in one pass ([`Shard::decide`]). Several charges take two: the first finds out
//! whether each of them fits ([`Shard::precheck`]), the second makes all of them or none ([`Shard::conclude`]). Both passes
//! run while all shards concerned are locked:
//!
//! ```text
//! charge                       precheck              conclude, if all fit   conclude, if one does not
//! policy "ip", key 192.0.2.1   fits: 1 of 3 left     2 of 3 used -> 3       stays 2
//! policy "user", key ada       fits: 5 of 9 left     4 of 9 used -> 5       stays 4; 5 if it counts denied requests
//! ```
//!
//! A key that is decided several times in a row is lent to the [`HotKey`] beside the lock. The table has its latest state while
//! the shard is locked, because every lock begins with [`Shard::take_back`].

use crate::{
    algorithm::{BucketState, Counter, Counting, LogState, SlidingState, TokenBucket, WindowState},
    charge::{Charge, Fingerprint},
    clock::{Clock, Reading, Timestamp},
};

use super::{
    bans::Bans,
    capacity::Capacity,
    hot_key::HotKey,
    in_flight::InFlight,
    keyed::{KeyRef, KeyedStates, Placement},
    refunds::Refunds,
    result::{ChargeResult, Precheck, take},
    verdict::BucketCharge,
};

/// The keys of one shard.
#[derive(Debug)]
pub(super) struct Shard {
    /// Token buckets, leaky buckets and queues.
    pub buckets: KeyedStates<BucketState>,
    /// Sliding logs.
    pub logs: KeyedStates<LogState>,
    /// Sliding windows.
    pub slides: KeyedStates<SlidingState>,
    /// Fixed windows.
    pub windows: KeyedStates<WindowState>,
    /// Concurrency.
    pub in_flight: InFlight,
    /// Denials under penalties.
    pub bans: Bans,
    /// Refunds to buckets.
    pub refunds: Refunds,
    /// The step of the clock that all times here include, in microseconds.
    step: u64,
    /// The slot of the bucket that is lent. The state in it is older than the lent one.
    lent: Option<usize>,
    /// Number of the last loan.
    loans: u32,
    /// Number of decisions in a row on the key whose fingerprint ends in `last`.
    streak: u32,
    /// Low half of the fingerprint that was decided last.
    last: u64,
}

/// Runs an expression with the counter of a charge and the shard's states for it, each with its own type.
macro_rules! with_states {
    ($shard:expr, $charge:expr, |$counter:ident, $states:ident| $body:expr) => {
        match $charge.counter() {
            Counter::Bucket($counter) => {
                let $states = &mut $shard.buckets;
                $body
            }
            Counter::Concurrency($counter) => {
                let $states = &mut $shard.in_flight;
                $body
            }
            Counter::FixedWindow($counter) => {
                let $states = &mut $shard.windows;
                $body
            }
            Counter::SlidingLog($counter) => {
                let $states = &mut $shard.logs;
                $body
            }
            Counter::SlidingWindow($counter) => {
                let $states = &mut $shard.slides;
                $body
            }
        }
    };
}

pub(super) use with_states;

/// Runs an expression for the states of each algorithm, each with their own type.
///
/// The pattern names every field, and has no `..`, so that the compiler leads here when an algorithm gets a table.
macro_rules! for_all_states {
    ($shard:expr, |$states:ident| $body:expr) => {{
        let Shard {
            buckets,
            logs,
            slides,
            windows,
            in_flight,
            bans: _,
            refunds: _,
            step: _,
            lent: _,
            loans: _,
            streak: _,
            last: _,
        } = $shard;
        {
            let $states = buckets;
            $body;
        }
        {
            let $states = logs;
            $body;
        }
        {
            let $states = slides;
            $body;
        }
        {
            let $states = windows;
            $body;
        }
        {
            let $states = in_flight;
            $body;
        }
    }};
}

impl Shard {
    /// Returns an empty shard.
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            buckets: KeyedStates::new(capacity),
            logs: KeyedStates::new(capacity),
            slides: KeyedStates::new(capacity),
            windows: KeyedStates::new(capacity),
            in_flight: InFlight::new(capacity),
            bans: Bans::new(capacity),
            refunds: Refunds::new(capacity),
            step: 0,
            lent: None,
            loans: 0,
            streak: 0,
            last: 0,
        }
    }

    /// Returns the time to decide at. `read` was read before the shard was locked.
    ///
    /// When the clock has stepped since, all times in the shard move with it, so that debts last as long as before.
    #[inline]
    pub fn now(&mut self, read: Reading, clock: &Clock) -> Timestamp {
        if self.has_step(read) {
            return read.now;
        }
        let read = clock.read();
        self.follow_step(read);
        read.now
    }

    /// Returns whether the shard's times include the same step of the clock as the reading.
    #[inline]
    pub fn has_step(&self, read: Reading) -> bool {
        read.step == self.step
    }

    /// Moves all times forward by the latest step of the clock. `read` must be read while the shard is locked.
    #[cold]
    pub fn follow_step(&mut self, read: Reading) {
        let micros = read.step.saturating_sub(self.step);
        if micros == 0 {
            return;
        }
        for_all_states!(self, |states| states.shift(micros));
        self.bans.shift(micros);
        self.refunds.shift(micros);
        self.step = read.step;
    }

    /// Number of keys in all tables. A key under two policies counts twice.
    pub fn keys(&self) -> usize {
        let mut keys = 0;
        for_all_states!(self, |states| keys += states.keys());
        keys
    }

    /// Allocated bytes of all tables, without the shard itself.
    pub fn bytes(&self) -> usize {
        let mut bytes = self.refunds.bytes() + self.bans.bytes();
        for_all_states!(self, |states| bytes += states.bytes());
        bytes
    }

    // === One charge ===

    /// Decides a charge of a bucket that is alone in its decision. Returns the state after it, and whether it fits.
    #[inline]
    pub fn decide_bucket(
        &mut self,
        charge: &BucketCharge<'_>,
        now: Timestamp,
    ) -> ((BucketState, bool), Placement) {
        let bucket = charge.bucket;
        self.buckets.update(bucket, &charge.key(), now, |state| {
            let (fits, is_changed) = take(bucket, (charge.policy, charge.units), state, now);
            ((*state, fits), is_changed)
        })
    }

    /// Decides a charge that is alone in its decision, under any algorithm.
    ///
    /// The result is computed under the lock, because the state of a log is too large to copy.
    pub fn decide(
        &mut self,
        charge: &Charge<'_>,
        key: &KeyRef,
        now: Timestamp,
    ) -> (ChargeResult, Placement) {
        if let Some(turn) = self.take_turn(charge, key, false, now) {
            return self.in_turn((charge, key), turn, true, now);
        }
        with_states!(self, charge, |counter, states| {
            states.update(counter, key, now, |state| {
                let units = charge.units();
                let (fits, is_changed) = take(counter, (charge.policy(), units), state, now);
                let result = ChargeResult::of(counter, units, state, fits, now);
                (result, is_changed)
            })
        })
    }

    /// Takes a turn that was given up, for a charge of a queue. If it `is_dry`, the turn stays free.
    fn take_turn<'a>(
        &mut self,
        charge: &Charge<'a>,
        key: &KeyRef,
        is_dry: bool,
        now: Timestamp,
    ) -> Option<FreeTurn<'a>> {
        let bucket = charge.counter().bucket()?;
        if !bucket.is_queue() || charge.units() == 0 || self.refunds.has_no_turns() {
            return None;
        }
        let slot = self.buckets.slot(key.fingerprint);
        let state = slot.map(|slot| self.buckets.state_in(slot));
        let Some(state) = state.filter(|state| state.quota_tag() == bucket.quota_tag()) else {
            // Under another quota, turns are elsewhere, and those of a key without a debt are over.
            drop(self.refunds.take_turns(key.fingerprint));
            return None;
        };
        let asked = (key.fingerprint, charge.units());
        let over = self
            .refunds
            .take_turn((bucket, state), asked, is_dry, now)?;
        Some(FreeTurn { bucket, over })
    }

    /// Returns the result of a charge that has taken a turn. The end of the queue stays where it is.
    fn in_turn(
        &mut self,
        (charge, key): (&Charge<'_>, &KeyRef),
        FreeTurn { bucket, over }: FreeTurn<'_>,
        is_made: bool,
        now: Timestamp,
    ) -> (ChargeResult, Placement) {
        let (key, units) = (key.adding(false), charge.units());
        let (result, placement) = self.buckets.update(bucket, &key, now, |state| {
            (ChargeResult::of(bucket, units, state, is_made, now), false)
        });
        (result.in_turn(bucket, over, now), placement)
    }

    /// Returns the total refunds before a charge after which the bucket is full again at `until`.
    ///
    /// A later refund of this charge needs the total. `until` is only called if any key of the shard has refunds.
    #[inline]
    pub fn refunded_before(&mut self, key: Fingerprint, until: impl FnOnce() -> u64) -> u64 {
        if self.refunds.is_empty() {
            return 0;
        }
        self.refunds.before_charge(key, until())
    }

    // === Several charges ===

    /// Returns the slot of a key's bucket and the state in it, if a charge of the key needs neither more memory nor refunds.
    #[inline]
    pub fn bucket(&self, key: Fingerprint) -> Option<(usize, BucketState)> {
        let slot = self.buckets.slot(key)?;
        self.refunds
            .is_empty()
            .then(|| (slot, self.buckets.state_in(slot)))
    }

    /// Replaces the state in the slot of a bucket.
    #[inline]
    pub fn set_bucket(&mut self, slot: usize, state: BucketState) {
        *self.buckets.state(slot) = state;
    }

    /// Finds out whether a charge fits, as one of several. `others` are the results for the charges before it.
    ///
    /// Makes no charge. It may convert the state to a new limit, reserve memory, and reclaim ended leases.
    // Always inlined, as `conclude`.
    #[inline(always)]
    pub fn precheck<'a>(
        &mut self,
        charge: &Charge<'a>,
        key: &KeyRef,
        (index, others): (usize, &[Precheck<'a>]),
        now: Timestamp,
    ) -> Precheck<'a> {
        let units = charge.units();
        let takes_slots = matches!(charge.counter(), Counter::Concurrency(_)) && units > 0;
        let in_shard = || others.iter().filter(|other| other.shard == index);
        // Memory is reserved for all charges that may need some, because all of them may be admitted.
        let slots_before = in_shard().filter(|other| other.takes_slots).count();
        let has_memory = !takes_slots
            || self
                .in_flight
                .reserve(key.fingerprint, slots_before + 1, now);
        let has_turn = self.take_turn(charge, key, true, now).is_some();
        let key = key.adding(false);
        with_states!(self, charge, |counter, states| {
            let may_overflow = states.may_overflow(&key, now);
            let overflow = may_overflow.then(|| charge.policy().name());
            // New keys that may share a state also share what this decision takes from it.
            let cost = match overflow {
                Some(_) if units > 0 => in_shard()
                    .filter(|other| other.overflow == overflow)
                    .fold(units, |sum, other| sum.saturating_add(other.units)),
                _ => units,
            };
            let (fits, _) = states.update(counter, &key, now, |state| {
                if cost > 0 {
                    counter.adopt(state, now);
                }
                let fits = has_turn || counter.admits(state, now, cost);
                (has_memory && fits, false)
            });
            Precheck {
                fits,
                is_banned: false,
                has_memory,
                takes_slots,
                shard: index,
                overflow,
                units,
            }
        })
    }

    /// Returns whether a charge that does not fit is denied for what other keys owe, or for lack of memory.
    pub fn is_denied_for_others(
        &mut self,
        charge: &Charge<'_>,
        key: &KeyRef,
        precheck: &Precheck<'_>,
        now: Timestamp,
    ) -> bool {
        !precheck.has_memory
            || with_states!(self, charge, |_counter, states| states.is_shared(key, now))
    }

    /// Makes a charge if `is_made`, and returns its result.
    ///
    /// If it is not made, a policy that counts denied requests is charged nevertheless.
    // Always inlined into its one caller, because a result that is returned through memory costs more.
    #[inline(always)]
    pub fn conclude(
        &mut self,
        charge: &Charge<'_>,
        key: &KeyRef,
        (is_made, precheck): (bool, &Precheck<'_>),
        now: Timestamp,
    ) -> (ChargeResult, Placement) {
        let cost = charge.units();
        let counts = charge.policy().counts_denied() && !precheck.is_banned;
        let is_penalised = !is_made && cost > 0 && counts;
        let is_changed = is_penalised || (is_made && cost > 0);
        if is_changed && let Some(turn) = self.take_turn(charge, key, false, now) {
            return self.in_turn((charge, key), turn, is_made, now);
        }
        let key = key.adding(is_changed);
        let (mut result, placement) = with_states!(self, charge, |counter, states| {
            states.update(counter, &key, now, |state| {
                if is_made && cost > 0 {
                    counter.charge(state, now, cost);
                } else if is_penalised {
                    counter.charge_denied(state, now, cost);
                }
                // A denied request that counts may not fit once more.
                let fits = precheck.fits && !is_penalised;
                let result = ChargeResult::of(counter, cost, state, fits, now);
                (result, is_changed)
            })
        });
        if charge.counter().is_queue() {
            return (result, placement);
        }
        let reset_at = result.usage.reset_at.as_micros();
        result.refunded_before = self.refunded_before(key.fingerprint, || reset_at);
        if precheck.has_memory {
            (result, placement)
        } else {
            (result, Placement::NoMemory)
        }
    }

    // === The hot key ===

    /// Lends the state of a key that was decided several times in a row, unless a decision on it may need the lock.
    #[inline]
    pub fn lend_if_hot(
        &mut self,
        hot_key: &HotKey,
        bucket: &TokenBucket,
        fingerprint: Fingerprint,
    ) {
        if self.last != fingerprint.low() {
            self.last = fingerprint.low();
            self.streak = 0;
        }
        self.streak = self.streak.saturating_add(1);
        if self.streak >= HOT && !self.refunds.has(fingerprint) {
            self.lend(hot_key, bucket, fingerprint);
        }
    }

    /// Lends the state of a key that has a slot and was last charged under the same span.
    #[cold]
    fn lend(&mut self, hot_key: &HotKey, bucket: &TokenBucket, fingerprint: Fingerprint) {
        self.streak = 0;
        let Some(slot) = self.buckets.slot(fingerprint) else {
            return;
        };
        let state = *self.buckets.state(slot);
        if state.quota_tag() == bucket.quota_tag() {
            self.loans = self.loans.wrapping_add(1);
            hot_key.lend(self.loans, fingerprint, state, self.step);
            self.lent = Some(slot);
        }
    }

    /// Ends the loan, if there is one. Called as soon as the shard is locked.
    #[inline]
    pub fn take_back(&mut self, hot_key: &HotKey) {
        if let Some(slot) = self.lent.take() {
            let state = self.buckets.state(slot);
            *state = state.with_tat(hot_key.take_back());
        }
    }

    /// Clears the state of a key under a policy, for every algorithm that may have counted it.
    pub fn reset(&mut self, fingerprint: Fingerprint) {
        for_all_states!(self, |states| states.reset(fingerprint));
        self.bans.reset(fingerprint);
        drop(self.refunds.take_turns(fingerprint));
    }
}

/// A turn of a queue that was given up, and that a charge has taken.
struct FreeTurn<'a> {
    bucket: &'a TokenBucket,
    over: Timestamp,
}

/// Number of decisions in a row after which a key is hot.
const HOT: u32 = 4;
