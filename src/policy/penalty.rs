//! Penalties: when a policy bans a key, and for how long.
//!
//! # Why is a ban a second key?
//!
//! Each algorithm stores the state of a key in its own form, such as a string, a ring that is changed in place, or a
//! sorted set. A ban inside would be one more part of each form, read and written with every charge. It would also end
//! with the state: a bucket is forgotten when it is full, while a ban, and the number of bans before it, outlast that
//! by hours. So a penalty has a second key in the same slot, and `lua/penalty.lua` works for all algorithms. Only a
//! denial that counts writes it, and a request during a ban writes nothing. The exception is the first request after
//! the clock was set back to before the begin of the ban, which lets the ban begin again: with a bound that moved along
//! with each request, the ban would last as long as the step.
//!
//! A ban stores when it began. So a penalty with a shorter longest ban ends it at one time for all requests, and operators see
//! since when a key is banned. A request during a ban is not counted as a denial. Otherwise a client that retries without a pause
//! would never be free.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
};

/// When a policy bans a key, and for how long.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Policy, Quota, policy::Penalty};
///
/// let minute = Duration::from_secs(60);
/// let login = Policy::new("login", Quota::per_minute(5)).penalty(
///     Penalty::after(10, minute)
///         .ban(5 * minute)
///         .growing(2, 60 * minute)
///         .forgiven_after(60 * minute),
/// );
/// assert!(login.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    denials: u32,
    within: Duration,
    ban: Duration,
    factor: u32,
    longest: Duration,
    forgiven_after: Duration,
    /// Whether failures lead to the bans, and no denials: the penalty is a [`Backoff`](super::Backoff).
    is_backoff: bool,
}

impl Penalty {
    /// The longest time in a penalty: 366 days.
    pub const MAX_DURATION: Duration = Duration::from_secs(366 * 86_400);
    /// The most denials before a ban.
    pub const MAX_DENIALS: u32 = 1_000_000;
    /// The largest factor by which bans grow.
    pub const MAX_FACTOR: u32 = 100;

    /// Bans a key with this many denials within this time, counted from the first of them.
    #[must_use]
    pub const fn after(denials: u32, within: Duration) -> Self {
        Self {
            denials,
            within,
            ban: Duration::from_secs(60),
            factor: 2,
            longest: Duration::from_secs(3_600),
            forgiven_after: Duration::from_secs(3_600),
            is_backoff: false,
        }
    }

    /// Bans a key with each failure, and with no denial.
    pub(super) const fn by_failures(first: Duration, longest: Duration) -> Self {
        Self {
            denials: 1,
            within: first,
            ban: first,
            factor: 2,
            longest,
            forgiven_after: longest,
            is_backoff: true,
        }
    }

