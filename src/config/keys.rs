//! Keys of rules, as they are written and as extractors.

use std::sync::Arc;

use crate::extract::{
    ApiKey, ClientIp, Cookie, Global, Header, HostHeader, KeyExtractor, PeerIp, QueryParam,
};

#[cfg(feature = "axum")]
use crate::extract::{PathParam, Route};

use super::{
    body_field,
    fields::{self, Fields, boolean, registered, text, whole},
    node::{LocatedValue, Position, Value},
    proxies::{self, works},
    reading::FileReading,
    registry::DynExtractor,
    spec::{ApiKeySpec, ClientIpSpec, CookieSpec, KeySpec},
};

/// Reads a key, and makes its extractor. An extractor that cannot work is noted.
pub(super) fn read(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    let (spec, extractor) = match &node.value {
        Value::Text(name) => read_name(name, node.position, reading),
        Value::Map(entries) if entries.len() == 1 => {
            let entry = &entries[0];
            read_with_setting((&entry.name, entry.position), &entry.node, reading)
        }
        Value::Map(_) => {
            let remedy = "join them: `and: [..]` or `or_else: [..]`";
            reading.fault(node.position, "a key of several kinds", remedy)
        }
        _ => reading.expect(
            node,
            "write a key such as `peer_ip` or `{ header: x-user }`",
        ),
    }?;
    if let Err(error) = extractor.validate() {
        reading.refuse(node.position, &error);
        return None;
    }
    Some((spec, extractor))
}

/// Reads a key without settings.
fn read_name(
    name: &str,
    position: Position,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    Some(match name {
        "global" => (KeySpec::Global, Arc::new(Global)),
        "host" => (KeySpec::Host, Arc::new(HostHeader)),
        "peer_ip" => (KeySpec::PeerIp, Arc::new(PeerIp)),
        #[cfg(feature = "axum")]
        "route" => (KeySpec::Route, Arc::new(Route)),
        #[cfg(feature = "axum")]
        "route_or_unmatched" => (KeySpec::RouteOrUnmatched, Arc::new(Route.or_unmatched())),
        #[cfg(not(feature = "axum"))]
        "route" | "route_or_unmatched" => return without_axum(name, position, reading),
        name if WITH_SETTING.contains(&name) => {
            let setting = match name {
                "and" | "or_else" => "[..]",
                _ => "..",
            };
            let reason = format!("the key `{name}` needs a setting");
            return reading.fault(position, reason, format!("write `{{ {name}: {setting} }}`"));
        }
        name => return unknown((name, position), [WITHOUT_SETTING, WITH_SETTING], reading),
    })
}

/// Reads a key with a setting.
fn read_with_setting(
    (name, position): (&str, Position),
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    Some(match name {
        "and" => read_several(node, KeySpec::And, |a, b| Arc::new(a.and(b)), reading)?,
        "or_else" => {
            let or_else = |a: DynExtractor, b| -> DynExtractor { Arc::new(a.or_else(b)) };
            read_several(node, KeySpec::OrElse, or_else, reading)?
        }
        "api_key" => read_api_key(node, reading)?,
        "body" => body_field::read_key(node, reading)?,
        "client_ip" => read_client_ip(node, reading)?,
        "cookie" => read_cookie(node, reading)?,
        "custom" => {
            let (name, found) =
                registered(node, reading, "extractor", |registry| &registry.extractors)?;
            (KeySpec::Custom(name), found)
        }
        "header" => {
            let name = text(node, reading)?;
            (KeySpec::Header(name.clone()), Arc::new(Header::new(name)))
        }
        #[cfg(feature = "axum")]
        "path_param" => {
            let name = text(node, reading)?;
            let extractor = PathParam::new(&name);
            (KeySpec::PathParam(name), Arc::new(extractor))
        }
        #[cfg(not(feature = "axum"))]
        "path_param" => return without_axum(name, position, reading),
        "query" => {
            let name = text(node, reading)?;
            let extractor = QueryParam::new(&name);
            (KeySpec::Query(name), Arc::new(extractor))
        }
        name if WITHOUT_SETTING.contains(&name) => {
            let reason = format!("the key `{name}` has no setting");
            return reading.fault(position, reason, format!("write `{name}` alone"));
        }
        name => return unknown((name, position), [WITH_SETTING, WITHOUT_SETTING], reading),
    })
}

