//! The sliding window log: the time of every admitted request.
//!
//! # Bounds
//!
//! In any span as long as the period at most the limit passes. This is exact, not an estimate. Times are rounded up to
//! whole *ticks*: the smallest power of two of microseconds of which at most `2^31` fit in the period. So a unit never
//! comes back early, and it comes back late by less than a tick. A longer tick is a multiple of every shorter one, so
//! times do not drift when the period of a policy changes repeatedly.
//!
//! | period | tick | late by at most |
//! |---|---|---|
//! | up to 35 minutes | 1 us | exact |
//! | an hour | 2 us | 1 us |
//! | a day | 64 us | 63 us |
//! | 31 days | 2,048 us | 2,047 us |
//! | 366 days | 16,384 us | 16,383 us |
//!
//! An entry takes 6 to 8 bytes in Redis, whatever its cost: a time in ticks and a running sum. Requests in the same
//! tick share an entry. A binary search over the sums finds the used units and the retry time, so a decision reads
//! `log2(entries)` of them.
//!
//! # Why is a long log in Redis a ring?
//!
//! A log of 10,000 entries that is read and written as a whole costs Redis 230 us per charge, and its replica receives 60 KB. So
//! from 129 entries on, most decisions read only the first 22 bytes and the 64 oldest entries, and a charge writes these 22 bytes
//! and one entry (`lua/sliding_log.lua` has the form). A list that grows by `APPEND` would do that too, but the server reserves
//! twice the size for it: 12 to 16 bytes per entry, where 6 are used (Redis 7.0, Redis 6.2 and Valkey 9.1).
//!
//! A write inside a string does not move it. So the script makes the places in advance, as many as fit into the allocator's next
//! size. It rewrites a ring that is full, or less than three quarters full, which keeps an entry below 8 bytes. Up to 128 entries
//! stay a list, which is cheaper to read and write as a whole. Both forms decide alike. The store in process keeps a form of its
//! own.

use std::collections::VecDeque;

use super::quota::Quota;
use crate::{
    clock::Timestamp,
    decision::{Retry, Usage},
    error::{Error, ErrorKind},
};

use super::{
    counting::{Admitted, Counting, RefundToken, Refunded},
    window::WindowQuota,
};

/// A quota that is counted by the time of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    pub(super) window: WindowQuota,
    /// Microseconds in a tick.
    tick: u64,
}

/// The requests admitted within a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// Running sum before the first entry.
    base: u64,
    entries: VecDeque<LogEntry>,
    /// Period that the entries were made under, in microseconds.
    period: u64,
}

/// The units taken in one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    /// Microseconds since the Unix epoch, rounded up to a tick.
    at: u64,
    /// Running sum, including the units of this entry.
    sum: u64,
}

impl SlidingLog {
    /// The largest limit: 10,000 units per period.
    pub const MAX_LIMIT: u64 = 10_000;

    /// Creates a counter that admits the quota's count in any period.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] if the count is 0 or above [`MAX_LIMIT`](Self::MAX_LIMIT), if the quota has a burst,
    /// or if its period is not a whole number of milliseconds from 1 ms to 366 days.
    pub fn new(quota: Quota) -> Result<Self, Error> {
        let window = WindowQuota::new(quota)?;
        if window.limit > Self::MAX_LIMIT {
            return Err(Error::new(
                ErrorKind::InvalidQuota,
                "the count of a sliding log must be at most 10,000: use a sliding window, or divide the count and the cost",
            ));
        }
        let tick = (window.millis * 1_000)
            .div_ceil(MAX_TICKS)
            .next_power_of_two();
        Ok(Self { window, tick })
    }

    /// Returns the most units that one period admits.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.window.limit
    }

    /// Returns the length of the period in milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.window.millis
    }

    /// Returns the longest time in which a unit comes back, in microseconds.
    pub(super) fn longest_micros(&self) -> u64 {
        self.period() + self.tick
    }

    /// Returns the most microseconds by which a unit comes back late: a tick less one.
    #[inline]
    pub(super) fn max_lateness(&self) -> u16 {
        u16::try_from(self.tick - 1).unwrap_or(u16::MAX)
    }

    fn period(&self) -> u64 {
        self.window.millis * 1_000
    }

    /// Returns the time at which a unit taken at `at` comes back.
    fn expiry(&self, at: u64) -> u64 {
        at + self.period()
    }

    /// Finds the entries that count at `now`.
    #[inline]
    fn live(&self, state: &LogState, now: Timestamp) -> LiveEntries {
        let present = state.present(now);
        let first = state
            .entries
            .partition_point(|entry| self.expiry(entry.at) <= present);
        let before = state.sum_before(first);
        LiveEntries {
            first,
            before,
            used: state.sum() - before,
        }
    }

    fn push(&self, state: &mut LogState, now: Timestamp, units: u64) {
        let at = state.not_before(now).div_ceil(self.tick) * self.tick;
        let sum = state.sum() + units;
        match state.entries.back_mut() {
            Some(last) if last.at == at => last.sum = sum,
            _ => state.entries.push_back(LogEntry { at, sum }),
        }
        state.period = self.period();
    }
}

