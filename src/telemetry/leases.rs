//! The metrics of leased units.

#[cfg(feature = "metrics")]
use metrics::{Counter, counter};

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder};

/// The metrics of the units that one instance, or its region, has leased.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug)]
pub(crate) struct LeaseMetrics {
    #[cfg(feature = "metrics")]
    is_of_region: bool,
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
    /// Only a region has one.
    by_share: Option<Counter>,
    accepted: Counter,
    failed: Counter,
    late: Counter,
}

impl LeaseMetrics {
    /// Returns the metrics of units that this instance has leased.
    pub fn of_instance() -> Self {
        Self::new(false)
    }

    /// Returns the metrics of units that this region has leased from others.
    pub fn of_region() -> Self {
        Self::new(true)
    }

    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, reason = "nothing is recorded")
    )]
    fn new(is_of_region: bool) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            is_of_region,
            #[cfg(feature = "metrics")]
            counters: PerRecorder::default(),
        }
    }

    /// Exports all counters, at first with 0.
    pub fn show(&self) {
        #[cfg(feature = "metrics")]
        self.record(|_| {});
    }

    /// Counts a request that found too few leased units: in a region, it waits for the home of a key.
    pub fn missed(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.misses.increment(1));
    }

    /// Counts a request that was decided by the region's share, without the home.
    pub fn decided_by_share(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| {
            if let Some(by_share) = &counters.by_share {
                by_share.increment(1);
            }
        });
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
        let (misses, reports) = if self.is_of_region {
            (&catalog::REGION_WAITS, &catalog::REGION_REPORTS)
        } else {
            (&catalog::LEASE_MISSES, &catalog::LEASE_REPORTS)
        };
        let reports = |result: &'static str| counter!(reports.name, "result" => result);
        let by_share = || counter!(catalog::SHARE_DECISIONS.name);
        let register = || LeaseCounters {
            misses: counter!(misses.name),
            by_share: self.is_of_region.then(by_share),
            accepted: reports("accepted"),
            failed: reports("failed"),
            late: reports("late"),
        };
        self.counters.with(register, record);
    }
}
