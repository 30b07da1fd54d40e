//! From a tree to rules: reads a whole file, and notes every fault where it is.

use crate::{limiter::MAX_POLICIES, rules::Rule};

use super::{
    fields::{self, Fields, boolean, choice, percentage, whole},
    names::HeaderFamily,
    node::{LocatedValue, Value},
    overload::{self, OverloadSettings},
    reading::FileReading,
    requests::{Several, requests},
    rule,
    rule_list::{beside, check_number, read_list, read_rules},
    spec::{DefaultsSpec, OneOrMany, RuleSetSpec},
};

#[cfg(feature = "client")]
use super::outgoing::{OutgoingRules, read as read_outgoing};
#[cfg(not(feature = "client"))]
use super::spec::OutgoingSpec;

/// Rules, and the requests that none of them counts.
pub(super) struct Decoded {
    pub spec: RuleSetSpec,
    pub rules: Vec<Rule>,
    pub forbid: Vec<Several>,
    pub skip: Vec<Several>,
    pub overload: Option<OverloadSettings>,
    #[cfg(feature = "client")]
    pub outgoing: Option<OutgoingRules>,
}

/// Reads a whole file. `None` if there are faults.
pub(super) fn rule_set(root: &LocatedValue, reading: &mut FileReading) -> Option<Decoded> {
    let mut file = Fields::of(root, "begin with `rules:`", reading)?;
    let version = file.read("version", read_version);
    let defaults = file.read("defaults", read_defaults).unwrap_or_default();
    file.reading.defaults = defaults.clone();
    let headers = file.read("headers", read_headers);
    let shown_limit = file.read("shown_limit", choice);
    let retry_after_jitter = file.read("retry_after_jitter", |node, reading| {
        percentage(node, ("a jitter", 0.0..=30.0, "10%"), reading)
    });
    let forbid = file.read("forbid", requests);
    let skip = file.read("skip", requests);
    let (rules, outgoing) = (file.get("rules"), file.get("outgoing"));
    let overload = file.get("overload");
    let nodes = match rules {
        None if outgoing.is_some() || overload.is_some() => Some(&[][..]),
        _ => file.require("rules", "add a list of rules", read_list),
    };
    file.finish();
    let nodes = nodes?;
    // First, since rules name its classes.
    let overload = overload.and_then(|node| overload::read(node, reading));
    let read = read_rules(nodes, reading, rule::read);
    let outgoing = outgoing.and_then(|node| read_outgoing(node, reading));
    check_added(nodes, reading);
    check_number(nodes, reading);
    if reading.noted() > 0 {
        return None;
    }
    let (specs, rules) = read.into_iter().unzip();
    #[cfg_attr(
        not(feature = "client"),
        expect(unused_variables, reason = "there are none")
    )]
    let (outgoing_spec, outgoing_rules) = outgoing.unzip();
    let (overload_spec, overload) = overload.unzip();
    let (forbid_specs, forbid) = forbid.unwrap_or_default();
    let (skip_specs, skip) = skip.unwrap_or_default();
    Some(Decoded {
        spec: RuleSetSpec {
            version,
            defaults,
            headers,
            shown_limit,
            retry_after_jitter,
            forbid: forbid_specs,
            skip: skip_specs,
            rules: specs,
            outgoing: outgoing_spec,
            overload: overload_spec,
        },
        overload,
        rules,
        forbid,
        skip,
        #[cfg(feature = "client")]
        outgoing: outgoing_rules,
    })
}

#[cfg(not(feature = "client"))]
fn read_outgoing(node: &LocatedValue, reading: &mut FileReading) -> Option<(OutgoingSpec, ())> {
    let reason = "limits of calls that go out";
    reading.fault(node.position, reason, "enable the feature `client`")
}

fn read_version(node: &LocatedValue, reading: &mut FileReading) -> Option<u64> {
    let version = whole(node, reading)?;
    if version != 1 {
        let reason = format!("version {version}");
        reading.add(node.position, reason, "write `version: 1`");
    }
    Some(version)
}

fn read_defaults(node: &LocatedValue, reading: &mut FileReading) -> Option<DefaultsSpec> {
    let mut fields = Fields::of(node, "write a mapping", reading)?;
    let spec = DefaultsSpec {
        algorithm: fields.read("algorithm", choice),
        outage: fields.read("outage", choice),
        mode: fields.read("mode", choice),
        on_missing_key: fields.read("on_missing_key", choice),
        count_denied: fields.read("count_denied", boolean),
    };
    fields.finish();
    Some(spec)
}

fn read_headers(node: &LocatedValue, reading: &mut FileReading) -> Option<OneOrMany<HeaderFamily>> {
    let (items, is_list) = fields::items(node);
    let mut read = Vec::new();
    for item in items {
        let family = choice(item, reading);
        if family.is_some_and(|family| read.contains(&family)) {
            let reason = "a family that is there twice";
            reading.add(item.position, reason, "keep one of them");
        } else if family == Some(HeaderFamily::None) && items.len() > 1 {
            reading.add(
                item.position,
                "`none` beside other families",
                "leave it out",
            );
        }
        read.extend(family);
    }
    if items.is_empty() {
        let remedy = "write `none`, or leave the field out";
        reading.add(node.position, "an empty list", remedy);
    }
    OneOrMany::of(read, is_list)
}

// === All rules together ===

/// Notes candidates and reserves whose policies have the name of another rule.
fn check_added(nodes: &[LocatedValue], reading: &mut FileReading) {
    for node in nodes.iter().take(MAX_POLICIES) {
        let Some(Value::Text(id)) = node.field("id").map(|node| &node.value) else {
            continue;
        };
        for (field, suffix, position) in beside(node, reading.defaults.algorithm) {
            let name = format!("{id}.{suffix}");
            let Some((_, other)) = reading.ids.iter().find(|(other, _)| *other == name) else {
                continue;
            };
            let line = other.line;
            reading.rule = Some(id.clone());
            let reason =
                format!("a policy of the {field} is named {name:?}, as the rule in line {line}");
            reading.add(position, reason, "give that rule another id");
            reading.rule = None;
        }
    }
}
