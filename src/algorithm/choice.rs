//! The names of the ways of counting.

/// How a quota is counted.
///
/// The default is the token bucket. The [guide](super::guide) helps to choose, and says what happens when a policy's
/// limit changes.
///
/// # Examples
///
/// ```
/// use tollgate::{Policy, Quota, algorithm::{Algorithm, Opening}};
///
/// let smooth = Policy::new("search", Quota::per_second(10)).algorithm(Algorithm::LeakyBucket);
/// let billed = Policy::new("plan", Quota::per_month(50_000))
///     .algorithm(Algorithm::FixedWindow(Opening::Month));
/// assert_eq!(billed.algorithm_name(), "fixed_window");
/// # assert_eq!(smooth.algorithm_name(), "leaky_bucket");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One counter that starts from 0 with each window. Cheap to explain, but up to twice the quota passes in a short
    /// time around the moment when one window ends and the next begins.
    FixedWindow(Opening),
    /// The token bucket with a burst of 1 unless the quota sets one: requests pass evenly spaced, and what comes too
    /// early is denied.
    LeakyBucket,
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
            Self::FixedWindow(_) => "fixed_window",
            Self::LeakyBucket => "leaky_bucket",
            Self::SlidingLog => "sliding_log",
            Self::SlidingWindow => "sliding_window",
            Self::TokenBucket => "token_bucket",
        }
    }
}

// === Opening ===

/// When a fixed window opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Opening {
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
