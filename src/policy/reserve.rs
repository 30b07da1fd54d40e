//! The part of a quota that is kept for some classes of requests.

use crate::{algorithm::Quota, priority::priority::Priority};

use super::consistency::Percent;

/// A part of the quota that other classes cannot use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reserve {
    pub classes: Vec<Priority>,
    pub part: Percent,
}

impl Reserve {
    /// Returns whether it is for a class, and leaves something to the others.
    ///
    /// # Errors
    ///
    /// The reason.
    pub fn validate(&self, quota: Quota) -> Result<(), &'static str> {
        if self.classes.is_empty() {
            Err("a reserve for no class: name at least one, such as Priority::Critical")
        } else if !self.part.is_a_part() || self.part == Percent::new(100.0) {
            Err("a reserve is from 0.1 to 99.9 %")
        } else if self.rest_of(quota).count() == 0 {
            Err("the reserve leaves nothing to the other classes: raise the limit, or reserve less")
        } else {
            Ok(())
        }
    }

    /// Returns what a quota leaves to the other classes.
    pub fn rest_of(&self, quota: Quota) -> Quota {
        let left = |units: u64| units.saturating_sub(self.part.of_up(units));
        let rest = Quota::new(left(quota.count()), quota.period());
        match quota.explicit_burst() {
            Some(units) => rest.burst(left(units).max(1)),
            None => rest,
        }
    }
}
