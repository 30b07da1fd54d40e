//! Where a limiter takes the time from.
//!
//! A program needs nothing of this: [`Clock::system`] is the default. With the feature `test-util`, tests move a clock of
//! their own by hand ([`Clock::manual`](Clock), then `advance`), and wait for nothing.

use std::{
    ops::{Add, Sub},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

#[cfg(feature = "test-util")]
use std::sync::Arc;

/// Where a limiter takes the time from.
///
/// [`Clock::system`] reads the wall clock once per process and runs on the monotonic clock from there: a stepped wall
/// clock neither forgives nor freezes anyone.
///
/// Where the wall clock stood before 2020 at first, as on a machine that has not asked for the time yet, it is read until
/// it has been set. The clock then steps forwards, once. The times in the [in-process store](crate::memory) move with it,
/// so callers in debt wait as long as they would have.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    source: Source,
}

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    #[cfg(feature = "test-util")]
    Manual(Arc<Manual>),
}

#[cfg(feature = "test-util")]
#[derive(Debug)]
struct Manual {
    micros: AtomicU64,
    step: AtomicU64,
}

/// The time, and by how much the clock had stepped until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) now: Timestamp,
    /// In microseconds: the time without it has only ever run on.
    pub(crate) step: u64,
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
            source: Source::Manual(Arc::new(Manual {
                micros: AtomicU64::new(start.0),
                step: AtomicU64::new(0),
            })),
        }
    }

    /// The time now.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.read().now
    }

    /// The time now, and how the clock has stepped.
    #[inline]
    pub(crate) fn read(&self) -> Reading {
        match &self.source {
            Source::System => {
                let anchor = &*ANCHOR;
                anchor.read(anchor.started.elapsed(), wall)
            }
            #[cfg(feature = "test-util")]
            Source::Manual(manual) => Reading {
                now: Timestamp(manual.micros.load(Ordering::Acquire)),
                step: manual.step.load(Ordering::Relaxed),
            },
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
            Source::Manual(manual) => manual.micros.store(to.0, Ordering::Release),
        }
    }

    /// Steps a manual clock, and every clone of it, forwards as [`system`](Self::system) does when a wall clock that stood
    /// before 2020 is set: counts in process move with it.
    ///
    /// # Panics
    ///
    /// Panics when this is the system clock.
    #[cfg(feature = "test-util")]
    pub fn step(&self, by: Duration) {
        if let Source::Manual(manual) = &self.source {
            manual.step.fetch_add(micros(by), Ordering::Relaxed);
        }
        self.advance(by);
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

/// Returns whole seconds for `Retry-After`: rounded up, so that no client retries too early, and at least 1.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    seconds.max(1)
}

/// Whole microseconds of a duration, rounded down, at most `u64::MAX`.
#[inline]
pub(crate) fn micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(duration.subsec_micros()))
}

// === Anchor ===

/// The start of the system clock.
#[derive(Debug)]
struct Anchor {
    started: Instant,
    /// The wall clock at that moment.
    wall: Timestamp,
    /// By how much the time has stepped since; [`UNSET`] while the wall clock has not been set.
    step: AtomicU64,
}

impl Anchor {
    fn new(wall: Timestamp) -> Self {
        let step = if wall < PLAUSIBLE { UNSET } else { 0 };
        Self {
            started: Instant::now(),
            wall,
            step: AtomicU64::new(step),
        }
    }

    /// The time so long after the first reading. The wall clock is asked only while it has not been set.
    #[inline]
    fn read(&self, elapsed: Duration, wall: impl FnOnce() -> Timestamp) -> Reading {
        let now = self.wall + elapsed;
        let step = match self.step.load(Ordering::Relaxed) {
            UNSET => self.step(now, wall()),
            step => step,
        };
        Reading {
            now: Timestamp(now.0 + step),
            step,
        }
    }

    #[cold]
    fn step(&self, now: Timestamp, wall: Timestamp) -> u64 {
        if wall < PLAUSIBLE {
            return 0;
        }
        let (set, step) = (Ordering::Relaxed, wall.0.saturating_sub(now.0));
        // The first thread to see the step sets it for all.
        let other = self.step.compare_exchange(UNSET, step, set, set);
        other.err().unwrap_or(step)
    }
}

fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp(since.map_or(0, micros))
}

static ANCHOR: LazyLock<Anchor> = LazyLock::new(|| Anchor::new(wall()));
/// 2020: a wall clock that stands before it has not been set since the machine started.
const PLAUSIBLE: Timestamp = Timestamp(1_577_836_800_000_000);
const UNSET: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: Timestamp = Timestamp(7_000_000);
    const SET: Timestamp = Timestamp(1_770_000_000_000_000);

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn wall_clock_that_is_set_after_the_start_is_followed_once() {
        let anchor = Anchor::new(BOOT);
        let read = |seconds, wall| anchor.read(after(seconds), || wall);
        let unset = read(5, BOOT + after(5));
        assert_eq!((unset.now, unset.step), (BOOT + after(5), 0));
        // Another time before 2020 is as wrong as the first one.
        let unset = read(6, Timestamp(1_000_000_000_000_000));
        assert_eq!((unset.now, unset.step), (BOOT + after(6), 0));
        let set = read(10, SET);
        assert_eq!(set.now, SET);
        assert_eq!(set.step, micros(SET.since(BOOT + after(10))));
        // From here on only the monotonic clock counts.
        for wall in [BOOT, SET - after(3_600), SET + after(86_400)] {
            let later = read(25, wall);
            assert_eq!((later.now, later.step), (SET + after(15), set.step));
        }
    }

    #[test]
    fn wall_clock_that_was_right_at_the_start_is_not_asked_again() {
        let anchor = Anchor::new(SET);
        for seconds in [0, 1, 86_400] {
            let read = anchor.read(after(seconds), || panic!("it is asked"));
            assert_eq!((read.now, read.step), (SET + after(seconds), 0));
        }
    }

    #[test]
    fn all_threads_see_the_same_step() {
        let anchor = Anchor::new(BOOT);
        let steps: Vec<u64> = std::thread::scope(|scope| {
            let read = |thread| {
                let anchor = &anchor;
                scope.spawn(move || anchor.read(after(1), || SET + after(thread)).step)
            };
            let threads: Vec<_> = (0..8).map(read).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|step| step.expect("no panic")).collect()
        });
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    }

    #[test]
    fn system_clock_is_that_of_the_machine() {
        let now = Clock::system().now();
        assert!(now.since(wall()) < after(1) && wall().since(now) < after(1));
    }
}
