//! The sliding window counter: this window's count, and the last one's weighted by how much of it is still near.
//!
//! # Where the arithmetic comes from
//!
//! Cloudflare described it in 2017 ("How we built rate limiting capable of scaling to millions of domains"): the
//! requests of the last window are taken as spread evenly over it, so when a quarter of this window has passed, three
//! quarters of them count.
//!
//! # Bounds
//!
//! - What it estimates at any moment is at most the limit. The true number in the last period can be above the estimate
//!   when the last window's requests came late in it: at a limit of `n` up to `2n - 1` lie in one period, of which those
//!   of the younger window are spread over it. At an edge, where a fixed window lets `2n` pass at once, it is `n`.
//!   [`Algorithm::SlidingLog`](super::Algorithm) is exact.
//! - The weight moves in steps of a *tick*: the least of 1 us, 10 us, 100 us and 1 ms with which limit times period
//!   stays below 2^52, so that the Lua twin counts exactly in doubles. It is rounded against the caller.

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    quota::Quota,
    state::{Retry, Usage},
};

use super::{
    counting::{ChargeMark, Counting},
    share::share,
    window::{Window, capped},
};

/// A quota made ready for counting in a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    window: Window,
    /// Microseconds in a tick.
    tick: u64,
}

/// What was used in a window and in the one before it.
///
/// Packed, so that a key takes 36 bytes of the in-process store and not 40.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct SlidingState {
    /// When the younger window closes, in milliseconds since the Unix epoch.
    closes: u64,
    /// Units used in the elder window.
    before: u32,
    /// Units used in the younger window.
    within: u32,
    /// The length of both in milliseconds.
    millis: u64,
}

impl SlidingWindow {
    /// A window as long as the quota's period, with the quota's count in it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] when the quota is nothing, has a burst, is no whole number of milliseconds from 1 to
    /// 366 days long, or counts so much in so long a period that the product is above 2^52 milliseconds.
    pub fn new(quota: Quota) -> Result<Self, Error> {
        let window = Window::new(quota)?;
        let fits = |tick: &u64| window.limit * (window.millis * 1_000 / tick) < EXACT;
        match [1, 10, 100, 1_000].into_iter().find(fits) {
            Some(tick) => Ok(Self { window, tick }),
            None => Err(Error::new(
                ErrorKind::InvalidQuota,
                "so large a count in so long a sliding window: shorten the period, or divide the count and the cost",
            )),
        }
    }

    /// The most that can be taken in a window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.window.limit
    }

    /// The length of the window in milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.window.millis
    }

    /// Microseconds in which the elder window's weight stays the same.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// The state of a key that used so much of the window that closes then, in milliseconds since the Unix epoch, and
    /// of the one before.
    #[must_use]
    #[inline]
    pub fn state(&self, closes: u64, before: u64, within: u64) -> SlidingState {
        SlidingState {
            closes,
            before: capped(before),
            within: capped(within),
            millis: self.window.millis,
        }
    }

    /// The windows as they stand at `now`.
    #[inline]
    fn rolled(&self, state: &SlidingState, now: Timestamp) -> SlidingState {
        let millis = self.window.millis;
        if state.millis != millis {
            return self.state(self.closing(now), 0, state.estimate(now));
        }
        state
            .rolled(now)
            .unwrap_or_else(|| self.state(self.closing(now), 0, 0))
    }

    fn closing(&self, now: Timestamp) -> u64 {
        let clock = now.as_micros() / 1_000;
        clock - clock % self.window.millis + self.window.millis
    }

    /// Ticks in a window.
    #[inline]
    fn ticks(&self) -> u64 {
        self.window.millis * 1_000 / self.tick
    }

    /// Ticks until the younger window closes: so many of the elder's still count. All of them while it has not opened.
    #[inline]
    fn ticks_left(&self, rolled: &SlidingState, now: Timestamp) -> u64 {
        let passed = now.as_micros().saturating_sub(rolled.opens_micros()) / self.tick;
        self.ticks().saturating_sub(passed)
    }

    /// A count that is above the limit because that was lowered is no more than all of it: it then keeps nobody out for
    /// longer, and stays exact in a double when multiplied by the ticks of a window.
    #[inline]
    fn bounded(&self, count: u64) -> u64 {
        count.min(self.window.limit)
    }

    /// What is used at `now` by the estimate, rounded up.
    #[inline]
    fn used(&self, rolled: &SlidingState, now: Timestamp) -> u64 {
        let elder = self.bounded(u64::from(rolled.before)) * self.ticks_left(rolled, now);
        u64::from(rolled.within) + elder.div_ceil(self.ticks())
    }
}

