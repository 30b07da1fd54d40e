//! One value for each policy and tier, in bounded memory.

use std::{
    collections::HashMap,
    fmt, iter,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{decision::PolicyName, policy::Policy, task::Mutex};

/// A value of type `T` for each policy and tier of one limiter, such as its counters.
///
/// A hash table without removal, which readers search without a lock:
///
/// ```text
/// heads:  [ 0 ]  [ 1 ]                 [ 2 ] ...
///           |      '-> (api, none)       '-> (login, none) -> (api, pro)
///           '-> empty
/// ```
pub(super) struct SeriesTable<T> {
    heads: [Link<T>; HEADS],
    /// Number of tiers of each policy, and of all pairs. Locked while a series is added.
    counts: Mutex<Counts>,
    /// Whether no more pairs get a series.
    is_full: AtomicBool,
    /// The series of everything beyond the last pair.
    overflow: PolicySeries<T>,
}

type Link<T> = OnceLock<Box<PolicySeries<T>>>;

/// The value of one policy and tier.
pub(super) struct PolicySeries<T> {
    id: u64,
    pub policy: Box<str>,
    /// `none` for the policy's own quota.
    pub tier: Box<str>,
    pub value: T,
    next: Link<T>,
}

#[derive(Debug, Default)]
struct Counts {
    tiers: HashMap<PolicyName, usize>,
    pairs: usize,
}

impl<T: Default> SeriesTable<T> {
    /// Returns the series of a policy, which is new if it is the first of its policy and tier.
    #[inline]
    pub fn of(&self, policy: &Policy) -> &PolicySeries<T> {
        match self.find(policy.series()) {
            Ok(series) => series,
            Err(_) => self.add(policy),
        }
    }

    /// Returns the series with this hash, or the place of a new one.
    #[inline]
    fn find(&self, id: u64) -> Result<&PolicySeries<T>, &Link<T>> {
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

    /// Returns a new series for a policy and tier, or the one that all others share if there are too many.
    #[cold]
    fn add(&self, policy: &Policy) -> &PolicySeries<T> {
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
                link.get_or_init(|| Box::new(PolicySeries::new(id, policy.name().as_str(), tier)))
            }
        }
    }
}

impl<T> SeriesTable<T> {
    /// Returns all series, and last that of everything beyond the last pair.
    pub fn iter(&self) -> impl Iterator<Item = &PolicySeries<T>> {
        let boxes = self
            .heads
            .iter()
            .flat_map(|head| iter::successors(head.get(), |series| series.next.get()));
        boxes.map(|series| &**series).chain([&self.overflow])
    }
}

impl<T: Default> Default for SeriesTable<T> {
    fn default() -> Self {
        Self {
            heads: [const { OnceLock::new() }; HEADS],
            counts: Mutex::default(),
            is_full: AtomicBool::new(false),
            overflow: PolicySeries::new(0, OTHER, OTHER),
        }
    }
}

impl<T> fmt::Debug for SeriesTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeriesTable")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl<T: Default> PolicySeries<T> {
    fn new(id: u64, policy: &str, tier: &str) -> Self {
        Self {
            id,
            policy: policy.into(),
            tier: tier.into(),
            value: T::default(),
            next: OnceLock::new(),
        }
    }
}

/// The most tiers of a policy, and the most pairs of policy and tier of a limiter, with a label of their own.
const MAX_TIERS: usize = 16;
const MAX_PAIRS: usize = 256;
/// With few pairs, hardly any two have one head.
const HEADS: usize = 64;
const NO_TIER: &str = "none";
const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use crate::algorithm::Quota;

    use super::*;

    /// Returns the labels of the series of these policies, without the one of all others unless it was used.
    fn labels(policies: &[Policy]) -> Vec<(String, String)> {
        let mut labels = Vec::new();
        let table = SeriesTable::<()>::default();
        for policy in policies {
            let series = table.of(policy);
            let label = (series.policy.to_string(), series.tier.to_string());
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
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
