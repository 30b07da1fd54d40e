//! The state of one policy after a decision: quota left, reset time and retry time.

#[cfg(feature = "redis")]
use std::time::Duration;

use super::{
    policy_name::PolicyName,
    usage::{CountedBy, DeniedBy, Outcome, Retry, Usage},
};
use crate::clock::Timestamp;

/// The state of one policy after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyState {
    policy: PolicyName,
    outcome: Outcome,
    /// `None` if it was not counted. `Option<Usage>`, or a separate flag, would be a word larger.
    cause: Option<DeniedBy>,
    is_concurrency: bool,
    is_shadow: bool,
    /// Where the count is kept, if that is not where the decision's other counts are.
    counted_by: Option<CountedBy>,
    /// `usage.reset_at` is rounded up by at most this many microseconds.
    reset_rounding: u16,
    usage: Usage,
    wait: Wait,
    /// Start time if admitted, retry time if denied. One field, so that a decision fits into 128 bytes and is copied
    /// inline.
    at: Timestamp,
    /// The key's total of refunds before the charge; for a queue, when the turn is over if it was given up before, else 0. Denied charges
    /// have no refunds: for a banned key it is the end of the ban in microseconds, and for another one the microseconds by which leased
    /// units prolong the wait.
    refunded_or_denied: u64,
}

/// A [`Retry`] without its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Now,
    At,
    Never,
}

impl PolicyState {
    /// Creates the state of a policy that was counted.
    ///
    /// [`Retry::Now`] means that the policy admits the request. Any other `retry` means that it denies the request. Of a policy
    /// that admits a request which another one denies, [`with_retry`](Self::with_retry) sets it.
    #[must_use]
    #[inline]
    pub fn counted(policy: PolicyName, usage: Usage, retry: Retry) -> Self {
        let (outcome, wait, at) = match retry {
            Retry::Now => (Outcome::Allowed, Wait::Now, NO_TIME),
            Retry::At(time) => (Outcome::Limited, Wait::At, time),
            Retry::Never => (Outcome::Limited, Wait::Never, NO_TIME),
        };
        Self {
            policy,
            outcome,
            cause: Some(DeniedBy::Quota),
            is_concurrency: false,
            is_shadow: false,
            counted_by: None,
            reset_rounding: 0,
            usage,
            wait,
            at,
            refunded_or_denied: 0,
        }
    }

    /// Creates the state of a policy that could not be counted: its usage is unknown.
    #[must_use]
    #[doc(hidden)]
    pub fn uncounted(policy: PolicyName, outcome: Outcome) -> Self {
        Self {
            policy,
            outcome,
            cause: None,
            is_concurrency: false,
            is_shadow: false,
            counted_by: None,
            reset_rounding: 0,
            usage: Usage::new(0, 0, NO_TIME),
            wait: Wait::Now,
            at: NO_TIME,
            refunded_or_denied: 0,
        }
    }

    /// Sets the time from which an admitted request may start. Ignored for a denied request.
    ///
    /// Default: at once.
    #[must_use]
    #[inline]
    pub(crate) fn with_start(mut self, at: Timestamp) -> Self {
        if self.wait == Wait::Now {
            self.at = at;
        }
        self
    }

