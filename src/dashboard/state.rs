//! The state of a limiter as the page shows it.

use serde::Serialize;

use crate::{
    diagnosis::Warning,
    policy::{OnOutage, Policy},
    rules::{Rule, RuleMode},
    store::{Health, Outage, ServerStats, Stats},
    telemetry::KINDS,
};

use super::{
    history::{DecisionSeries, Latency},
    shared::SharedDashboard,
};

/// Everything that the page shows of one moment.
#[derive(Serialize)]
pub(super) struct State {
    /// The present time, in milliseconds since the Unix epoch as all times here.
    time: u64,
    /// How far it is ahead of the clock of the history, which does not follow steps of the wall clock.
    ahead_millis: i128,
    /// The second of the latest sample by the clock of the history: its decisions are the last ones in the totals.
    second: u64,
    title: String,
    /// `None` without a layer.
    mode: Option<&'static str>,
    policies: Vec<PolicyState>,
    decisions: Vec<Decisions>,
    failed_decisions: u64,
    health: HealthState,
    servers: Vec<ServerState>,
    keys: Option<usize>,
    key_bytes: Option<usize>,
    held_slots: u64,
    /// That of the latest slot of each track of the history.
    latency: [LatencyState; 2],
    warnings: Vec<WarningState>,
}

/// A policy and its rule.
#[derive(Serialize)]
struct PolicyState {
    name: String,
    #[serde(flatten)]
    limit: LimitState,
    algorithm: &'static str,
    on_outage: &'static str,
    /// `None` without a layer.
    mode: Option<&'static str>,
    /// Percent of the keys; `None` without a layer.
    rollout: Option<f64>,
    /// The limit that is tried beside the enforced one.
    candidate: Option<LimitState>,
}

/// The limit of a policy.
#[derive(Serialize)]
struct LimitState {
    limit: u64,
    /// `None` for requests in flight.
    period_millis: Option<u128>,
    burst: Option<u64>,
    unit: Option<String>,
}

/// The numbers of a policy and tier since the start.
#[derive(Serialize)]
pub(super) struct Decisions {
    policy: String,
    tier: String,
    totals: [u64; KINDS],
}

#[derive(Serialize)]
struct HealthState {
    mode: &'static str,
    is_well: bool,
    affected_share: f64,
    /// The reason for the latest decision without the store, if there was one lately.
    cause: Option<String>,
    outages: Vec<OutageState>,
    fallback_decisions: u64,
    shed_decisions: u64,
    instances: Option<u64>,
    share: f64,
    pending_merges: u64,
}

#[derive(Serialize)]
struct OutageState {
    since: u64,
    cause: String,
    server: Option<String>,
    stuck_slots: Option<usize>,
}

#[derive(Serialize)]
struct ServerState {
    address: Option<String>,
    is_breaker_open: Option<bool>,
    calls_in_flight: Option<usize>,
    charges_in_flight: Option<usize>,
    charges_waiting: Option<usize>,
    network_micros: Option<u128>,
}

/// In microseconds.
#[derive(Serialize)]
pub(super) struct LatencyState {
    median: Option<u32>,
    p99: Option<u32>,
    /// The 99th percentile too.
    queue_p99: Option<u32>,
}

#[derive(Serialize)]
struct WarningState {
    code: &'static str,
    policy: Option<String>,
    detail: String,
    remedy: &'static str,
}

