//! The metrics of leased units.

#[cfg(feature = "metrics")]
use metrics::{Counter, counter};

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder};

/// The metrics of the units that one instance has leased.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug, Default)]
pub(crate) struct LeaseMetrics {
    #[cfg(feature = "metrics")]
    counters: PerRecorder<LeaseCounters>,
}

/// How a report of leased units ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReportResult {
    Accepted,
    Failed,
    /// Redis had counted the units as spent before.
    Late,
}

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct LeaseCounters {
    misses: Counter,
    accepted: Counter,
    failed: Counter,
    late: Counter,
}

impl LeaseMetrics {
    /// Exports all counters, at first with 0.
    pub fn show(&self) {
        #[cfg(feature = "metrics")]
        self.record(|_| {});
    }

    /// Counts a request that found too few leased units.
    pub fn missed(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.misses.increment(1));
    }

    /// Counts a report that has ended.
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
    fn record(&self, record: impl FnOnce(&LeaseCounters)) {
        let reports =
            |result: &'static str| counter!(catalog::LEASE_REPORTS.name, "result" => result);
        let register = || LeaseCounters {
            misses: counter!(catalog::LEASE_MISSES.name),
            accepted: reports("accepted"),
            failed: reports("failed"),
            late: reports("late"),
        };
        self.counters.with(register, record);
    }
}
