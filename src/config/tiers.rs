//! The tiers of a rule: by a header, by a function registered in code, or of single keys.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use http::{HeaderName, request::Parts};

use crate::{
    error::Error,
    extract::{Extracted, Header},
    key::Key,
    policy::Policy,
    rules::Rule,
    tiers::{Tier, TierChoice},
};

use super::{
    fault::in_words_of_files,
    fields::{self, Faults, Fields},
    named_key::{NamedKey, named_key},
    network_tiers::NetworkTiers,
    node::{Node, Value},
    policy_steps::PolicySettings,
    quota,
    registry::{Registry, TierName},
    spec::{KeySpec, LimitSpec, OverrideSpec, QuotaSpec, RuleSpec, TierSourceSpec},
};

/// Reads `tiers`, `tier_from` and `overrides`. Those that cannot work are noted.
///
/// The key is absent if it has a fault itself.
pub(super) fn read(
    fields: &mut Fields<'_>,
    (key, settings): (Option<&KeySpec>, &PolicySettings),
    spec: &mut RuleSpec,
    registry: &Registry,
    faults: &mut Faults,
) -> FileTiers {
    let mut choice = FileTiers::default();
    // Written as empty is as good as not written: a set that is read again has neither.
    let tiers = fields.get("tiers").filter(|node| !is_empty(node));
    let overrides = fields.get("overrides").filter(|node| !is_empty(node));
    let mut names = TierNames::default();
    if let Some(node) = tiers {
        names = read_tiers(node, settings, (&mut choice, spec), faults);
    }
    if let Some(node) = fields.get("tier_from") {
        if let Some((source_spec, source)) = read_source(node, registry, faults) {
            choice.source = Some(source);
            spec.tier_from = Some(source_spec);
        }
        if tiers.is_none() {
            let remedy = "add the tiers by name";
            faults.add(node.place, "`tier_from` without `tiers`", remedy);
        }
    } else if let (Some(node), None) = (tiers, overrides) {
        let remedy = "add `tier_from` or `overrides`";
        faults.add(node.place, "nothing chooses these tiers", remedy);
    }
    for item in overrides.map_or(&[][..], |node| fields::items(node).0) {
        let read = read_override(item, (key, settings), &names, &mut choice, faults);
        spec.overrides.extend(read);
    }
    choice
}

fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        _ => false,
    }
}