    /// Returns whether failures lead to the bans, and no denials.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_backoff(&self) -> bool {
        self.is_backoff
    }

    /// Sets the length of the first ban.
    ///
    /// Default: 1 minute.
    #[must_use]
    pub const fn ban(mut self, length: Duration) -> Self {
        self.ban = length;
        self
    }

    /// Sets how many times as long each further ban is, and the longest one.
    ///
    /// Default: twice, up to an hour. With a factor of 1, all bans are equally long.
    #[must_use]
    pub const fn growing(mut self, factor: u32, longest: Duration) -> Self {
        (self.factor, self.longest) = (factor, longest);
        self
    }

    /// Sets how long after its last denial, or after the end of its ban, a key is forgiven.
    ///
    /// Default: 1 hour.
    #[must_use]
    pub const fn forgiven_after(mut self, time: Duration) -> Self {
        self.forgiven_after = time;
        self
    }

    /// Returns the number of denials before a ban.
    #[must_use]
    #[doc(hidden)]
    pub const fn denials(&self) -> u32 {
        self.denials
    }

    /// Returns the time within which denials are counted together.
    #[must_use]
    #[doc(hidden)]
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Returns the length of the first ban.
    #[must_use]
    #[doc(hidden)]
    pub const fn first_ban(&self) -> Duration {
        self.ban
    }

    /// Returns how many times as long each further ban is.
    #[must_use]
    #[doc(hidden)]
    pub const fn factor(&self) -> u32 {
        self.factor
    }

    /// Returns the length of the longest ban.
    #[must_use]
    #[doc(hidden)]
    pub const fn longest_ban(&self) -> Duration {
        self.longest
    }

    /// Returns how long after its last denial or ban a key is forgiven.
    #[must_use]
    #[doc(hidden)]
    pub const fn forgiveness(&self) -> Duration {
        self.forgiven_after
    }

    /// Checks the numbers and times.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] with a message about what to change.
    #[doc(hidden)]
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |message: &'static str| Err(Error::new(ErrorKind::InvalidPolicy, message));
        let [wrong_factor, wrong_times, wrong_order] = if self.is_backoff {
            BACKOFF_FAULTS
        } else {
            PENALTY_FAULTS
        };
        if self.denials == 0 || self.denials > Self::MAX_DENIALS {
            return invalid("a penalty after 0 or over 1,000,000 denials: set another number");
        }
        if self.factor == 0 || self.factor > Self::MAX_FACTOR {
            return invalid(wrong_factor);
        }
        let times = [self.within, self.ban, self.longest, self.forgiven_after];
        let is_usable = |time: &Duration| {
            *time >= Duration::from_millis(1)
                && *time <= Self::MAX_DURATION
                && time.subsec_nanos().is_multiple_of(1_000)
        };
        if !times.iter().all(is_usable) {
            return invalid(wrong_times);
        }
        if self.longest < self.ban {
            return invalid(wrong_order);
        }
        Ok(())
    }

    /// Returns when the ban of a key ends; `None` if it is not banned.
    #[must_use]
    #[doc(hidden)]
    pub fn banned_until(&self, state: &BanRecord, now: Timestamp) -> Option<Timestamp> {
        // A ban may have been made under other settings.
        let until = state.banned_until.min(state.counted_since + self.longest);
        (until > now && now < state.forgiven_at).then_some(until)
    }

    /// Lets a ban that begins after `now` begin at `now`, because the clock was set back. Returns whether it did.
    #[doc(hidden)]
    pub fn begin_by(&self, state: &mut BanRecord, now: Timestamp) -> bool {
        let is_later = state.counted_since > now && state.banned_until > now;
        if is_later {
            state.counted_since = now;
            state.banned_until = state.banned_until.min(now + self.longest);
            let forgiven_at = state.banned_until + self.forgiven_after;
            state.forgiven_at = state.forgiven_at.min(forgiven_at);
        }
        is_later
    }

    /// Counts a denial of a key that is not banned. Returns when its ban ends, if it is banned now.
    #[doc(hidden)]
    pub fn count_denial(&self, state: &mut BanRecord, now: Timestamp) -> Option<Timestamp> {
        if now >= state.forgiven_at {
            *state = BanRecord::default();
        }
        // If the clock was set back, the denials count from now on.
        state.counted_since = state.counted_since.min(now);
        if now >= state.counted_since + self.within || state.denials == 0 {
            (state.counted_since, state.denials) = (now, 0);
        }
        state.denials += 1;
        state.banned_until = Timestamp::default();
        let mut forgiven_at = now + self.forgiven_after;
        if state.denials >= self.denials {
            state.banned_until = now + self.length_of(state.bans);
            (state.counted_since, state.denials) = (now, 0);
            state.bans = state.bans.saturating_add(1);
            forgiven_at = state.banned_until + self.forgiven_after;
        }
        state.forgiven_at = state.forgiven_at.max(forgiven_at);
        (state.banned_until > now).then_some(state.banned_until)
    }

    /// Counts a failure of a key. Returns when the delay that begins with it ends.
    pub(crate) fn count_failure(&self, state: &mut BanRecord, now: Timestamp) -> Timestamp {
        if now >= state.forgiven_at {
            *state = BanRecord::default();
        }
        state.banned_until = now + self.length_of(state.bans);
        (state.counted_since, state.denials) = (now, 0);
        state.bans = state.bans.saturating_add(1);
        // Not the later of both: after a clock step, what was stored may be far in the future.
        state.forgiven_at = state.banned_until + self.forgiven_after;
        state.banned_until
    }

    /// Returns where a key stands, for an operator; `None` if it was not denied, or if all is forgiven.
    #[must_use]
    pub(crate) fn ban_status(&self, state: &BanRecord, now: Timestamp) -> Option<BanStatus> {
        let mut state = *state;
        self.begin_by(&mut state, now);
        if now >= state.forgiven_at {
            return None;
        }
        let banned_until = self.banned_until(&state, now);
        let is_counted = state.denials > 0 && now < state.counted_since + self.within;
        Some(BanStatus {
            banned_since: banned_until.map(|_| state.counted_since),
            banned_until,
            bans: state.bans.into(),
            denials: if is_counted { state.denials } else { 0 },
            forgiven_at: state.forgiven_at,
        })
    }

    /// Returns the length of a ban after so many others.
    fn length_of(&self, bans: u8) -> Duration {
        let mut length = self.ban;
        for _ in 0..bans {
            length *= self.factor;
            if length >= self.longest {
                return self.longest;
            }
        }
        length
    }

    /// Returns the numbers that the Lua twin needs, times in microseconds.
    #[cfg(feature = "redis")]
    pub(crate) fn arguments(&self) -> [u64; 6] {
        [
            if self.is_backoff {
                0
            } else {
                self.denials.into()
            },
            crate::clock::micros(self.within),
            crate::clock::micros(self.ban),
            self.factor.into(),
            crate::clock::micros(self.longest),
            crate::clock::micros(self.forgiven_after),
        ]
    }
}