impl Counting for SlidingWindow {
    type State = SlidingState;

    fn adopt(&self, state: &mut SlidingState, now: Timestamp) {
        // What owes nothing stays as it is: a window without units must not be taken for an open one.
        if state.millis != self.window.millis && state.estimate(now) > 0 {
            *state = self.rolled(state, now);
        }
    }

    #[inline]
    fn admits(&self, state: &SlidingState, now: Timestamp, cost: u64) -> bool {
        // Rounding the elder's share up asks no more than comparing the fractions would: all else is whole.
        cost == 0
            || self
                .used(&self.rolled(state, now), now)
                .saturating_add(cost)
                <= self.window.limit
    }

    #[inline]
    fn charge(&self, state: &mut SlidingState, now: Timestamp, cost: u64) {
        *state = self.rolled(state, now);
        state.within = capped(u64::from(state.within).saturating_add(cost));
    }

    fn penalise(&self, state: &mut SlidingState, now: Timestamp, cost: u64) {
        *state = self.rolled(state, now);
        let within = u64::from(state.within);
        let most = within.max(self.window.limit);
        state.within = capped(within.saturating_add(cost).min(most));
    }

    fn overcharge(&self, state: &mut SlidingState, now: Timestamp, cost: u64) {
        self.charge(state, now, cost);
    }

    fn refund(
        &self,
        state: &mut SlidingState,
        _returned: &mut u64,
        now: Timestamp,
        mark: ChargeMark,
        units: u64,
    ) {
        if state.millis != self.window.millis {
            return;
        }
        let Some(rolled) = state.rolled(now) else {
            return;
        };
        let (before, within) = (u64::from(rolled.before), u64::from(rolled.within));
        let made = mark.made.as_micros();
        if within > 0 && (rolled.closes + rolled.millis) * 1_000 == made {
            *state = self.state(rolled.closes, before, within.saturating_sub(units));
        } else if before > 0 && rolled.closes * 1_000 == made {
            *state = self.state(rolled.closes, before.saturating_sub(units), within);
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
        let within = u64::from(rolled.within);
        let wanted = within.saturating_add(cost);
        // The elder must have shrunk to what the younger leaves of the limit; or else, one window on, the younger.
        let (opens, elder, room) = if wanted <= limit {
            (
                rolled.opens_micros(),
                u64::from(rolled.before),
                limit - wanted,
            )
        } else {
            (rolled.closes * 1_000, within, limit - cost)
        };
        let elder = self.bounded(elder);
        let most_left = match elder {
            0 => self.ticks(),
            _ => (room * self.ticks() / elder).min(self.ticks()),
        };
        let at = opens + (self.ticks() - most_left) * self.tick;
        Retry::At(Timestamp::from_micros(at).max(now))
    }

    #[inline]
    fn owes_until(state: &SlidingState) -> u64 {
        state.owes_until()
    }

    fn spent(&self, until: Timestamp) -> SlidingState {
        self.state(until.as_micros().div_ceil(1_000), self.window.limit, 0)
    }
}

impl SlidingState {
    /// Moves both windows forwards by so many microseconds, rounded up to milliseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.closes = self.closes.saturating_add(micros.div_ceil(1_000));
    }

    /// The windows at `now` when it lies in or before them, or in the next one.
    #[inline]
    fn rolled(&self, now: Timestamp) -> Option<Self> {
        let clock = now.as_micros() / 1_000;
        if clock < self.closes {
            return Some(*self);
        }
        (clock < self.closes + self.millis).then_some(Self {
            closes: self.closes + self.millis,
            before: self.within,
            within: 0,
            millis: self.millis,
        })
    }

    /// What is used at `now`, for whom the length of the window has changed.
    fn estimate(&self, now: Timestamp) -> u64 {
        let Some(rolled) = self.rolled(now) else {
            return 0;
        };
        let clock = now.as_micros() / 1_000;
        let left = (rolled.closes - clock).min(rolled.millis);
        u64::from(rolled.within) + share(u64::from(rolled.before), left, rolled.millis)
    }

    #[inline]
    fn owes_until(&self) -> u64 {
        let closes = match (self.within, self.before) {
            (0, 0) => 0,
            (0, _) => self.closes,
            _ => self.closes + self.millis,
        };
        closes.saturating_mul(1_000)
    }

    #[inline]
    fn opens_micros(&self) -> u64 {
        self.closes.saturating_sub(self.millis) * 1_000
    }
}

/// Products below this are exact in a double, with room for an addition.
const EXACT: u64 = 1 << 52;
