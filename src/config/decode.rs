//! From a tree to rules: reads each field, and notes every fault where it is.

use std::collections::BTreeMap;

use crate::{
    error::{Error, ErrorKind},
    policy::{OnOutage, Policy},
    rules::{OnMissingKey, Rule, RuleMode},
    state::PolicyName,
};

use super::{
    fault::in_words_of_files,
    fields::{self, Faults, Fields},
    keys,
    node::{Node, Place, Value},
    quota::{self, Parameters, candidate_quota, duration},
    registry::Registry,
    requests::{self, AllOf, requests},
    spec::{
        AlgorithmName, CostSpec, DefaultsSpec, HeaderFamily, LimitSpec, ModeName, OnMissingKeyName,
        OneOrMany, OutageName, RuleSetSpec, RuleSpec, WindowStartName,
    },
    tiers, units,
};

/// Rules, and the requests that none of them counts.
pub(super) struct Decoded {
    pub(super) spec: RuleSetSpec,
    pub(super) rules: Vec<Rule>,
    pub(super) forbid: Vec<AllOf>,
    pub(super) skip: Vec<AllOf>,
}

/// Reads a whole file. `None` if there are faults.
pub(super) fn rule_set(root: &Node, registry: &Registry, faults: &mut Faults) -> Option<Decoded> {
    let mut file = Fields::of(root, "begin with `rules:`", faults)?;
    let version = file.read("version", faults, |node, faults| {
        let version = fields::whole(node, faults)?;
        if version != 1 {
            faults.add(
                node.place,
                format!("version {version}"),
                "write `version: 1`",
            );
        }
        Some(version)
    });
    let defaults = file
        .read("defaults", faults, read_defaults)
        .unwrap_or_default();
    let headers = file.read("headers", faults, read_headers);
    let forbid = file.read("forbid", faults, |node, faults| {
        requests(node, registry, faults)
    });
    let skip = file.read("skip", faults, |node, faults| {
        requests(node, registry, faults)
    });
    let nodes = file.require("rules", "add a list of rules", faults);
    file.finish(faults);
    let nodes = match nodes.map(fields::items) {
        Some((nodes, true)) if !nodes.is_empty() => nodes,
        Some((nodes, is_list)) => {
            let place = nodes.first().map_or(root.place, |node| node.place);
            let reason = if is_list {
                "no rules"
            } else {
                "this is not a list"
            };
            faults.add(place, reason, "write `- id: ..` for each rule");
            return None;
        }
        None => return None,
    };
    let mut specs = Vec::new();
    let mut rules = Vec::new();
    let mut ids: Vec<(String, Place)> = Vec::new();
    for node in nodes {
        let read = rule(node, &defaults, registry, &mut ids, faults);
        faults.rule = None;
        if let Some((spec, rule)) = read {
            specs.push(spec);
            rules.push(rule);
        }
    }
    check_number(&rules, nodes, faults);
    let (forbid_specs, forbid) = forbid.unwrap_or_default();
    let (skip_specs, skip) = skip.unwrap_or_default();
    faults.list.is_empty().then_some(Decoded {
        spec: RuleSetSpec {
            version,
            defaults,
            headers,
            forbid: forbid_specs,
            skip: skip_specs,
            rules: specs,
        },
        rules,
        forbid,
        skip,
    })
}

/// Notes the first rule that is one too many.
fn check_number(rules: &[Rule], nodes: &[Node], faults: &mut Faults) {
    let mut policies = 0;
    for (rule, node) in rules.iter().zip(nodes) {
        policies += rule.policies().count();
        if policies > MAX_POLICIES {
            let reason = format!("more than {MAX_POLICIES} policies (a candidate is one too)");
            faults.add(
                node.place,
                reason,
                "put some of the rules into another layer",
            );
            return;
        }
    }
}

fn read_defaults(node: &Node, faults: &mut Faults) -> Option<DefaultsSpec> {
    let mut fields = Fields::of(node, "write a mapping", faults)?;
    let spec = DefaultsSpec {
        algorithm: fields.read("algorithm", faults, fields::choice(AlgorithmName::ALL)),
        outage: fields.read("outage", faults, fields::choice(OutageName::ALL)),
        mode: fields.read("mode", faults, mode),
        on_missing_key: fields.read(
            "on_missing_key",
            faults,
            fields::choice(OnMissingKeyName::ALL),
        ),
        count_denied: fields.read("count_denied", faults, fields::boolean),
    };
    fields.finish(faults);
    Some(spec)
}

fn read_headers(node: &Node, faults: &mut Faults) -> Option<OneOrMany<HeaderFamily>> {
    let (items, is_list) = fields::items(node);
    let read = items
        .iter()
        .map(|item| fields::choice(HeaderFamily::ALL)(item, faults));
    let read: Vec<_> = read.collect();
    let mut read: Vec<HeaderFamily> = read.into_iter().collect::<Option<_>>()?;
    match (is_list, read.len()) {
        (_, 0) => {
            faults.add(
                node.place,
                "an empty list",
                "write `none`, or leave the field out",
            );
            None
        }
        (false, _) => Some(OneOrMany::One(read.swap_remove(0))),
        (true, _) => Some(OneOrMany::Many(read)),
    }
}

