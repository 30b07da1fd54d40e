//! Reads one rule. Every field is read, whatever is wrong with the others, so that all faults are listed at once.

use crate::{
    algorithm::Quota,
    decision::PolicyName,
    extract::Global,
    policy::Policy,
    rules::{OnMissingKey, Rule, RuleMode},
};

use super::{
    body_field,
    fault::in_words_of_files,
    fields::{self, Fields, choice, percentage, whole},
    keys,
    node::LocatedValue,
    outcomes,
    policy_steps::PolicySteps,
    quota,
    reading::FileReading,
    registry::DynMatcher,
    requests::{self, Several, requests},
    spec::{CostSpec, OneOrMany, QuotaSpec, RuleSpec},
    tiers,
};

/// Reads a rule. `None` if it has faults.
pub(super) fn read(node: &LocatedValue, reading: &mut FileReading) -> Option<(RuleSpec, Rule)> {
    let noted = reading.noted();
    let mut fields = Fields::of(node, "write a rule: `id`, `key`, `limit`", reading)?;
    let mut spec = read_named(&mut fields);
    let remedy = "add the caller to count, such as `key: peer_ip`";
    let key = fields.require("key", remedy, keys::read);
    let steps = PolicySteps::read(&mut fields, &mut spec);
    let counted = Counted::read(&mut fields, &mut spec);
    let key_spec = key.as_ref().map(|(spec, _)| spec);
    let tiers = tiers::read(&mut fields, (key_spec, &steps), &mut spec);
    let limit = (!tiers.is_used() && steps.has_limit).then_some(&steps.policy);
    let costs = fields.read("costs", |node, reading| {
        Some(read_costs(node, limit, reading))
    });
    let cost_field = fields.read("cost_field", body_field::read_cost);
    outcomes::read(&mut fields, &mut spec);
    spec.on_missing_key = fields.read("on_missing_key", choice);
    spec.mode = fields.read("mode", choice);
    spec.rollout = fields.read("rollout", |node, reading| {
        percentage(node, ("a rollout", 0.0..=100.0, "30"), reading)
    });
    let candidate = fields.read("candidate", |node, reading| {
        read_candidate(node, &steps, reading)
    });
    fields.finish();
    if reading.noted() > noted {
        return None;
    }

    let (key_spec, extractor) = key?;
    spec.key = key_spec;
    let mut rule = steps.policy.key(extractor);
    rule = counted.when.into_iter().fold(rule, Rule::when);
    rule = counted.unless.into_iter().fold(rule, Rule::unless);
    for (cost, matcher) in costs.into_iter().flatten() {
        rule = rule.cost_when(matcher, cost.units);
        spec.costs.push(cost);
    }
    if let Some((field_spec, field)) = cost_field {
        rule = body_field::with_cost(rule, field);
        spec.cost_field = Some(field_spec);
    }
    if let Some((candidate, quota)) = candidate {
        rule = rule.candidate(quota);
        spec.candidate = Some(candidate);
    }
    let rule = outcomes::apply(rule, &spec);
    let rule = tiers.apply(with_modes(rule, &spec, reading));
    // Each part was checked: this is for what only the parts together cannot do.
    match rule.validate() {
        Ok(()) => Some((spec, rule)),
        Err(error) => {
            reading.refuse(node.position, &error);
            None
        }
    }
}

/// Reads the id of a rule. The other fields of the spec are empty.
pub(super) fn read_named(fields: &mut Fields<'_, '_>) -> RuleSpec {
    let id = fields.require("id", "add a name for the rule", read_id);
    RuleSpec {
        id: id.unwrap_or_default(),
        ..RuleSpec::default()
    }
}

/// The requests that a rule counts.
pub(super) struct Counted {
    pub when: Vec<DynMatcher>,
    pub unless: Vec<Several>,
}

impl Counted {
    /// Reads the conditions into the spec of the rule.
    pub fn read(fields: &mut Fields<'_, '_>, spec: &mut RuleSpec) -> Self {
        let when;
        ([spec.path, spec.method, spec.host], when) = requests::conditions(fields);
        let unless = fields.read("unless", |node, reading| {
            let (specs, matchers) = requests(node, reading)?;
            spec.unless = OneOrMany::of(specs, fields::items(node).1);
            Some(matchers)
        });
        Self {
            when,
            unless: unless.unwrap_or_default(),
        }
    }
}

/// Sets when the rule denies requests, and what it does without a key.
fn with_modes(mut rule: Rule, spec: &RuleSpec, reading: &FileReading) -> Rule {
    if let Some(choice) = spec.on_missing_key.or(reading.defaults.on_missing_key) {
        rule = rule.on_missing_key(OnMissingKey::from(choice));
    }
    let mode = spec.mode.or(reading.defaults.mode);
    rule = rule.mode(mode.map(RuleMode::from).unwrap_or_default());
    match spec.rollout {
        Some(percent) => rule.rollout(percent),
        None => rule,
    }
}

/// Reads the id. From here on, faults are those of this rule.
fn read_id(node: &LocatedValue, reading: &mut FileReading) -> Option<String> {
    let id = fields::text(node, reading)?;
    if PolicyName::new(&id).is_err() {
        let reason = format!("{id:?} is not a name");
        return reading.fault(node.position, reason, "use 1 to 39 of A-Z a-z 0-9 . _ -");
    }
    reading.rule = Some(id.clone());
    if let Some((_, first)) = reading.ids.iter().find(|(other, _)| *other == id) {
        let reason = format!("the id {id:?} is used in line {}", first.line);
        reading.add(node.position, reason, "give each rule another one");
    }
    reading.ids.push((id.clone(), node.position));
    Some(id)
}

fn read_candidate(
    node: &LocatedValue,
    steps: &PolicySteps,
    reading: &mut FileReading,
) -> Option<(QuotaSpec, Quota)> {
    let (candidate, quota) = quota::quota(node, steps.limit_unit, reading)?;
    let named = steps.policy.candidate(quota);
    if let Err(error) = named.and_then(|_| steps.check(quota)) {
        let reason = "the rule cannot have this candidate";
        reading.add(node.position, reason, in_words_of_files(&error));
    }
    Some((candidate, quota))
}

/// Reads costs. Those above the limit are noted if the policy is given, whose limit all callers have.
pub(super) fn read_costs(
    node: &LocatedValue,
    policy: Option<&Policy>,
    reading: &mut FileReading,
) -> Vec<(CostSpec, Several)> {
    let mut read = Vec::new();
    for item in fields::items(node).0 {
        let remedy = "write `{ when: {..}, units: 10 }`";
        let Some(mut fields) = Fields::of(item, remedy, reading) else {
            continue;
        };
        let remedy = "add the requests that cost so much";
        let when = fields.require("when", remedy, requests::request);
        let units = fields.require("units", "add the units of such a request", whole);
        if let (Some(policy), Some(units)) = (policy, units) {
            let any = Several::all_of(Vec::new());
            let rule = policy.clone().key(Global).cost_when(any, units);
            if let Err(error) = rule.validate() {
                fields.refuse("units", &error);
            }
        }
        fields.finish();
        if let (Some((when, matcher)), Some(units)) = (when, units) {
            read.push((CostSpec { when, units }, matcher));
        }
    }
    read
}
