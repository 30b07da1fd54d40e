//! Gauges, which are set when the application asks for it.
//!
//! # Why do gauges change only when the application asks?
//!
//! The numbers exist anyway: keys, their memory, calls in flight. Gauges that are kept up to date would cost every decision a
//! write to memory that all cores share. A task that reads them would need a runtime and an interval, and would export old
//! values. So `record_gauges` reads them when the application is about to export, as other crates for the facade do. Its argument
//! is a label, because gauges of two limiters cannot be added up: the later one would replace the other.

use metrics::gauge;

use crate::store::{Health, ServerStats, Stats};

use super::{
    catalog::{self, Metric},
    waits::WaitMetrics,
};

/// Sets the gauges of a limiter. `limiter` is their label, which distinguishes the limiters of a process.
pub(crate) fn record(
    limiter: &str,
    stats: &Stats,
    health: &Health,
    held_slots: u64,
    waits: &WaitMetrics,
) {
    let set = |metric: &Metric, value: f64| {
        gauge!(metric.name, "limiter" => limiter.to_owned()).set(value);
    };
    if let Some(keys) = stats.keys() {
        set(&catalog::KEYS, float(keys as u64));
    }
    if let Some(bytes) = stats.bytes() {
        set(&catalog::KEY_BYTES, float(bytes as u64));
    }
    if let Some(keys) = stats.leased_keys() {
        set(&catalog::LEASED_KEYS, float(keys as u64));
    }
    if let Some(units) = stats.leased_units() {
        set(&catalog::LEASED_UNITS, float(units));
    }
    if let Some(units) = stats.region_units() {
        set(&catalog::REGION_UNITS, float(units));
        set(
            &catalog::CUT_OFF_REGIONS,
            float(health.cut_off_regions().len() as u64),
        );
    }
    if let Some(instances) = health.instances() {
        set(&catalog::LIVE_INSTANCES, float(instances));
    }
    set(&catalog::STORE_WELL, f64::from(u8::from(health.is_well())));
    set(&catalog::AFFECTED_SHARE, health.affected_share());
    set(&catalog::STUCK_SLOTS, float(health.stuck_slots() as u64));
    set(&catalog::HELD_SLOTS, float(held_slots));
    set(&catalog::PENDING_MERGES, float(health.pending_merges()));
    for (policy, callers) in waits.waiting() {
        let labels = [("limiter", limiter), ("policy", policy)];
        let labels = labels.map(|(name, value)| (name, value.to_owned()));
        gauge!(catalog::WAITING_CALLERS.name, &labels).set(float(callers));
    }
    for server in stats.servers() {
        record_server(limiter, server);
    }
}

fn record_server(limiter: &str, server: &ServerStats) {
    let label = catalog::server_label(server.address());
    let set = |metric: &Metric, value: f64| {
        let labels = [("limiter", limiter.to_owned()), ("server", label.clone())];
        gauge!(metric.name, &labels).set(value);
    };
    if let Some(is_open) = server.is_breaker_open() {
        set(&catalog::BREAKER_OPEN, f64::from(u8::from(is_open)));
    }
    if let Some(network) = server.network_round_trip() {
        set(&catalog::NETWORK, network.as_secs_f64());
    }
    let counts = [
        (&catalog::CALLS_IN_FLIGHT, server.calls_in_flight()),
        (&catalog::CHARGES_IN_FLIGHT, server.charges_in_flight()),
        (&catalog::CHARGES_WAITING, server.charges_waiting()),
    ];
    for (metric, count) in counts {
        if let Some(count) = count {
            set(metric, float(count as u64));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn float(value: u64) -> f64 {
    value as f64
}
