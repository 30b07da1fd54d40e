//! Keys of rules, as they are written and as extractors.

use std::{net::IpAddr, sync::Arc};

use http::HeaderName;

use crate::{
    extract::{
        ApiKey, ClientIp, Cookie, Global, Header, HostHeader, KeyExtractor, PeerIp, QueryParam,
    },
    key::Key,
};

use super::{
    fault::in_words_of_files,
    fields::{self, Faults, Fields, one_of},
    node::{Node, Place, Value},
    registry::{DynExtractor, Registry},
    spec::{AddressHeaderSpec, ApiKeySpec, ClientIpSpec, CookieSpec, KeySpec, OneOrMany},
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
        faults.add(
            node.place,
            "this key cannot work",
            in_words_of_files(&error),
        );
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
            faults.add(place, format!("unknown key `{name}`"), one_of(name, known));
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
        "api_key" => read_api_key(node, faults)?,
        "client_ip" => read_client_ip(node, faults)?,
        "cookie" => read_cookie(node, faults)?,
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
            faults.add(place, format!("unknown key `{name}`"), one_of(name, known));
            return None;
        }
    })
}

fn read_several(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(Vec<KeySpec>, Vec<DynExtractor>)> {
    let (items, _) = fields::items(node);
    if items.len() < 2 {
        faults.expect(node, "write a list of two or more keys");
        return None;
    }
    let read: Vec<_> = items
        .iter()
        .map(|item| read(item, registry, faults))
        .collect();
    let read: Option<Vec<_>> = read.into_iter().collect();
    Some(read?.into_iter().unzip())
}

fn read_api_key(node: &Node, faults: &mut Faults) -> Option<(KeySpec, DynExtractor)> {
    if matches!(&node.value, Value::Text(text) if text == "bearer") {
        return Some((
            KeySpec::ApiKey(ApiKeySpec::Bearer),
            Arc::new(ApiKey::bearer()),
        ));
    }
    let remedy = "write `bearer`, `{ header: name }` or `{ query: name }`";
    let mut setting = Fields::of(node, remedy, faults)?;
    let header = setting.read("header", faults, fields::text);
    let query = setting.read("query", faults, fields::text);
    setting.finish(faults);
    match (header, query) {
        (Some(name), None) => {
            let extractor = ApiKey::header(&name);
            Some((
                KeySpec::ApiKey(ApiKeySpec::Header(name)),
                Arc::new(extractor),
            ))
        }
        (None, Some(name)) => {
            let extractor = ApiKey::query(&name);
            Some((
                KeySpec::ApiKey(ApiKeySpec::Query(name)),
                Arc::new(extractor),
            ))
        }
        (Some(_), Some(_)) => {
            faults.add(
                node.place,
                "an API key in two places",
                "join two keys by `or_else`",
            );
            None
        }
        (None, None) => None,
    }
}

fn read_client_ip(node: &Node, faults: &mut Faults) -> Option<(KeySpec, DynExtractor)> {
    let mut setting = Fields::of(
        node,
        "write `{ behind: [networks] }` or `{ hops: 1 }`",
        faults,
    )?;
    let spec = ClientIpSpec {
        behind: setting.read("behind", faults, texts),
        hops: setting.read("hops", faults, fields::whole),
        header: setting
            .read("header", faults, fields::text)
            .map(AddressHeaderSpec),
        ipv4_prefix: setting.read("ipv4_prefix", faults, fields::whole),
        ipv6_prefix: setting.read("ipv6_prefix", faults, fields::whole),
    };
    setting.finish(faults);
    let mut extractor = match (&spec.behind, spec.hops) {
        (Some(networks), None) => ClientIp::behind(networks.as_slice()),
        (None, Some(hops)) => ClientIp::behind_hops(usize::try_from(hops).unwrap_or(usize::MAX)),
        (Some(_), Some(_)) => {
            faults.add(node.place, "both `behind` and `hops`", "keep one of them");
            return None;
        }
        (None, None) => {
            faults.add(
                node.place,
                "no proxies",
                "name their networks with `behind`, count them with `hops`, or use `peer_ip`",
            );
            return None;
        }
    };
    if let Some(AddressHeaderSpec(name)) = &spec.header {
        extractor = match name.to_ascii_lowercase().as_str() {
            "forwarded" => extractor.forwarded(),
            "x-forwarded-for" => extractor.forwarded_for(),
            name => match HeaderName::try_from(name) {
                Ok(name) => extractor.header(name),
                Err(_) => {
                    faults.add(
                        node.place,
                        format!("{name:?} is not a header name"),
                        "correct `header`",
                    );
                    return None;
                }
            },
        };
    }
    if let Some(bits) = spec.ipv4_prefix {
        extractor = extractor.ipv4_prefix(u8::try_from(bits).unwrap_or(u8::MAX));
    }
    if let Some(bits) = spec.ipv6_prefix {
        extractor = extractor.ipv6_prefix(u8::try_from(bits).unwrap_or(u8::MAX));
    }
    Some((KeySpec::ClientIp(spec), Arc::new(extractor)))
}

fn read_cookie(node: &Node, faults: &mut Faults) -> Option<(KeySpec, DynExtractor)> {
    if let Value::Text(name) = &node.value {
        let extractor = Cookie::new(name);
        return Some((
            KeySpec::Cookie(CookieSpec::Name(name.clone())),
            Arc::new(extractor),
        ));
    }
    let mut setting = Fields::of(
        node,
        "write a name, or `{ name: .., plaintext: true }`",
        faults,
    )?;
    let name = setting.require("name", "add the name of the cookie", faults);
    let name = name.and_then(|node| fields::text(node, faults));
    let plaintext = setting.read("plaintext", faults, fields::boolean);
    setting.finish(faults);
    let (name, plaintext) = (name?, plaintext.unwrap_or(false));
    let cookie = Cookie::new(&name);
    let cookie = if plaintext {
        cookie.plaintext()
    } else {
        cookie
    };
    Some((
        KeySpec::Cookie(CookieSpec::With { name, plaintext }),
        Arc::new(cookie),
    ))
}

/// Reads a text, or a list of texts.
pub(super) fn texts(node: &Node, faults: &mut Faults) -> Option<OneOrMany<String>> {
    let (items, is_list) = fields::items(node);
    if items.is_empty() {
        faults.add(
            node.place,
            "an empty list",
            "write a value, or leave the field out",
        );
        return None;
    }
    let read: Vec<_> = items
        .iter()
        .map(|item| fields::text(item, faults))
        .collect();
    let mut read: Vec<String> = read.into_iter().collect::<Option<_>>()?;
    Some(if is_list {
        OneOrMany::Many(read)
    } else {
        OneOrMany::One(read.swap_remove(0))
    })
}

/// Returns the key of a caller whose value stands in a file.
///
/// # Errors
///
/// What to write instead.
pub(super) fn named_key(key: &KeySpec, value: &str) -> Result<Key, String> {
    match key {
        KeySpec::ClientIp(_) | KeySpec::PeerIp => match value.parse::<IpAddr>() {
            Ok(address @ IpAddr::V4(_)) => Ok(Key::from(address)),
            Ok(IpAddr::V6(_)) => {
                Err("IPv6 callers are networks: choose their tier by `tier_from`".to_owned())
            }
            Err(_) => Err("write an address such as `192.0.2.7`".to_owned()),
        },
        KeySpec::Header(_) | KeySpec::Query(_) | KeySpec::PathParam(_) => Ok(Key::new(value)),
        KeySpec::Cookie(CookieSpec::With {
            plaintext: true, ..
        }) => Ok(Key::new(value)),
        KeySpec::ApiKey(_) | KeySpec::Cookie(_) => Err(
            "this key is a secret, which must not stand in a file: choose the tier by `tier_from`"
                .to_owned(),
        ),
        KeySpec::And(_)
        | KeySpec::Custom(_)
        | KeySpec::Global
        | KeySpec::Host
        | KeySpec::OrElse(_)
        | KeySpec::Route
        | KeySpec::RouteOrUnmatched => Err(
            "keys of this kind cannot be written in a file: choose the tier by `tier_from`"
                .to_owned(),
        ),
    }
}

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
