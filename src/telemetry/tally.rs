//! Numbers of decisions that this process can read, for the dashboard.
//!
//! # Why does the dashboard count decisions again?
//!
//! A counter of the `metrics` facade can be written and not read: only the application's recorder has its value. So the dashboard
//! has this tally, filled where the counters are, from the same decisions. It exists once a dashboard was built for the limiter.
//! Before that, a decision pays for one check. The table of series is the same code (`series.rs`), so the number of series has
//! the same bound.
//!
//! The history is made from the growth of the tally, once a second, and not on the request path. A second that the sampler
//! missed, since the runtime was busy, gets its part of the growth, so that a chart shows neither a gap nor a peak.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    decision::{CountedBy, Outcome},
    policy::Policy,
};

use super::series::SeriesTable;

/// The decisions of one limiter since a dashboard was built for it, by policy and tier.
///
/// Counts the same as `tollgate_decisions_total`, which only the application's recorder can read.
#[derive(Debug, Default)]
pub(crate) struct DecisionTally {
    /// The numbers of each kind, in the order of [`DecisionCount`]'s counts.
    table: SeriesTable<[AtomicU64; KINDS]>,
    failed: AtomicU64,
}

impl DecisionTally {
    /// Counts the decision of one policy.
    pub fn count(&self, policy: &Policy, is_shadow: bool, outcome: Outcome, counted_by: CountedBy) {
        let counts = &self.table.of(policy).value;
        let kind = match (outcome, is_shadow) {
            (Outcome::Allowed, _) => ALLOWED,
            (Outcome::Limited, false) => DENIED,
            (Outcome::Unavailable, false) => UNAVAILABLE,
            (Outcome::Limited | Outcome::Unavailable, true) => WOULD_DENY,
        };
        counts[kind].fetch_add(1, Ordering::Relaxed);
        let place = match counted_by {
            CountedBy::DenialCache => DENIAL_CACHE,
            CountedBy::Fallback | CountedBy::Uncounted => FALLBACK,
            CountedBy::Lease => LEASE,
            CountedBy::InProcess | CountedBy::Shared => return,
        };
        counts[place].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request for which the store returned an error.
    pub fn count_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of requests for which the store returned an error.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns the numbers of each policy and tier that had a decision.
    pub fn counts(&self) -> impl Iterator<Item = DecisionCount<'_>> {
        let counts = self.table.iter().map(|series| DecisionCount {
            policy: &series.policy,
            tier: &series.tier,
            counts: series
                .value
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
        });
        counts.filter(|count| count.counts != [0; KINDS])
    }
}

// === DecisionCount ===

/// The numbers of decisions of one policy and tier at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionCount<'a> {
    pub policy: &'a str,
    /// `none` for the policy's own quota.
    pub tier: &'a str,
    /// Allowed, denied, would have been denied, unavailable. The last three are parts of all these: those that were not counted by
    /// the store, those by leased units, and denials that were kept.
    pub counts: [u64; KINDS],
}

pub(crate) const KINDS: usize = 7;
const ALLOWED: usize = 0;
const DENIED: usize = 1;
const WOULD_DENY: usize = 2;
const UNAVAILABLE: usize = 3;
const FALLBACK: usize = 4;
const LEASE: usize = 5;
const DENIAL_CACHE: usize = 6;
