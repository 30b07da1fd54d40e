//! Whether each decision asks the shared store.

use std::ops::RangeInclusive;

use crate::algorithm::Counter;

/// How a policy is counted when several instances share its counts.
///
/// They differ in how often they ask the shared store, and in what is admitted:
///
/// | | a request for a busy key | the shared store gets | all instances admit in any time `t` |
/// |---|---|---|---|
/// | `Strict` | waits for the store | an entry of a call for each request | `burst + rate * t` |
/// | `Leased` | is mostly decided at once, in process | about 6 reports a second for each busy key and instance | the same |
/// | `Delayed` | is mostly decided at once, also far above the limit | about 6 reports a second, or one each time that `overshoot * burst` units have come back | `burst * (1 + overshoot) + rate * t` |
///
/// The last column is that of buckets. A fixed window admits its limit in each window, and a sliding window counter by its estimate;
/// under `Delayed`, `limit * (1 + overshoot)`.
///
/// Without Redis, this has no effect. The page `docs/consistency.md` of the package compares them: when to choose which, what a
/// crash costs, and in which cases leased units are admitted besides the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// As [`Leased`](Self::Leased), but while units are leased, all instances together may be ahead of the limit by a part of the
    /// burst, or of the limit of a window. So keys that are asked for more than the limit are decided in process too.
    Delayed {
        /// The part of the burst or limit, from 0.1 to 100 %. It saves calls if it is 4 units or more for each instance.
        overshoot: Percent,
    },
    /// Instances lease units of busy keys in advance, and spend them without a round trip.
    ///
    /// For token and leaky buckets with a burst of 16 units or more, and for fixed windows and sliding window counters with a limit
    /// of 16 or more; best 16 for each instance. Not with counted denials or a penalty.
    Leased,
    /// The shared store makes each decision.
    #[default]
    Strict,
}

impl Consistency {
    /// Returns by how much the limit may be exceeded, in 1/1000 of it.
    #[cfg(feature = "redis")]
    pub(crate) fn overshoot(self) -> u16 {
        match self {
            Self::Delayed { overshoot } => overshoot.0,
            Self::Leased | Self::Strict => 0,
        }
    }

    /// Returns whether instances lease units in advance.
    pub(crate) fn is_leased(self) -> bool {
        self != Self::Strict
    }

    /// Checks that units of a policy with this counter can be leased.
    ///
    /// # Errors
    ///
    /// The reason.
    pub(super) fn validate(self, counter: &Counter, notes_denied: bool) -> Result<(), String> {
        let reason = match counter {
            _ if !self.is_leased() => return Ok(()),
            Counter::Bucket(bucket) if bucket.is_queue() => {
                "each request of a queue needs its own turn"
            }
            Counter::Concurrency(_) => "slots are held, not spent",
            Counter::SlidingLog(_) => {
                "a sliding log needs the time of each request: use another algorithm"
            }
            _ if notes_denied => {
                "the shared store must see each request that is denied: remove penalty(), backoff() and count_denied()"
            }
            Counter::Bucket(bucket) if bucket.capacity() < LEAST_LEASED => {
                "instances lease a quarter of the burst, and at least 4 units: set a burst of 16 or more, best for each instance"
            }
            Counter::FixedWindow(_) | Counter::SlidingWindow(_)
                if counter.limit() < LEAST_LEASED =>
            {
                "instances lease a quarter of the limit, and at least 4 units: set a limit of 16 or more, best for each instance"
            }
            Counter::Bucket(_) | Counter::FixedWindow(_) | Counter::SlidingWindow(_) => {
                return self.validate_overshoot();
            }
        };
        Err(format!(
            "its consistency cannot be Leased or Delayed: {reason}"
        ))
    }

    fn validate_overshoot(self) -> Result<(), String> {
        match self {
            Self::Delayed { overshoot } if !OVERSHOOTS.contains(&overshoot.0) => {
                Err("the overshoot of a Delayed policy must be 0.1 to 100 %".to_owned())
            }
            Self::Delayed { .. } | Self::Leased | Self::Strict => Ok(()),
        }
    }
}

/// A percentage, to a tenth.
///
/// # Examples
///
/// ```
/// use tollgate::{Consistency, Percent};
///
/// let delayed = Consistency::Delayed { overshoot: Percent::new(2.5) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Percent(u16);

impl Percent {
    /// Returns a percentage of this number, rounded down to a tenth. `build()` returns an error for one that a setting does not allow,
    /// and for NaN.
    #[must_use]
    pub fn new(percent: f64) -> Self {
        // Tenths such as 1.1 may be a little less in binary.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "numbers outside are invalid anyway"
        )]
        let tenths = (percent * 10.0 + 1e-6) as u16;
        Self(tenths)
    }

    /// Returns a percentage of a whole number.
    pub(super) const fn whole(percent: u16) -> Self {
        Self(percent * 10)
    }

    /// Returns this part of a whole of so many parts.
    #[cfg(feature = "redis")]
    pub(crate) fn of(self, whole: u64) -> u64 {
        whole * u64::from(self.0) / 1_000
    }

    /// Returns this part of a whole of so many parts, rounded up.
    pub(super) fn of_up(self, whole: u64) -> u64 {
        let parts = u128::from(whole) * u128::from(self.0);
        u64::try_from(parts.div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    /// Returns whether it is from 0.1 to 100 %.
    pub(crate) fn is_a_part(self) -> bool {
        OVERSHOOTS.contains(&self.0)
    }

    /// Returns the number of percent.
    #[cfg(feature = "explain")]
    pub(crate) fn percent(self) -> f64 {
        f64::from(self.0) / 10.0
    }
}

/// The least burst or limit of a policy whose units can be leased.
const LEAST_LEASED: u64 = 16;
/// The least and the greatest overshoot, in 1/1000.
const OVERSHOOTS: RangeInclusive<u16> = 1..=1_000;
