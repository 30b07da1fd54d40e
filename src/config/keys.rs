//! Keys of rules, as they are written and as extractors.

use std::sync::Arc;

use crate::extract::{
    ApiKey, ClientIp, Cookie, Global, Header, HostHeader, KeyExtractor, PeerIp, QueryParam,
};

use super::{
    fields::{self, Faults, Fields},
    node::{Node, Place, Value},
    proxies::{self, works},
    registry::{DynExtractor, Registry},
    spec::{ApiKeySpec, ClientIpSpec, CookieSpec, KeySpec},
};

/// Reads a key, and makes its extractor. An extractor that cannot work is noted.
pub(super) fn read(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(KeySpec, DynExtractor)> {
    let read = match &node.value {
        Value::Text(name) => read_name(name, node.place, faults),
        Value::Map(entries) if entries.len() == 1 => read_with_setting(
            &entries[0].name,
            (entries[0].place, &entries[0].node),
            registry,
            faults,
        ),
        Value::Map(_) => {
            faults.add(
                node.place,
                "a key of several kinds",
                "join them: `and: [..]` or `or_else: [..]`",
            );
            None
        }
        _ => {
            faults.expect(
                node,
                "write a key such as `peer_ip` or `{ header: x-user }`",
            );
            None
        }
    };
    let (spec, extractor) = read?;
    if let Err(error) = extractor.validate() {
        faults.refuse(node.place, &error);
        return None;
    }
    Some((spec, extractor))
}

/// Reads a key without settings.
fn read_name(name: &str, place: Place, faults: &mut Faults) -> Option<(KeySpec, DynExtractor)> {
    Some(match name {
        "global" => (KeySpec::Global, Arc::new(Global)),
        "host" => (KeySpec::Host, Arc::new(HostHeader)),
        "peer_ip" => (KeySpec::PeerIp, Arc::new(PeerIp)),
        #[cfg(feature = "axum")]
        "route" => (KeySpec::Route, Arc::new(crate::extract::Route)),
        #[cfg(feature = "axum")]
        "route_or_unmatched" => (
            KeySpec::RouteOrUnmatched,
            Arc::new(crate::extract::Route.or_unmatched()),
        ),
        #[cfg(not(feature = "axum"))]
        "route" | "route_or_unmatched" => return without_axum(name, place, faults),
        name if WITH_SETTING.contains(&name) => {
            let remedy = match name {
                "and" | "or_else" => format!("write `{{ {name}: [..] }}`"),
                _ => format!("write `{{ {name}: .. }}`"),
            };
            faults.add(place, format!("the key `{name}` needs a setting"), remedy);
            return None;
        }
        name => {
            let known = WITHOUT_SETTING.iter().chain(WITH_SETTING).copied();
            let remedy = faults.one_of((name, place), known);
            faults.add(place, format!("unknown key `{name}`"), remedy);
            return None;
        }
    })
}

/// Reads a key with a setting.
fn read_with_setting(
    name: &str,
    (place, node): (Place, &Node),
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(KeySpec, DynExtractor)> {
    Some(match name {
        "and" => {
            let (specs, extractors) = read_several(node, registry, faults)?;
            let and = |first: DynExtractor, second| Arc::new(first.and(second)) as DynExtractor;
            (KeySpec::And(specs), extractors.into_iter().reduce(and)?)
        }
        "or_else" => {
            let (specs, extractors) = read_several(node, registry, faults)?;
            let or_else =
                |first: DynExtractor, second| Arc::new(first.or_else(second)) as DynExtractor;
            (
                KeySpec::OrElse(specs),
                extractors.into_iter().reduce(or_else)?,
            )
        }
        "api_key" => read_api_key(node, registry, faults)?,
        "client_ip" => read_client_ip(node, faults)?,
        "cookie" => read_cookie(node, registry, faults)?,
        "custom" => {
            let name = fields::text(node, faults)?;
            let found = registry.extractor(&name, node.place, faults)?;
            (KeySpec::Custom(name), found)
        }
        "header" => {
            let name = fields::text(node, faults)?;
            (KeySpec::Header(name.clone()), Arc::new(Header::new(name)))
        }
        #[cfg(feature = "axum")]
        "path_param" => {
            let name = fields::text(node, faults)?;
            let extractor = crate::extract::PathParam::new(&name);
            (KeySpec::PathParam(name), Arc::new(extractor))
        }
        #[cfg(not(feature = "axum"))]
        "path_param" => return without_axum(name, place, faults),
        "query" => {
            let name = fields::text(node, faults)?;
            (
                KeySpec::Query(name.clone()),
                Arc::new(QueryParam::new(name)),
            )
        }
        name if WITHOUT_SETTING.contains(&name) => {
            let remedy = format!("write `{name}` alone");
            faults.add(place, format!("the key `{name}` has no setting"), remedy);
            return None;
        }
        name => {
            let known = WITH_SETTING.iter().chain(WITHOUT_SETTING).copied();
            let remedy = faults.one_of((name, place), known);
            faults.add(place, format!("unknown key `{name}`"), remedy);
            return None;
        }
    })
}

#[cfg(not(feature = "axum"))]
fn without_axum<T>(name: &str, place: Place, faults: &mut Faults) -> Option<T> {
    let reason = format!("the key `{name}` needs routes of axum");
    faults.add(
        place,
        reason,
        "enable the feature `axum`, or use another key",
    );
    None
}

fn read_several(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(Vec<KeySpec>, Vec<DynExtractor>)> {
    let (items, _) = fields::items(node);
    if items.len() < 2 {
        let remedy = "write a list of two or more keys";
        match node.value {
            Value::List(_) => faults.add(node.place, "fewer than two keys", remedy),
            _ => faults.expect(node, remedy),
        }
        return None;
    }
    let read: Vec<_> = items
        .iter()
        .map(|item| read(item, registry, faults))
        .collect();
    let read: Option<Vec<_>> = read.into_iter().collect();
    let (specs, extractors): (Vec<_>, Vec<_>) = read?.into_iter().unzip();
    if specs.iter().map(joined).sum::<usize>() > MAX_JOINED {
        let reason = format!("more than {MAX_JOINED} keys are joined");
        let remedy = "join fewer, or register an extractor by RuleSetReader::extractor()";
        faults.add(node.place, reason, remedy);
        return None;
    }
    Some((specs, extractors))
}

/// Returns the number of keys that a key consists of.
fn joined(key: &KeySpec) -> usize {
    match key {
        KeySpec::And(keys) | KeySpec::OrElse(keys) => keys.iter().map(joined).sum(),
        _ => 1,
    }
}

fn read_api_key(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(KeySpec, DynExtractor)> {
    let remedy = "write `bearer`, `{ header: name }` or `{ query: name }`";
    let (spec, extractor) = if node.value == Value::Text("bearer".to_owned()) {
        (ApiKeySpec::Bearer, ApiKey::bearer())
    } else {
        let mut setting = Fields::of(node, remedy, faults)?;
        let header = setting.get("header");
        let query = setting.get("query");
        setting.finish(faults);
        match (header, query) {
            (Some(name), None) => {
                let name = fields::text(name, faults)?;
                let extractor = ApiKey::header(&name);
                (ApiKeySpec::Header(name), extractor)
            }
            (None, Some(name)) => {
                let name = fields::text(name, faults)?;
                let extractor = ApiKey::query(&name);
                (ApiKeySpec::Query(name), extractor)
            }
            (Some(_), Some(_)) => {
                let remedy = "join two keys by `or_else`";
                faults.add(node.place, "an API key in two places", remedy);
                return None;
            }
            (None, None) => {
                faults.add(node.place, "no place of the API key", remedy);
                return None;
            }
        }
    };
    let extractor = match registry.hash_secret {
        Some(secret) => extractor.hash_secret(secret),
        None => extractor,
    };
    Some((KeySpec::ApiKey(spec), Arc::new(extractor)))
}

fn read_client_ip(node: &Node, faults: &mut Faults) -> Option<(KeySpec, DynExtractor)> {
    let remedy = "write `{ behind: [networks] }` or `{ hops: 1 }`";
    let mut setting = Fields::of(node, remedy, faults)?;
    let (proxies, client_ip) = proxies::read(&mut setting, "peer_ip", faults);
    let spec = ClientIpSpec {
        proxies,
        ipv4_prefix: setting.read("ipv4_prefix", faults, fields::whole),
        ipv6_prefix: setting.read("ipv6_prefix", faults, fields::whole),
    };
    // The other settings are checked also while the proxies have a fault.
    let mut made = client_ip
        .clone()
        .unwrap_or_else(|| ClientIp::behind_hops(1));
    if let Some(bits) = spec.ipv4_prefix {
        let next = made
            .clone()
            .ipv4_prefix(u8::try_from(bits).unwrap_or(u8::MAX));
        if works(&next, setting.place_of("ipv4_prefix"), faults) {
            made = next;
        }
    }
    if let Some(bits) = spec.ipv6_prefix {
        let next = made
            .clone()
            .ipv6_prefix(u8::try_from(bits).unwrap_or(u8::MAX));
        if works(&next, setting.place_of("ipv6_prefix"), faults) {
            made = next;
        }
    }
    setting.finish(faults);
    client_ip?;
    Some((KeySpec::ClientIp(spec), Arc::new(made)))
}

fn read_cookie(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(KeySpec, DynExtractor)> {
    let hashed = |name: &str| match registry.hash_secret {
        Some(secret) => Cookie::new(name).hash_secret(secret),
        None => Cookie::new(name),
    };
    if let Value::Text(name) = &node.value {
        let spec = CookieSpec::Name(name.clone());
        return Some((KeySpec::Cookie(spec), Arc::new(hashed(name))));
    }
    let remedy = "write a name, or `{ name: .., plaintext: true }`";
    let mut setting = Fields::of(node, remedy, faults)?;
    let name = setting.require("name", "add the name of the cookie", faults);
    let name = name.and_then(|node| fields::text(node, faults));
    let plaintext = setting.read("plaintext", faults, fields::boolean);
    setting.finish(faults);
    let (name, plaintext) = (name?, plaintext.unwrap_or(false));
    let cookie = match plaintext {
        true => Cookie::new(&name).plaintext(),
        false => hashed(&name),
    };
    let spec = CookieSpec::With { name, plaintext };
    Some((KeySpec::Cookie(spec), Arc::new(cookie)))
}

/// The most keys that are joined to one: each join is a call deeper on the stack.
const MAX_JOINED: usize = 16;
const WITHOUT_SETTING: &[&str] = &["global", "host", "peer_ip", "route", "route_or_unmatched"];
const WITH_SETTING: &[&str] = &[
    "and",
    "api_key",
    "client_ip",
    "cookie",
    "custom",
    "header",
    "or_else",
    "path_param",
    "query",
];
