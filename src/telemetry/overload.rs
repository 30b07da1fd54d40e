//! The metrics of an overload limit.

#[cfg(feature = "metrics")]
use metrics::{Counter, counter, gauge};

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder};

/// The requests of one limit, by class.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug)]
pub(crate) struct OverloadMetrics {
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
    /// Returns the metrics of a limit with these classes.
    pub fn new(classes: impl Iterator<Item = &'static str>) -> Self {
        Self {
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
                    counter!(catalog::OVERLOAD_REQUESTS.name, "class" => *class, "outcome" => outcome)
                })
            };
            let register = || self.classes.iter().map(requests).collect();
            self.counters.with(register, |classes| {
                classes[class][outcome as usize].increment(1);
            });
        }
    }

    /// Sets the gauges, with this label.
    #[cfg(feature = "metrics")]
    pub fn record_gauges(overload: &str, limit: u32, in_flight: u32, is_overloaded: bool) {
        let set = |metric: &catalog::Metric, value: f64| {
            gauge!(metric.name, "overload" => overload.to_owned()).set(value);
        };
        set(&catalog::OVERLOAD_LIMIT, limit.into());
        set(&catalog::OVERLOAD_IN_FLIGHT, in_flight.into());
        set(&catalog::OVERLOADED, f64::from(u8::from(is_overloaded)));
    }
}
