//! The state of a limiter as JSON, as the page shows it.

use serde_json::{Value, json};

use crate::{
    decision::PolicyName,
    diagnosis::Warning,
    overload::Overload,
    policy::{Consistency, OnOutage, Policy},
    rules::{ModeSetting, Rule, RuleMode},
    store::{Health, Outage, ServerStats, Stats},
    telemetry::WaitMetrics,
};

use super::{history::Track, shared::SharedDashboard};

/// Returns everything that the page shows of one moment.
pub(super) fn state(shared: &SharedDashboard, stats: &Stats, health: &Health) -> Value {
    let watched = &shared.watched;
    let mut policies: Vec<Value> = match watched.rules() {
        Some(rules) => rules.iter().map(rule_state).collect(),
        None => {
            let policies = watched.policies().into_iter();
            policies
                .map(|watched| policy_state(&watched.policy, None))
                .collect()
        }
    };
    add_waits(&mut policies, &watched.limiter().lines.waits);
    let servers: Vec<Value> = stats.servers().iter().map(server_state).collect();
    let warnings: Vec<Value> = watched.warnings().iter().map(warning_state).collect();
    let [time, history_time] = shared.now_millis();
    let history = shared.history.lock();
    json!({
        // The present time, in milliseconds since the Unix epoch as all times here.
        "time": time,
        // How far it is ahead of the clock of the history, which does not follow steps of the wall clock.
        "ahead_millis": i128::from(time) - i128::from(history_time),
        // The second of the latest sample by the clock of the history: its decisions are the last ones in the totals.
        "second": history.second(),
        "title": shared.title,
        // Null without a layer.
        "mode": watched.mode().map(RuleMode::name),
        "policies": policies,
        "decisions": history.series(),
        "failed_decisions": watched.limiter().tally().failed(),
        "health": health_state(health),
        "servers": servers,
        "keys": stats.keys(),
        "key_bytes": stats.bytes(),
        // Null if no policy is leased.
        "leased_keys": stats.leased_keys(),
        "leased_units": stats.leased_units(),
        // Null if the dashboard shows none.
        "overload": shared.overload.as_ref().map(overload_state),
        "held_slots": watched.limiter().held_slots(),
        // That of the latest slot of each track of the history.
        "latency": history.tracks().each_ref().map(Track::latest_latency),
        "warnings": warnings,
    })
}

fn rule_state(rule: &Rule) -> Value {
    policy_state(rule.policy(), Some(rule))
}

/// Returns a policy and its rule. `mode` and `rollout`, in percent of the keys, are null without a layer.
fn policy_state(policy: &Policy, rule: Option<&Rule>) -> Value {
    let setting = rule.map(|rule| rule.mode.get());
    let candidate = rule.and_then(|rule| rule.candidate.as_ref());
    let mut state = limit_state(policy);
    state["name"] = json!(policy.name().as_str());
    state["algorithm"] = json!(policy.algorithm_name());
    state["on_outage"] = json!(match policy.outage_choice() {
        OnOutage::Allow => "allow",
        OnOutage::Local => "local",
        OnOutage::Deny => "deny",
    });
    let (consistency, overshoot) = match policy.consistency_choice() {
        Consistency::Delayed { overshoot } => ("delayed", Some(overshoot.percent())),
        Consistency::Leased => ("leased", None),
        Consistency::Strict => ("strict", None),
    };
    state["consistency"] = json!(consistency);
    // In percent of the burst. Null unless the policy is delayed.
    state["overshoot"] = json!(overshoot);
    state["mode"] = json!(setting.map(|setting| setting.mode().name()));
    state["rollout"] = json!(setting.map(ModeSetting::rollout));
    // The limit that is tried beside the enforced one.
    state["candidate"] = json!(candidate.map(limit_state));
    state
}

/// Adds the callers of this process that wait under each policy, and for how long it has paused keys.
fn add_waits(policies: &mut [Value], waits: &WaitMetrics) {
    let waiting = waits.waiting();
    for policy in policies {
        let name = policy["name"].as_str().unwrap_or_default().to_owned();
        policy["waiting_callers"] = json!(waiting.get(&*name).copied().unwrap_or(0));
        // Of the key whose pause ends last, among those that this process has paused. Null if there is none.
        policy["paused_millis"] = json!(waits.paused_for(&name).map(|left| left.as_millis()));
    }
}

/// Returns the limit of a policy.
fn limit_state(policy: &Policy) -> Value {
    let quota = policy.quota();
    json!({
        "limit": quota.count(),
        // Null for requests in flight.
        "period_millis": (!policy.is_concurrency()).then(|| quota.period().as_millis()),
        "burst": quota.explicit_burst(),
        "unit": policy.quota_unit(),
    })
}

fn health_state(health: &Health) -> Value {
    let outages: Vec<Value> = health.outages().iter().map(outage_state).collect();
    json!({
        "mode": health.mode().name(),
        "is_well": health.is_well(),
        "affected_share": health.affected_share(),
        // The reason for the latest decision without the store, if there was one lately.
        "cause": health.cause().map(ToString::to_string),
        "outages": outages,
        "fallback_decisions": health.fallback_decisions(),
        "shed_decisions": health.shed_decisions(),
        "instances": health.instances(),
        "share": health.share(),
        "pending_merges": health.pending_merges(),
    })
}

fn outage_state(outage: &Outage) -> Value {
    json!({
        "since": outage.since().as_micros() / 1_000,
        // Without its causes, which may name internals of the network.
        "cause": outage.cause().to_string(),
        "server": outage.server(),
        "stuck_slots": outage.stuck_slots(),
    })
}

fn overload_state(overload: &Overload) -> Value {
    let classes = overload.shed().into_iter();
    let classes = classes.map(|(class, shed)| json!({ "name": class.name(), "shed": shed }));
    json!({
        "mode": overload.mode().name(),
        "is_overloaded": overload.is_overloaded(),
        "limit": overload.limit(),
        "in_flight": overload.in_flight(),
        // Those that are shed last first. In shadow, `shed` counts those that would have been.
        "classes": classes.collect::<Vec<_>>(),
    })
}

fn server_state(server: &ServerStats) -> Value {
    json!({
        "address": server.address(),
        "is_breaker_open": server.is_breaker_open(),
        "calls_in_flight": server.calls_in_flight(),
        "charges_in_flight": server.charges_in_flight(),
        "charges_waiting": server.charges_waiting(),
        "network_micros": server.network_round_trip().map(|time| time.as_micros()),
    })
}

fn warning_state(warning: &Warning) -> Value {
    json!({
        "code": warning.code().as_str(),
        "policy": warning.policy().map(PolicyName::as_str),
        "detail": warning.detail(),
        "remedy": warning.code().remedy(),
    })
}
