//! The metrics: names, kinds, units and descriptions.

use metrics::Unit;

/// A metric, as recorders describe it.
#[derive(Debug)]
pub(super) struct Metric {
    pub name: &'static str,
    kind: Kind,
    unit: Unit,
    description: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Describes all metrics to the installed recorder. Those without a value are not exported.
pub(super) fn describe_all() {
    for metric in ALL {
        let Metric {
            name,
            kind,
            unit,
            description,
        } = **metric;
        match kind {
            Kind::Counter => metrics::describe_counter!(name, unit, description),
            Kind::Gauge => metrics::describe_gauge!(name, unit, description),
            Kind::Histogram => metrics::describe_histogram!(name, unit, description),
        }
    }
}

/// Returns the label of a server.
pub(super) fn server_label(address: Option<&str>) -> String {
    address.unwrap_or("unknown").to_owned()
}

/// Defines one constant per metric, and the list of all.
macro_rules! define {
    ($($constant:ident = $kind:ident $name:literal in $unit:ident: $description:literal;)*) => {
        $(pub(super) const $constant: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            description: $description,
        };)*
        const ALL: &[&Metric] = &[$(&$constant),*];
    };
}

define! {
    AFFECTED_SHARE = Gauge "tollgate_affected_share" in Count:
        "Part of the latest decisions that was made without the store, from 0 to 1.";
    BREAKER_OPEN = Gauge "tollgate_breaker_open" in Count:
        "Whether the breaker of the server is open: 1 or 0.";
    BREAKER_TRANSITIONS = Counter "tollgate_breaker_transitions_total" in Count:
        "Times that the breaker of the server opened or closed.";
    CALL_CHARGES = Histogram "tollgate_redis_call_charges" in Count:
        "Charges in one call to Redis.";
    CALLS_IN_FLIGHT = Gauge "tollgate_redis_calls_in_flight" in Count:
        "Calls to Redis without a reply so far.";
    CHARGES_IN_FLIGHT = Gauge "tollgate_redis_charges_in_flight" in Count:
        "Charges in calls without a reply so far.";
    CHARGES_WAITING = Gauge "tollgate_redis_charges_waiting" in Count:
        "Charges that wait in this process to be sent to Redis.";
    DECISIONS = Counter "tollgate_decisions_total" in Count:
        "Decisions, one per policy that charged the request.";
    FAILED_DECISIONS = Counter "tollgate_failed_decisions_total" in Count:
        "Requests that got an error of the store instead of a decision.";
    CUT_OFF_REGIONS = Gauge "tollgate_cut_off_regions" in Count:
        "Other regions that this process cannot reach.";
    FAILED_LOOKUPS = Counter "tollgate_failed_tier_lookups_total" in Count:
        "Tier lookups that failed or exceeded their deadline.";
    FALLBACK_DECISIONS = Counter "tollgate_fallback_decisions_total" in Count:
        "Requests decided without the server because it failed.";
    HELD_SLOTS = Gauge "tollgate_held_slots" in Count:
        "Concurrency slots that requests of this process hold.";
    KEY_BYTES = Gauge "tollgate_key_bytes" in Bytes:
        "Memory of the keys that are counted in this process.";
    KEYS = Gauge "tollgate_keys" in Count:
        "Keys that are counted in this process.";
    LEASED_KEYS = Gauge "tollgate_leased_keys" in Count:
        "Busy keys that this process watches or has leased units of.";
    LEASED_UNITS = Gauge "tollgate_leased_units" in Count:
        "Leased units that this process has not spent.";
    LEASE_MISSES = Counter "tollgate_lease_misses_total" in Count:
        "Requests for leased keys that found too few units.";
    LEASE_REPORTS = Counter "tollgate_lease_reports_total" in Count:
        "Reports of leased units to Redis.";
    LIVE_INSTANCES = Gauge "tollgate_live_instances" in Count:
        "Live instances that share the store.";
    NETWORK = Gauge "tollgate_redis_network_seconds" in Seconds:
        "Shortest round trip measured: the network, without the server.";
    OVERLOAD_IN_FLIGHT = Gauge "tollgate_overload_in_flight" in Count:
        "Requests in flight of an overload limit.";
    OVERLOAD_LIMIT = Gauge "tollgate_overload_limit" in Count:
        "Requests that may be in flight of the lowest class.";
    OVERLOAD_REQUESTS = Counter "tollgate_overload_requests_total" in Count:
        "Requests that came to an overload limit.";
    OVERLOADED = Gauge "tollgate_overloaded" in Count:
        "1 while there are more requests than the service can serve in time, else 0.";
    PAUSES = Counter "tollgate_pauses_total" in Count:
        "Keys that were paused, since an API refused a call.";
    PENDING_MERGES = Gauge "tollgate_pending_merges" in Count:
        "Keys that were decided locally and are not merged yet.";
    REGION_REPORTS = Counter "tollgate_region_reports_total" in Count:
        "Reports of leased units to other regions.";
    REGION_UNITS = Gauge "tollgate_region_units" in Count:
        "Units of other regions that this one had left at the last reports of this process: take the maximum over processes, since they see the same units.";
    REGION_WAITS = Counter "tollgate_region_waits_total" in Count:
        "Requests that waited for the home of their key, in another region.";
    SHARE_DECISIONS = Counter "tollgate_region_share_decisions_total" in Count:
        "Requests decided by the share of this region, since the home could not be reached.";
    REFUSALS = Counter "tollgate_outgoing_refusals_total" in Count:
        "Calls that an API refused.";
    RETRIES = Counter "tollgate_outgoing_retries_total" in Count:
        "Calls that failed and may be repeated.";
    QUEUE_WAIT = Histogram "tollgate_redis_queue_seconds" in Seconds:
        "Wait of the oldest charge of a call in this process.";
    ROUND_TRIP = Histogram "tollgate_redis_round_trip_seconds" in Seconds:
        "Time from sending a call until its reply was read.";
    SHED_DECISIONS = Counter "tollgate_shed_decisions_total" in Count:
        "Requests decided without the server because its decision would have come too late.";
    STORE_WELL = Gauge "tollgate_store_well" in Count:
        "1 while the store makes at least 99 % of the latest decisions, and has no outage; else 0.";
    STUCK_SLOTS = Gauge "tollgate_stuck_slots" in Count:
        "Hash slots of a cluster that no node decides on.";
    TIER_REQUESTS = Counter "tollgate_tier_cache_requests_total" in Count:
        "Tiers asked of a cache.";
    TURN_WAIT = Histogram "tollgate_turn_wait_seconds" in Seconds:
        "How long callers waited for their turn.";
    WAITING_CALLERS = Gauge "tollgate_waiting_callers" in Count:
        "Callers of this process that wait for their turn.";
}
