//! Reads one rule. Every field is read, whatever is wrong with the others, so that all faults are listed at once.

use std::collections::BTreeMap;

use crate::{
    decision::PolicyName,
    extract::Global,
    policy::Policy,
    rules::{OnMissingKey, Rule, RuleMode},
};

use super::{
    fault::in_words_of_files,
    fields::{self, Faults, Fields},
    keys,
    node::{Node, Place, Value},
    policy_steps::PolicySettings,
    quota,
    registry::Registry,
    requests::{self, AllOf, DynMatcher, requests},
    spec::{
        CostSpec, DefaultsSpec, KeySpec, LimitSpec, ModeName, OnMissingKeyName, OneOrMany, RuleSpec,
    },
    tiers,
};

/// The context in which a rule is read.
pub(super) struct Context<'a> {
    pub(super) defaults: &'a DefaultsSpec,
    pub(super) registry: &'a Registry,
    /// The ids that were read, and where.
    pub(super) ids: Vec<(String, Place)>,
}

/// Reads a rule. `None` if it has faults.
pub(super) fn read(
    node: &Node,
    context: &mut Context<'_>,
    faults: &mut Faults,
) -> Option<(RuleSpec, Rule)> {
    let noted = faults.noted();
    let (defaults, registry) = (context.defaults, context.registry);
    let mut fields = Fields::of(node, "write a rule: `id`, `key`, `limit`", faults)?;
    let mut spec = empty();
    spec.id = read_id(&mut fields, &mut context.ids, faults).unwrap_or_default();
    let remedy = "add the caller to count, such as `key: peer_ip`";
    let key = fields.require("key", remedy, faults);
    let key = key.and_then(|node| keys::read(node, registry, faults));
    let settings = PolicySettings::read(&mut fields, defaults, &mut spec, faults);
    spec.path = fields.read("path", faults, fields::texts);
    spec.method = fields.read("method", faults, fields::texts);
    spec.host = fields.read("host", faults, fields::texts);
    let conditions = [&spec.path, &spec.method, &spec.host];
    let when = requests::conditions(&mut fields, conditions, faults);
    let unless = fields.read("unless", faults, |node, faults| {
        let (specs, matchers) = requests(node, registry, faults)?;
        Some((OneOrMany::of(specs, fields::items(node).1)?, matchers))
    });
    let tiers = tiers::read(
        &mut fields,
        (key.as_ref().map(|(spec, _)| spec), &settings),
        &mut spec,
        registry,
        faults,
    );
    let limit = (!tiers.is_used() && settings.has_limit()).then(|| settings.policy());
    let costs = fields.read("costs", faults, |node, faults| {
        Some(read_costs(node, limit.as_ref(), registry, faults))
    });
    let missing = fields::choice(OnMissingKeyName::ALL);
    spec.on_missing_key = fields.read("on_missing_key", faults, missing);
    spec.mode = fields.read("mode", faults, mode);
    spec.rollout = fields.read("rollout", faults, read_rollout);
    let candidate = fields.read("candidate", faults, |node, faults| {
        let (candidate, quota) = quota::quota(node, settings.limit_unit, faults)?;
        let base = settings.policy().candidate(quota);
        if let Err(error) = base.and_then(|_| settings.check(quota)) {
            let reason = "the rule cannot have this candidate";
            faults.add(node.place, reason, in_words_of_files(&error));
        }
        spec.candidate = Some(candidate);
        Some(quota)
    });
    fields.finish(faults);
    if faults.noted() > noted {
        return None;
    }

    let (key_spec, extractor) = key?;
    spec.key = key_spec;
    let mut rule = settings.policy().key(extractor);
    rule = when.into_iter().fold(rule, Rule::when);
    if let Some((unless, matchers)) = unless {
        spec.unless = Some(unless);
        rule = matchers.into_iter().fold(rule, Rule::unless);
    }
    for (cost, matcher) in costs.into_iter().flatten() {
        rule = rule.cost_when(matcher, cost.units);
        spec.costs.push(cost);
    }
    let missing = spec.on_missing_key.or(defaults.on_missing_key);
    if let Some(choice) = missing {
        rule = rule.on_missing_key(OnMissingKey::from(choice));
    }
    let mode = spec.mode.or(defaults.mode);
    rule = rule.mode(mode.map(RuleMode::from).unwrap_or_default());
    if let Some(percent) = spec.rollout {
        rule = rule.rollout(percent);
    }
    if let Some(quota) = candidate {
        rule = rule.candidate(quota);
    }
    let rule = tiers.apply(rule);
    // Each part was checked: this is for what only the parts together cannot do.
    if let Err(error) = rule.validate() {
        faults.refuse(node.place, &error);
        return None;
    }
    Some((spec, rule))
}