    /// Sets when the request can succeed under a policy that admits it, but that counted its denial by another policy.
    ///
    /// Default: [`Retry::Now`]. Ignored for a policy that denies. A custom store sets it if
    /// [`Policy::counts_denied`](crate::Policy::counts_denied), for a denied request that would not fit a second time.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        if self.outcome == Outcome::Allowed {
            (self.wait, self.at) = match retry {
                Retry::Now => (Wait::Now, self.at),
                Retry::At(time) => (Wait::At, time),
                Retry::Never => (Wait::Never, NO_TIME),
            };
        }
        self
    }

    /// Sets the key's running total of refunds, which a later refund of this charge needs; for a queue, when the turn of the charge is
    /// over if it was given up before; for a denial by Redis, the microseconds by which leased units prolong its wait.
    ///
    /// Default: 0. See [`RefundToken::refunded_before`](crate::algorithm::RefundToken::refunded_before).
    #[must_use]
    #[inline]
    pub(crate) fn with_refunded_before(mut self, total: u64) -> Self {
        if self.cause != Some(DeniedBy::Ban) {
            self.refunded_or_denied = total;
        }
        self
    }

    /// Marks the state of a concurrency policy, whose units come back when requests end.
    #[must_use]
    #[inline]
    pub(crate) fn for_concurrency(mut self) -> Self {
        self.is_concurrency = true;
        self
    }

    /// Sets whether the charge was only counted, and cannot deny the request.
    ///
    /// Default: `false`. A custom store passes [`Charge::is_shadow`](crate::Charge::is_shadow).
    #[must_use]
    #[inline]
    pub fn with_shadow(mut self, is_shadow: bool) -> Self {
        self.is_shadow = is_shadow;
        self
    }

    /// Sets what denies the request, for a policy that was counted and does.
    ///
    /// Default: [`DeniedBy::Quota`].
    #[must_use]
    #[inline]
    pub(crate) fn with_denied_by(mut self, denied_by: DeniedBy) -> Self {
        let is_ban = |cause: Option<DeniedBy>| cause == Some(DeniedBy::Ban);
        let cause = self.cause.map(|_| denied_by);
        if is_ban(cause) != is_ban(self.cause) {
            self.refunded_or_denied = 0;
        }
        self.cause = cause;
        self
    }

    /// Sets the most microseconds by which the counter rounded the reset time up.
    #[inline]
    pub(crate) fn with_reset_rounding(mut self, micros: u16) -> Self {
        self.reset_rounding = micros;
        self
    }

    /// Sets where the count is kept, in a decision that several stores made together.
    #[cfg(feature = "redis")]
    pub(crate) fn with_counted_by(mut self, counted_by: CountedBy) -> Self {
        self.counted_by = Some(counted_by);
        self
    }

    /// Returns where the count is kept, if that is not where the decision's other counts are.
    pub(crate) fn counted_by(&self) -> Option<CountedBy> {
        self.counted_by
    }

    /// Returns the state under the whole limit of a policy, of which this instance grants only a part.
    ///
    /// `retry_at` is when to retry a request that the part can never admit.
    #[cfg(feature = "redis")]
    pub(crate) fn of_part(mut self, limit: u64, retry_at: Timestamp) -> Self {
        self.usage.limit = limit;
        if self.wait == Wait::Never {
            let ban_ends = self.banned_until().unwrap_or(NO_TIME);
            (self.wait, self.at) = (Wait::At, retry_at.max(ban_ends));
        }
        self
    }

    /// Returns the state of a key that is banned until then: nothing is left meanwhile, whatever the quota.
    #[cold]
    #[must_use]
    pub fn banned(mut self, until: Timestamp) -> Self {
        let retry_at = if self.wait == Wait::At {
            self.at
        } else {
            NO_TIME
        };
        if self.wait != Wait::Never {
            (self.wait, self.at) = (Wait::At, retry_at.max(until));
        }
        self.outcome = Outcome::Limited;
        self.cause = Some(DeniedBy::Ban);
        self.refunded_or_denied = until.as_micros();
        self.usage.remaining = 0;
        self.usage.reset_at = self.usage.reset_at.max(until);
        self
    }

    /// Returns the state after a refund of the charge. The reset time stays, so it may be too late.
    pub(crate) fn refunded(mut self, units: u64) -> Self {
        let usage = &mut self.usage;
        usage.remaining = usage.remaining.saturating_add(units).min(usage.limit);
        self
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn policy(&self) -> &PolicyName {
        &self.policy
    }

    /// Returns the outcome of this policy alone.
    #[must_use]
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns what denies the request under this policy; `None` if the policy admits it, or could not decide.
    #[must_use]
    pub fn denied_by(&self) -> Option<DeniedBy> {
        (self.outcome == Outcome::Limited).then(|| self.cause.unwrap_or_default())
    }

    /// Returns when the ban of the key ends; `None` if it is not banned.
    ///
    /// [`retry`](Self::retry) is later if the quota of the policy is not back by then.
    #[must_use]
    pub fn banned_until(&self) -> Option<Timestamp> {
        let is_banned = self.cause == Some(DeniedBy::Ban) && self.refunded_or_denied > 0;
        is_banned.then(|| Timestamp::from_micros(self.refunded_or_denied))
    }

    /// Returns whether the policy was only counted. If its outcome is not [`Outcome::Allowed`], it would have denied the
    /// request.
    #[must_use]
    #[inline]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns the outcome that counts for the request: allowed for a policy in shadow mode.
    #[inline]
    pub(crate) fn enforced_outcome(&self) -> Outcome {
        if self.is_shadow {
            Outcome::Allowed
        } else {
            self.outcome
        }
    }

    /// Returns the quota left and the reset time; `None` if it was not counted.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.cause.map(|_| self.usage)
    }

    /// Returns whether as many units are left. A policy that was not counted has room for everything.
    pub(crate) fn has_room_for(&self, units: u64) -> bool {
        self.usage().is_none_or(|usage| usage.remaining >= units)
    }

    /// Returns the usage with the reset time at most one window away, for response headers.
    ///
    /// Rounding may have put it a moment later, which in whole seconds would be a second: a log rounds times up to
    /// ticks, and a bucket with a fractional interval has a spare microsecond.
    #[inline]
    pub(crate) fn header_usage(&self) -> Option<Usage> {
        let mut usage = self.usage()?;
        let reset_at = usage.reset_at.as_micros();
        usage.reset_at =
            Timestamp::from_micros(reset_at.saturating_sub(self.reset_rounding.into()));
        Some(usage)
    }

    /// Returns the key's running total of refunds when it was charged.
    ///
    /// 0 if the store does not keep one.
    #[must_use]
    pub(crate) fn refunded_before(&self) -> u64 {
        match self.outcome {
            Outcome::Limited => 0,
            Outcome::Allowed | Outcome::Unavailable => self.refunded_or_denied,
        }
    }

    /// Returns the number that the store has put in place of the total of refunds, or of the wait for leased units; 0 of a ban.
    #[cfg(feature = "redis")]
    pub(crate) fn store_note(&self) -> u64 {
        match self.cause {
            Some(DeniedBy::Ban) => 0,
            _ => self.refunded_or_denied,
        }
    }

    /// Returns for how long a denial by Redis holds at least, whatever becomes of the units that instances have leased.
    #[cfg(feature = "redis")]
    pub(crate) fn certain_wait(&self, decided_at: Timestamp) -> Duration {
        match self.retry() {
            Retry::At(at) if self.denied_by() == Some(DeniedBy::Quota) => {
                let leased = Duration::from_micros(self.refunded_or_denied);
                at.since(decided_at).saturating_sub(leased)
            }
            Retry::At(_) | Retry::Never | Retry::Now => Duration::ZERO,
        }
    }

    /// Returns the time from which an admitted request may start under this policy.
    ///
    /// It is later than the decision only if the request waits in a queue. The layer may start it earlier, or after requests that came
    /// before it.
    #[must_use]
    pub fn starts_at(&self) -> Timestamp {
        match self.wait {
            Wait::Now => self.at,
            Wait::At | Wait::Never => NO_TIME,
        }
    }

    /// Returns whether the units come back when requests end, as under
    /// [`Policy::concurrency`](crate::Policy::concurrency).
    #[must_use]
    pub fn is_concurrency(&self) -> bool {
        self.is_concurrency
    }

    /// Returns a sort key for policies that admit: the least is the narrowest.
    ///
    /// Policies by time sort by the quota left. Concurrency policies come after all of them. One number, since it is
    /// compared on every request. Only meaningful for a policy that was counted.
    #[inline]
    pub(crate) fn headroom(&self) -> u128 {
        headroom(self.usage.remaining, self.is_concurrency)
    }

    /// Returns when a request of the same cost can succeed under this policy, after everything that the decision charged.
    ///
    /// A policy that admits a request which another one denies, and that [counts denied
    /// requests](crate::Policy::count_denied), may need a wait as well: the denied request has used its last units.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.wait {
            Wait::Now => Retry::Now,
            Wait::At => Retry::At(self.at),
            Wait::Never => Retry::Never,
        }
    }
}

/// As [`PolicyState::headroom`].
#[inline]
pub(crate) fn headroom(remaining: u64, is_concurrency: bool) -> u128 {
    u128::from(is_concurrency) << u64::BITS | u128::from(remaining)
}

const NO_TIME: Timestamp = Timestamp::from_micros(0);
