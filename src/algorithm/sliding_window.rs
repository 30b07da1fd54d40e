//! The sliding window counter: the current window's count, plus the weighted count of the previous one.
//!
//! # Where the arithmetic comes from
//!
//! Cloudflare described it in 2017 ("How we built rate limiting capable of scaling to millions of domains"). The
//! requests of the previous window are assumed to be spread evenly over it: when a quarter of the current window has
//! passed, three quarters of them count.
//!
//! # Bounds
//!
//! - The estimate never exceeds the limit. The true number in the last period can exceed it, if most requests of the
//!   previous window came at its end: with a limit of `n`, up to `2n - 1` lie in one period, and those of the current
//!   window are spread over it. Around a window boundary, where a fixed window admits `2n` at once, at most `n` pass.
//!   [`Algorithm::SlidingLog`](super::Algorithm) is exact.
//! - The weight changes in steps of a *tick*: the shortest of 1 us, 10 us, 100 us and 1 ms for which limit times period
//!   is below 2^52, so that the Lua twin counts exactly in doubles. Rounding is against the client.

use super::quota::Quota;
use crate::{
    clock::Timestamp,
    decision::{Retry, Usage},
    error::{Error, ErrorKind},
};

use super::{
    counting::{Admitted, Counting, RefundToken, Refunded, rescale},
    window::{WindowQuota, capped},
};

/// A quota that is counted in a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    pub(super) window: WindowQuota,
    /// Microseconds in a tick.
    tick: u64,
}

/// The units used in the current window and in the previous one.
///
/// Packed: a key takes 36 bytes of the in-process store instead of 40.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct SlidingState {
    /// End of the current window, in milliseconds since the Unix epoch.
    ends: u64,
    /// Units used in the previous window.
    previous: u32,
    /// Units used in the current window.
    current: u32,
    /// Length of both windows in milliseconds.
    millis: u64,
}

impl SlidingWindow {
    /// Creates a counter that admits the quota's count per period, by an estimate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] if the count is 0, if the quota has a burst, if its period is not a whole number of
    /// milliseconds from 1 ms to 366 days, or if count times period is 2^52 ms or more.
    pub fn new(quota: Quota) -> Result<Self, Error> {
        let window = WindowQuota::new(quota)?;
        let fits = |tick: &u64| {
            let ticks = window.millis * 1_000 / tick;
            let product = window.limit.checked_mul(ticks);
            product.is_some_and(|product| product < EXACT)
        };
        match [1, 10, 100, 1_000].into_iter().find(fits) {
            Some(tick) => Ok(Self { window, tick }),
            None => Err(Error::new(
                ErrorKind::InvalidQuota,
                "count times period is too large for a sliding window: shorten the period, or divide the count and the cost",
            )),
        }
    }

    /// Returns the most units that the estimate admits per period.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.window.limit
    }

    /// Returns the length of a window in milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.window.millis
    }

    /// Returns the tick in microseconds: the weight of the previous window changes once per tick.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Returns the state of a key from the units used in both windows.
    ///
    /// `ends` is the end of the current window in milliseconds since the Unix epoch.
    #[must_use]
    #[inline]
    pub fn state(&self, ends: u64, previous: u64, current: u64) -> SlidingState {
        SlidingState {
            ends,
            previous: capped(previous),
            current: capped(current),
            millis: self.window.millis,
        }
    }

    /// Returns the windows at `now`, after a change of length or a rollover.
    #[inline]
    fn rolled(&self, state: &SlidingState, now: Timestamp) -> SlidingState {
        let millis = self.window.millis;
        if state.millis != millis {
            return self.state(self.end(now), 0, state.estimate(now));
        }
        state
            .rolled(now)
            .unwrap_or_else(|| self.state(self.end(now), 0, 0))
    }

    /// Returns the end of the window that contains `now`, in milliseconds.
    fn end(&self, now: Timestamp) -> u64 {
        let clock = now.as_micros() / 1_000;
        clock - clock % self.window.millis + self.window.millis
    }

    /// Returns the number of ticks in a window.
    #[inline]
    fn ticks(&self) -> u64 {
        self.window.millis * 1_000 / self.tick
    }

    /// Returns the ticks until the current window ends: the weight of the previous one.
    ///
    /// The weight is a full window while the current one has not started.
    #[inline]
    fn ticks_left(&self, rolled: &SlidingState, now: Timestamp) -> u64 {
        let passed = now.as_micros().saturating_sub(rolled.starts_micros()) / self.tick;
        self.ticks().saturating_sub(passed)
    }

    /// Caps a count at the limit, which may have been lowered since.
    ///
    /// The count then blocks no key for longer, and its product with the ticks of a window is exact in a double.
    #[inline]
    fn capped_at_limit(&self, count: u64) -> u64 {
        count.min(self.window.limit)
    }

    /// Returns the estimate of the units used at `now`, rounded up.
    #[inline]
    fn used(&self, rolled: &SlidingState, now: Timestamp) -> u64 {
        let weighted =
            self.capped_at_limit(u64::from(rolled.previous)) * self.ticks_left(rolled, now);
        u64::from(rolled.current) + weighted.div_ceil(self.ticks())
    }
}

impl Counting for SlidingWindow {
    type State = SlidingState;

    fn adopt(&self, state: &mut SlidingState, now: Timestamp) {
        // A state without units stays as it is, or its window would pass for an open one.
        if state.millis != self.window.millis && state.estimate(now) > 0 {
            *state = self.rolled(state, now);
        }
    }

    #[inline]
    fn admits(&self, state: &SlidingState, now: Timestamp, cost: u64) -> bool {
        // Rounding the weighted count up is as strict as comparing fractions, since all other terms are whole.
        cost == 0
            || self
                .used(&self.rolled(state, now), now)
                .saturating_add(cost)
                <= self.window.limit
    }

