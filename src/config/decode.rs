//! From a tree to rules: reads a whole file, and notes every fault where it is.

use crate::{charge::MAX_CHARGES, limiter::MAX_POLICIES, rules::Rule};

use super::{
    fields::{self, Faults, Fields},
    node::{Node, Place, Value},
    registry::Registry,
    requests::{AllOf, requests},
    rule::{self, Context},
    spec::{
        AlgorithmName, DefaultsSpec, HeaderFamily, OnMissingKeyName, OneOrMany, OutageName,
        RuleSetSpec,
    },
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
    let version = file.read("version", faults, read_version);
    let defaults = file.read("defaults", faults, read_defaults);
    let defaults = defaults.unwrap_or_default();
    let headers = file.read("headers", faults, read_headers);
    let list = |node: &Node, faults: &mut Faults| requests(node, registry, faults);
    let forbid = file.read("forbid", faults, list);
    let skip = file.read("skip", faults, list);
    let nodes = file.require("rules", "add a list of rules", faults);
    file.finish(faults);
    let nodes = read_list(nodes?, faults)?;
    let mut context = Context {
        defaults: &defaults,
        registry,
        ids: Vec::new(),
    };
    let mut read = Vec::new();
    for node in &nodes[..nodes.len().min(MAX_POLICIES)] {
        let noted = faults.noted();
        let rule = rule::read(node, &mut context, faults);
        if rule.is_none() && faults.noted() == noted {
            // Never left out: that would be a limit that nobody enforces.
            let remedy = "compare it with docs/rules.md";
            faults.add(node.place, "this rule cannot be read", remedy);
        }
        read.extend(rule);
        faults.rule = None;
    }
    check_candidates(nodes, &context.ids, faults);
    check_number(nodes, faults);
    if faults.noted() > 0 {
        return None;
    }
    let (specs, rules) = read.into_iter().unzip();
    let (forbid_specs, forbid) = forbid.unwrap_or_default();
    let (skip_specs, skip) = skip.unwrap_or_default();
    Some(Decoded {
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

fn read_version(node: &Node, faults: &mut Faults) -> Option<u64> {
    let version = fields::whole(node, faults)?;
    if version != 1 {
        let reason = format!("version {version}");
        faults.add(node.place, reason, "write `version: 1`");
    }
    Some(version)
}

fn read_list<'a>(node: &'a Node, faults: &mut Faults) -> Option<&'a [Node]> {
    match &node.value {
        Value::List(nodes) if !nodes.is_empty() => return Some(nodes),
        Value::List(_) => faults.add(node.place, "no rules", "write `- id: ..` for each rule"),
        _ => faults.expect(node, "write `- id: ..` for each rule"),
    }
    None
}

fn read_defaults(node: &Node, faults: &mut Faults) -> Option<DefaultsSpec> {
    let mut fields = Fields::of(node, "write a mapping", faults)?;
    let missing = fields::choice(OnMissingKeyName::ALL);
    let spec = DefaultsSpec {
        algorithm: fields.read("algorithm", faults, fields::choice(AlgorithmName::ALL)),
        outage: fields.read("outage", faults, fields::choice(OutageName::ALL)),
        mode: fields.read("mode", faults, rule::mode),
        on_missing_key: fields.read("on_missing_key", faults, missing),
        count_denied: fields.read("count_denied", faults, fields::boolean),
    };
    fields.finish(faults);
    Some(spec)
}

fn read_headers(node: &Node, faults: &mut Faults) -> Option<OneOrMany<HeaderFamily>> {
    let (items, is_list) = fields::items(node);
    let mut read = Vec::new();
    for item in items {
        let family = fields::choice(HeaderFamily::ALL)(item, faults);
        if family.is_some_and(|family| read.contains(&family)) {
            faults.add(
                item.place,
                "a family that is there twice",
                "keep one of them",
            );
        } else if family == Some(HeaderFamily::None) && items.len() > 1 {
            faults.add(item.place, "`none` beside other families", "leave it out");
        }
        read.extend(family);
    }
    if items.is_empty() {
        let remedy = "write `none`, or leave the field out";
        faults.add(node.place, "an empty list", remedy);
    }
    OneOrMany::of(read, is_list)
}

// === All rules together ===

/// Notes candidates whose policies have the name of another rule.
fn check_candidates(nodes: &[Node], ids: &[(String, Place)], faults: &mut Faults) {
    for (node, place) in nodes.iter().take(MAX_POLICIES).filter_map(candidate_of) {
        let Some(Value::Text(id)) = node.field("id").map(|node| &node.value) else {
            continue;
        };
        let name = format!("{id}.candidate");
        if let Some((_, other)) = ids.iter().find(|(other, _)| *other == name) {
            faults.rule = Some(id.clone());
            let reason = format!(
                "the candidate is named {name:?}, as the rule in line {}",
                other.line
            );
            faults.add(place, reason, "give that rule another id");
            faults.rule = None;
        }
    }
}

/// Notes the first rule that is one too many.
fn check_number(nodes: &[Node], faults: &mut Faults) {
    let (mut all, mut unconditional) = (0, 0);
    for node in nodes {
        let policies = 1 + usize::from(candidate_of(node).is_some());
        all += policies;
        if CONDITIONS.iter().all(|name| node.field(name).is_none()) {
            unconditional += policies;
        }
        if all > MAX_POLICIES {
            let reason = format!("more than {MAX_POLICIES} policies (a candidate is one too)");
            let remedy = "put some of the rules into another layer";
            return faults.add(node.place, reason, remedy);
        }
        if unconditional > MAX_CHARGES {
            let reason = format!(
                "more than {MAX_CHARGES} policies that count every request (a candidate is one too)"
            );
            let remedy =
                "add a `path`, `method` or `host`, or put some of the rules into another layer";
            return faults.add(node.place, reason, remedy);
        }
    }
}

fn candidate_of(rule: &Node) -> Option<(&Node, Place)> {
    Some((rule, rule.field("candidate")?.place))
}

/// The fields of a rule that leave out requests.
const CONDITIONS: [&str; 3] = ["path", "method", "host"];
