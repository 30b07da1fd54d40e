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
    table: SeriesTable<Counters>,
    pub(super) failed: Counter,
}

impl DecisionCounters {
    /// Registers the counter of errors. The others follow with their first decision.
    pub(super) fn register() -> Self {
        Self {
            table: SeriesTable::new(Counters::new),
            failed: counter!(catalog::FAILED_DECISIONS.name),
        }
    }

    /// Counts the decision of one policy.
    #[inline]
    pub(super) fn count(
        &self,
        policy: &Policy,
        is_shadow: bool,
        outcome: Outcome,
        counted_by: CountedBy,
    ) {
        let counters = self.table.of(policy, Counters::new);
        counters
            .counter(is_shadow, outcome, counted_by)
            .increment(1);
    }
}

// === Counters ===

/// The counters of one policy and tier, each registered with its first decision.
struct Counters {
    policy: String,
    tier: String,
    counters: [OnceLock<Counter>; 2 * OUTCOMES * PLACES],
}

impl Counters {
    fn new(policy: &str, tier: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            tier: tier.to_owned(),
            counters: [const { OnceLock::new() }; 2 * OUTCOMES * PLACES],
        }
    }

    #[inline]
    fn counter(&self, is_shadow: bool, outcome: Outcome, counted_by: CountedBy) -> &Counter {
        let outcomes = usize::from(is_shadow) * OUTCOMES + outcome as usize;
        let index = outcomes * PLACES + counted_by as usize;
        self.counters[index].get_or_init(|| {
            counter!(
                catalog::DECISIONS.name,
                "policy" => self.policy.clone(),
                "tier" => self.tier.clone(),
                "mode" => if is_shadow { SHADOW } else { ENFORCED },
                "outcome" => outcome.name(),
                "counted_by" => counted_by.name(),
            )
        })
    }
}

/// Numbers of the variants of [`Outcome`] and of [`CountedBy`].
const OUTCOMES: usize = Outcome::Unavailable as usize + 1;
const PLACES: usize = CountedBy::Shared as usize + 1;
const ENFORCED: &str = "enforced";
const SHADOW: &str = "shadow";
