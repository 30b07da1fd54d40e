//! Where a limiter takes the time from.
//!
//! A program needs nothing of this: [`Clock::system`] is the default. With the feature `test-util`, tests move a clock of
//! their own by hand ([`Clock::manual`](Clock), then `advance`), and wait for nothing.

use std::{
    ops::{Add, Sub},
    sync::LazyLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

#[cfg(feature = "test-util")]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Where a limiter takes the time from.
///
/// [`Clock::system`] is anchored to the wall clock once per process and then runs on the monotonic clock: a
/// stepped wall clock neither forgives nor freezes anyone.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    source: Source,
}

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    #[cfg(feature = "test-util")]
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock. This is the default.
    #[must_use]
    pub const fn system() -> Self {
        Self {
            source: Source::System,
        }
    }

    /// A clock that stands at `start` until it is moved with [`set`](Self::set) or [`advance`](Self::advance).
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self {
            source: Source::Manual(Arc::new(AtomicU64::new(start.0))),
        }
    }

    /// The time now.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.source {
            Source::System => ANCHOR.wall + ANCHOR.monotonic.elapsed(),
            #[cfg(feature = "test-util")]
            Source::Manual(micros) => Timestamp(micros.load(Ordering::Relaxed)),
        }
    }

    /// Moves a manual clock, and every clone of it, forwards.
    ///
    /// # Panics
    ///
    /// Panics when this is the system clock.
    #[cfg(feature = "test-util")]
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// Sets a manual clock, and every clone of it, to any time.
    ///
    /// # Panics
    ///
    /// Panics when this is the system clock.
    #[cfg(feature = "test-util")]
    pub fn set(&self, to: Timestamp) {
        match &self.source {
            Source::System => panic!("the system clock cannot be moved: use Clock::manual"),
            Source::Manual(micros) => micros.store(to.0, Ordering::Relaxed),
        }
    }
}

// === Timestamp ===

/// A point in time: whole microseconds since the Unix epoch.
///
/// Redis' `TIME` has this resolution, and such numbers stay exact in a Lua double (2^53) until the year 2255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The point `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded up: never earlier than the point itself.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The time from `earlier` to here, or zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }
}

/// Whole microseconds of a duration, rounded down, at most `u64::MAX`.
#[inline]
pub(crate) fn micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(duration.subsec_micros()))
}

struct Anchor {
    wall: Timestamp,
    monotonic: Instant,
}

static ANCHOR: LazyLock<Anchor> = LazyLock::new(|| Anchor {
    wall: Timestamp(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, micros),
    ),
    monotonic: Instant::now(),
});
