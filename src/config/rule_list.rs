//! Reads lists of rules, and leaves none out without a fault.

use crate::{charge::MAX_CHARGES, limiter::MAX_POLICIES};

use super::{
    names::AlgorithmName,
    node::{LocatedValue, Position, Value},
    reading::FileReading,
};

/// Returns the items of a list of rules, which must not be empty.
pub(super) fn read_list<'n>(
    node: &'n LocatedValue,
    reading: &mut FileReading,
) -> Option<&'n [LocatedValue]> {
    let remedy = "write `- id: ..` for each rule, and in TOML `[[rules]]`";
    match &node.value {
        Value::List(nodes) if !nodes.is_empty() => Some(nodes),
        Value::List(_) => reading.fault(node.position, "no rules", remedy),
        _ => reading.expect(node, remedy),
    }
}

/// Reads a list of rules. Each that has faults is left out, and noted.
pub(super) fn read_rules<T>(
    nodes: &[LocatedValue],
    reading: &mut FileReading,
    read: impl Fn(&LocatedValue, &mut FileReading) -> Option<T>,
) -> Vec<T> {
    let mut rules = Vec::new();
    for node in &nodes[..nodes.len().min(MAX_POLICIES)] {
        let noted = reading.noted();
        let rule = read(node, reading);
        if rule.is_none() && reading.noted() == noted {
            // Never left out: that would be a limit that nobody enforces.
            let remedy = "compare it with docs/rules.md";
            reading.add(node.position, "this rule cannot be read", remedy);
        }
        rules.extend(rule);
        reading.rule = None;
    }
    rules
}

/// Notes the first rule that is one too many.
pub(super) fn check_number(nodes: &[LocatedValue], reading: &mut FileReading) {
    let (mut all, mut unconditional) = (0, 0);
    for node in nodes {
        let policies = 1 + beside(node, reading.defaults.algorithm).count();
        all += policies;
        if CONDITIONS.iter().all(|name| node.field(name).is_none()) {
            unconditional += policies;
        }
        if all > MAX_POLICIES {
            let reason = format!(
                "more than {MAX_POLICIES} policies (a candidate is one too, and a reserve)"
            );
            let remedy = "put some of the rules into another layer";
            return reading.add(node.position, reason, remedy);
        }
        if unconditional > MAX_CHARGES {
            let reason = format!(
                "more than {MAX_CHARGES} policies that count every request (a candidate is one too, and a reserve)"
            );
            let remedy =
                "add a `path`, `method` or `host`, or put some of the rules into another layer";
            return reading.add(node.position, reason, remedy);
        }
    }
}

/// Returns the fields of a rule that add a policy, each with what it appends to the name, and where it is. A rate whose reserve is
/// lent adds none.
pub(super) fn beside(
    rule: &LocatedValue,
    default: Option<AlgorithmName>,
) -> impl Iterator<Item = (&'static str, &'static str, Position)> {
    let added = [("candidate", "candidate"), ("reserve", "unreserved")];
    let algorithm = rule.field("algorithm").map(|node| &node.value);
    let has_slots = match algorithm {
        Some(Value::Text(name)) => name == "concurrency",
        Some(_) => false,
        None => default == Some(AlgorithmName::Concurrency),
    };
    let is_counted = move |node: &&LocatedValue| has_slots || node.field("lend").is_none();
    let position = move |field| {
        let node = rule.field(field).filter(is_counted);
        node.map(|node| node.position)
    };
    let of = move |(field, suffix)| Some((field, suffix, position(field)?));
    added.into_iter().filter_map(of)
}

/// The fields of a rule that leave out requests.
const CONDITIONS: [&str; 3] = ["path", "method", "host"];