    #[inline]
    fn charge(&self, state: &mut SlidingState, now: Timestamp, cost: u64) {
        *state = self.rolled(state, now);
        state.current = capped(u64::from(state.current).saturating_add(cost));
    }

    fn charge_denied(&self, state: &mut SlidingState, now: Timestamp, cost: u64) {
        *state = self.rolled(state, now);
        let current = u64::from(state.current);
        let most = current.max(self.window.limit);
        state.current = capped(current.saturating_add(cost).min(most));
    }

    fn merge(&self, state: &mut SlidingState, now: Timestamp, admitted: Admitted) {
        let used = self.used(&self.rolled(state, now), now);
        let added = admitted.part_within(now, used, self.window.limit);
        if added > 0 {
            self.charge(state, now, added);
        }
    }

    fn refund(
        &self,
        state: &mut SlidingState,
        _refunded: &mut Refunded,
        now: Timestamp,
        mark: RefundToken,
        units: u64,
    ) {
        if state.millis != self.window.millis {
            return;
        }
        let Some(rolled) = state.rolled(now) else {
            return;
        };
        let (previous, current) = (u64::from(rolled.previous), u64::from(rolled.current));
        let reset_at = mark.reset_at.as_micros();
        if current > 0 && (rolled.ends + rolled.millis) * 1_000 == reset_at {
            *state = self.state(rolled.ends, previous, current.saturating_sub(units));
        } else if previous > 0 && rolled.ends * 1_000 == reset_at {
            *state = self.state(rolled.ends, previous.saturating_sub(units), current);
        }
    }

    #[inline]
    fn usage(&self, state: &SlidingState, now: Timestamp) -> Usage {
        let rolled = self.rolled(state, now);
        let limit = self.window.limit;
        let reset_at = Timestamp::from_micros(rolled.owes_until()).max(now);
        Usage::new(
            limit,
            limit.saturating_sub(self.used(&rolled, now)),
            reset_at,
        )
    }

    fn retry(&self, state: &SlidingState, now: Timestamp, cost: u64) -> Retry {
        let limit = self.window.limit;
        if cost > limit {
            return Retry::Never;
        }
        let rolled = self.rolled(state, now);
        let current = u64::from(rolled.current);
        let wanted = current.saturating_add(cost);
        // Wait until the previous window weighs no more than the current one leaves of the limit. If the cost does not
        // fit beside the current window at all, wait until that one is the previous one and weighs little enough.
        let (starts, weighing, room) = if wanted <= limit {
            (
                rolled.starts_micros(),
                u64::from(rolled.previous),
                limit - wanted,
            )
        } else {
            (rolled.ends * 1_000, current, limit - cost)
        };
        let weighing = self.capped_at_limit(weighing);
        let fitting = (room * self.ticks()).checked_div(weighing);
        let max_weight = fitting.map_or(self.ticks(), |ticks| ticks.min(self.ticks()));
        let at = starts + (self.ticks() - max_weight) * self.tick;
        Retry::At(Timestamp::from_micros(at).max(now))
    }

    #[inline]
    fn owes_until(state: &SlidingState) -> u64 {
        state.owes_until()
    }

    fn restored(&self, usage: Usage, now: Timestamp) -> SlidingState {
        let used = self.window.limit.saturating_sub(usage.remaining);
        let back = usage.reset_at.as_micros() / 1_000;
        let ends = back.saturating_sub(self.window.millis);
        let now = now.as_micros() / 1_000;
        if used == 0 || back <= now {
            return SlidingState::default();
        }
        if now < ends {
            // As if all units were used in the current window.
            return self.state(ends, 0, used);
        }
        // Only the previous window counts, by the part of the current one that is left.
        let weighed = u128::from(used) * u128::from(self.window.millis);
        let previous = weighed.div_ceil(u128::from(back - now));
        self.state(back, u64::try_from(previous).unwrap_or(u64::MAX), 0)
    }

    fn exhausted(&self, until: Timestamp) -> SlidingState {
        self.state(until.as_micros().div_ceil(1_000), self.window.limit, 0)
    }
}

impl SlidingState {
    /// Moves both windows `micros` microseconds later, rounded up to milliseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.ends = self.ends.saturating_add(micros.div_ceil(1_000));
    }

    /// Returns the windows at `now`; `None` if neither counts any more.
    #[inline]
    fn rolled(&self, now: Timestamp) -> Option<Self> {
        let clock = now.as_micros() / 1_000;
        if clock < self.ends {
            return Some(*self);
        }
        (clock < self.ends + self.millis).then_some(Self {
            ends: self.ends + self.millis,
            previous: self.current,
            current: 0,
            millis: self.millis,
        })
    }

    /// Returns the estimate at `now` under the length of the state, not of the quota.
    fn estimate(&self, now: Timestamp) -> u64 {
        let Some(rolled) = self.rolled(now) else {
            return 0;
        };
        let clock = now.as_micros() / 1_000;
        let left = (rolled.ends - clock).min(rolled.millis);
        u64::from(rolled.current) + rescale(u64::from(rolled.previous), left, rolled.millis)
    }

    #[inline]
    fn owes_until(&self) -> u64 {
        let millis = match (self.current, self.previous) {
            (0, 0) => 0,
            (0, 1..) => self.ends,
            (1.., _) => self.ends + self.millis,
        };
        millis.saturating_mul(1_000)
    }

    #[inline]
    fn starts_micros(&self) -> u64 {
        self.ends.saturating_sub(self.millis) * 1_000
    }
}

/// Products below this are exact in a double, with room for an addition.
const EXACT: u64 = 1 << 52;
