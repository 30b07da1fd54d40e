//! The counters of decisions, one set for each policy and tier.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
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
/// heads:  [ 0 ]  [ 1 ]                 [ 2 ] ...
///           |      '-> (api, none)       '-> (login, none) -> (api, pro)
///           '-> empty
/// ```
pub(super) struct DecisionCounters {
    heads: [Link; HEADS],
    /// Number of tiers of each policy, and of all pairs. Locked while a series is added.
    counts: Mutex<Counts>,
    /// Whether no more pairs get a series.
    is_full: AtomicBool,
    /// Counts everything beyond the last pair.
    overflow: Series,
    pub(super) failed: Counter,
}

type Link = OnceLock<Box<Series>>;

#[derive(Debug, Default)]
struct Counts {
    tiers: HashMap<PolicyName, usize>,
    pairs: usize,
}

impl DecisionCounters {
    /// Registers the counter of errors. The others follow with their first decision.
    pub(super) fn register() -> Self {
        Self {
            heads: [const { OnceLock::new() }; HEADS],
            counts: Mutex::default(),
            is_full: AtomicBool::new(false),
            overflow: Series::new(0, OTHER, OTHER),
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
        let series = match self.find(policy.series()) {
            Ok(series) => series,
            Err(_) => self.add(policy),
        };
        series.counter(is_shadow, outcome, counted_by).increment(1);
    }

    /// Returns the series with this hash, or the place of a new one.
    #[inline]
    fn find(&self, id: u64) -> Result<&Series, &Link> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lowest bits are enough"
        )]
        let mut link = &self.heads[id as usize % HEADS];
        while let Some(series) = link.get() {
            if series.id == id {
                return Ok(series);
            }
            link = &series.next;
        }
        Err(link)
    }

    /// Returns a new series for a policy and tier, or the series that all others share if there are too many.
    #[cold]
    fn add(&self, policy: &Policy) -> &Series {
        let id_of_others = !policy.name_hash().low;
        if policy.tier().is_some()
            && let Ok(others) = self.find(id_of_others)
        {
            return others;
        }
        if self.is_full.load(Ordering::Relaxed) {
            return &self.overflow;
        }
        let mut counts = self.counts.lock();
        // Another thread may have added it meanwhile.
        if let Ok(series) = self.find(policy.series()) {
            return series;
        }
        let (id, tier) = match policy.tier() {
            None => (policy.series(), NO_TIER),
            Some(tier) => {
                let tiers = counts.tiers.entry(*policy.name()).or_insert(0);
                *tiers += 1;
                if *tiers <= MAX_TIERS {
                    (policy.series(), tier.as_str())
                } else {
                    (id_of_others, OTHER)
                }
            }
        };
        if counts.pairs == MAX_PAIRS {
            self.is_full.store(true, Ordering::Relaxed);
            return &self.overflow;
        }
        match self.find(id) {
            Ok(series) => series,
            Err(link) => {
                counts.pairs += 1;
                link.get_or_init(|| Box::new(Series::new(id, policy.name().as_str(), tier)))
            }
        }
    }
}

impl fmt::Debug for DecisionCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionCounters")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

// === Series ===

/// The counters of one policy and tier, each registered with its first decision.
struct Series {
    id: u64,
    policy: String,
    tier: String,
    counters: [OnceLock<Counter>; 2 * OUTCOMES * PLACES],
    next: Link,
}

impl Series {
    fn new(id: u64, policy: &str, tier: &str) -> Self {
        Self {
            id,
            policy: policy.to_owned(),
            tier: tier.to_owned(),
            counters: [const { OnceLock::new() }; 2 * OUTCOMES * PLACES],
            next: OnceLock::new(),
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
/// The most tiers of a policy, and the most pairs of policy and tier of a limiter, with a label of their own.
const MAX_TIERS: usize = 16;
const MAX_PAIRS: usize = 256;
/// With few pairs, hardly any two have one head.
const HEADS: usize = 64;
const NO_TIER: &str = "none";
const OTHER: &str = "other";
const ENFORCED: &str = "enforced";
const SHADOW: &str = "shadow";

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
                counters.count(policy, false, Outcome::Allowed, CountedBy::InProcess);
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
        let policies: Vec<_> = (0..2 * MAX_PAIRS).map(policy).collect();
        let labels = labels(&policies);
        assert_eq!(labels.len(), MAX_PAIRS + 1);
        assert!(labels.contains(&(OTHER.into(), OTHER.into())));
    }

    #[test]
    fn policy_and_tier_of_one_name_have_two_series() {
        let policy = Policy::new("api", Quota::per_second(1));
        let tier = policy.of_tier(policy.name(), Quota::per_second(5), None);
        assert_eq!(labels(&[policy, tier]).len(), 2);
    }
}
