//! The sliding window log: the time of every admitted request.
//!
//! # Bounds
//!
//! In any span as long as the period at most the limit passes: exactly, not by an estimate. Times are rounded up to
//! whole *ticks*, the least power of two of microseconds that divides the period in at most `2^31`. So a unit is never back
//! early, and late by less than a tick. A tick is a multiple of every shorter one, so times do not creep on however often the
//! period of a log in debt is changed.
//!
//! | period | tick | latest |
//! |---|---|---|
//! | up to 35 minutes | 1 us | exact |
//! | an hour | 2 us | 1 us |
//! | a day | 64 us | 63 us |
//! | 31 days | 2,048 us | 2,047 us |
//! | 366 days | 16,384 us | 16,383 us |
//!
//! An entry costs 6 to 8 bytes in Redis, whatever its cost: a time in ticks and a running sum. Requests of one tick share
//! an entry. The sum lets a binary search find what is used and when enough comes back, so a decision reads
//! `log2(entries)` of them.

use std::collections::VecDeque;

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    quota::Quota,
    state::{Retry, Usage},
};

use super::{
    counting::{ChargeMark, Counting},
    window::Window,
};

/// A quota made ready for counting in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    window: Window,
    /// Microseconds in a tick.
    tick: u64,
}

/// The requests that were admitted within a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// The sum of all units before the first entry.
    base: u64,
    entries: VecDeque<Entry>,
    /// The length of the period that the entries were made under.
    period: u64,
}

/// The units that were taken at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    /// All units up to and with this entry's.
    sum: u64,
}

impl SlidingLog {
    /// The most that a log counts to in a period.
    pub const MAX_LIMIT: u64 = 10_000;

    /// A log as long as the quota's period, with the quota's count in it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] when the quota is nothing, has a burst, is no whole number of milliseconds from 1 to
    /// 366 days long, or counts above [`MAX_LIMIT`](Self::MAX_LIMIT).
    pub fn new(quota: Quota) -> Result<Self, Error> {
        let window = Window::new(quota)?;
        if window.limit > Self::MAX_LIMIT {
            return Err(Error::new(
                ErrorKind::InvalidQuota,
                "a log counts to 10,000 in a period: use a sliding window, or divide the count and the cost",
            ));
        }
        let tick = (window.millis * 1_000).div_ceil(TICKS).next_power_of_two();
        Ok(Self { window, tick })
    }

    /// The most that can be taken in a period.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.window.limit
    }

    /// The length of the period in milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.window.millis
    }

    /// Microseconds by which a unit may come back late: a tick less one.
    #[inline]
    pub(super) fn lateness(&self) -> u16 {
        u16::try_from(self.tick - 1).unwrap_or(u16::MAX)
    }

    fn period(&self) -> u64 {
        self.window.millis * 1_000
    }

    /// When a unit taken at `at` comes back.
    fn back(&self, at: u64) -> u64 {
        at + self.period()
    }

    /// The first entry that still counts, the sum before it, and what is used.
    #[inline]
    fn counted(&self, state: &LogState, now: Timestamp) -> Counted {
        let present = state.present(now);
        let first = state
            .entries
            .partition_point(|entry| self.back(entry.at) <= present);
        let before = state.sum_before(first);
        Counted {
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
            _ => state.entries.push_back(Entry { at, sum }),
        }
        state.period = self.period();
    }
}

/// What of a log still counts.
struct Counted {
    first: usize,
    before: u64,
    used: u64,
}

impl Counting for SlidingLog {
    type State = LogState;

    fn adopt(&self, state: &mut LogState, now: Timestamp) {
        if state.period == self.period() {
            return;
        }
        let counted = self.counted(state, now);
        if counted.used == 0 {
            return;
        }
        state.drop_until(counted.first);
        // Those that fall on one tick become one, so that a time stands for one entry. In place, without new memory.
        let mut last = 0;
        for index in 0..state.entries.len() {
            let Entry { at, sum } = state.entries[index];
            let at = at.div_ceil(self.tick) * self.tick;
            last += usize::from(index > 0 && state.entries[last].at != at);
            state.entries[last] = Entry { at, sum };
        }
        state.entries.truncate(last + 1);
        state.period = self.period();
    }

    #[inline]
    fn admits(&self, state: &LogState, now: Timestamp, cost: u64) -> bool {
        cost == 0 || self.counted(state, now).used.saturating_add(cost) <= self.window.limit
    }

    fn charge(&self, state: &mut LogState, now: Timestamp, cost: u64) {
        state.drop_until(self.counted(state, now).first);
        self.push(state, now, cost.min(self.window.limit));
    }

    fn penalise(&self, state: &mut LogState, now: Timestamp, cost: u64) {
        let counted = self.counted(state, now);
        let most = counted.used.max(self.window.limit);
        let cost = cost.min(self.window.limit);
        let excess = (counted.used + cost).saturating_sub(most);
        let base = counted.before + excess;
        self.push(state, now, cost);
        let first = state.entries.partition_point(|entry| entry.sum <= base);
        state.drop_until(first);
        state.base = base;
    }

