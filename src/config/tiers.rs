//! The tiers of a rule: by a header, by a function registered in code, or of single keys.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use http::HeaderName;

use crate::{
    error::Error,
    extract::{Extracted, Header},
    key::Key,
    policy::Policy,
    request::RequestHead,
    rules::Rule,
    tiers::{Tier, TierChoice},
};

use super::{
    fault::in_words_of_files,
    fields::{self, Fields, registered, text},
    named_key::{NamedKey, named_key},
    network_tiers::NetworkTiers,
    node::{LocatedValue, NamedValue, Value},
    policy_steps::PolicySteps,
    quota,
    reading::FileReading,
    registry::TierName,
    spec::{KeySpec, LimitSpec, OverrideSpec, QuotaSpec, RuleSpec, TierSourceSpec},
};

/// Reads `tiers`, `tier_from` and `overrides`. Those that cannot work are noted.
///
/// The key is absent if it has a fault itself.
pub(super) fn read(
    fields: &mut Fields<'_, '_>,
    (key, steps): (Option<&KeySpec>, &PolicySteps),
    spec: &mut RuleSpec,
) -> FileTiers {
    let mut choice = FileTiers::default();
    // Written as empty is as good as not written: a set that is read again has neither.
    let tiers = fields.get("tiers").filter(|node| !is_empty(node));
    let overrides = fields.get("overrides").filter(|node| !is_empty(node));
    let mut names = TierNames::default();
    if let Some(node) = tiers {
        names = read_tiers(node, steps, (&mut choice, spec), fields.reading);
    }
    let source = fields.read("tier_from", read_source);
    (spec.tier_from, choice.source) = source.unzip();
    let has_source = fields.get("tier_from").is_some();
    if has_source && tiers.is_none() {
        let reason = "`tier_from` without `tiers`";
        fields.add("tier_from", reason, "add the tiers by name");
    } else if !has_source && tiers.is_some() && overrides.is_none() {
        let remedy = "add `tier_from` or `overrides`";
        fields.add("tiers", "nothing chooses these tiers", remedy);
    }
    for item in overrides.map_or(&[][..], |node| fields::items(node).0) {
        let read = read_override(item, (key, steps), &names, &mut choice, fields.reading);
        spec.overrides.extend(read);
    }
    choice
}

fn is_empty(node: &LocatedValue) -> bool {
    match &node.value {
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        _ => false,
    }
}

/// Reads tiers by name. Returns all names, also those of tiers with faults.
fn read_tiers<'a>(
    node: &'a LocatedValue,
    steps: &PolicySteps,
    (choice, spec): (&mut FileTiers, &mut RuleSpec),
    reading: &mut FileReading,
) -> TierNames<'a> {
    let mut names = TierNames::default();
    let Value::Map(entries) = &node.value else {
        let _: Option<()> = reading.expect(node, "write `name: 100/min` for each tier");
        return names;
    };
    for NamedValue {
        name,
        position,
        node,
    } in entries
    {
        let is_new = names.all.insert(name);
        names.in_order.push(name);
        if !is_new {
            let reason = format!("`{name}` is there twice");
            reading.add(*position, reason, "keep one of them");
        } else if GRANTS.contains(&name.as_str()) {
            let reason = format!("`{name}` is not a name for a tier");
            reading.add(*position, reason, "choose another one");
        } else if let Some((tier_spec, tier)) = read_tier(name, node, steps, reading) {
            choice.by_name.insert(name.clone(), tier);
            spec.tiers.insert(name.clone(), tier_spec);
        }
    }
    names
}

/// The names of the tiers of a rule, also of those with faults.
#[derive(Default)]
struct TierNames<'a> {
    all: HashSet<&'a str>,
    in_order: Vec<&'a str>,
}

fn read_tier(
    name: &str,
    node: &LocatedValue,
    steps: &PolicySteps,
    reading: &mut FileReading,
) -> Option<(QuotaSpec, Tier)> {
    if let Value::Text(text) = &node.value {
        let tier = match text.as_str() {
            "unlimited" => Tier::unlimited(),
            "forbidden" => Tier::forbidden(),
            _ if is_rate(text) => return read_limiting(name, node, steps, reading),
            _ => {
                let remedy = "write a rate such as `100/min`, or `unlimited` or `forbidden`";
                return reading.fault(node.position, format!("{text:?} is not a quota"), remedy);
            }
        };
        return Some((QuotaSpec::Limit(LimitSpec::Rate(text.clone())), tier));
    }
    read_limiting(name, node, steps, reading)
}

/// Reads a tier with a quota.
fn read_limiting(
    name: &str,
    node: &LocatedValue,
    steps: &PolicySteps,
    reading: &mut FileReading,
) -> Option<(QuotaSpec, Tier)> {
    if !reading.has_room_for_quota(node.position) {
        return None;
    }
    let (spec, quota) = quota::quota(node, steps.limit_unit, reading)?;
    let tier = Tier::new(name, quota);
    match tier.and_then(|tier| steps.check(quota).map(|()| tier)) {
        Ok(tier) => Some((spec, tier)),
        Err(error) => {
            let reason = "the rule cannot have this tier";
            reading.fault(node.position, reason, in_words_of_files(&error))
        }
    }
}

