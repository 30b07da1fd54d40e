//! The counters of decisions, one set for each policy and tier.

use std::sync::OnceLock;

use metrics::{Counter, counter};

use crate::{
    decision::{CountedBy, Outcome},
    policy::Policy,
};

use super::{catalog, series::SeriesTable};

/// The counters of all policies and tiers of one limiter, with one recorder.
#[derive(Debug)]
pub(super) struct DecisionCounters {
    table: SeriesTable<OutcomeCounters>,
    pub failed: Counter,
}

/// The counters of one policy and tier, each registered with its first decision.
type OutcomeCounters = [[OnceLock<Counter>; PLACES]; 2 * OUTCOMES];

impl DecisionCounters {
    /// Registers the counter of errors. The others follow with their first decision.
    pub fn register() -> Self {
        Self {
            table: SeriesTable::default(),
            failed: counter!(catalog::FAILED_DECISIONS.name),
        }
    }

    /// Counts the decision of one policy.
    #[inline]
    pub fn count(&self, policy: &Policy, is_shadow: bool, outcome: Outcome, counted_by: CountedBy) {
        let series = self.table.of(policy);
        let outcomes = usize::from(is_shadow) * OUTCOMES + outcome as usize;
        let counter = series.value[outcomes][counted_by as usize].get_or_init(|| {
            counter!(
                catalog::DECISIONS.name,
                "policy" => series.policy.to_string(),
                "tier" => series.tier.to_string(),
                "mode" => if is_shadow { SHADOW } else { ENFORCED },
                "outcome" => outcome.name(),
                "counted_by" => counted_by.name(),
            )
        });
        counter.increment(1);
    }
}

/// Numbers of the variants of [`Outcome`] and of [`CountedBy`].
const OUTCOMES: usize = Outcome::Unavailable as usize + 1;
const PLACES: usize = CountedBy::Shared as usize + 1;
const ENFORCED: &str = "enforced";
const SHADOW: &str = "shadow";