// === A rule ===

fn rule(
    node: &Node,
    defaults: &DefaultsSpec,
    registry: &Registry,
    ids: &mut Vec<(String, Place)>,
    faults: &mut Faults,
) -> Option<(RuleSpec, Rule)> {
    let mut fields = Fields::of(node, "write a rule: `id`, `key`, `limit`", faults)?;
    let id = fields.require("id", "add a name for the rule", faults);
    faults.rule = match id.map(|node| &node.value) {
        Some(Value::Text(text)) if PolicyName::new(text).is_ok() => Some(text.clone()),
        _ => None,
    };
    let id = id.and_then(|node| read_id(node, ids, faults));
    let key_node = fields.require(
        "key",
        "add the caller to count, such as `key: peer_ip`",
        faults,
    );
    let key = key_node.and_then(|node| keys::read(node, registry, faults));
    let quota_place = fields.get("limit").map_or(fields.place, |node| node.place);
    let algorithm = fields.read("algorithm", faults, fields::choice(AlgorithmName::ALL));
    let name = algorithm.or(defaults.algorithm);
    let in_flight = name == Some(AlgorithmName::Concurrency);
    let quota = quota::quota(&mut fields, in_flight, faults);
    let window_start = fields.read("window_start", faults, fields::choice(WindowStartName::ALL));
    let queue = fields.read("queue", faults, fields::whole);
    let max_wait = fields.read("max_wait", faults, duration);
    let lease = fields.read("lease", faults, duration);
    let cost_place = fields.get("cost").map_or(fields.place, |node| node.place);
    let mut spec = RuleSpec {
        id: id.clone().unwrap_or_default(),
        key: super::spec::KeySpec::Global,
        path: fields.read("path", faults, keys::texts),
        method: fields.read("method", faults, keys::texts),
        host: fields.read("host", faults, keys::texts),
        unless: None,
        limit: LimitSpec::Count(0),
        window: None,
        burst: None,
        algorithm,
        window_start,
        queue,
        max_wait: max_wait.map(units::write_duration),
        lease: lease.map(units::write_duration),
        cost: fields.read("cost", faults, fields::whole),
        costs: Vec::new(),
        unit: fields.read("unit", faults, fields::text),
        count_denied: fields.read("count_denied", faults, fields::boolean),
        on_missing_key: fields.read(
            "on_missing_key",
            faults,
            fields::choice(OnMissingKeyName::ALL),
        ),
        tiers: BTreeMap::new(),
        tier_from: None,
        overrides: Vec::new(),
        mode: fields.read("mode", faults, mode),
        rollout: None,
        candidate: None,
        outage: fields.read("outage", faults, fields::choice(OutageName::ALL)),
    };
    let when = requests::matchers(&mut fields, &spec, faults);
    let unless = fields.get("unless");
    let unless = unless.and_then(|node| requests(node, registry, faults).map(|read| (node, read)));
    let costs = fields
        .get("costs")
        .map(|node| read_costs(node, registry, faults));
    let rollout = fields
        .get("rollout")
        .and_then(|node| read_rollout(node, faults));
    let candidate = fields.get("candidate");
    let tier_nodes = tiers::Nodes::of(&mut fields);
    let parameters = Parameters {
        name,
        window_start,
        queue,
        max_wait,
        lease,
    };
    let algorithm_place = fields
        .get("algorithm")
        .map_or(quota_place, |node| node.place);
    let algorithm = parameters.algorithm(algorithm_place, &mut fields, faults);
    fields.finish(faults);

    let (id, (key_spec, extractor), (quota_spec, quota)) = (id?, key?, quota?);
    let algorithm = algorithm?;
    (spec.key, spec.rollout) = (key_spec, rollout);
    (spec.limit, spec.window, spec.burst) = (quota_spec.limit, quota_spec.window, quota_spec.burst);
    let mut policy = Policy::new(&id, quota).algorithm(algorithm);
    let count_denied = spec.count_denied.or(defaults.count_denied).unwrap_or(false);
    policy =
        policy.count_denied(count_denied && parameters.name != Some(AlgorithmName::Concurrency));
    policy = policy.on_outage(outage(spec.outage.or(defaults.outage)));
    if let Some(units) = spec.cost {
        policy = policy.cost(units);
    }
    if let Some(unit) = &spec.unit {
        policy = policy.unit(unit);
    }
    if let Err(error) = policy.validate() {
        let is_of_cost = error.to_string().contains("a request costs");
        note(
            &error,
            if is_of_cost { cost_place } else { quota_place },
            faults,
        );
        return None;
    }
    let mut rule = policy.key(extractor);
    for matcher in when? {
        rule = rule.when(matcher);
    }
    if let Some((node, (specs, matchers))) = unless {
        spec.unless = Some(match fields::items(node).1 {
            true => OneOrMany::Many(specs),
            false => OneOrMany::One(specs.into_iter().next()?),
        });
        rule = matchers.into_iter().fold(rule, Rule::unless);
    }
    for (cost, matcher, place) in costs.into_iter().flatten() {
        rule = rule.cost_when(matcher, cost.units);
        spec.costs.push(cost);
        check(&rule, place, faults);
    }
    if let Some(choice) = on_missing_key(spec.on_missing_key.or(defaults.on_missing_key)) {
        rule = rule.on_missing_key(choice);
    }
    rule = rule.mode(rule_mode(spec.mode.or(defaults.mode)));
    if let Some(percent) = rollout {
        rule = rule.rollout(percent);
    }
    if let Some(node) = candidate {
        let (candidate, quota) = candidate_quota(node, in_flight, faults)?;
        rule = rule.candidate(quota);
        spec.candidate = Some(candidate);
        check(&rule, node.place, faults);
    }
    let rule = tier_nodes.apply(rule, &mut spec, registry, faults)?;
    check(&rule, node.place, faults);
    Some((spec, rule))
}

