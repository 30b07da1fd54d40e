//! Limits of calls that go out, as they are written and as settings of a layer.

use std::time::Duration;

use crate::{
    client::{Adaptive, OutgoingRule},
    error::Error,
    extract::Global,
    policy::Policy,
};

use super::{
    fields::{Fields, boolean, text, whole},
    keys,
    node::{LocatedValue, Value},
    policy_steps::PolicySteps,
    quota::{self, LimitUnit, duration},
    reading::FileReading,
    registry::DynExtractor,
    rule::{Counted, read_costs, read_named},
    rule_list::{check_number, read_list, read_rules},
    spec::{
        AdaptiveFloorSpec, AdaptiveSpec, KeySpec, OutgoingRuleSpec, OutgoingSpec, QuotaSpec,
        RuleSpec,
    },
    units::write_duration,
};

/// The settings of a layer for calls that go out.
pub(super) struct OutgoingRules {
    pub max_wait: Option<Duration>,
    pub max_pause: Option<Duration>,
    pub max_retries: Option<u32>,
    pub retry_percent: Option<u32>,
    pub retry_only_safe: bool,
    pub rules: Vec<OutgoingRule>,
}

/// Reads the limits of calls that go out. `None` if they have faults.
pub(super) fn read(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(OutgoingSpec, OutgoingRules)> {
    let mut fields = Fields::of(node, "begin with `rules:`", reading)?;
    let max_wait = fields.read("max_wait", duration);
    let max_pause = fields.read("max_pause", duration);
    let max_retries = at_most(&mut fields, "max_retries", MOST_RETRIES);
    let retry_percent = at_most(&mut fields, "retry_percent", MOST_PERCENT);
    let retry_only_safe = fields.read("retry_only_safe", boolean);
    let nodes = fields.require("rules", "add a list of rules", read_list);
    fields.finish();
    let nodes = nodes?;
    let read = read_rules(nodes, reading, read_rule);
    check_number(nodes, reading);
    let (specs, rules) = read.into_iter().unzip();
    let spec = OutgoingSpec {
        max_wait: max_wait.map(write_duration),
        max_pause: max_pause.map(write_duration),
        max_retries: max_retries.map(u64::from),
        retry_percent: retry_percent.map(u64::from),
        retry_only_safe,
        rules: specs,
    };
    let settings = OutgoingRules {
        max_wait,
        max_pause,
        max_retries,
        retry_percent,
        retry_only_safe: retry_only_safe.unwrap_or(false),
        rules,
    };
    Some((spec, settings))
}

/// Reads a whole number of this size at most.
fn at_most(fields: &mut Fields<'_, '_>, name: &'static str, most: u32) -> Option<u32> {
    let number = fields.read(name, whole)?;
    let fits = u32::try_from(number).ok().filter(|number| *number <= most);
    if fits.is_none() {
        let remedy = format!("write a number from 0 to {most}");
        fields.add(name, format!("`{name}` of {number}"), remedy);
    }
    fits
}

/// Reads a rule. `None` if it has faults.
fn read_rule(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(OutgoingRuleSpec, OutgoingRule)> {
    let noted = reading.noted();
    let mut fields = Fields::of(node, "write a rule: `id`, `key`, `limit`", reading)?;
    let mut spec = read_named(&mut fields);
    let remedy = "add what calls are counted for, such as `key: host`";
    let key = fields.require("key", remedy, read_key);
    let steps = PolicySteps::of_calls(&mut fields, &mut spec);
    let counted = Counted::read(&mut fields, &mut spec);
    let limit = steps.has_limit.then_some(&steps.policy);
    let costs = fields.read("costs", |node, reading| {
        Some(read_costs(node, limit, reading))
    });
    let skip_without_key = fields.read("skip_without_key", boolean);
    let never_paused = fields.read("never_paused", boolean);
    let reported_as = fields.read("reported_as", text);
    let adaptive = fields.read("adaptive", read_adaptive);
    let (adaptive_spec, adaptive) = adaptive.unzip();
    let adaptive = adaptive.flatten();
    if let Some(adaptive) = adaptive.filter(|_| steps.has_limit)
        && let Err(error) = check(&steps.policy, adaptive)
    {
        fields.refuse("adaptive", &error);
    }
    fields.finish();
    if reading.noted() > noted {
        return None;
    }
    let (key_spec, extractor) = key?;
    let mut rule = steps.policy.outgoing_key(extractor);
    rule = counted.when.into_iter().fold(rule, OutgoingRule::when);
    rule = counted.unless.into_iter().fold(rule, OutgoingRule::unless);
    for (cost, matcher) in costs.into_iter().flatten() {
        rule = rule.cost_when(matcher, cost.units);
        spec.costs.push(cost);
    }
    for (is_set, set) in [
        (
            skip_without_key,
            OutgoingRule::skip_without_key as fn(_) -> _,
        ),
        (never_paused, OutgoingRule::never_paused),
    ] {
        if is_set == Some(true) {
            rule = set(rule);
        }
    }
    if let Some(name) = &reported_as {
        rule = rule.reported_as(name);
    }
    if let Some(adaptive) = adaptive {
        rule = rule.adaptive(adaptive);
    }
    // Each part was checked: this is for what only the parts together cannot do.
    if let Err(error) = rule.validate() {
        reading.refuse(node.position, &error);
        return None;
    }
    let spec = OutgoingRuleSpec {
        key: key_spec,
        skip_without_key,
        never_paused,
        reported_as,
        adaptive: adaptive_spec,
        ..of_rule(spec)
    };
    Some((spec, rule))
}

/// Checks that a policy can be adaptive.
fn check(policy: &Policy, adaptive: Adaptive) -> Result<(), Error> {
    let rule = policy.clone().outgoing_key(Global);
    rule.adaptive(adaptive).validate()
}

/// Returns the fields that both kinds of rules have.
fn of_rule(spec: RuleSpec) -> OutgoingRuleSpec {
    OutgoingRuleSpec {
        id: spec.id,
        path: spec.path,
        method: spec.method,
        host: spec.host,
        unless: spec.unless,
        limit: spec.limit,
        window: spec.window,
        burst: spec.burst,
        algorithm: spec.algorithm,
        window_start: spec.window_start,
        queue: spec.queue,
        max_wait: spec.max_wait,
        lease: spec.lease,
        cost: spec.cost,
        costs: spec.costs,
        outage: spec.outage,
        ..OutgoingRuleSpec::default()
    }
}

/// Reads a key, which a request that goes out must be able to have.
fn read_key(node: &LocatedValue, reading: &mut FileReading) -> Option<(KeySpec, DynExtractor)> {
    let (spec, extractor) = keys::read(node, reading)?;
    if is_of_clients(&spec) {
        let reason = "calls that go out have no such key";
        let remedy =
            "write one such as `host`, `{ api_key: bearer }`, `{ header: x-tenant }` or `global`";
        return reading.fault(node.position, reason, remedy);
    }
    Some((spec, extractor))
}

/// Whether only requests of clients have the key.
fn is_of_clients(key: &KeySpec) -> bool {
    match key {
        KeySpec::And(keys) | KeySpec::OrElse(keys) => keys.iter().any(is_of_clients),
        KeySpec::Body(_)
        | KeySpec::ClientIp(_)
        | KeySpec::PathParam(_)
        | KeySpec::PeerIp
        | KeySpec::Route
        | KeySpec::RouteOrUnmatched => true,
        KeySpec::ApiKey(_)
        | KeySpec::Cookie(_)
        | KeySpec::Custom(_)
        | KeySpec::Global
        | KeySpec::Header(_)
        | KeySpec::Host
        | KeySpec::Query(_) => false,
    }
}

/// Reads whether the rate adapts. The settings are `None` for `false`.
fn read_adaptive(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(AdaptiveSpec, Option<Adaptive>)> {
    if let Value::Bool(is_adaptive) = node.value {
        let adaptive = is_adaptive.then(Adaptive::default);
        return Some((AdaptiveSpec::Switch(is_adaptive), adaptive));
    }
    let mut fields = Fields::of(node, "write `true`, or `{ floor: 5/s }`", reading)?;
    let remedy = "add the lowest rate, such as `floor: 5/s`";
    let floor = fields.require("floor", remedy, |node, reading| {
        match quota::quota(node, LimitUnit::PerPeriod, reading)? {
            (QuotaSpec::Limit(limit), quota) => Some((limit, quota)),
            (QuotaSpec::With(_), _) => reading.expect(node, "write a rate such as `5/s`"),
        }
    });
    fields.finish();
    let (floor, quota) = floor?;
    let adaptive = Adaptive::default().floor(quota);
    Some((
        AdaptiveSpec::With(AdaptiveFloorSpec { floor }),
        Some(adaptive),
    ))
}

/// As much as the layer takes.
const MOST_PERCENT: u32 = 1_000;
const MOST_RETRIES: u32 = 1_000;
