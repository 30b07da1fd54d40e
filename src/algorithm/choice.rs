//! The algorithms to choose from, with their parameters.
//!
//! # Why must a queue have a longest wait?
//!
//! A client that leaves before its turn has waited in vain, and a denial at once would have cost it less. If its connection is closed,
//! its turn goes to those behind it. But behind a proxy that keeps connections open, nobody knows that it has left. Then a queue
//! whose wait is longer than the patience of its clients collapses: each request that has its turn is one whose client is gone. In a
//! run with 5 requests a second, a queue of 20, 10 arrivals a second and a patience of 0.7 s, 8 of 100 were served, and none after the
//! first second. A longest wait below the patience turns away at once those who would leave.
//!
//! The store cannot know the patience: a second is too long for a call with a deadline of 700 ms, and too short for uploads. So
//! the wait is an argument of `QueueLimits::new`, and a rule file without it has a fault. An earlier default, the time in which
//! the queue drains, was the longest wait that has an effect.

use std::time::Duration;

/// How a quota is counted.
///
/// Default: [`TokenBucket`](Self::TokenBucket). The [guide](super::guide) compares the algorithms: bounds, accuracy,
/// memory and cost in Redis.
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
    /// Limits how many requests are in flight at once.
    ///
    /// A request holds a slot until its response body ends. The quota is
    /// [`Quota::in_flight`](crate::Quota::in_flight).
    Concurrency {
        /// How long the slots of a crashed process stay taken in Redis.
        ///
        /// From 100 ms to 24 h, in whole milliseconds. A live process renews its slots at least three times per lease.
        lease: Duration,
    },
    /// Counts requests in consecutive windows, each starting from 0.
    ///
    /// Easy to explain, but up to twice the quota passes around the boundary of two windows.
    FixedWindow(WindowStart),
    /// Spaces requests evenly, and denies those that come too early.
    ///
    /// It is a token bucket with a burst of 1 unless the quota sets one.
    LeakyBucket,
    /// A leaky bucket whose early requests wait for their turn instead of being denied.
    LeakyQueue(QueueLimits),
    /// Stores the time of each admitted request: never more than the quota in any period.
    ///
    /// Limit: 10,000 units per period.
    SlidingLog,
    /// Two window counters; the previous one is weighted by its overlap with the last period.
    ///
    /// An estimate: up to twice the quota less one can pass in one period.
    ///
    /// Limit: count times period below 2^52 ms, which is 1,681,451 units per 31 days.
    SlidingWindow,
    /// Admits a burst at once, then requests at the sustained rate.
    #[default]
    TokenBucket,
}

impl Algorithm {
    /// Returns the name used in configuration files and metrics, such as `token_bucket`.
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

// === QueueLimits ===

/// Limits of a leaky queue: its length, and the longest wait.
///
/// An admitted request gets an exact start time, its turn, and the layer delays it until then. If a client disconnects while it
/// waits, the requests of the same instance behind it move up, in the order in which they came, and the last of their turns goes to
/// the next request of any instance. Requests with different costs do not exchange their turns.
///
/// # How long to wait
///
/// Set the longest wait below the time after which your clients give up: who would leave before its turn is then denied at once. With
/// 5 requests a second, a queue of 20, 10 requests a second and clients that leave after 700 ms, a wait of 600 ms serves all that it
/// admits. A wait of 4 s, the time in which the queue drains, serves as many clients, and the others leave. But if a proxy in front of
/// the service keeps their connections open, it serves 8 clients and then none: the queue is full of requests whose clients are gone.
/// There is no default, because only you know your clients. Common timeouts are 1 to 2 s in calls between services, and 10 s or more
/// in browsers.
///
/// A waiting request keeps its slots under concurrency policies, and its place in a `Buffer` or `ConcurrencyLimit`
/// outside of the layer. Keep queues short beside these, or waiting requests of one key keep other clients out. The
/// layer gives up the readiness of the inner service during the wait and polls it again afterwards.
///
/// # Compared with nginx
///
/// | nginx | tollgate |
/// |---|---|
/// | `rate=10r/s burst=20` | `Quota::per_second(10)`, `LeakyQueue(QueueLimits::new(20, Duration::from_secs(2)))` |
/// | `rate=10r/s burst=20 delay=8` | `Quota::per_second(10).burst(9)`, `LeakyQueue(QueueLimits::new(12, Duration::from_millis(1_200)))` |
/// | `rate=10r/s burst=20 nodelay` | `Quota::per_second(10).burst(21)`, `LeakyBucket` |
///
/// nginx does not count the request being served in its burst, so tollgate's burst is one larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueLimits {
    pub(super) length: u64,
    pub(super) max_wait: Duration,
}

impl QueueLimits {
    /// Creates limits for a queue of `length` units, beyond those admitted at once.
    ///
    /// A request that would wait longer than `max_wait` is denied at once. So the policy's limit is the burst plus the units
    /// that drain within this time, at most `length`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Policy, Quota, algorithm::{Algorithm, QueueLimits}};
    ///
    /// // Clients give up after a second.
    /// let queue = QueueLimits::new(20, Duration::from_millis(800));
    /// let api = Policy::new("api", Quota::per_second(10)).algorithm(Algorithm::LeakyQueue(queue));
    /// ```
    #[must_use]
    pub const fn new(length: u64, max_wait: Duration) -> Self {
        Self { length, max_wait }
    }
}

// === WindowStart ===

/// When the windows of a fixed window start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WindowStart {
    /// At whole multiples of the period since the Unix epoch, for all keys at once.
    ///
    /// An hour starts on the hour, a day at midnight UTC.
    #[default]
    Clock,
    /// With the first request of a key that has no open window.
    ///
    /// So keys reset at different times.
    FirstHit,
    /// On the first of each month at midnight UTC.
    ///
    /// Needs [`Quota::per_month`](crate::Quota::per_month).
    Month,
}