fn empty() -> RuleSpec {
    RuleSpec {
        id: String::new(),
        key: KeySpec::Global,
        path: None,
        method: None,
        host: None,
        unless: None,
        limit: LimitSpec::Count(0),
        window: None,
        burst: None,
        algorithm: None,
        window_start: None,
        queue: None,
        max_wait: None,
        lease: None,
        cost: None,
        costs: Vec::new(),
        unit: None,
        count_denied: None,
        penalty: None,
        on_missing_key: None,
        tiers: BTreeMap::new(),
        tier_from: None,
        overrides: Vec::new(),
        mode: None,
        rollout: None,
        candidate: None,
        outage: None,
    }
}

/// Reads the id. From here on, faults are those of this rule.
fn read_id(
    fields: &mut Fields<'_>,
    ids: &mut Vec<(String, Place)>,
    faults: &mut Faults,
) -> Option<String> {
    let node = fields.require("id", "add a name for the rule", faults)?;
    let id = fields::text(node, faults)?;
    if PolicyName::new(&id).is_err() {
        let reason = format!("{id:?} is not a name");
        faults.add(node.place, reason, "use 1 to 39 of A-Z a-z 0-9 . _ -");
        return None;
    }
    faults.rule = Some(id.clone());
    if let Some((_, first)) = ids.iter().find(|(other, _)| *other == id) {
        let reason = format!("the id {id:?} is used in line {}", first.line);
        faults.add(node.place, reason, "give each rule another one");
    }
    ids.push((id.clone(), node.place));
    Some(id)
}

fn read_rollout(node: &Node, faults: &mut Faults) -> Option<f64> {
    let percent = match &node.value {
        Value::Text(text) => {
            let number = text.trim_end().strip_suffix('%');
            let number = number.and_then(|number| number.trim_end().parse().ok());
            if number.is_none() {
                faults.expect(node, "write a percentage from 0 to 100, such as `30`");
            }
            number
        }
        _ => fields::number(node, faults),
    }?;
    if !(0.0..=100.0).contains(&percent) {
        let reason = format!("a rollout of {percent} %");
        faults.add(node.place, reason, "write a number from 0 to 100");
        return None;
    }
    Some(percent)
}

/// Reads a mode. YAML tools write `off` as `false`.
pub(super) fn mode(node: &Node, faults: &mut Faults) -> Option<ModeName> {
    if node.value == Value::Bool(false) {
        return Some(ModeName::Off);
    }
    fields::choice(ModeName::ALL)(node, faults)
}

/// Reads costs. Those above the limit are noted if the policy is given, whose limit all callers have.
fn read_costs(
    node: &Node,
    policy: Option<&Policy>,
    registry: &Registry,
    faults: &mut Faults,
) -> Vec<(CostSpec, AllOf)> {
    let mut read = Vec::new();
    for item in fields::items(node).0 {
        let Some(mut fields) = Fields::of(item, "write `{ when: {..}, units: 10 }`", faults) else {
            continue;
        };
        let when = fields.require("when", "add the requests that cost so much", faults);
        let when = when.and_then(|node| requests::request(node, registry, faults));
        let units = fields.require("units", "add the units of such a request", faults);
        let place = units.map_or(item.place, |node| node.place);
        let units = units.and_then(|node| fields::whole(node, faults));
        fields.finish(faults);
        if let (Some(policy), Some(units)) = (policy, units) {
            let any: DynMatcher = std::sync::Arc::new(AllOf::default());
            let rule = policy.clone().key(Global).cost_when(any, units);
            if let Err(error) = rule.validate() {
                faults.refuse(place, &error);
            }
        }
        if let (Some((when, matcher)), Some(units)) = (when, units) {
            read.push((CostSpec { when, units }, matcher));
        }
    }
    read
}
