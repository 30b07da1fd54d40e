//! The names of the ways of counting.

use std::time::Duration;

/// How a quota is counted.
///
/// The default is the token bucket. The [guide](super::guide) helps to choose, and says what happens when a policy's
/// limit changes.
///
/// # Examples
///
/// ```
/// use tollgate::{Policy, Quota, algorithm::{Algorithm, WindowStart}};
///
/// let smooth = Policy::new("search", Quota::per_second(10)).algorithm(Algorithm::LeakyBucket);
/// let billed = Policy::new("plan", Quota::per_month(50_000))
///     .algorithm(Algorithm::FixedWindow(WindowStart::Month));
/// assert_eq!(billed.algorithm_name(), "fixed_window");
/// # assert_eq!(smooth.algorithm_name(), "leaky_bucket");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// How many requests are in flight: a slot is taken until the body of the answer has ended. The quota is a number
    /// [in flight](crate::Quota::in_flight).
    Concurrency {
        /// How long the slots of a process that died stay taken in Redis: 100 ms to a day. Slots that are held are renewed
        /// at least three times per lease.
        lease: Duration,
    },
    /// One counter that starts from 0 with each window. Cheap to explain, but up to twice the quota passes in a short
    /// time around the moment when one window ends and the next begins.
    FixedWindow(WindowStart),
    /// The token bucket with a burst of 1 unless the quota sets one: requests pass evenly spaced, and what comes too
    /// early is denied.
    LeakyBucket,
    /// A leaky bucket whose excess waits its turn instead of being denied: each request is told when it may start.
    LeakyQueue(Queue),
    /// The time of each admitted request: exactly the quota in any span as long as the period. At most 10,000 a period.
    SlidingLog,
    /// Two counters, the elder weighted by how much of its window still lies within one period of now.
    SlidingWindow,
    /// The burst at once, then the sustained rate.
    #[default]
    TokenBucket,
}

impl Algorithm {
    /// The name as configuration files and metrics write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Concurrency { .. } => "concurrency",
            Self::FixedWindow(_) => "fixed_window",
            Self::LeakyBucket => "leaky_bucket",
            Self::LeakyQueue(_) => "leaky_queue",
            Self::SlidingLog => "sliding_log",
            Self::SlidingWindow => "sliding_window",
            Self::TokenBucket => "token_bucket",
        }
    }
}

// === Queue ===

/// How much of the excess of a leaky bucket may wait, and for how long.
///
/// The request takes an exact slot when it is admitted, and the layer lets it start when that comes. Who goes away while
/// waiting gives the slot back when nobody has taken a later one; else it stays empty, since the others were told theirs
/// already.
///
/// While it waits it keeps slots of other policies, and the place in a `Buffer` or `ConcurrencyLimit` outside of the layer; so
/// keep queues short beside these, or those who wait under one key keep all others out. What the inner service had reserved
/// for it is given back, and asked for again when its turn has come.
///
/// # As nginx says it
///
/// | nginx | here |
/// |---|---|
/// | `rate=10r/s burst=20` | `Quota::per_second(10)`, `LeakyQueue(Queue::new(20))` |
/// | `rate=10r/s burst=20 delay=8` | `Quota::per_second(10).burst(9)`, `LeakyQueue(Queue::new(12))` |
/// | `rate=10r/s burst=20 nodelay` | `Quota::per_second(10).burst(21)`, `LeakyBucket` |
///
/// nginx does not count the request in service in its burst, so what may come at once is one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    length: u64,
    max_wait: Option<Duration>,
}

impl Queue {
    /// A queue for so many units beyond those that may come at once.
    #[must_use]
    pub const fn new(length: u64) -> Self {
        Self {
            length,
            max_wait: None,
        }
    }

    /// Sets the longest time that a request may wait; who would wait longer is denied at once.
    ///
    /// Default: what the length and the rate come to. What a shorter wait leaves no time for is not part of the limit.
    #[must_use]
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    pub(super) const fn length(self) -> u64 {
        self.length
    }

    pub(super) const fn limit(self) -> Option<Duration> {
        self.max_wait
    }
}

// === WindowStart ===

/// When a fixed window opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WindowStart {
    /// At whole multiples of the period since the Unix epoch, for everybody alike: an hour opens on the hour, a day at
    /// midnight UTC.
    #[default]
    Clock,
    /// With a key's first request when none is open, so that not all keys begin anew at once.
    FirstHit,
    /// On the first of each month at midnight UTC. The quota is one per month: see [`Quota::per_month`].
    ///
    /// [`Quota::per_month`]: crate::Quota::per_month
    Month,
}