fn unknown<T>(
    (name, position): (&str, Position),
    known: [&[&'static str]; 2],
    reading: &mut FileReading,
) -> Option<T> {
    let remedy = reading.one_of((name, position), known.into_iter().flatten().copied());
    reading.fault(position, format!("unknown key `{name}`"), remedy)
}

#[cfg(not(feature = "axum"))]
fn without_axum<T>(name: &str, position: Position, reading: &mut FileReading) -> Option<T> {
    let reason = format!("the key `{name}` needs routes of axum");
    let remedy = "enable the feature `axum`, or use another key";
    reading.fault(position, reason, remedy)
}

fn read_several(
    node: &LocatedValue,
    spec: fn(Vec<KeySpec>) -> KeySpec,
    join: fn(DynExtractor, DynExtractor) -> DynExtractor,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    if fields::items(node).0.len() < 2 {
        let remedy = "write a list of two or more keys";
        return match node.value {
            Value::List(_) => reading.fault(node.position, "fewer than two keys", remedy),
            _ => reading.expect(node, remedy),
        };
    }
    let keys = fields::each(node, reading, read)?;
    let (specs, extractors): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
    if specs.iter().map(joined).sum::<usize>() > MAX_JOINED {
        let reason = format!("more than {MAX_JOINED} keys are joined");
        let remedy = "join fewer, or register an extractor by RuleSetReader::extractor()";
        return reading.fault(node.position, reason, remedy);
    }
    Some((spec(specs), extractors.into_iter().reduce(join)?))
}

/// Returns the number of keys that a key consists of.
fn joined(key: &KeySpec) -> usize {
    match key {
        KeySpec::And(keys) | KeySpec::OrElse(keys) => keys.iter().map(joined).sum(),
        _ => 1,
    }
}

fn read_api_key(node: &LocatedValue, reading: &mut FileReading) -> Option<(KeySpec, DynExtractor)> {
    let remedy = "write `bearer`, `{ header: name }` or `{ query: name }`";
    let (spec, extractor) = if node.value == Value::Text("bearer".to_owned()) {
        (ApiKeySpec::Bearer, ApiKey::bearer())
    } else {
        let mut fields = Fields::of(node, remedy, reading)?;
        let (header, query) = (fields.get("header"), fields.get("query"));
        fields.finish();
        match (header, query) {
            (Some(name), None) => {
                let name = text(name, reading)?;
                let extractor = ApiKey::header(&name);
                (ApiKeySpec::Header(name), extractor)
            }
            (None, Some(name)) => {
                let name = text(name, reading)?;
                let extractor = ApiKey::query(&name);
                (ApiKeySpec::Query(name), extractor)
            }
            (Some(_), Some(_)) => {
                let remedy = "join two keys by `or_else`";
                return reading.fault(node.position, "an API key in two places", remedy);
            }
            (None, None) => {
                return reading.fault(node.position, "no place of the API key", remedy);
            }
        }
    };
    let extractor = match reading.registry.hash_secret {
        Some(secret) => extractor.hash_secret(secret),
        None => extractor,
    };
    Some((KeySpec::ApiKey(spec), Arc::new(extractor)))
}

fn read_client_ip(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    let remedy = "write `{ behind: [networks] }` or `{ hops: 1 }`";
    let mut fields = Fields::of(node, remedy, reading)?;
    let (proxies, client_ip) = proxies::read(&mut fields, "peer_ip");
    let spec = ClientIpSpec {
        proxies,
        ipv4_prefix: fields.read("ipv4_prefix", whole),
        ipv6_prefix: fields.read("ipv6_prefix", whole),
    };
    // The other settings are checked also while the proxies have a fault.
    let proxies = client_ip.clone();
    let mut made = proxies.unwrap_or_else(|| ClientIp::behind_hops(1));
    for (name, bits) in [
        ("ipv4_prefix", spec.ipv4_prefix),
        ("ipv6_prefix", spec.ipv6_prefix),
    ] {
        let Some(bits) = bits else { continue };
        let bits = u8::try_from(bits).unwrap_or(u8::MAX);
        let next = match name {
            "ipv4_prefix" => made.clone().ipv4_prefix(bits),
            _ => made.clone().ipv6_prefix(bits),
        };
        if works(&next, name, &mut fields) {
            made = next;
        }
    }
    fields.finish();
    client_ip?;
    Some((KeySpec::ClientIp(spec), Arc::new(made)))
}

fn read_cookie(node: &LocatedValue, reading: &mut FileReading) -> Option<(KeySpec, DynExtractor)> {
    let secret = reading.registry.hash_secret;
    let hashed = |name: &str| match secret {
        Some(secret) => Cookie::new(name).hash_secret(secret),
        None => Cookie::new(name),
    };
    if let Value::Text(name) = &node.value {
        let spec = CookieSpec::Name(name.clone());
        return Some((KeySpec::Cookie(spec), Arc::new(hashed(name))));
    }
    let remedy = "write a name, or `{ name: .., plaintext: true }`";
    let mut fields = Fields::of(node, remedy, reading)?;
    let name = fields.require("name", "add the name of the cookie", text);
    let plaintext = fields.read("plaintext", boolean).unwrap_or(false);
    fields.finish();
    let name = name?;
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
    "body",
    "client_ip",
    "cookie",
    "custom",
    "header",
    "or_else",
    "path_param",
    "query",
];