impl State {
    pub(super) fn of(shared: &SharedDashboard, stats: &Stats, health: &Health) -> Self {
        let watched = &shared.watched;
        let history = shared.history.lock();
        let decisions = history.series().iter().map(Decisions::of).collect();
        let tracks = history.tracks().each_ref();
        let latency = tracks.map(|track| LatencyState::of(track.latest_latency()));
        let second = history.second();
        drop(history);
        let [time, history_time] = shared.now_millis();
        Self {
            time,
            ahead_millis: i128::from(time) - i128::from(history_time),
            second,
            title: shared.title.to_string(),
            mode: watched.mode().map(RuleMode::name),
            policies: match watched.rules() {
                Some(rules) => rules.iter().map(PolicyState::of_rule).collect(),
                None => {
                    let policies = watched.policies().into_iter();
                    policies
                        .map(|watched| PolicyState::of(&watched.policy))
                        .collect()
                }
            },
            decisions,
            failed_decisions: watched.limiter().tally().failed(),
            health: HealthState::of(health),
            servers: stats.servers().iter().map(ServerState::of).collect(),
            keys: stats.keys(),
            key_bytes: stats.bytes(),
            held_slots: watched.limiter().held_slots(),
            latency,
            warnings: watched.warnings().iter().map(WarningState::of).collect(),
        }
    }
}

impl Decisions {
    pub(super) fn of(series: &DecisionSeries) -> Self {
        Self {
            policy: series.policy.to_string(),
            tier: series.tier.to_string(),
            totals: series.totals,
        }
    }
}

impl PolicyState {
    fn of(policy: &Policy) -> Self {
        Self {
            name: policy.name().as_str().to_owned(),
            limit: LimitState::of(policy),
            algorithm: policy.algorithm_name(),
            on_outage: match policy.outage_choice() {
                OnOutage::Allow => "allow",
                OnOutage::Local => "local",
                OnOutage::Deny => "deny",
            },
            mode: None,
            rollout: None,
            candidate: None,
        }
    }

    fn of_rule(rule: &Rule) -> Self {
        let setting = rule.mode.get();
        Self {
            mode: Some(setting.mode().name()),
            rollout: Some(setting.rollout()),
            candidate: rule.candidate.as_ref().map(LimitState::of),
            ..Self::of(rule.policy())
        }
    }
}

impl LimitState {
    fn of(policy: &Policy) -> Self {
        let quota = policy.quota();
        Self {
            limit: quota.count(),
            period_millis: (!policy.is_concurrency()).then(|| quota.period().as_millis()),
            burst: quota.explicit_burst(),
            unit: policy.quota_unit().map(str::to_owned),
        }
    }
}

impl HealthState {
    fn of(health: &Health) -> Self {
        let outage = |outage: &Outage| OutageState {
            since: outage.since().as_micros() / 1_000,
            // Without its causes, which may name internals of the network.
            cause: outage.cause().to_string(),
            server: outage.server().map(str::to_owned),
            stuck_slots: outage.stuck_slots(),
        };
        Self {
            mode: health.mode().name(),
            is_well: health.is_well(),
            affected_share: health.affected_share(),
            cause: health.cause().map(ToString::to_string),
            outages: health.outages().iter().map(outage).collect(),
            fallback_decisions: health.fallback_decisions(),
            shed_decisions: health.shed_decisions(),
            instances: health.instances(),
            share: health.share(),
            pending_merges: health.pending_merges(),
        }
    }
}

impl ServerState {
    fn of(server: &ServerStats) -> Self {
        Self {
            address: server.address().map(str::to_owned),
            is_breaker_open: server.is_breaker_open(),
            calls_in_flight: server.calls_in_flight(),
            charges_in_flight: server.charges_in_flight(),
            charges_waiting: server.charges_waiting(),
            network_micros: server.network_round_trip().map(|time| time.as_micros()),
        }
    }
}

impl LatencyState {
    pub(super) fn of(latency: Latency) -> Self {
        Self {
            median: latency.median,
            p99: latency.p99,
            queue_p99: latency.queue_p99,
        }
    }
}

impl WarningState {
    fn of(warning: &Warning) -> Self {
        Self {
            code: warning.code().as_str(),
            policy: warning.policy().map(|policy| policy.as_str().to_owned()),
            detail: warning.detail().to_owned(),
            remedy: warning.code().remedy(),
        }
    }
}
