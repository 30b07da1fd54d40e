//! The metrics of limits over regions.

#[cfg(feature = "metrics")]
use metrics::{Counter, counter};

use super::leases::ReportResult;
#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder};

/// The metrics of the units that this region holds of keys whose homes are elsewhere.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug, Default)]
pub(crate) struct RegionMetrics {
    #[cfg(feature = "metrics")]
    counters: PerRecorder<RegionCounters>,
}

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct RegionCounters {
    waits: Counter,
    by_share: Counter,
    accepted: Counter,
    failed: Counter,
    late: Counter,
}

impl RegionMetrics {
    /// Exports all counters, at first with 0.
    pub fn show(&self) {
        #[cfg(feature = "metrics")]
        self.record(|_| {});
    }

    /// Counts a request that waits for the home of a key.
    pub fn waited(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.waits.increment(1));
    }

    /// Counts a request that was decided by the region's share, without the home.
    pub fn decided_by_share(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.by_share.increment(1));
    }

    /// Counts a report to a home that has ended.
    pub fn reported(&self, result: ReportResult) {
        #[cfg(not(feature = "metrics"))]
        let _ = result;
        #[cfg(feature = "metrics")]
        self.record(|counters| {
            let counter = match result {
                ReportResult::Accepted => &counters.accepted,
                ReportResult::Failed => &counters.failed,
                ReportResult::Late => &counters.late,
            };
            counter.increment(1);
        });
    }

    #[cfg(feature = "metrics")]
    fn record(&self, record: impl FnOnce(&RegionCounters)) {
        let reports =
            |result: &'static str| counter!(catalog::REGION_REPORTS.name, "result" => result);
        let register = || RegionCounters {
            waits: counter!(catalog::REGION_WAITS.name),
            by_share: counter!(catalog::SHARE_DECISIONS.name),
            accepted: reports("accepted"),
            failed: reports("failed"),
            late: reports("late"),
        };
        self.counters.with(register, record);
    }
}