/// Reads tiers by name. Returns all names, also those of tiers with faults.
fn read_tiers<'a>(
    node: &'a Node,
    settings: &PolicySettings,
    (choice, spec): (&mut FileTiers, &mut RuleSpec),
    faults: &mut Faults,
) -> TierNames<'a> {
    let mut names = TierNames::default();
    let Value::Map(entries) = &node.value else {
        faults.expect(node, "write `name: 100/min` for each tier");
        return names;
    };
    for entry in entries {
        let name = entry.name.as_str();
        let is_new = names.all.insert(name);
        names.in_order.push(name);
        if !is_new {
            let reason = format!("`{name}` is there twice");
            faults.add(entry.place, reason, "keep one of them");
        } else if GRANTS.contains(&name) {
            let reason = format!("`{name}` is not a name for a tier");
            faults.add(entry.place, reason, "choose another one");
        } else if let Some((tier_spec, tier)) = read_tier(name, &entry.node, settings, faults) {
            choice.by_name.insert(name.to_owned(), tier);
            spec.tiers.insert(name.to_owned(), tier_spec);
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
    node: &Node,
    settings: &PolicySettings,
    faults: &mut Faults,
) -> Option<(QuotaSpec, Tier)> {
    match &node.value {
        Value::Text(text) if GRANTS.contains(&text.as_str()) => {
            let tier = match text.as_str() {
                "unlimited" => Tier::unlimited(),
                _ => Tier::forbidden(),
            };
            return Some((QuotaSpec::Limit(LimitSpec::Rate(text.clone())), tier));
        }
        Value::Text(text) if !is_rate(text) => {
            let remedy = "write a rate such as `100/min`, or `unlimited` or `forbidden`";
            faults.add(node.place, format!("{text:?} is not a quota"), remedy);
            return None;
        }
        _ => {}
    }
    if !faults.has_room_for_quota(node.place) {
        return None;
    }
    let (spec, quota) = quota::quota(node, settings.limit_unit, faults)?;
    let tier = Tier::new(name, quota);
    let tier = tier.and_then(|tier| settings.check(quota).map(|()| tier));
    match tier {
        Ok(tier) => Some((spec, tier)),
        Err(error) => {
            let reason = "the rule cannot have this tier";
            faults.add(node.place, reason, in_words_of_files(&error));
            None
        }
    }
}

fn read_override(
    item: &Node,
    (key_spec, settings): (Option<&KeySpec>, &PolicySettings),
    names: &TierNames<'_>,
    choice: &mut FileTiers,
    faults: &mut Faults,
) -> Option<OverrideSpec> {
    let mut fields = Fields::of(item, "write `{ key: .., tier: .. }`", faults)?;
    let key_node = fields.require("key", "add the value of the key", faults);
    let key = key_node.and_then(|node| fields::text(node, faults));
    let tier_node = fields.require("tier", "add a rate, or the name of a tier", faults);
    fields.finish(faults);
    let tier = tier_node.and_then(|node| overriding_tier(node, names, settings, choice, faults));
    let place = key_node?.place;
    let key = key?;
    let named = match named_key(key_spec?, &key) {
        Ok(named) => named,
        Err(remedy) => {
            faults.add(place, "this key has no override", remedy);
            return None;
        }
    };
    let (tier_spec, tier) = tier?;
    let former = match named {
        NamedKey::Key(key) => choice.by_key.insert(key, tier),
        NamedKey::Network(network) => choice.by_network.insert(network, tier),
    };
    if former.is_some() {
        let reason = format!("the key {key:?} is there twice");
        faults.add(place, reason, "keep one of them");
    }
    Some(OverrideSpec {
        key,
        tier: tier_spec,
    })
}

/// Returns a tier by its name, or one with its own quota.
fn overriding_tier(
    node: &Node,
    names: &TierNames<'_>,
    settings: &PolicySettings,
    choice: &FileTiers,
    faults: &mut Faults,
) -> Option<(QuotaSpec, Tier)> {
    let Value::Text(name) = &node.value else {
        return read_tier("override", node, settings, faults);
    };
    if names.all.contains(name.as_str()) {
        // A tier with a fault was noted.
        let tier = choice.by_name.get(name)?.clone();
        let spec = QuotaSpec::Limit(LimitSpec::Rate(name.clone()));
        return Some((spec, tier));
    }
    if is_rate(name) || GRANTS.contains(&name.as_str()) {
        return read_tier("override", node, settings, faults);
    }
    let known = names.in_order.iter().chain(GRANTS).copied();
    let remedy = faults.one_of((name, node.place), known);
    let remedy = format!("{remedy}, or a rate");
    faults.add(node.place, format!("unknown tier `{name}`"), remedy);
    None
}

fn is_rate(text: &str) -> bool {
    text.contains('/') || text.contains(" per ")
}

fn read_source(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(TierSourceSpec, Source)> {
    let mut setting = Fields::of(
        node,
        "write `{ header: name }` or `{ custom: name }`",
        faults,
    )?;
    let header = setting.get("header");
    let custom = setting.get("custom");
    setting.finish(faults);
    match (header, custom) {
        (Some(node), None) => {
            let name = fields::text(node, faults)?;
            if HeaderName::try_from(&name).is_err() {
                let reason = format!("{name:?} is not a header name");
                faults.add(node.place, reason, "write it as `x-plan`");
                return None;
            }
            let source = Source::Header(Header::new(&name));
            Some((TierSourceSpec::Header(name), source))
        }
        (None, Some(node)) => {
            let name = fields::text(node, faults)?;
            let source = registry.tier_name(&name, node.place, faults)?;
            Some((TierSourceSpec::Custom(name), Source::Custom(source)))
        }
        _ => {
            faults.add(
                node.place,
                "not one source",
                "write `{ header: name }` or `{ custom: name }`",
            );
            None
        }
    }
}

// === FileTiers ===

/// The tiers of a rule in a file: of a single key first, then of a network, else by name.
#[derive(Default)]
pub(super) struct FileTiers {
    by_key: HashMap<Key, Tier>,
    by_network: NetworkTiers,
    by_name: HashMap<String, Tier>,
    source: Option<Source>,
}

impl FileTiers {
    /// Whether some callers may have another limit.
    pub(super) fn is_used(&self) -> bool {
        self.source.is_some() || !self.by_key.is_empty() || !self.by_network.is_empty()
    }

    /// Returns a rule with these tiers.
    pub(super) fn apply(self, rule: Rule) -> Rule {
        if self.is_used() {
            rule.tier_by(self)
        } else {
            rule
        }
    }
}

enum Source {
    Custom(Arc<TierName>),
    Header(Header),
}

impl TierChoice for FileTiers {
    fn tier(&self, parts: &Parts, key: &Key) -> Option<Tier> {
        if let Some(tier) = self.by_key.get(key).or_else(|| self.by_network.of(key)) {
            return Some(tier.clone());
        }
        let tier = match self.source.as_ref()? {
            Source::Custom(name) => self.by_name.get(&name(parts, key)?),
            Source::Header(header) => match header.value(parts) {
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