    fn overcharge(&self, state: &mut LogState, now: Timestamp, cost: u64) {
        let counted = self.counted(state, now);
        // The running sum is told apart from itself by 16 bits only.
        let most = MOST.saturating_sub(counted.used);
        if most > 0 {
            state.drop_until(counted.first);
            self.push(state, now, cost.min(most));
        }
    }

    fn refund(
        &self,
        state: &mut LogState,
        _returned: &mut u64,
        now: Timestamp,
        mark: ChargeMark,
        units: u64,
    ) {
        let at = mark.made.as_micros().saturating_sub(self.period());
        let counted = self.counted(state, now);
        if state.period != self.period() {
            return;
        }
        let found = state.entries.binary_search_by_key(&at, |entry| entry.at);
        let Some(index) = found.ok().filter(|index| *index >= counted.first) else {
            return;
        };
        state.drop_until(counted.first);
        let index = index - counted.first;
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
        let used = self.counted(state, now).used;
        let limit = self.window.limit;
        let reset_at = match state.entries.back() {
            Some(last) if used > 0 => Timestamp::from_micros(self.back(last.at)),
            _ => now,
        };
        Usage::new(limit, limit.saturating_sub(used), reset_at)
    }

    fn retry(&self, state: &LogState, now: Timestamp, cost: u64) -> Retry {
        if cost > self.window.limit {
            return Retry::Never;
        }
        let counted = self.counted(state, now);
        let wanted = (counted.used + cost).saturating_sub(self.window.limit);
        let enough = state
            .entries
            .partition_point(|entry| entry.sum < counted.before + wanted);
        match state.entries.get(enough.max(counted.first)) {
            Some(entry) if wanted > 0 => {
                Retry::At(Timestamp::from_micros(self.back(entry.at)).max(now))
            }
            _ => Retry::At(now),
        }
    }

    fn drop_lapsed(&self, state: &mut LogState, now: Timestamp) {
        state.drop_until(self.counted(state, now).first);
    }

    fn owes_until(state: &LogState) -> u64 {
        state
            .entries
            .back()
            .map_or(0, |last| last.at + state.period)
    }

    fn spent(&self, until: Timestamp) -> LogState {
        let mut state = LogState::default();
        let at = until.as_micros().saturating_sub(self.period());
        self.push(&mut state, Timestamp::from_micros(at), self.window.limit);
        state
    }
}

impl LogState {
    /// How many entries there are.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that the entries take beyond the state itself.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Entries that there is memory for beyond those that every log may have.
    pub(crate) fn more_than_few(&self) -> usize {
        self.entries.capacity().saturating_sub(FEW)
    }

    /// Number of entries there should be memory for before one is added, unless it is the current number.
    #[inline]
    pub(crate) fn wanted(&self) -> Option<usize> {
        let (entries, capacity) = (self.entries.len(), self.entries.capacity());
        if entries == capacity {
            return Some(FEW.max(2 * capacity));
        }
        (capacity > FEW && entries < capacity / 4).then(|| FEW.max(2 * entries))
    }

    /// Moves the entries to memory for `entries` of them, and no more.
    pub(crate) fn resize(&mut self, entries: usize) {
        let more = entries.saturating_sub(self.entries.len());
        self.entries.reserve_exact(more);
        self.entries.shrink_to(entries);
    }

    /// Makes room in a full log without new memory.
    ///
    /// Every other entry goes, and its units come back with the next one's: later, never earlier.
    pub(crate) fn halve(&mut self) {
        if self.entries.len() == self.entries.capacity() {
            self.drop_every_other();
        }
    }

    /// Reduces a log to memory for so many entries beyond those that every log may have, as [`halve`](Self::halve) does.
    pub(crate) fn make_do(&mut self, more: usize) {
        let most = FEW + more;
        while self.entries.len() > most {
            self.drop_every_other();
        }
        self.entries.shrink_to(most);
    }

    fn drop_every_other(&mut self) {
        let mut stays = self.entries.len().is_multiple_of(2);
        self.entries.retain(|_| {
            stays = !stays;
            stays
        });
    }

    /// Moves every entry forwards by so many microseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        for entry in &mut self.entries {
            entry.at = entry.at.saturating_add(micros);
        }
    }

    /// A clock that was set back counts from the last entry on. That one's time was rounded up: to take it for the
    /// present would let units come back early.
    #[inline]
    fn present(&self, now: Timestamp) -> u64 {
        let last = self.entries.back().map_or(0, |last| last.at);
        now.as_micros().max(last.saturating_sub(LONGEST_TICK))
    }

    /// When an entry is made, before it is rounded: not before the last one.
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
        if first == self.entries.len() && self.entries.capacity() > FEW {
            self.entries = VecDeque::new();
        } else {
            self.entries.drain(..first);
        }
    }
}

/// Units that a log tells apart: more than any limit, for what is charged over it afterwards.
const MOST: u64 = 0xFFFF;
/// Ticks in a period, at most: a time is then known from its last 32 bits.
const TICKS: u64 = 1 << 31;
/// A tick of the longest period, in microseconds.
const LONGEST_TICK: u64 = 1 << 14;
/// Entries for which no log gives memory back, and no store has to ask.
const FEW: usize = 4;
