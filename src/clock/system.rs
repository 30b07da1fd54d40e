//! The machine's clock, and clocks that tests move.
//!
//! # Why is the in-process clock anchored once?
//!
//! A wall clock can be set, by hand or by NTP. A step forwards would forgive every debt. After a step backwards, every caller in
//! debt would wait for the length of the step. So the process reads the wall clock once, and the monotonic clock counts from
//! there.
//!
//! The exception is a machine that starts in 1970 and gets the time later. Its resets would be in 1970 for as long as the process
//! runs, and its days would begin at an arbitrary hour. So a clock before 2020 is read again until it is set, and then the time
//! steps forwards once. Each shard in process moves its stored times by that step at its next use: debts keep their length, and
//! new windows are aligned. A call to Redis in flight then appears to take years, which can break its connection once.
//!
//! A clock that was wrong but later than 2020, a later step and a suspended machine do not move this clock. Only times that are
//! shown outside follow them: at most once a millisecond a reading compares the two clocks, and keeps a difference above 10 ms.
//! Headers with absolute times, `RateLimitInfo::reset_at`, blocks, outages, top keys, versions of rules and the dashboard add it,
//! and `Decision::wall_time` and `RateLimiter::wall_time` do so for you. A decision notes whether its times are by this clock.
//! Times of Redis are by the server's clock, because the clocks of instances differ. If the server's clock is set back, an older
//! time never replaces a stored one.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

#[cfg(any(feature = "redis", feature = "test-util"))]
use std::{sync::Arc, time::Duration};

#[cfg(feature = "redis")]
use super::offset::Offset;
#[cfg(feature = "test-util")]
use super::runtime::RuntimeClock;
use super::{
    monotonic::Monotonic,
    timestamp::{Timestamp, micros},
    wall::Wall,
};

/// The clock of a limiter. Clones of a manual clock share the time.
///
/// [`Clock::system`] reads the wall clock once per process and continues by the monotonic clock. A step of the wall clock
/// therefore neither clears nor prolongs anybody's debt. After one, and after the machine was suspended, this clock differs
/// from the wall clock: [`wall_time`](Self::wall_time) converts what is shown outside, such as `X-RateLimit-Reset`.
///
/// A wall clock before 2020 has not been set yet, as on a machine that has just booted. It is then read until it has been
/// set, and the limiter's clock steps forward, once. The times in the [in-process store](crate::memory) move with it, so
/// callers in debt wait as long as before.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    source: ClockSource,
}

#[derive(Clone, Debug, Default)]
enum ClockSource {
    #[default]
    System,
    #[cfg(feature = "test-util")]
    Manual(Arc<Manual>),
    #[cfg(feature = "test-util")]
    Runtime(Arc<RuntimeClock>),
    #[cfg(feature = "redis")]
    Server(Arc<ServerClock>),
    /// The system's clock, as the wall clock shows it.
    #[cfg(feature = "redis")]
    Wall,
}

/// This machine's estimate of a server's clock.
#[cfg(feature = "redis")]
#[derive(Debug)]
struct ServerClock {
    base: Clock,
    offset: Offset,
}

#[cfg(feature = "test-util")]
#[derive(Debug)]
struct Manual {
    micros: AtomicU64,
    step: AtomicU64,
}

/// A time, and the step of the clock that it includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub now: Timestamp,
    /// In microseconds. The time without it never steps.
    pub step: u64,
}

impl Clock {
    /// Returns the machine's clock, which is the default.
    ///
    /// The first reading in a process starts a thread that calibrates the CPU's time stamp counter for up to 200 ms.
    #[must_use]
    pub const fn system() -> Self {
        Self {
            source: ClockSource::System,
        }
    }

