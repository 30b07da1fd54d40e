//! The metrics of one server: of its breaker, and of the calls to it.

#[cfg(feature = "dashboard")]
use std::sync::OnceLock;
#[cfg(feature = "metrics")]
use std::time::Duration;

#[cfg(feature = "metrics")]
use metrics::{Counter, Histogram, counter, histogram};

#[cfg(feature = "dashboard")]
use crate::store::{CallLatency, DurationCounter};

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder};

/// The metrics of a breaker, and of the decisions that are made behind it.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug)]
pub(crate) struct BreakerMetrics {
    #[cfg(feature = "metrics")]
    server: String,
    #[cfg(feature = "metrics")]
    counters: PerRecorder<BreakerCounters>,
}

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct BreakerCounters {
    opened: Counter,
    closed: Counter,
    fallback: Counter,
    shed: Counter,
}

impl BreakerMetrics {
    /// Returns the metrics of the server at this address.
    pub fn new(address: impl FnOnce() -> Option<String>) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = address;
        Self {
            #[cfg(feature = "metrics")]
            server: catalog::server_label(address().as_deref()),
            #[cfg(feature = "metrics")]
            counters: PerRecorder::default(),
        }
    }

    /// Exports all counters, at first with 0.
    pub fn show(&self) {
        #[cfg(feature = "metrics")]
        self.record(|_| {});
    }

    /// Counts that the breaker opened.
    pub fn opened(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.opened.increment(1));
    }

    /// Counts that the breaker closed.
    pub fn closed(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.closed.increment(1));
    }

    /// Counts a decision that was made without the server, since it failed.
    pub fn decided_without(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.fallback.increment(1));
    }

    /// Counts a decision that was shed.
    pub fn shed(&self) {
        #[cfg(feature = "metrics")]
        self.record(|counters| counters.shed.increment(1));
    }

    #[cfg(feature = "metrics")]
    fn record(&self, record: impl FnOnce(&BreakerCounters)) {
        let server = || self.server.clone();
        let transitions = |to: &'static str| counter!(catalog::BREAKER_TRANSITIONS.name, "server" => server(), "to" => to);
        let register = || BreakerCounters {
            opened: transitions("open"),
            closed: transitions("closed"),
            fallback: counter!(catalog::FALLBACK_DECISIONS.name, "server" => server()),
            shed: counter!(catalog::SHED_DECISIONS.name, "server" => server()),
        };
        self.counters.with(register, record);
    }
}

// === CallMetrics ===

/// The metrics of calls to one Redis server.
#[cfg(feature = "metrics")]
#[derive(Debug)]
pub(crate) struct CallMetrics {
    server: String,
    histograms: PerRecorder<CallHistograms>,
    /// Empty until the stats of the server are read.
    #[cfg(feature = "dashboard")]
    durations: OnceLock<Box<CallDurations>>,
}

/// Latencies that this process can read.
#[cfg(feature = "dashboard")]
#[derive(Debug, Default)]
struct CallDurations {
    queue_wait: DurationCounter,
    round_trip: DurationCounter,
}

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct CallHistograms {
    queue_wait: Histogram,
    round_trip: Histogram,
    charges: Histogram,
}

#[cfg(feature = "metrics")]
impl CallMetrics {
    /// Returns the metrics of the server at this address; `None` if it is unknown.
    pub fn new(address: Option<String>) -> Self {
        Self {
            server: catalog::server_label(address.as_deref()),
            histograms: PerRecorder::default(),
            #[cfg(feature = "dashboard")]
            durations: OnceLock::new(),
        }
    }

    /// Records a call that got a reply.
    ///
    /// `waited` is how long its oldest charge waited to be sent, and `took` the time from then until the reply was read.
    pub fn replied(&self, waited: Duration, took: Duration, charges: usize) {
        let histogram = |name: &'static str| histogram!(name, "server" => self.server.clone());
        let register = || CallHistograms {
            queue_wait: histogram(catalog::QUEUE_WAIT.name),
            round_trip: histogram(catalog::ROUND_TRIP.name),
            charges: histogram(catalog::CALL_CHARGES.name),
        };
        self.histograms.with(register, |histograms| {
            histograms.queue_wait.record(waited);
            histograms.round_trip.record(took);
            #[expect(clippy::cast_precision_loss, reason = "a call has few charges")]
            histograms.charges.record(charges as f64);
        });
        #[cfg(feature = "dashboard")]
        if let Some(durations) = self.durations.get() {
            durations.queue_wait.add(waited);
            durations.round_trip.add(took);
        }
    }

    /// Returns the latencies of all calls since this was first called.
    #[cfg(feature = "dashboard")]
    pub fn latency(&self) -> CallLatency {
        let durations = self.durations.get_or_init(Box::default);
        CallLatency {
            queue_wait: durations.queue_wait.counts(),
            round_trip: durations.round_trip.counts(),
        }
    }
}
