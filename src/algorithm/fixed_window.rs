//! The fixed window: one counter that starts from 0 with each window.
//!
//! # Bounds
//!
//! At most the limit passes in one window. At most twice the limit passes in any span as long as a window, since the
//! end of one window and the beginning of the next can be close together. A window is exactly as long as the quota's
//! period, to the microsecond, or as the calendar month. No key waits longer than that.

use std::ops::RangeInclusive;

use super::quota::Quota;
use crate::{
    clock::Timestamp,
    decision::{Retry, Usage},
    error::{Error, ErrorKind},
};

use super::{
    calendar::month_end,
    choice::WindowStart,
    counting::{Admitted, Counting, RefundToken, Refunded},
    window::{WindowQuota, capped},
};

/// A quota that is counted in fixed windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    pub(super) window: WindowQuota,
    start: WindowStart,
    quota_tag: u16,
}

/// The units used in a window, and its end.
///
/// Packed: a key takes 28 bytes of the in-process store instead of 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct WindowState {
    /// Microseconds since the Unix epoch.
    ends: u64,
    used: u32,
    /// The tag of the length and start that the window was opened under.
    quota_tag: u16,
}

impl WindowState {
    /// Returns the end of the window.
    #[must_use]
    pub fn ends_at(self) -> Timestamp {
        Timestamp::from_micros(self.ends)
    }

    /// Returns the units used in the window.
    #[must_use]
    pub fn used(self) -> u64 {
        u64::from(self.used)
    }

    /// Moves the end of the window `micros` microseconds later.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.ends = self.ends.saturating_add(micros);
    }
}

impl FixedWindow {
    /// Creates a counter that admits the quota's count in each window.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] if the count is 0, if the quota has a burst, or if its period is not a whole number
    /// of milliseconds from 1 ms to 366 days; for [`WindowStart::Month`] also if the period is not a month.
    pub fn new(quota: Quota, start: WindowStart) -> Result<Self, Error> {
        let window = WindowQuota::new(quota)?;
        if start == WindowStart::Month && !MONTH_MILLIS.contains(&window.millis) {
            return Err(Error::new(
                ErrorKind::InvalidQuota,
                "windows by calendar month need a quota per month: use Quota::per_month(..)",
            ));
        }
        let quota_tag = quota_tag(window.millis, start);
        Ok(Self {
            window,
            start,
            quota_tag,
        })
    }

    /// Returns the most units that one window admits.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.window.limit
    }

    /// Returns the quota's period in milliseconds; calendar months can differ.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.window.millis
    }

    /// Returns the length of the longest window in milliseconds.
    pub(super) fn longest_millis(&self) -> u64 {
        match self.start {
            WindowStart::Clock | WindowStart::FirstHit => self.window.millis,
            WindowStart::Month => *MONTH_MILLIS.end(),
        }
    }

    /// Returns when the windows start.
    #[must_use]
    pub fn window_start(&self) -> WindowStart {
        self.start
    }

    /// Returns the tag of the quota that the state of a key contains.
    ///
    /// A hash of the windows' length and start: two configurations have equal tags with a probability of 1 in 65,536.
    #[must_use]
    pub fn quota_tag(&self) -> u16 {
        self.quota_tag
    }

    /// Returns the state of a key with `used` units in the window until `ends_at`.
    #[must_use]
    #[inline]
    pub fn state(&self, ends_at: Timestamp, used: u64) -> WindowState {
        WindowState {
            ends: ends_at.as_micros(),
            used: capped(used),
            quota_tag: self.quota_tag,
        }
    }

    /// Returns the window that is open at `now`, with the units used in it.
    #[inline]
    fn open(&self, state: &WindowState, now: Timestamp) -> WindowState {
        let is_open = state.ends_at() > now;
        if is_open && state.quota_tag == self.quota_tag {
            return *state;
        }
        self.state(self.end(now), if is_open { state.used() } else { 0 })
    }

    /// Returns the end of the window at `now`, which a request may open.
    fn end(&self, now: Timestamp) -> Timestamp {
        let (now, length) = (now.as_micros(), self.window.millis * 1_000);
        Timestamp::from_micros(match self.start {
            WindowStart::Clock => now - now % length + length,
            WindowStart::FirstHit => now + length,
            WindowStart::Month => month_end(now / 1_000) * 1_000,
        })
    }
}