    /// Returns a clock that stays at `start` until [`set`](Self::set) or [`advance`](Self::advance) moves it.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self {
            source: ClockSource::Manual(Arc::new(Manual {
                micros: AtomicU64::new(start.as_micros()),
                step: AtomicU64::new(0),
            })),
        }
    }

    /// Returns a clock that follows the time of the current Tokio runtime.
    ///
    /// It begins at 2024-01-01T00:00:00Z. Under `#[tokio::test(start_paused = true)]`, `tokio::time::advance` and the sleeps of the test move it, on all threads.
    /// Clones share the time. Another clock begins when it is created, so create one for each test.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Policy, Quota, RateLimiter, clock::Clock};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
    /// let limiter = RateLimiter::builder().clock(Clock::tokio()).build()?;
    /// let policy = Policy::new("api", Quota::per_minute(1));
    /// let charge = policy.charge(Key::new("ada"));
    /// assert!(limiter.check(&[charge]).await?.is_allowed());
    /// assert!(!limiter.check(&[charge]).await?.is_allowed());
    /// tokio::time::advance(Duration::from_secs(60)).await;
    /// assert!(limiter.check(&[charge]).await?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn tokio() -> Self {
        Self::of_runtime().expect("Clock::tokio() is called within a Tokio runtime")
    }

    /// Returns the clock of the current Tokio runtime; `None` outside of one.
    #[cfg(feature = "test-util")]
    pub(crate) fn of_runtime() -> Option<Self> {
        let source = ClockSource::Runtime(Arc::new(RuntimeClock::current()?));
        Some(Self { source })
    }

    /// Returns a clock that shows the time of a server, as far as [`learn`](Self::learn) has determined it.
    ///
    /// Until then it shows the time of `base`.
    #[cfg(feature = "redis")]
    pub(crate) fn of_server(base: Self) -> Self {
        let offset = Offset::default();
        Self {
            source: ClockSource::Server(Arc::new(ServerClock { base, offset })),
        }
    }

    /// Adjusts the clock of a server to the time in a reply that came just now. Other clocks do not change.
    #[cfg(feature = "redis")]
    pub(crate) fn learn(&self, server: Timestamp, latency: Duration) {
        if let ClockSource::Server(clock) = &self.source {
            let now = clock.base.read();
            clock.offset.learn(now.without_step(), server, latency);
        }
    }

    /// Returns a clock that steps with the wall clock if this is the system's, and else this one.
    #[cfg(feature = "redis")]
    pub(crate) fn with_steps(self) -> Self {
        match self.source {
            ClockSource::System => Self {
                source: ClockSource::Wall,
            },
            _ => self,
        }
    }

    /// Returns a time by this clock as the wall clock shows it now, within 10 ms. To be shown outside of the process.
    ///
    /// A manual clock, and one that follows a server or a Tokio runtime, is right by definition.
    #[must_use]
    pub fn wall_time(&self, at: Timestamp) -> Timestamp {
        if self.is_anchored() {
            // A reading notices what has happened since the last one.
            let _ = SYSTEM.read();
            Self::known_wall_time(at)
        } else {
            at
        }
    }

    /// Returns the time of the wall clock.
    #[cfg(any(feature = "client", feature = "redis", feature = "reload"))]
    pub(crate) fn wall_now() -> Timestamp {
        Self::known_wall_time(SYSTEM.read().now)
    }

    /// Returns a time by the system's clock as the wall clock showed it when the clock was last read.
    #[inline]
    pub(crate) fn known_wall_time(at: Timestamp) -> Timestamp {
        SYSTEM.wall.time(at)
    }

    /// Returns whether this clock may differ from the wall clock: it is the system's, or follows a server that has not
    /// replied yet.
    #[inline]
    pub(crate) fn is_anchored(&self) -> bool {
        match &self.source {
            ClockSource::System => true,
            #[cfg(feature = "test-util")]
            ClockSource::Manual(_) | ClockSource::Runtime(_) => false,
            #[cfg(feature = "redis")]
            ClockSource::Server(clock) => !clock.offset.is_known() && clock.base.is_anchored(),
            #[cfg(feature = "redis")]
            ClockSource::Wall => false,
        }
    }

    /// Returns the time.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.read().now
    }

    /// Returns the time, and the step of the clock that it includes.
    #[inline]
    pub(crate) fn read(&self) -> Reading {
        match &self.source {
            ClockSource::System => SYSTEM.read(),
            #[cfg(feature = "test-util")]
            ClockSource::Manual(manual) => Reading {
                now: Timestamp::from_micros(manual.micros.load(Ordering::Acquire)),
                step: manual.step.load(Ordering::Relaxed),
            },
            #[cfg(feature = "test-util")]
            ClockSource::Runtime(clock) => Reading {
                now: clock.now(),
                step: 0,
            },
            #[cfg(feature = "redis")]
            ClockSource::Server(clock) => clock.read(),
            #[cfg(feature = "redis")]
            ClockSource::Wall => Reading {
                now: Self::wall_now(),
                step: 0,
            },
        }
    }

    /// Moves a manual clock, and every clone of it, forward.
    ///
    /// # Panics
    ///
    /// Panics unless this is a [manual](Self::manual) clock.
    #[cfg(feature = "test-util")]
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// Sets a manual clock, and every clone of it, to any time.
    ///
    /// # Panics
    ///
    /// Panics unless this is a [manual](Self::manual) clock.
    #[cfg(feature = "test-util")]
    pub fn set(&self, to: Timestamp) {
        match &self.source {
            #[cfg(feature = "redis")]
            ClockSource::Server(_) => {
                panic!("the clock of a server cannot be moved: use Clock::manual")
            }
            #[cfg(feature = "redis")]
            ClockSource::Wall => panic!("the wall clock cannot be moved: use Clock::manual"),
            ClockSource::Runtime(_) => {
                panic!("the clock of a Tokio runtime is moved by tokio::time::advance")
            }
            ClockSource::System => panic!("the system clock cannot be moved: use Clock::manual"),
            ClockSource::Manual(manual) => manual.micros.store(to.as_micros(), Ordering::Release),
        }
    }

    /// Steps a manual clock, and every clone of it, forward, as the [system](Self::system) clock does when a wall clock
    /// before 2020 is set. The counts in process move with it.
    ///
    /// # Panics
    ///
    /// Panics unless this is a [manual](Self::manual) clock.
    #[cfg(feature = "test-util")]
    pub fn step(&self, by: Duration) {
        if let ClockSource::Manual(manual) = &self.source {
            manual.step.fetch_add(micros(by), Ordering::Relaxed);
        }
        self.advance(by);
    }
}

