//! The quota left, and what a decision reports about a charge: when to retry, why it was denied, and where it was counted.

use crate::clock::Timestamp;

/// The quota left under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The most units that one request can take.
    pub limit: u64,
    /// Units that a request can take now.
    pub remaining: u64,
    /// When the full quota is back if nothing more is charged.
    ///
    /// If the full quota is back already, the time of the decision. Otherwise a fixed time: two decisions without a
    /// charge between them return the same one. The exception is a [`peek`](crate::RateLimiter::peek) after the limit
    /// has changed: it may differ until the next charge.
    pub reset_at: Timestamp,
}

impl Usage {
    /// Creates a usage, for a custom [`Store`](crate::store::Store).
    #[must_use]
    #[inline]
    pub const fn new(limit: u64, remaining: u64, reset_at: Timestamp) -> Self {
        Self {
            limit,
            remaining,
            reset_at,
        }
    }
}

// === Retry ===

/// When a request of the same cost can succeed, from soonest to latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// At once: this policy has admitted the request.
    Now,
    /// From this time on, unless other requests charge the key before.
    At(Timestamp),
    /// Never: the cost exceeds the policy's limit.
    Never,
}

// === DeniedBy ===

/// The cause of a denial under a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeniedBy {
    /// The key is banned, after repeated denials: see [`Penalty`](crate::policy::Penalty).
    Ban,
    /// An operator has [blocked](crate::RateLimiter::block) the key.
    Block,
    /// The quota is used up, or the cost exceeds the limit.
    #[default]
    Quota,
}

impl DeniedBy {
    /// Returns the name in log events, such as `block`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ban => "ban",
            Self::Block => "block",
            Self::Quota => "quota",
        }
    }
}

// === CountedBy ===

/// Where the count of a decision is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CountedBy {
    /// In the shared store, which has denied the key before. The denial still holds, so the store was not asked again.
    DenialCache,
    /// In this process, because the shared store is unavailable.
    Fallback,
    /// In this process, by configuration: the default without Redis.
    InProcess,
    /// In the shared store, from which this instance has leased units of the key in advance. The store was not asked for this
    /// request: leased units admitted it, or it was denied by the reply to a report of them that it had waited for.
    Lease,
    /// Nowhere: the shared store is unavailable, and the policies allow or deny without counting.
    Uncounted,
    /// In the shared store, for all instances.
    Shared,
}

impl CountedBy {
    /// Returns the name in log events and metrics, such as `in_process`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DenialCache => "denial_cache",
            Self::Fallback => "fallback",
            Self::InProcess => "in_process",
            Self::Lease => "lease",
            Self::Uncounted => "uncounted",
            Self::Shared => "shared",
        }
    }

    /// Returns whether the charge is settled in the shared store.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Lease | Self::Shared)
    }

    /// Returns the less reliable of two counts.
    pub(crate) fn least(self, other: Self) -> Self {
        let rank = |counted_by: &Self| match counted_by {
            Self::Uncounted => 0,
            Self::Fallback => 1,
            Self::InProcess => 2,
            Self::DenialCache | Self::Lease | Self::Shared => 3,
        };
        std::cmp::min_by_key(self, other, rank)
    }
}

// === Outcome ===

/// The outcome of a decision, from mildest to strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The request is within every limit and was charged.
    Allowed,
    /// The request is over a limit: 429. Nothing was charged, except under
    /// [`Policy::count_denied`](crate::Policy::count_denied).
    Limited,
    /// No store could decide, and a policy denies requests in that case: 503.
    Unavailable,
}

impl Outcome {
    /// Returns the name in log events and metrics, such as `limited`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Limited => "limited",
            Self::Unavailable => "unavailable",
        }
    }
}