impl Counting for FixedWindow {
    type State = WindowState;

    fn adopt(&self, state: &mut WindowState, now: Timestamp) {
        if state.quota_tag != self.quota_tag && state.ends_at() > now {
            *state = self.open(state, now);
        }
    }

    #[inline]
    fn admits(&self, state: &WindowState, now: Timestamp, cost: u64) -> bool {
        cost == 0 || self.open(state, now).used().saturating_add(cost) <= self.window.limit
    }

    #[inline]
    fn charge(&self, state: &mut WindowState, now: Timestamp, cost: u64) {
        let open = self.open(state, now);
        *state = self.state(open.ends_at(), open.used().saturating_add(cost));
    }

    fn charge_denied(&self, state: &mut WindowState, now: Timestamp, cost: u64) {
        let open = self.open(state, now);
        let most = open.used().max(self.window.limit);
        *state = self.state(open.ends_at(), open.used().saturating_add(cost).min(most));
    }

    fn merge(&self, state: &mut WindowState, now: Timestamp, admitted: Admitted) {
        let mut open = self.open(state, now);
        if self.start == WindowStart::FirstHit && state.ends_at() <= now {
            // The window that the units were admitted in may be unknown here.
            open = self.state(admitted.until, 0);
        }
        let added = admitted.part_within(now, open.used(), self.window.limit);
        if added > 0 {
            *state = self.state(open.ends_at(), open.used() + added);
        }
    }

    fn refund(
        &self,
        state: &mut WindowState,
        _refunded: &mut Refunded,
        now: Timestamp,
        mark: RefundToken,
        units: u64,
    ) {
        let is_open = state.ends_at() > now;
        if is_open && state.quota_tag == self.quota_tag && state.ends_at() == mark.reset_at {
            *state = self.state(state.ends_at(), state.used().saturating_sub(units));
        }
    }

    #[inline]
    fn usage(&self, state: &WindowState, now: Timestamp) -> Usage {
        let open = self.open(state, now);
        let limit = self.window.limit;
        let reset_at = if open.used == 0 { now } else { open.ends_at() };
        Usage::new(limit, limit.saturating_sub(open.used()), reset_at)
    }

    fn retry(&self, state: &WindowState, now: Timestamp, cost: u64) -> Retry {
        if cost > self.window.limit {
            return Retry::Never;
        }
        Retry::At(self.open(state, now).ends_at())
    }

    #[inline]
    fn owes_until(state: &WindowState) -> u64 {
        state.ends
    }

    fn restored(&self, usage: Usage, _now: Timestamp) -> WindowState {
        let used = self.window.limit.saturating_sub(usage.remaining);
        self.state(usage.reset_at, used)
    }

    fn exhausted(&self, until: Timestamp) -> WindowState {
        self.state(until, self.window.limit)
    }
}

/// Returns 16 bits of FNV-1a over the length and the start of windows.
fn quota_tag(millis: u64, start: WindowStart) -> u16 {
    let start = match start {
        WindowStart::Clock => 0_u8,
        WindowStart::FirstHit => 1,
        WindowStart::Month => 2,
    };
    let hash = millis
        .to_be_bytes()
        .into_iter()
        .chain([start])
        .fold(0x811C_9DC5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    let [a, b, c, d] = hash.to_be_bytes();
    u16::from_be_bytes([a ^ c, b ^ d])
}

/// 28 to 31 days.
const MONTH_MILLIS: RangeInclusive<u64> = 28 * 86_400_000..=31 * 86_400_000;