/// The entries of a log that have not expired.
struct LiveEntries {
    first: usize,
    /// Running sum before the first live entry.
    before: u64,
    used: u64,
}

impl Counting for SlidingLog {
    type State = LogState;

    fn adopt(&self, state: &mut LogState, now: Timestamp) {
        if state.period == self.period() {
            return;
        }
        let live = self.live(state, now);
        if live.used == 0 {
            return;
        }
        state.drop_until(live.first);
        // Entries that round to the same tick are merged, so that times are unique. In place, without new memory.
        let mut last = 0;
        for index in 0..state.entries.len() {
            let LogEntry { at, sum } = state.entries[index];
            let at = at.div_ceil(self.tick) * self.tick;
            last += usize::from(index > 0 && state.entries[last].at != at);
            state.entries[last] = LogEntry { at, sum };
        }
        state.entries.truncate(last + 1);
        state.period = self.period();
    }

    #[inline]
    fn admits(&self, state: &LogState, now: Timestamp, cost: u64) -> bool {
        cost == 0 || self.live(state, now).used.saturating_add(cost) <= self.window.limit
    }

    fn charge(&self, state: &mut LogState, now: Timestamp, cost: u64) {
        state.drop_until(self.live(state, now).first);
        self.push(state, now, cost.min(self.window.limit));
    }

    fn charge_denied(&self, state: &mut LogState, now: Timestamp, cost: u64) {
        let live = self.live(state, now);
        let most = live.used.max(self.window.limit);
        let cost = cost.min(self.window.limit);
        let excess = (live.used + cost).saturating_sub(most);
        let base = live.before + excess;
        self.push(state, now, cost);
        let first = state.entries.partition_point(|entry| entry.sum <= base);
        state.drop_until(first);
        state.base = base;
    }

    fn force_charge(&self, state: &mut LogState, now: Timestamp, cost: u64) {
        let live = self.live(state, now);
        // The Lua twin stores 16 bits of the running sum.
        let most = MAX_UNITS.saturating_sub(live.used);
        if most > 0 {
            state.drop_until(live.first);
            self.push(state, now, cost.min(most));
        }
    }

    /// Adds the units at the time of the latest of them, or of the newest entry if that is later.
    fn merge(&self, state: &mut LogState, now: Timestamp, admitted: Admitted) {
        let live = self.live(state, now);
        let added = admitted.part_within(now, live.used, self.window.limit);
        if added > 0 {
            state.drop_until(live.first);
            let latest = admitted.until.as_micros().saturating_sub(self.period());
            self.push(state, now.min(Timestamp::from_micros(latest)), added);
        }
    }

    fn refund(
        &self,
        state: &mut LogState,
        _refunded: &mut Refunded,
        now: Timestamp,
        mark: RefundToken,
        units: u64,
    ) {
        let at = mark.reset_at.as_micros().saturating_sub(self.period());
        let live = self.live(state, now);
        if state.period != self.period() {
            return;
        }
        let found = state.entries.binary_search_by_key(&at, |entry| entry.at);
        let Some(index) = found.ok().filter(|index| *index >= live.first) else {
            return;
        };
        state.drop_until(live.first);
        let index = index - live.first;
        let weight = state.entries[index].sum - state.sum_before(index);
        let units = units.min(weight);
        for entry in state.entries.range_mut(index..) {
            entry.sum -= units;
        }
        if units == weight {
            state.entries.remove(index);
        }
    }

    #[inline]
    fn usage(&self, state: &LogState, now: Timestamp) -> Usage {
        let used = self.live(state, now).used;
        let limit = self.window.limit;
        let reset_at = match state.entries.back() {
            Some(last) if used > 0 => Timestamp::from_micros(self.expiry(last.at)),
            _ => now,
        };
        Usage::new(limit, limit.saturating_sub(used), reset_at)
    }

    fn retry(&self, state: &LogState, now: Timestamp, cost: u64) -> Retry {
        if cost > self.window.limit {
            return Retry::Never;
        }
        let live = self.live(state, now);
        let wanted = (live.used + cost).saturating_sub(self.window.limit);
        let enough = state
            .entries
            .partition_point(|entry| entry.sum < live.before + wanted);
        match state.entries.get(enough.max(live.first)) {
            Some(entry) if wanted > 0 => {
                Retry::At(Timestamp::from_micros(self.expiry(entry.at)).max(now))
            }
            _ => Retry::At(now),
        }
    }

