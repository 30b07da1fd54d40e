//! Metrics, and an event per decision.
//!
//! # Metrics
//!
//! With the feature `metrics`, the crate records to the recorder that the application installs for the
//! [`metrics`](https://docs.rs/metrics) facade: Prometheus, OpenTelemetry or any other. The names and labels below are
//! stable. Series of several limiters with the same labels add up.
//!
//! | metric | kind | unit | labels | meaning |
//! |---|---|---|---|---|
//! | `tollgate_decisions_total` | counter | | `policy`, `tier`, `mode`, `outcome`, `counted_by` | decisions: one for each policy of a request |
//! | `tollgate_failed_decisions_total` | counter | | | requests for which the store returned an error instead of a decision |
//! | `tollgate_fallback_decisions_total` | counter | | `server` | requests decided without the server because it failed |
//! | `tollgate_shed_decisions_total` | counter | | `server` | requests decided without the server because its decision would have come too late |
//! | `tollgate_breaker_transitions_total` | counter | | `server`, `to` | times that the breaker opened (`to="open"`) or closed (`to="closed"`) |
//! | `tollgate_breaker_open` | gauge | | `limiter`, `server` | whether the breaker is open: 1 or 0 |
//! | `tollgate_redis_queue_seconds` | histogram | seconds | `server` | how long the oldest charge of a call waited in this process |
//! | `tollgate_redis_round_trip_seconds` | histogram | seconds | `server` | from sending a call until this process has read the reply |
//! | `tollgate_redis_network_seconds` | gauge | seconds | `limiter`, `server` | the shortest round trip measured |
//! | `tollgate_redis_call_charges` | histogram | | `server` | charges in a call |
//! | `tollgate_redis_calls_in_flight` | gauge | | `limiter`, `server` | calls without a reply so far |
//! | `tollgate_redis_charges_in_flight` | gauge | | `limiter`, `server` | charges in these calls |
//! | `tollgate_redis_charges_waiting` | gauge | | `limiter`, `server` | charges that wait in this process to be sent |
//! | `tollgate_store_well` | gauge | | `limiter` | 1 if the store [is well](crate::store::Health::is_well), else 0: for alerts |
//! | `tollgate_affected_share` | gauge | | `limiter` | the part of the latest decisions that was [made without the store](crate::store::Health::affected_share), from 0 to 1 |
//! | `tollgate_stuck_slots` | gauge | | `limiter` | hash slots of a cluster that no node decides on |
//! | `tollgate_live_instances` | gauge | | `limiter` | live instances that share the store, with this one; only once it is known. Idle instances do not count |
//! | `tollgate_pending_merges` | gauge | | `limiter` | keys that were decided locally and are not merged into the shared store yet |
//! | `tollgate_leased_keys` | gauge | | `limiter` | busy keys that this process watches or has [leased](crate::Consistency::Leased) units of |
//! | `tollgate_leased_units` | gauge | | `limiter` | leased units that it has not spent |
//! | `tollgate_lease_misses_total` | counter | | | requests for leased keys that found too few units: they waited for a report, or asked Redis |
//! | `tollgate_lease_reports_total` | counter | | `result` | reports of leased units: `accepted`; `late`, since Redis had counted the units as spent; or `failed` |
//! | `tollgate_cut_off_regions` | gauge | | `limiter` | other [regions](crate::remote::Regions) that this process cannot reach |
//! | `tollgate_region_units` | gauge | | `limiter` | units that this region had left at the last report of each key by this process. Processes of a region see the same units, so take the maximum, and not the sum |
//! | `tollgate_region_waits_total` | counter | | | requests that waited for the home of their key, in another region |
//! | `tollgate_region_reports_total` | counter | | `result` | reports to other regions: `accepted`; `late`, since the home had counted the units as spent; or `failed` |
//! | `tollgate_region_share_decisions_total` | counter | | | requests that were decided by this region's share, since the home could not be reached |
//! | `tollgate_keys` | gauge | | `limiter` | keys in the in-process store; over Redis, the one of the fallback |
//! | `tollgate_key_bytes` | gauge | bytes | `limiter` | the memory of these keys |
//! | `tollgate_held_slots` | gauge | | `limiter` | concurrency slots that requests of this process hold |
//! | `tollgate_turn_wait_seconds` | histogram | seconds | `policy`, `outcome` | how long callers [waited for their turn](crate::acquire); 0 for those that had it at once |
//! | `tollgate_waiting_callers` | gauge | | `limiter`, `policy` | callers of this process that wait for their turn; only of policies for which somebody has waited |
//! | `tollgate_pauses_total` | counter | | `policy`, `result` | [pauses](crate::RateLimiter::pause) of keys: `stored`; or `failed`, so that calls may go out too early. Refusals of calls that were in flight together begin one |
//! | `tollgate_outgoing_refusals_total` | counter | | `policy`, `kind` | calls that an API refused: `limited` or `overloaded`; with the feature `client` |
//! | `tollgate_outgoing_retries_total` | counter | | `policy`, `outcome` | calls that failed and may be repeated, by what the layer did; with the feature `client` |
//! | `tollgate_overload_requests_total` | counter | | `overload`, `class`, `outcome` | requests that came to an [overload limit](crate::overload) |
//! | `tollgate_overload_limit` | gauge | | `overload` | requests that may be in flight of the lowest class |
//! | `tollgate_overload_in_flight` | gauge | | `overload` | requests in flight |
//! | `tollgate_overloaded` | gauge | | `overload` | 1 while there are more requests than the service can serve in time, else 0 |
//! | `tollgate_tier_cache_requests_total` | counter | | `result` | tiers asked of a cache: `hit`, `stale` (used, and looked up again), or `miss` |
//! | `tollgate_failed_tier_lookups_total` | counter | | | tier lookups that failed or exceeded their deadline |
//!
//! | label | value |
//! |---|---|
//! | `policy` | name of the policy; with `.candidate` after it for a [candidate](crate::rules::Rule::candidate) |
//! | `policy` of waits | that of the first charge, if a caller waits under several. Refusals and retries of a call count under the first policy whose key they may pause |
//! | `tier` | name of the caller's tier; `none` for the policy's own quota |
//! | `mode` | `enforced`, or `shadow` for rules in [shadow](crate::rules::RuleMode) and candidates, whose outcome `limited` denies nobody: filter by it |
//! | `outcome` | `allowed`, `limited` or `unavailable`: the [outcome](crate::decision::Outcome) of this policy. Requests of a banned or blocked key are `limited` too |
//! | `outcome` of waits | `turn`; `too_late`, since the turn would come after the longest wait; `left`, for a future that was dropped; `denied`, for a blocked key; `failed`, if the store could not decide. A cost above the limit is no wait |
//! | `outcome` of retries | `retried`; `over_budget`; or `too_late`, since the retry would begin after the longest wait of the call |
//! | `class` | name of the class, such as `critical` |
//! | `outcome` of a class | `served`; `shed`; or `would_shed`, in shadow. A request that is served may still be denied by a limit behind |
//! | `overload` | the [name](crate::overload::OverloadBuilder::name) of the limit |
//! | `counted_by` | `shared`, `lease`, `denial_cache`, `in_process`, `fallback` or `uncounted`, see [`CountedBy`](crate::decision::CountedBy) |
//! | `server` | address of the server; `unknown` if only a pool of the application has it |
//! | `limiter` | the argument of [`record_gauges`] |
//!
//! Decisions that took no call to Redis have the places `lease` and `denial_cache`. For example, the calls saved in a second are
//! `sum(rate(tollgate_decisions_total{counted_by=~"lease|denial_cache"}[5m]))`.
//!
//! Policies of one request are decided together. If one is limited, the request is rejected, but the policies that had quota
//! left count as `allowed`. Peeks, including charges of cost 0, are not counted. Neither are callers of an unlimited or
//! forbidden tier, nor decisions whose caller left before they were made.
//!
//! ## Number of series
//!
//! Keys are never labels. Tiers may come from a closure, so the first 16 tiers of each policy have a label of their own, and
//! all others share `tier="other"`. A limiter has at most 256 pairs of policy and tier; beyond that, both labels are `other`.
//! A pair has at most twelve series, and only those that occur. A limiter takes 1.5 KB for them, and 400 bytes for each pair,
//! besides the memory of the recorder. A limiter whose callers wait takes 3 KB more, and 300 bytes for each pair. Their series have
//! no tier. A layer around a client takes 1.5 KB.
//!
//! ## Gauges
//!
//! Counters and histograms are recorded when something happens. Gauges change only when the application calls
//! [`record_gauges`]: before each export, or in an interval. The first call also exports the counters of each server, with 0.
//! A server that has left the cluster keeps its last values; an idle timeout of the exporter removes them.
//!
//! ## When to install the recorder
//!
//! At any time. Handles are registered when they are first used with a recorder, and decisions made before are not counted.
//! A recorder that is only installed for one thread receives what happens on that thread.
//!
//! ## Latency of Redis
//!
//! ```text
//! submitted ─── queue_seconds ──▶ sent ───────────── round_trip_seconds ─────────────▶ reply read
//!                                      network ─▶ server ─▶ network ─▶ this process
//!                                      └────────── network_seconds ──────────┘ measured without load
//! ```
//!
//! The queue and the round trip are measured for each call with a reply, also a late one. A call that was sent at once has a
//! queue time of 0. The round trip includes the time until this process runs the task that reads the reply. The network is
//! the shortest round trip seen, which the send window tests under load by a call that it sends alone. So the time in the
//! server is derived, and not measured: `round_trip_seconds - network_seconds`. It includes the wait in the server's
//! sockets, and the script itself of the shortest call is part of `network_seconds`. The script cannot measure itself: its
//! clock stands still while it runs.
//!
//! # Events
//!
//! With the feature `tracing`, each decision, also a peek, is an event at the level DEBUG: target `tollgate::decision`, message
//! `rate limit decision`. No field contains the key. While no subscriber wants the event, a decision pays for one check of
//! the level.
//!
//! | field | value |
//! |---|---|
//! | `policy` | the [narrowest](crate::Decision::narrowest) policy, if any was counted |
//! | `outcome` | `allowed`, `limited`, `unavailable`; `failed` if the store returned an error |
//! | `counted_by` | as the label above |
//! | `remaining` | units that the policy has left |
//! | `retry_after` | how long to wait, if the outcome is `limited` |
//! | `error` | only with the outcome `failed` |
//!
//! # Cost
//!
//! Without the feature `metrics`, and while no subscriber wants the event, a decision pays for the check of the level. With
//! the feature, a decision in process took 8 ns more without a recorder, and 18 ns more with that of
//! `metrics-exporter-prometheus`: 54.8, 62.5 and 73.4 ns at the median of 5 runs in turns, on a hot key and a virtual machine
//! of two cores (54.7 to 55.3, 62.5 to 64.4, and 73.1 to 74.1 ns; `cargo bench --bench decision`). A decision
//! that is not ready at once takes one more allocation while it is recorded.
//!
//! [`record_gauges`]: ../struct.RateLimiter.html#method.record_gauges

