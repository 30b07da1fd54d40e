//! The part of a quota that is kept for some classes of requests.

use std::time::Duration;

use crate::{
    algorithm::{Counter, Quota},
    priority::priority::Priority,
};

use super::consistency::Percent;

/// A part of the quota that other classes cannot use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reserve {
    pub classes: Vec<Priority>,
    pub part: Percent,
    /// The longest time until what is lent has come back. `None` if nothing is.
    pub lent_within: Option<Duration>,
}

impl Default for Reserve {
    fn default() -> Self {
        Self {
            classes: Vec::new(),
            part: Percent::whole(0),
            lent_within: None,
        }
    }
}

impl Reserve {
    /// Returns whether it is for a class, and leaves something to the others.
    ///
    /// # Errors
    ///
    /// The reason.
    pub fn validate(&self, quota: Quota) -> Result<(), &'static str> {
        if self.classes.is_empty() && self.lent_within.is_some() {
            Err("lend() lends a reserve: add reserve() for at least one class")
        } else if self.classes.is_empty() {
            Err("a reserve for no class: name at least one, such as Priority::Critical")
        } else if !self.part.is_a_part() || self.part == Percent::new(100.0) {
            Err("a reserve is from 0.1 to 99.9 %")
        } else if self.lent_within.is_none() && self.rest_of(quota, self.part).count() == 0 {
            Err("the reserve leaves nothing to the other classes: raise the limit, or reserve less")
        } else {
            Ok(())
        }
    }

    /// Returns whether what is lent comes back in time to a class whose requests have this cost, if `kept` of the limit is always kept
    /// free.
    ///
    /// # Errors
    ///
    /// The reason.
    pub fn validate_loan(&self, counter: &Counter, kept: Percent, cost: u64) -> Result<(), String> {
        let Some(within) = self.lent_within else {
            return Ok(());
        };
        let limit = counter.limit();
        let kept = kept.of_up(limit);
        let lent = self.part.of_up(limit).saturating_sub(kept);
        if lent == 0 {
            return Err("a twentieth of the limit is not lent, so this reserve lends nothing: reserve more, or remove lend()".into());
        }
        if cost > kept {
            return Err(format!(
                "a request costs {cost}, and only {kept} are kept free while the rest is lent, so other classes could take what comes \
                 back before it: lower the cost, raise the limit, or remove lend()"
            ));
        }
        if within.is_zero() {
            return Err("lend() within no time lends nothing: set the longest time until what is lent comes back".into());
        }
        match counter {
            Counter::Bucket(bucket) => {
                let back = Duration::from_micros(bucket.micros_up(lent));
                match back <= within {
                    true => Ok(()),
                    false => Err(format!(
                        "what is lent takes {back:?} to come back, and lend() allows {within:?}: allow {back:?}, or lower the burst"
                    )),
                }
            }
            Counter::Concurrency(_) => Ok(()),
            Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => Err(
                "what a window lends comes back only when it ends: use a token bucket, or remove lend()".into(),
            ),
        }
    }

    /// Returns what a quota leaves to the other classes.
    pub fn rest_of(&self, quota: Quota, part: Percent) -> Quota {
        let left = |units: u64| units.saturating_sub(part.of_up(units));
        let rest = Quota::new(left(quota.count()), quota.period());
        match quota.explicit_burst() {
            Some(units) => rest.burst(left(units).max(1)),
            None => rest,
        }
    }
}