/// Notes an error of the rule as it is so far, unless it was noted.
fn check(rule: &Rule, place: Place, faults: &mut Faults) {
    if let Err(error) = rule.validate() {
        let remedy = in_words_of_files(&error);
        if !faults.list.iter().any(|fault| fault.remedy == remedy) {
            faults.add(place, "this cannot work", remedy);
        }
    }
}

fn note(error: &Error, place: Place, faults: &mut Faults) {
    let reason = match error.kind() {
        ErrorKind::InvalidQuota => "the algorithm cannot count this limit",
        _ => "this cannot work",
    };
    faults.add(place, reason, in_words_of_files(error));
}

fn read_id(node: &Node, ids: &mut Vec<(String, Place)>, faults: &mut Faults) -> Option<String> {
    let id = fields::text(node, faults)?;
    if PolicyName::new(&id).is_err() {
        faults.add(
            node.place,
            format!("{id:?} is not a name"),
            "use 1 to 39 of A-Z a-z 0-9 . _ -",
        );
        return None;
    }
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
            let number = text
                .trim_end()
                .strip_suffix('%')
                .and_then(|text| text.trim_end().parse().ok());
            if number.is_none() {
                faults.expect(node, "write a percentage from 0 to 100, such as `30`");
            }
            number
        }
        _ => fields::number(node, faults),
    }?;
    if !(0.0..=100.0).contains(&percent) {
        faults.add(
            node.place,
            format!("a rollout of {percent} %"),
            "write a number from 0 to 100",
        );
        return None;
    }
    Some(percent)
}

/// Reads a mode. YAML tools write `off` as `false`.
fn mode(node: &Node, faults: &mut Faults) -> Option<ModeName> {
    if node.value == Value::Bool(false) {
        return Some(ModeName::Off);
    }
    fields::choice(ModeName::ALL)(node, faults)
}

fn read_costs(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Vec<(CostSpec, AllOf, Place)> {
    let mut read = Vec::new();
    for item in fields::items(node).0 {
        let Some(mut fields) = Fields::of(item, "write `{ when: {..}, units: 10 }`", faults) else {
            continue;
        };
        let when = fields.require("when", "add the requests that cost so much", faults);
        let when = when.and_then(|node| requests::request(node, registry, faults));
        let units = fields.require("units", "add the units of such a request", faults);
        let units = units.and_then(|node| fields::whole(node, faults));
        fields.finish(faults);
        if let (Some((when, matcher)), Some(units)) = (when, units) {
            read.push((CostSpec { when, units }, matcher, item.place));
        }
    }
    read
}

// === Choices ===

fn outage(name: Option<OutageName>) -> OnOutage {
    match name {
        Some(OutageName::Allow) => OnOutage::Allow,
        Some(OutageName::Deny) => OnOutage::Deny,
        None | Some(OutageName::Local) => OnOutage::Local,
    }
}

fn on_missing_key(name: Option<OnMissingKeyName>) -> Option<OnMissingKey> {
    name.map(|name| match name {
        OnMissingKeyName::Reject => OnMissingKey::Reject,
        OnMissingKeyName::Share => OnMissingKey::Share,
        OnMissingKeyName::Skip => OnMissingKey::Skip,
    })
}

fn rule_mode(name: Option<ModeName>) -> RuleMode {
    match name {
        Some(ModeName::Off) => RuleMode::Off,
        Some(ModeName::Shadow) => RuleMode::Shadow,
        None | Some(ModeName::Enforce) => RuleMode::Enforce,
    }
}

/// The most policies of a decision.
const MAX_POLICIES: usize = 16;
