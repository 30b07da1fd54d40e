//! The metrics of calls that go out: refusals by the other side, and retries.

#[cfg(feature = "metrics")]
use std::sync::OnceLock;

#[cfg(feature = "metrics")]
use metrics::{Counter, counter};

use crate::policy::Policy;

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder, series::SeriesTable};

/// The refusals and the retries of one layer.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug, Default)]
pub(crate) struct OutgoingMetrics {
    #[cfg(feature = "metrics")]
    counters: PerRecorder<SeriesTable<OutgoingCounters>>,
}

/// Whether a call that failed, and may be repeated, is sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RetryOutcome {
    OverBudget,
    Retried,
    /// The retry would start after the longest wait of the call.
    TooLate,
}

/// The cause of a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RefusalKind {
    Limited,
    Overloaded,
}

/// The counters of one policy, each registered with its first use.
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
struct OutgoingCounters {
    refusals: [OnceLock<Counter>; RefusalKind::Overloaded as usize + 1],
    retries: [OnceLock<Counter>; RetryOutcome::TooLate as usize + 1],
}

#[cfg_attr(
    not(feature = "metrics"),
    expect(unused_variables, clippy::unused_self, reason = "nothing is counted")
)]
impl OutgoingMetrics {
    /// Counts a refusal.
    pub fn refused(&self, policy: &Policy, kind: RefusalKind) {
        #[cfg(feature = "metrics")]
        self.counters.with(SeriesTable::default, |table| {
            let series = table.of(policy);
            let counter = series.value.refusals[kind as usize].get_or_init(|| {
                let policy = series.policy.to_string();
                counter!(catalog::REFUSALS.name, "policy" => policy, "kind" => kind.name())
            });
            counter.increment(1);
        });
    }

    /// Counts a call that may be repeated.
    pub fn retried(&self, policy: &Policy, outcome: RetryOutcome) {
        #[cfg(feature = "metrics")]
        self.counters.with(SeriesTable::default, |table| {
            let series = table.of(policy);
            let counter = series.value.retries[outcome as usize].get_or_init(|| {
                let policy = series.policy.to_string();
                counter!(catalog::RETRIES.name, "policy" => policy, "outcome" => outcome.name())
            });
            counter.increment(1);
        });
    }
}

impl RefusalKind {
    /// Returns the name in metrics and log lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::Overloaded => "overloaded",
        }
    }
}

#[cfg(feature = "metrics")]
impl RetryOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::OverBudget => "over_budget",
            Self::Retried => "retried",
            Self::TooLate => "too_late",
        }
    }
}