    fn drop_expired(&self, state: &mut LogState, now: Timestamp) {
        state.drop_until(self.live(state, now).first);
    }

    fn owes_until(state: &LogState) -> u64 {
        state
            .entries
            .back()
            .map_or(0, |last| last.at + state.period)
    }

    fn restored(&self, usage: Usage, _now: Timestamp) -> LogState {
        let mut state = LogState::default();
        let used = self.window.limit.saturating_sub(usage.remaining);
        if used > 0 {
            // The latest unit was used one period before all are back, and no other one after it.
            let at = usage.reset_at.as_micros().saturating_sub(self.period());
            self.push(&mut state, Timestamp::from_micros(at), used);
        }
        state
    }

    fn exhausted(&self, until: Timestamp) -> LogState {
        let mut state = LogState::default();
        let at = until.as_micros().saturating_sub(self.period());
        self.push(&mut state, Timestamp::from_micros(at), self.window.limit);
        state
    }
}

impl LogState {
    /// Returns the number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the bytes of heap memory that the entries take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<LogEntry>()
    }

    /// Returns the capacity beyond the [`BASE_CAPACITY`] that every log may have.
    pub(crate) fn extra_capacity(&self) -> usize {
        self.entries.capacity().saturating_sub(BASE_CAPACITY)
    }

    /// Returns the capacity that the next entry needs; `None` to keep the current one.
    #[inline]
    pub(crate) fn target_capacity(&self) -> Option<usize> {
        let (entries, capacity) = (self.entries.len(), self.entries.capacity());
        if entries == capacity {
            return Some(BASE_CAPACITY.max(2 * capacity));
        }
        (capacity > BASE_CAPACITY && entries < capacity / 4).then(|| BASE_CAPACITY.max(2 * entries))
    }

    /// Moves the entries to memory for exactly `capacity` of them.
    pub(crate) fn resize(&mut self, capacity: usize) {
        let additional = capacity.saturating_sub(self.entries.len());
        self.entries.reserve_exact(additional);
        self.entries.shrink_to(capacity);
    }

    /// Makes room in a full log without new memory: merges each two neighbouring entries.
    ///
    /// The units of the earlier one come back with the later one: later than they should, never earlier.
    pub(crate) fn merge_if_full(&mut self) {
        if self.entries.len() == self.entries.capacity() {
            self.merge_pairs();
        }
    }

    /// Shrinks the log to the base capacity plus `extra`, merging entries as [`merge_if_full`](Self::merge_if_full)
    /// does.
    pub(crate) fn shrink_to(&mut self, extra: usize) {
        let capacity = BASE_CAPACITY + extra;
        while self.entries.len() > capacity {
            self.merge_pairs();
        }
        self.entries.shrink_to(capacity);
    }

    fn merge_pairs(&mut self) {
        // The running sum of the later entry already includes the earlier one.
        let mut stays = self.entries.len().is_multiple_of(2);
        self.entries.retain(|_| {
            stays = !stays;
            stays
        });
    }

    /// Moves every entry `micros` microseconds later.
    pub(crate) fn shift(&mut self, micros: u64) {
        for entry in &mut self.entries {
            entry.at = entry.at.saturating_add(micros);
        }
    }

    /// Returns `now`, or about the last entry's time if the clock was set back.
    ///
    /// The last entry's time was rounded up, so counting from that time itself would return units early.
    #[inline]
    fn present(&self, now: Timestamp) -> u64 {
        let last = self.entries.back().map_or(0, |last| last.at);
        now.as_micros().max(last.saturating_sub(LONGEST_TICK))
    }

    /// Returns the time of a new entry before rounding, at least the last entry's.
    fn not_before(&self, now: Timestamp) -> u64 {
        let last = self.entries.back().map_or(0, |last| last.at);
        now.as_micros().max(last)
    }

    fn sum(&self) -> u64 {
        self.entries.back().map_or(self.base, |last| last.sum)
    }

    fn sum_before(&self, index: usize) -> u64 {
        match index.checked_sub(1) {
            Some(previous) => self.entries[previous].sum,
            None => self.base,
        }
    }

    fn drop_until(&mut self, first: usize) {
        self.base = self.sum_before(first);
        if first == self.entries.len() && self.entries.capacity() > BASE_CAPACITY {
            self.entries = VecDeque::new();
        } else {
            self.entries.drain(..first);
        }
    }
}

/// Most units that count at once: above any limit, since settlements can charge beyond it.
const MAX_UNITS: u64 = 0xFFFF;
/// Most ticks in a period: 32 bits of a time then identify it.
const MAX_TICKS: u64 = 1 << 31;
/// Tick of the longest period, in microseconds.
const LONGEST_TICK: u64 = 1 << 14;
/// Entries that every log may have without asking the store for memory.
const BASE_CAPACITY: usize = 4;
