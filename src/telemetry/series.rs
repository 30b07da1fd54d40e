//! The counters of decisions, one set for each policy and tier.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use metrics::{Counter, counter};

use crate::{
    policy::Policy,
    state::{CountedBy, Outcome, PolicyName},
    sync::Mutex,
};

use super::catalog;

/// The counters of all policies and tiers of one limiter.
///
/// A hash table without removal, which readers search without a lock:
///
/// ```text
/// slots:  [ api, pro ][          ][ login ][ api ][          ] ...    at most half of them are used
///              ^ the index is the hash of policy and tier; the next slots follow if it is taken
/// ```
pub(super) struct DecisionCounters {
    slots: Box<[OnceLock<Box<Series>>]>,
    /// Number of slots in use.
    used: AtomicUsize,
    /// Number of tiers of each policy. Locked while a slot is filled.
    tiers: Mutex<HashMap<PolicyName, usize>>,
    /// Counts everything for which no slot is left.
    overflow: Series,
    pub(super) failed: Counter,
}

impl DecisionCounters {
    /// Registers the counter of errors. The others follow with their first decision.
    pub(super) fn register() -> Self {
        Self {
            slots: (0..2 * MAX_SERIES).map(|_| OnceLock::new()).collect(),
            used: AtomicUsize::new(0),
            tiers: Mutex::default(),
            overflow: Series::new(0, OTHER, OTHER),
            failed: counter!(catalog::FAILED_DECISIONS.name),
        }
    }

    /// Counts the decision of one policy.
    #[inline]
    pub(super) fn count(&self, policy: &Policy, outcome: Outcome, counted_by: CountedBy) {
        let series = match self.find(policy.series()) {
            Some(series) => series,
            None => self.add(policy),
        };
        series.counter(outcome, counted_by).increment(1);
    }

    #[inline]
    fn find(&self, id: u64) -> Option<&Series> {
        let mut slots = self.from(id);
        loop {
            // Half of the slots are empty, so the search ends.
            let series = slots.next()?.get()?;
            if series.id == id {
                return Some(series);
            }
        }
    }

    /// Returns all slots, beginning with that of `id`.
    #[inline]
    fn from(&self, id: u64) -> impl Iterator<Item = &OnceLock<Box<Series>>> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the mask keeps the lowest bits"
        )]
        let index = id as usize & (self.slots.len() - 1);
        let (before, after) = self.slots.split_at(index);
        after.iter().chain(before)
    }

    /// Returns a new series for a policy and tier, or the series that all others share if there are too many.
    #[cold]
    fn add(&self, policy: &Policy) -> &Series {
        let id_of_others = !policy.name_hash().low;
        if policy.tier().is_some()
            && let Some(others) = self.find(id_of_others)
        {
            return others;
        }
        if self.used.load(Ordering::Relaxed) >= MAX_SERIES {
            return &self.overflow;
        }
        let mut tiers = self.tiers.lock();
        let (id, tier) = match policy.tier() {
            None => (policy.series(), NO_TIER),
            Some(tier) => {
                let count = tiers.entry(*policy.name()).or_insert(0);
                *count += 1;
                if *count <= MAX_TIERS {
                    (policy.series(), tier.as_str())
                } else {
                    (id_of_others, OTHER)
                }
            }
        };
        let series = || Box::new(Series::new(id, policy.name().as_str(), tier));
        for slot in self.from(id) {
            if slot.get().is_none() {
                self.used.fetch_add(1, Ordering::Relaxed);
            }
            let taken = slot.get_or_init(series);
            if taken.id == id {
                return taken;
            }
        }
        &self.overflow
    }
}

impl fmt::Debug for DecisionCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionCounters")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

// === Series ===

/// The counters of one policy and tier, each registered with its first decision.
struct Series {
    id: u64,
    policy: String,
    tier: String,
    counters: [OnceLock<Counter>; OUTCOMES * PLACES],
}

impl Series {
    fn new(id: u64, policy: &str, tier: &str) -> Self {
        Self {
            id,
            policy: policy.to_owned(),
            tier: tier.to_owned(),
            counters: Default::default(),
        }
    }

    #[inline]
    fn counter(&self, outcome: Outcome, counted_by: CountedBy) -> &Counter {
        let index = outcome as usize * PLACES + counted_by as usize;
        self.counters[index].get_or_init(|| {
            counter!(
                catalog::DECISIONS.name,
                "policy" => self.policy.clone(),
                "tier" => self.tier.clone(),
                "mode" => ENFORCED,
                "outcome" => outcome.name(),
                "counted_by" => counted_by.name(),
            )
        })
    }
}

/// Numbers of the variants of [`Outcome`] and of [`CountedBy`].
const OUTCOMES: usize = Outcome::Unavailable as usize + 1;
const PLACES: usize = CountedBy::Shared as usize + 1;
/// The most tiers of a policy, and the most pairs of policy and tier of a limiter, with a label of their own.
const MAX_TIERS: usize = 16;
const MAX_SERIES: usize = 256;
const NO_TIER: &str = "none";
const OTHER: &str = "other";
const ENFORCED: &str = "enforced";

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use crate::quota::Quota;

    use super::*;

    /// Counts one decision of each policy, and returns the labels of their series.
    fn labels(policies: &[Policy]) -> Vec<(String, String)> {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let counters = DecisionCounters::register();
            for policy in policies {
                counters.count(policy, Outcome::Allowed, CountedBy::InProcess);
            }
        });
        let text = recorder.handle().render();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("tollgate_decisions_total{"));
        let label = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\"")).expect("a label");
            rest.split('"').next().expect("a value").to_owned()
        };
        lines
            .map(|line| (label(line, "policy"), label(line, "tier")))
            .collect()
    }

    fn tiers(policy: &Policy, count: usize) -> Vec<Policy> {
        let name = |tier| PolicyName::new(&format!("tier-{tier}")).expect("a name");
        let tiers = (0..count).map(|tier| policy.of_tier(&name(tier), Quota::per_second(5), None));
        tiers.collect()
    }

    #[test]
    fn tiers_beyond_sixteen_share_a_series() {
        let policy = Policy::new("api", Quota::per_second(1));
        let mut policies = tiers(&policy, 40);
        policies.extend(tiers(&policy, 40));
        policies.push(policy);
        let labels = labels(&policies);
        assert_eq!(labels.len(), MAX_TIERS + 2);
        assert!(labels.contains(&("api".into(), NO_TIER.into())));
        assert!(labels.contains(&("api".into(), OTHER.into())));
        assert!(labels.contains(&("api".into(), "tier-15".into())));
    }

    #[test]
    fn policies_without_bound_share_a_series() {
        let policy = |number| Policy::new(format!("policy-{number}"), Quota::per_second(1));
        let policies: Vec<_> = (0..2 * MAX_SERIES).map(policy).collect();
        let labels = labels(&policies);
        assert_eq!(labels.len(), MAX_SERIES + 1);
        assert!(labels.contains(&(OTHER.into(), OTHER.into())));
    }

    #[test]
    fn policy_and_tier_of_one_name_have_two_series() {
        let policy = Policy::new("api", Quota::per_second(1));
        let tier = policy.of_tier(policy.name(), Quota::per_second(5), None);
        assert_eq!(labels(&[policy, tier]).len(), 2);
    }
}
