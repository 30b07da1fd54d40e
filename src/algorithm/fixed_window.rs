//! The fixed window: one counter that starts from 0 with each window.
//!
//! # Bounds
//!
//! At most the limit passes in one window, so at most twice the limit in any span as long as a window: the end of one
//! and the beginning of the next may lie close together. A window is exactly as long as its quota's period, to the
//! microsecond, and a calendar month as long as that month: nobody waits longer.

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
    quota::Quota,
    state::{Retry, Usage},
};

use super::{
    calendar::month_end,
    choice::WindowStart,
    counting::{ChargeMark, Counting},
    window::{Window, capped},
};

/// A quota made ready for counting in fixed windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    window: Window,
    opening: WindowStart,
    shape: u16,
}

/// How much was used in a window, and when it closes.
///
/// Packed, so that a key takes 28 bytes of the in-process store and not 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct WindowState {
    /// Microseconds since the Unix epoch.
    closes: u64,
    used: u32,
    /// Under which length and opening it was opened.
    shape: u16,
}

impl WindowState {
    /// When the window closes.
    #[must_use]
    pub fn closes(self) -> Timestamp {
        Timestamp::from_micros(self.closes)
    }

    /// Units used in it.
    #[must_use]
    pub fn used(self) -> u64 {
        u64::from(self.used)
    }

    /// Moves the window forwards by so many microseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        self.closes = self.closes.saturating_add(micros);
    }
}

impl FixedWindow {
    /// Windows that follow each other as `opening` says, with the quota's count in each.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidQuota`] when the quota is nothing, has a burst, or is no whole number of milliseconds from 1
    /// to 366 days long; for [`WindowStart::Month`] when its period is no month.
    pub fn new(quota: Quota, opening: WindowStart) -> Result<Self, Error> {
        let window = Window::new(quota)?;
        if opening == WindowStart::Month && !MONTH.contains(&window.millis) {
            return Err(Error::new(
                ErrorKind::InvalidQuota,
                "a calendar month takes a quota per month: say Quota::per_month(..)",
            ));
        }
        let shape = shape(window.millis, opening);
        Ok(Self {
            window,
            opening,
            shape,
        })
    }

    /// The most that can be taken in a window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.window.limit
    }

    /// The length of a window in milliseconds; of a month, the nominal one.
    #[must_use]
    pub fn millis(&self) -> u64 {
        self.window.millis
    }

    /// When its windows open.
    #[must_use]
    pub fn opening(&self) -> WindowStart {
        self.opening
    }

    /// A number that differs between windows of different length or opening, but for one chance in 65,536.
    #[must_use]
    pub fn shape(&self) -> u16 {
        self.shape
    }

    /// The state of a key that used so much of the window that closes then.
    #[must_use]
    #[inline]
    pub fn state(&self, closes: Timestamp, used: u64) -> WindowState {
        WindowState {
            closes: closes.as_micros(),
            used: capped(used),
            shape: self.shape,
        }
    }

    /// The window that is open at `now`, with what is used of it.
    #[inline]
    fn open(&self, state: &WindowState, now: Timestamp) -> WindowState {
        let is_open = state.closes() > now;
        if is_open && state.shape == self.shape {
            return *state;
        }
        self.state(self.closing(now), if is_open { state.used() } else { 0 })
    }

    /// When the window that is open now closes, or one that opens now.
    fn closing(&self, now: Timestamp) -> Timestamp {
        let (now, length) = (now.as_micros(), self.window.millis * 1_000);
        Timestamp::from_micros(match self.opening {
            WindowStart::Clock => now - now % length + length,
            WindowStart::FirstHit => now + length,
            WindowStart::Month => month_end(now / 1_000) * 1_000,
        })
    }
}

impl Counting for FixedWindow {
    type State = WindowState;

    fn adopt(&self, state: &mut WindowState, now: Timestamp) {
        if state.shape != self.shape && state.closes() > now {
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
        *state = self.state(open.closes(), open.used().saturating_add(cost));
    }

    fn penalise(&self, state: &mut WindowState, now: Timestamp, cost: u64) {
        let open = self.open(state, now);
        let most = open.used().max(self.window.limit);
        *state = self.state(open.closes(), open.used().saturating_add(cost).min(most));
    }

    fn overcharge(&self, state: &mut WindowState, now: Timestamp, cost: u64) {
        self.charge(state, now, cost);
    }

    fn refund(
        &self,
        state: &mut WindowState,
        _returned: &mut u64,
        now: Timestamp,
        mark: ChargeMark,
        units: u64,
    ) {
        let is_open = state.closes() > now;
        if is_open && state.shape == self.shape && state.closes() == mark.made {
            *state = self.state(state.closes(), state.used().saturating_sub(units));
        }
    }

    #[inline]
    fn usage(&self, state: &WindowState, now: Timestamp) -> Usage {
        let open = self.open(state, now);
        let limit = self.window.limit;
        let reset_at = match open.used {
            0 => now,
            _ => open.closes(),
        };
        Usage::new(limit, limit.saturating_sub(open.used()), reset_at)
    }

    fn retry(&self, state: &WindowState, now: Timestamp, cost: u64) -> Retry {
        if cost > self.window.limit {
            return Retry::Never;
        }
        Retry::At(self.open(state, now).closes())
    }

    #[inline]
    fn owes_until(state: &WindowState) -> u64 {
        state.closes
    }

    fn spent(&self, until: Timestamp) -> WindowState {
        self.state(until, self.window.limit)
    }
}

/// 16 bits of FNV-1a over what tells one way of opening windows from another.
fn shape(millis: u64, opening: WindowStart) -> u16 {
    let mark = match opening {
        WindowStart::Clock => 0_u8,
        WindowStart::FirstHit => 1,
        WindowStart::Month => 2,
    };
    let hash = millis
        .to_be_bytes()
        .into_iter()
        .chain([mark])
        .fold(0x811C_9DC5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    let [a, b, c, d] = hash.to_be_bytes();
    u16::from_be_bytes([a ^ c, b ^ d])
}

/// Milliseconds of 28 to 31 days.
const MONTH: std::ops::RangeInclusive<u64> = 28 * 86_400_000..=31 * 86_400_000;