#[cfg(feature = "redis")]
impl Reading {
    /// Returns the time that never steps.
    fn without_step(self) -> Timestamp {
        Timestamp::from_micros(self.now.as_micros().saturating_sub(self.step))
    }
}

#[cfg(feature = "redis")]
impl ServerClock {
    /// Returns the time of the server. A step of the base has no effect on it.
    fn read(&self) -> Reading {
        let base = self.base.read();
        match self.offset.apply(base.without_step()) {
            Some(now) => Reading { now, step: 0 },
            None => base,
        }
    }
}

// === System ===

/// The machine's clock: the monotonic clock, and where it started on the wall clock.
#[derive(Debug)]
struct System {
    monotonic: Monotonic,
    anchor: Anchor,
    wall: Wall,
}

static SYSTEM: LazyLock<System> = LazyLock::new(|| System {
    monotonic: Monotonic::start(),
    anchor: Anchor::new(wall()),
    wall: Wall::default(),
});

impl System {
    #[inline]
    fn read(&self) -> Reading {
        let elapsed = self.monotonic.micros(|monotonic| self.look(monotonic));
        self.anchor.read(elapsed, wall)
    }

    /// Looks at the wall clock.
    #[cold]
    fn look(&self, monotonic: &Monotonic) {
        let before = monotonic.nanos();
        if self.wall.is_due(before) {
            let wall = wall();
            let gap = monotonic.nanos().saturating_sub(before);
            let now = self.anchor.read(before / 1_000, || wall).now;
            self.wall.learn(wall, now, gap);
        }
    }
}

// === Anchor ===

/// The wall clock at the start of the monotonic clock.
#[derive(Debug)]
struct Anchor {
    /// In microseconds since the Unix epoch.
    wall: u64,
    /// The step since then, in microseconds; [`UNSET`] while the wall clock has not been set.
    step: AtomicU64,
}

