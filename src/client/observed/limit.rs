//! One limit of an API, as a response shows it.

use std::time::Duration;

/// One limit that a response shows. Each part is `None` if the response does not contain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedLimit {
    pub(super) name: Option<Box<str>>,
    pub(super) unit: Option<Box<str>>,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
    pub(super) reset_kind: ResetKind,
    pub(super) window: Option<Duration>,
}

impl ObservedLimit {
    /// Returns the name of the limit, if the API has several: for example `tokens`, or the name of an IETF policy.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the unit that an IETF policy counts, such as `content-bytes`. `None` for requests, and for other headers.
    #[must_use]
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// Returns the quota: the units of a full window or a full bucket.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns the units that are left, rounded down.
    #[must_use]
    pub const fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns the time from the response to the reset. A reset in the past is zero.
    ///
    /// [`reset_kind`](Self::reset_kind) is what happens then.
    #[must_use]
    pub const fn reset(&self) -> Option<Duration> {
        self.reset
    }

    /// Returns what happens at the reset. Only meaningful if there is a [`reset`](Self::reset).
    #[must_use]
    pub const fn reset_kind(&self) -> ResetKind {
        self.reset_kind
    }

    /// Returns the span in which the whole quota comes back.
    #[must_use]
    pub const fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Returns the time until at least one more unit is back.
    ///
    /// That is the reset, but for a bucket whose reset is the time until it is full again. If `m` units are missing, one comes
    /// back in the `m`-th part of that time. For example, 60 units in 360 s are one in 6 s.
    #[must_use]
    pub fn next_unit(&self) -> Option<Duration> {
        let reset = self.reset?;
        let missing = match (self.reset_kind, self.limit, self.remaining) {
            (ResetKind::FullAgain, Some(limit), Some(remaining)) => limit.saturating_sub(remaining),
            _ => 1,
        };
        // Rounded up, so that the unit is there.
        let nanos = reset.as_nanos().div_ceil(u128::from(missing.max(1)));
        let second = 1_000_000_000;
        let seconds = u64::try_from(nanos / second).unwrap_or(u64::MAX);
        let rest = u32::try_from(nanos % second).unwrap_or_default();
        Some(Duration::new(seconds, rest))
    }

    /// Whether the response shows nothing but a name.
    pub(super) fn is_empty(&self) -> bool {
        self.limit.is_none() && self.remaining.is_none() && self.reset.is_none()
    }

    /// Adds the parts of another family's headers if both can be the same limit. Returns whether it did.
    pub(super) fn merge(&mut self, other: &Self) -> bool {
        let agree = |a: Option<u64>, b: Option<u64>| a.is_none() || b.is_none() || a == b;
        let is_same = self.name == other.name
            && agree(self.limit, other.limit)
            && agree(self.remaining, other.remaining);
        if is_same {
            self.limit = self.limit.or(other.limit);
            self.remaining = self.remaining.or(other.remaining);
            if other.reset > self.reset {
                (self.reset, self.reset_kind) = (other.reset, other.reset_kind);
            }
            self.window = self.window.or(other.window);
        }
        is_same
    }
}

// === ResetKind ===

/// The meaning of a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetKind {
    /// The bucket is full again. Single units come back earlier.
    FullAgain,
    /// The window ends, and no unit comes back earlier.
    #[default]
    WindowEnd,
}
