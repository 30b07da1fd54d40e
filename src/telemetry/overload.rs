//! The metrics of an overload limit.

use std::sync::Arc;

#[cfg(feature = "metrics")]
use metrics::{Counter, counter, gauge};

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder};

/// The metrics of one limit: its requests by class, and its gauges.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug)]
pub(crate) struct OverloadMetrics {
    #[cfg(feature = "metrics")]
    overload: Arc<str>,
    #[cfg(feature = "metrics")]
    classes: Box<[&'static str]>,
    #[cfg(feature = "metrics")]
    counters: PerRecorder<Box<[[Counter; OverloadOutcome::WouldShed as usize + 1]]>>,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OverloadOutcome {
    Served,
    Shed,
    /// Served, in shadow.
    WouldShed,
}

#[cfg_attr(
    not(feature = "metrics"),
    expect(unused_variables, clippy::unused_self, reason = "nothing is counted")
)]
impl OverloadMetrics {
    /// Returns the metrics of a limit with this name and these classes.
    pub fn new(overload: Arc<str>, classes: impl Iterator<Item = &'static str>) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            overload,
            #[cfg(feature = "metrics")]
            classes: classes.collect(),
            #[cfg(feature = "metrics")]
            counters: PerRecorder::default(),
        }
    }

    /// Counts a request of the class at this place.
    #[inline]
    pub fn count(&self, class: usize, outcome: OverloadOutcome) {
        #[cfg(feature = "metrics")]
        {
            let requests = |class: &&'static str| {
                ["served", "shed", "would_shed"].map(|outcome| {
                    let overload = Arc::clone(&self.overload);
                    counter!(
                        catalog::OVERLOAD_REQUESTS.name,
                        "overload" => overload, "class" => *class, "outcome" => outcome
                    )
                })
            };
            let register = || self.classes.iter().map(requests).collect();
            self.counters.with(register, |classes| {
                classes[class][outcome as usize].increment(1);
            });
        }
    }

    #[cfg(feature = "metrics")]
    pub fn record_gauges(&self, limit: u32, in_flight: u32, is_overloaded: bool) {
        let set = |metric: &catalog::Metric, value: f64| {
            gauge!(metric.name, "overload" => Arc::clone(&self.overload)).set(value);
        };
        set(&catalog::OVERLOAD_LIMIT, limit.into());
        set(&catalog::OVERLOAD_IN_FLIGHT, in_flight.into());
        set(&catalog::OVERLOADED, f64::from(u8::from(is_overloaded)));
    }
}
