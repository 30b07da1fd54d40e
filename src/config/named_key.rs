//! Keys of single callers that a file names.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    extract::{CallerId, HostHeader, KeyExtractor, Networks},
    key::{Key, address},
};

use super::spec::{CookieSpec, KeySpec};

/// The callers that a file names.
#[derive(Debug)]
pub(super) enum NamedKey {
    /// One caller.
    Key(Key),
    /// Each caller with an address in this network.
    Network(IpNet),
}

/// Returns the callers that a file names.
///
/// # Errors
///
/// The text to write instead.
pub(super) fn named_key(key: &KeySpec, value: &str) -> Result<NamedKey, String> {
    match key {
        KeySpec::ClientIp(client) => {
            let bits = |setting: Option<u64>, default| {
                setting.map_or(default, |bits| u8::try_from(bits).unwrap_or(u8::MAX))
            };
            address_key(
                value,
                bits(client.ipv4_prefix, 32),
                bits(client.ipv6_prefix, 64),
            )
        }
        KeySpec::PeerIp => address_key(value, 32, 64),
        KeySpec::Header(name) if is_secret_header(name) => Err(SECRET.to_owned()),
        KeySpec::Header(_) => header_key(value),
        KeySpec::Host => host_key(value),
        KeySpec::Body(body) if body.hashed == Some(true) => Err(SECRET.to_owned()),
        KeySpec::Body(body) if body.ignore_case == Some(true) => {
            Ok(NamedKey::Key(Key::new(value.trim().to_lowercase())))
        }
        KeySpec::Body(_) | KeySpec::Query(_) | KeySpec::PathParam(_) => {
            Ok(NamedKey::Key(Key::new(value)))
        }
        KeySpec::Cookie(CookieSpec::With {
            plaintext: true, ..
        }) => cookie_key(value),
        KeySpec::ApiKey(_) | KeySpec::Cookie(_) => Err(SECRET.to_owned()),
        KeySpec::And(_)
        | KeySpec::Custom(_)
        | KeySpec::Global
        | KeySpec::OrElse(_)
        | KeySpec::Route
        | KeySpec::RouteOrUnmatched => Err(
            "keys of this kind cannot be written in a file: choose the tier by `tier_from`"
                .to_owned(),
        ),
    }
}

/// Returns whether a header holds credentials.
fn is_secret_header(name: &str) -> bool {
    ["authorization", "cookie", "proxy-authorization"]
        .iter()
        .any(|secret| name.eq_ignore_ascii_case(secret))
}

/// Returns the key of a header's value, which arrives without white space at its ends.
fn header_key(value: &str) -> Result<NamedKey, String> {
    let arriving = value.trim_ascii();
    if arriving.is_empty()
        || arriving
            .chars()
            .any(|next| next.is_control() && next != '\t')
    {
        return Err("write the value of a header, without control characters".to_owned());
    }
    if arriving != value {
        return Err(format!(
            "headers arrive without spaces at their ends: write `{arriving}`"
        ));
    }
    Ok(NamedKey::Key(Key::new(value)))
}

/// Returns the key of a cookie's value, which arrives without quotes around it.
fn cookie_key(value: &str) -> Result<NamedKey, String> {
    let quoted = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match quoted {
        Some(value) => Err(format!(
            "cookies arrive without quotes around them: write `{value}`"
        )),
        None => Ok(NamedKey::Key(Key::new(value))),
    }
}

/// Returns the key of a host, however its letters are written.
fn host_key(value: &str) -> Result<NamedKey, String> {
    let keys = HostHeader.keys_of(&CallerId::Text(value));
    let key = keys.first().copied().map(NamedKey::Key);
    key.ok_or_else(|| "write a host without port, such as `api.example.com`".to_owned())
}

/// Returns the key of an address, or of a network of addresses. The callers may be networks themselves.
fn address_key(value: &str, ipv4: u8, ipv6: u8) -> Result<NamedKey, String> {
    let parsed = Networks::new([value]).ok();
    let Some(network) = parsed.and_then(|networks| networks.iter().next()) else {
        return Err(
            "write an address such as `192.0.2.7`, or a network such as `192.0.2.0/24`".to_owned(),
        );
    };
    let network = of_clients(network);
    let (address, bits) = address::network_of(network.addr(), ipv4, ipv6);
    let caller = IpNet::new_assert(address, bits);
    if network.prefix_len() > bits {
        return Err(format!("its callers are networks: write `{caller}`"));
    }
    let written = value
        .split('/')
        .next()
        .and_then(|address| address.parse::<IpAddr>().ok());
    if written.is_some_and(|address| address::of_client(address) != network.addr()) {
        return Err(format!(
            "this is an address in a network: write `{network}`"
        ));
    }
    Ok(match network == caller {
        true => NamedKey::Key(Key::of_network(address)),
        false => NamedKey::Network(network),
    })
}

/// Returns the network by which its clients are known: of IPv4, if all of them are behind NAT64.
fn of_clients(network: IpNet) -> IpNet {
    let length = network.prefix_len().checked_sub(96);
    let ipv4 = length.zip(address::translated(network.addr()));
    ipv4.map_or(network, |(length, address)| {
        IpNet::new_assert(address.into(), length)
    })
}

const SECRET: &str =
    "this key is a secret, which must not stand in a file: choose the tier by `tier_from`";