/// Faults of a penalty: of its factor, its times, and their order.
const PENALTY_FAULTS: [&str; 3] = [
    "bans of a penalty grow by a factor from 1 to 100: with 1 all are equally long",
    "the times of a penalty are from 1 ms to 366 days, in whole microseconds: set others",
    "the longest ban of a penalty is shorter than the first: lengthen it by `growing`; it is an hour by default",
];
/// Those of a backoff.
const BACKOFF_FAULTS: [&str; 3] = [
    "delays of a backoff grow by a factor from 1 to 100: with 1 all are equally long",
    "the times of a backoff are from 1 ms to 366 days, in whole microseconds: set others",
    "the longest delay of a backoff is shorter than the first: lengthen it",
];

// === BanRecord ===

/// The denials and bans of one key under a policy with a penalty.
///
/// The default is that of a key that was not denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanRecord {
    /// When the first of the counted denials was. Of a banned key, when its ban began.
    counted_since: Timestamp,
    /// Denials since then that have not led to a ban.
    denials: u32,
    /// Number of bans that are not forgiven, at most 255.
    bans: u8,
    /// The end of the latest ban. The next denial that counts clears it.
    banned_until: Timestamp,
    /// When all of it is forgiven.
    forgiven_at: Timestamp,
}

impl BanRecord {
    /// Returns the state of a key that another store has banned, as was seen `now`.
    #[must_use]
    pub fn banned(penalty: &Penalty, until: Timestamp, now: Timestamp) -> Self {
        Self {
            counted_since: now,
            bans: 1,
            banned_until: until,
            forgiven_at: until + penalty.forgiven_after,
            ..Self::default()
        }
    }

    /// Returns when everything is forgiven.
    #[must_use]
    #[doc(hidden)]
    pub fn forgiven_at(&self) -> Timestamp {
        self.forgiven_at
    }

    /// Returns the end of the latest ban, which may be over.
    #[must_use]
    pub(crate) fn last_ban(&self) -> Timestamp {
        self.banned_until
    }

    /// Returns the state that the Lua twin has stored; `None` if it cannot have stored this.
    #[cfg(feature = "redis")]
    pub(crate) fn from_stored(bytes: &[u8], now: Timestamp) -> Option<Self> {
        let bytes: &[u8; STORED_BYTES] = bytes.try_into().ok()?;
        let number = |from: usize, to: usize| {
            let bytes = bytes[from..to].iter();
            bytes.fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let state = Self {
            counted_since: Timestamp::from_micros(number(0, 7)),
            denials: u32::try_from(number(7, 11)).ok()?,
            bans: bytes[11],
            banned_until: Timestamp::from_micros(number(12, 19)),
            forgiven_at: Timestamp::from_micros(number(19, 26)),
        };
        let is_time = state.forgiven_at >= EARLIEST && state.forgiven_at <= now + FURTHEST;
        is_time.then_some(state)
    }

    /// Forgets a ban that began by this time, at which another store has found none.
    pub(crate) fn end_by(&mut self, at: Timestamp) {
        if self.counted_since <= at && self.banned_until > at {
            *self = Self::default();
        }
    }

    /// Moves all times `micros` microseconds later.
    pub(crate) fn move_by(&mut self, micros: u64) {
        let by = Duration::from_micros(micros);
        for time in [
            &mut self.counted_since,
            &mut self.banned_until,
            &mut self.forgiven_at,
        ] {
            if *time > Timestamp::default() {
                *time = *time + by;
            }
        }
    }
}

/// Length of a stored state, as lua/penalty.lua packs it.
#[cfg(feature = "redis")]
const STORED_BYTES: usize = 26;
/// Stored times are between September 2001 and 35 years from now, as in lua/decide.lua.
#[cfg(feature = "redis")]
const EARLIEST: Timestamp = Timestamp::from_micros(1_000_000_000_000_000);
#[cfg(feature = "redis")]
const FURTHEST: Duration = Duration::from_micros(1 << 50);

// === BanStatus ===

/// Where a key stands under a policy with a penalty.
///
/// [`RateLimiter::ban_status`](crate::RateLimiter::ban_status) returns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanStatus {
    banned_since: Option<Timestamp>,
    banned_until: Option<Timestamp>,
    bans: u32,
    denials: u32,
    forgiven_at: Timestamp,
}

impl BanStatus {
    /// Returns whether the key is banned.
    #[must_use]
    pub fn is_banned(&self) -> bool {
        self.banned_until.is_some()
    }

    /// Returns when the ban began, or when this instance saw it if it does not come from here; `None` if the key is not banned.
    #[must_use]
    pub fn banned_since(&self) -> Option<Timestamp> {
        self.banned_since
    }

    /// Returns when the ban ends; `None` if the key is not banned.
    #[must_use]
    pub fn banned_until(&self) -> Option<Timestamp> {
        self.banned_until
    }

    /// Returns the number of bans that are not forgiven, with the present one: the step of the ladder. It stops at 255.
    #[must_use]
    pub fn bans(&self) -> u32 {
        self.bans
    }

    /// Returns the number of denials that count towards the next ban. It is 0 during a ban.
    #[must_use]
    pub fn denials(&self) -> u32 {
        self.denials
    }

    /// Returns when all is forgiven, unless the key is denied before.
    #[must_use]
    pub fn forgiven_at(&self) -> Timestamp {
        self.forgiven_at
    }
}