impl Anchor {
    fn new(wall: Timestamp) -> Self {
        let step = if wall < PLAUSIBLE { UNSET } else { 0 };
        Self {
            wall: wall.as_micros(),
            step: AtomicU64::new(step),
        }
    }

    /// Returns the time `elapsed` microseconds after the start. Reads the wall clock only while it has not been set.
    #[inline]
    fn read(&self, elapsed: u64, wall: impl FnOnce() -> Timestamp) -> Reading {
        let now = self.wall + elapsed;
        let step = match self.step.load(Ordering::Relaxed) {
            UNSET => self.step(now, wall()),
            step => step,
        };
        Reading {
            now: Timestamp::from_micros(now + step),
            step,
        }
    }

    #[cold]
    fn step(&self, now: u64, wall: Timestamp) -> u64 {
        if wall < PLAUSIBLE {
            return 0;
        }
        let (set, step) = (Ordering::Relaxed, wall.as_micros().saturating_sub(now));
        // The first thread that reads a set wall clock determines the step for all.
        let other = self.step.compare_exchange(UNSET, step, set, set);
        other.err().unwrap_or(step)
    }
}

fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::from_micros(since.map_or(0, micros))
}

/// 2020: a wall clock before it has not been set since the machine started.
const PLAUSIBLE: Timestamp = Timestamp::from_micros(1_577_836_800_000_000);
const UNSET: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOOT: Timestamp = Timestamp::from_micros(7_000_000);
    const SET: Timestamp = Timestamp::from_micros(1_770_000_000_000_000);

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn wall_clock_that_is_set_after_the_start_is_followed_once() {
        let anchor = Anchor::new(BOOT);
        let read = |seconds, wall| anchor.read(micros(after(seconds)), || wall);
        let unset = read(5, BOOT + after(5));
        assert_eq!((unset.now, unset.step), (BOOT + after(5), 0));
        // Another year before 2020 is as wrong as the first one.
        let unset = read(6, Timestamp::from_micros(1_000_000_000_000_000));
        assert_eq!((unset.now, unset.step), (BOOT + after(6), 0));
        let set = read(10, SET);
        assert_eq!(set.now, SET);
        assert_eq!(set.step, micros(SET.since(BOOT + after(10))));
        // From here on, only the monotonic clock matters.
        for wall in [BOOT, SET - after(3_600), SET + after(86_400)] {
            let later = read(25, wall);
            assert_eq!((later.now, later.step), (SET + after(15), set.step));
        }
    }

    #[test]
    fn wall_clock_that_was_right_at_the_start_is_not_read_again() {
        let anchor = Anchor::new(SET);
        for seconds in [0, 1, 86_400] {
            let read = anchor.read(micros(after(seconds)), || panic!("it is read"));
            assert_eq!((read.now, read.step), (SET + after(seconds), 0));
        }
    }

    #[test]
    fn all_threads_see_the_same_step() {
        let anchor = Anchor::new(BOOT);
        let steps: Vec<u64> = std::thread::scope(|scope| {
            let read = |thread| {
                let anchor = &anchor;
                scope.spawn(move || anchor.read(micros(after(1)), || SET + after(thread)).step)
            };
            let threads: Vec<_> = (0..8).map(read).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|step| step.expect("no panic")).collect()
        });
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn clock_of_a_server_shows_its_time_once_it_is_known() {
        let clock = Clock::of_server(Clock::system());
        let is_near = |time: Timestamp| {
            let now = clock.now();
            now.since(time).max(time.since(now)) < after(1)
        };
        assert!(is_near(Clock::system().now()));
        clock.learn(Clock::system().now() + after(3_600), after(0));
        assert!(is_near(Clock::system().now() + after(3_600)));
    }

    #[test]
    fn system_clock_is_that_of_the_machine() {
        let now = Clock::system().now();
        assert!(now.since(wall()) < after(1) && wall().since(now) < after(1));
    }
}