#[cfg(feature = "metrics")]
mod catalog;
#[cfg(feature = "metrics")]
mod counters;
mod decisions;
#[cfg(feature = "explain")]
pub(crate) mod denials;
#[cfg(feature = "metrics")]
pub(crate) mod gauges;
#[cfg(feature = "redis")]
mod leases;
#[cfg(feature = "client")]
mod outgoing;
mod overload;
#[cfg(feature = "metrics")]
mod per_recorder;
mod recorders;
#[cfg(feature = "metrics")]
mod series;
#[cfg(feature = "redis")]
mod servers;
#[cfg(feature = "dashboard")]
mod tally;
mod tiers;
mod waits;

pub(crate) use self::decisions::DecisionObserver;
#[cfg(feature = "redis")]
pub(crate) use self::leases::{LeaseMetrics, ReportResult};
#[cfg(feature = "client")]
pub(crate) use self::outgoing::{OutgoingMetrics, RefusalKind, RetryOutcome};
pub(crate) use self::overload::{OverloadMetrics, OverloadOutcome};
pub(crate) use self::recorders::Recorders;
#[cfg(feature = "redis")]
pub(crate) use self::servers::BreakerMetrics;
#[cfg(all(feature = "metrics", feature = "redis"))]
pub(crate) use self::servers::CallMetrics;
#[cfg(feature = "dashboard")]
pub(crate) use self::tally::{DecisionCount, DecisionTally, KINDS};
pub(crate) use self::tiers::TierMetrics;
pub(crate) use self::waits::{CountedWait, WaitMetrics, WaitOutcome};