fn read_override(
    item: &LocatedValue,
    (key_spec, steps): (Option<&KeySpec>, &PolicySteps),
    names: &TierNames<'_>,
    choice: &mut FileTiers,
    reading: &mut FileReading,
) -> Option<OverrideSpec> {
    let mut fields = Fields::of(item, "write `{ key: .., tier: .. }`", reading)?;
    let key = fields.require("key", "add the value of the key", text);
    let position = fields.position_of("key");
    let tier_node = fields.require("tier", "add a rate, or the name of a tier", |node, _| {
        Some(node)
    });
    fields.finish();
    let tier = tier_node.and_then(|node| overriding_tier(node, names, steps, choice, reading));
    let key = key?;
    let named = match named_key(key_spec?, &key) {
        Ok(named) => named,
        Err(remedy) => return reading.fault(position, "this key has no override", remedy),
    };
    let (tier_spec, tier) = tier?;
    let former = match named {
        NamedKey::Key(key) => choice.by_key.insert(key, tier),
        NamedKey::Network(network) => choice.by_network.insert(network, tier),
    };
    if former.is_some() {
        let reason = format!("the key {key:?} is there twice");
        reading.add(position, reason, "keep one of them");
    }
    Some(OverrideSpec {
        key,
        tier: tier_spec,
    })
}

/// Returns a tier by its name, or one with its own quota.
fn overriding_tier(
    node: &LocatedValue,
    names: &TierNames<'_>,
    steps: &PolicySteps,
    choice: &FileTiers,
    reading: &mut FileReading,
) -> Option<(QuotaSpec, Tier)> {
    match &node.value {
        Value::Text(name) if names.all.contains(name.as_str()) => {
            // A tier with a fault was noted.
            let tier = choice.by_name.get(name)?.clone();
            let spec = QuotaSpec::Limit(LimitSpec::Rate(name.clone()));
            Some((spec, tier))
        }
        Value::Text(name) if !is_rate(name) && !GRANTS.contains(&name.as_str()) => {
            let known = names.in_order.iter().chain(GRANTS).copied();
            let remedy = reading.one_of((name, node.position), known);
            let remedy = format!("{remedy}, or a rate");
            reading.fault(node.position, format!("unknown tier `{name}`"), remedy)
        }
        _ => read_tier("override", node, steps, reading),
    }
}

fn is_rate(text: &str) -> bool {
    text.contains('/') || text.contains(" per ")
}

fn read_source(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(TierSourceSpec, TierSource)> {
    let remedy = "write `{ header: name }` or `{ custom: name }`";
    let mut fields = Fields::of(node, remedy, reading)?;
    let (header, custom) = (fields.get("header"), fields.get("custom"));
    fields.finish();
    match (header, custom) {
        (Some(node), None) => {
            let name = text(node, reading)?;
            if HeaderName::try_from(&name).is_err() {
                let reason = format!("{name:?} is not a header name");
                return reading.fault(node.position, reason, "write it as `x-plan`");
            }
            let source = TierSource::Header(Header::new(&name));
            Some((TierSourceSpec::Header(name), source))
        }
        (None, Some(node)) => {
            let (name, source) =
                registered(node, reading, "tier_name", |registry| &registry.tier_names)?;
            Some((TierSourceSpec::Custom(name), TierSource::Custom(source)))
        }
        _ => reading.fault(node.position, "not one source", remedy),
    }
}

// === FileTiers ===

/// The tiers of a rule in a file: of a single key first, then of a network, else by name.
#[derive(Default)]
pub(super) struct FileTiers {
    by_key: HashMap<Key, Tier>,
    by_network: NetworkTiers,
    by_name: HashMap<String, Tier>,
    source: Option<TierSource>,
}

impl FileTiers {
    /// Whether some callers may have another limit.
    pub fn is_used(&self) -> bool {
        self.source.is_some() || !self.by_key.is_empty() || !self.by_network.is_empty()
    }

    /// Returns a rule with these tiers.
    pub fn apply(self, rule: Rule) -> Rule {
        if self.is_used() {
            rule.tier_by(self)
        } else {
            rule
        }
    }
}

enum TierSource {
    Custom(Arc<TierName>),
    Header(Header),
}

impl TierChoice for FileTiers {
    fn tier(&self, head: &RequestHead<'_>, key: &Key) -> Option<Tier> {
        if let Some(tier) = self.by_key.get(key).or_else(|| self.by_network.of(key)) {
            return Some(tier.clone());
        }
        let tier = match self.source.as_ref()? {
            TierSource::Custom(name) => self.by_name.get(&name(head, key)?),
            TierSource::Header(header) => match header.value(head) {
                Extracted::Found(name) => self.by_name.get(std::str::from_utf8(name).ok()?),
                Extracted::Absent | Extracted::Ambiguous => None,
            },
        };
        tier.cloned()
    }

    fn validate(&self, policy: &Policy) -> Result<(), Error> {
        let tiers = self.by_key.values().chain(self.by_network.tiers());
        let tiers = tiers.chain(self.by_name.values());
        let mut limiting = tiers.filter(|tier| tier.quota().is_some());
        limiting.try_for_each(|tier| policy.under(tier).map(drop))
    }
}

/// Tiers without a quota.
const GRANTS: &[&str] = &["unlimited", "forbidden"];
