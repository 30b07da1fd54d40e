//! The tiers of a rule: by a header, by a function registered in code, or of single keys.

use std::{
    collections::{BTreeMap, HashMap},
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
    fields::{self, Faults, Fields, one_of},
    keys::named_key,
    node::{Node, Place, Value},
    quota::candidate_quota,
    registry::{Registry, TierName},
    spec::{CandidateSpec, LimitSpec, OverrideSpec, RuleSpec, TierSourceSpec, TierSpec},
};

/// The fields of a rule that are about tiers.
pub(super) struct Nodes<'a> {
    tiers: Option<&'a Node>,
    tier_from: Option<&'a Node>,
    overrides: Option<&'a Node>,
}

impl<'a> Nodes<'a> {
    pub(super) fn of(fields: &mut Fields<'a>) -> Self {
        Self {
            tiers: fields.get("tiers"),
            tier_from: fields.get("tier_from"),
            overrides: fields.get("overrides"),
        }
    }

    /// Adds the tiers to a rule. `None` if they cannot be read, which is noted.
    pub(super) fn apply(
        self,
        rule: Rule,
        spec: &mut RuleSpec,
        registry: &Registry,
        faults: &mut Faults,
    ) -> Option<Rule> {
        let mut choice = FileTiers::default();
        let in_flight = rule.policy().counter().concurrency().is_some();
        if let Some(node) = self.tiers {
            for (name, place, tier_spec, tier) in read_tiers(node, in_flight, faults)? {
                check(&tier, rule.policy(), place, faults);
                choice.by_name.insert(name.clone(), tier);
                spec.tiers.insert(name, tier_spec);
            }
        }
        if let Some(node) = self.tier_from {
            let (source_spec, source) = read_source(node, registry, faults)?;
            if choice.by_name.is_empty() {
                faults.add(
                    node.place,
                    "`tier_from` without `tiers`",
                    "add the tiers by name",
                );
            }
            choice.source = Some(source);
            spec.tier_from = Some(source_spec);
        } else if let (Some(node), None) = (self.tiers, self.overrides) {
            faults.add(
                node.place,
                "nothing chooses these tiers",
                "add `tier_from` or `overrides`",
            );
        }
        if let Some(node) = self.overrides {
            read_overrides(node, &mut choice, rule.policy(), spec, faults)?;
        }
        let is_used = choice.source.is_some() || !choice.by_key.is_empty();
        Some(if is_used { rule.tier_by(choice) } else { rule })
    }
}

fn check(tier: &Tier, policy: &Policy, place: Place, faults: &mut Faults) {
    if tier.quota().is_some()
        && let Err(error) = policy.under(tier)
    {
        faults.add(
            place,
            "the rule cannot have this tier",
            in_words_of_files(&error),
        );
    }
}

type NamedTier = (String, Place, TierSpec, Tier);

fn read_tiers(node: &Node, in_flight: bool, faults: &mut Faults) -> Option<Vec<NamedTier>> {
    let Value::Map(entries) = &node.value else {
        faults.expect(node, "write `name: 100/min` for each tier");
        return None;
    };
    let mut tiers: BTreeMap<&str, NamedTier> = BTreeMap::new();
    for entry in entries {
        if tiers.contains_key(entry.name.as_str()) {
            faults.add(
                entry.place,
                format!("`{}` is there twice", entry.name),
                "keep one of them",
            );
        } else if let Some((spec, tier)) = read_tier(&entry.name, &entry.node, in_flight, faults) {
            tiers.insert(
                &entry.name,
                (entry.name.clone(), entry.node.place, spec, tier),
            );
        }
    }
    Some(tiers.into_values().collect())
}

fn read_tier(
    name: &str,
    node: &Node,
    in_flight: bool,
    faults: &mut Faults,
) -> Option<(TierSpec, Tier)> {
    if let Value::Text(text) = &node.value {
        match text.as_str() {
            "unlimited" => return Some((TierSpec::Text(text.clone()), Tier::unlimited())),
            "forbidden" => return Some((TierSpec::Text(text.clone()), Tier::forbidden())),
            _ => {}
        }
    }
    let (spec, quota) = candidate_quota(node, in_flight, faults)?;
    let spec = match spec.limit {
        LimitSpec::Rate(text) if spec.burst.is_none() => TierSpec::Text(text),
        limit => TierSpec::Quota(CandidateSpec { limit, ..spec }),
    };
    match Tier::new(name, quota) {
        Ok(tier) => Some((spec, tier)),
        Err(error) => {
            faults.add(
                node.place,
                "this tier cannot work",
                in_words_of_files(&error),
            );
            None
        }
    }
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
                faults.add(
                    node.place,
                    format!("{name:?} is not a header name"),
                    "correct it",
                );
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

fn read_overrides(
    node: &Node,
    choice: &mut FileTiers,
    policy: &Policy,
    spec: &mut RuleSpec,
    faults: &mut Faults,
) -> Option<()> {
    for item in fields::items(node).0 {
        let mut fields = Fields::of(item, "write `{ key: .., tier: .. }`", faults)?;
        let key_node = fields.require("key", "add the value of the key", faults);
        let key = key_node.and_then(|node| fields::text(node, faults));
        let tier_node = fields.require("tier", "add a rate, or the name of a tier", faults);
        let tier = tier_node.and_then(|node| fields::text(node, faults));
        fields.finish(faults);
        let (Some(key_node), Some(key), Some(tier_node), Some(tier)) =
            (key_node, key, tier_node, tier)
        else {
            continue;
        };
        let named = choice.by_name.get(&tier).cloned();
        let found = match named {
            Some(found) => Some(found),
            None if tier.contains('/')
                || tier.contains(" per ")
                || matches!(&*tier, "unlimited" | "forbidden") =>
            {
                read_tier(
                    "override",
                    tier_node,
                    policy.counter().concurrency().is_some(),
                    faults,
                )
                .map(|(_, tier)| tier)
            }
            None => {
                let known = choice.by_name.keys().map(String::as_str);
                let known = known.chain(["unlimited", "forbidden"]);
                let remedy = format!("{}, or a rate", one_of(&tier, known));
                faults.add(tier_node.place, format!("unknown tier `{tier}`"), remedy);
                None
            }
        };
        let Some(found) = found else { continue };
        check(&found, policy, tier_node.place, faults);
        match named_key(&spec.key, &key) {
            Ok(named) => {
                if choice.by_key.insert(named, found).is_some() {
                    faults.add(
                        key_node.place,
                        format!("the key {key:?} is there twice"),
                        "keep one of them",
                    );
                }
                spec.overrides.push(OverrideSpec { key, tier });
            }
            Err(remedy) => faults.add(key_node.place, "this key has no override", remedy),
        }
    }
    Some(())
}

// === FileTiers ===

/// The tiers of a rule in a file: of a single key first, else by name.
#[derive(Default)]
struct FileTiers {
    by_key: HashMap<Key, Tier>,
    by_name: HashMap<String, Tier>,
    source: Option<Source>,
}

enum Source {
    Custom(Arc<TierName>),
    Header(Header),
}

impl TierChoice for FileTiers {
    fn tier(&self, parts: &Parts, key: &Key) -> Option<Tier> {
        if let Some(tier) = self.by_key.get(key) {
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
        let tiers = self.by_key.values().chain(self.by_name.values());
        let mut limiting = tiers.filter(|tier| tier.quota().is_some());
        limiting.try_for_each(|tier| policy.under(tier).map(drop))
    }
}
