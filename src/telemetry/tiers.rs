//! The metrics of tier caches.

#[cfg(feature = "metrics")]
use metrics::{Counter, counter};

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder};

/// The metrics of one tier cache. Those of all caches add up.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug, Default)]
pub(crate) struct TierMetrics {
    #[cfg(feature = "metrics")]
    counters: PerRecorder<TierCounters>,
}

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct TierCounters {
    hits: Counter,
    stale_hits: Counter,
    misses: Counter,
    failures: Counter,
}

impl TierMetrics {
    /// Counts a tier that was cached and is used.
    pub fn hit(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.hits.increment(1));
    }

    /// Counts a tier that is used while it is looked up again.
    pub fn stale_hit(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.stale_hits.increment(1));
    }

    /// Counts a request that waits for a lookup, or for which too many were running.
    pub fn missed(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.misses.increment(1));
    }

    /// Counts a lookup that failed.
    pub fn failed(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.failures.increment(1));
    }

    #[cfg(feature = "metrics")]
    fn record(&self, record: impl FnOnce(&TierCounters)) {
        let requests = |result| counter!(catalog::TIER_REQUESTS.name, "result" => result);
        let register = || TierCounters {
            hits: requests("hit"),
            stale_hits: requests("stale"),
            misses: requests("miss"),
            failures: counter!(catalog::FAILED_LOOKUPS.name),
        };
        self.counters.with(register, record);
    }
}
