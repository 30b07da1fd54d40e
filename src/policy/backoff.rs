//! Growing delays after failures.
//!
//! # Why is a delay a ban?
//!
//! Both deny a key until a time that grows with each repetition, and both outlast the state of the quota. They differ in what
//! begins them: a denial, or a failure that [`Rule::count_when`](crate::rules::Rule::count_when) has found. So a backoff is a
//! penalty that no denial leads to. The decision reads the record of a ban as before, and `lua/failure.lua` writes it. A failure
//! during a delay counts too, because it comes from a request that was admitted before the delay began: 5 guesses at once lead to
//! the same delay as 5 guesses one after the other.

use std::time::Duration;

use super::{penalty::Penalty, policy::Policy};

/// A delay of a key after each failure, longer each time.
///
/// [`Policy::backoff`](crate::Policy::backoff) takes it. Requests of the key are denied until the delay is over.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Policy, Quota, extract::PeerIp, policy::Backoff};
///
/// // 1 s after the first failure, then 2, 4, 8 s and so on, up to 15 minutes.
/// let backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(900));
/// let login = Policy::new("login", Quota::per_minute(5)).backoff(backoff).key(PeerIp).count_failures();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    penalty: Penalty,
}

impl From<Backoff> for Penalty {
    fn from(backoff: Backoff) -> Self {
        backoff.penalty
    }
}

impl Backoff {
    /// Begins with the delay `first`, and doubles it with each further failure, up to `longest`.
    ///
    /// Both are from 1 ms to 366 days, in whole microseconds.
    #[must_use]
    pub const fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            penalty: Penalty::by_failures(first, longest),
        }
    }

    /// Sets how many times as long each further delay is.
    ///
    /// Default: 2. From 1 to 100. With 1, all delays are as long as the first.
    #[must_use]
    pub const fn factor(mut self, factor: u32) -> Self {
        self.penalty = self.penalty.growing(factor, self.penalty.longest_ban());
        self
    }

    /// Sets how long after its last delay a key starts again with the first one.
    ///
    /// Default: the longest delay. From 1 ms to 366 days, in whole microseconds.
    #[must_use]
    pub const fn forgiven_after(mut self, time: Duration) -> Self {
        self.penalty = self.penalty.forgiven_after(time);
        self
    }
}

impl Policy {
    /// Sets how long a key is denied after each failure, longer each time.
    ///
    /// Default: no delay. A rule finds the failures, by [`count_failures`](crate::rules::Rule::count_failures) or
    /// [`count_when`](crate::rules::Rule::count_when). Without a layer, report them by
    /// [`RateLimiter::count_failure`](crate::RateLimiter::count_failure). It takes the place of a [`penalty`](Self::penalty):
    /// the one that is set last applies. A delay is kept and restored [as a ban is](crate::policy).
    #[must_use]
    pub fn backoff(self, backoff: impl Into<Option<Backoff>>) -> Self {
        self.penalty(backoff.into().map(Penalty::from))
    }

    /// Returns the penalty of the [`backoff`](Self::backoff); `None` if the policy has none.
    pub(crate) fn failure_penalty(&self) -> Option<&Penalty> {
        self.ban_penalty().filter(|penalty| penalty.is_backoff())
    }
}
