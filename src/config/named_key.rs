//! Keys of single callers that a file names.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{address, key::Key};

use super::spec::{CookieSpec, KeySpec};

/// Returns the key of a caller that a file names.
///
/// # Errors
///
/// The text to write instead.
pub(super) fn named_key(key: &KeySpec, value: &str) -> Result<Key, String> {
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
        KeySpec::Header(_) | KeySpec::Query(_) | KeySpec::PathParam(_) => Ok(Key::new(value)),
        KeySpec::Cookie(CookieSpec::With {
            plaintext: true, ..
        }) => Ok(Key::new(value)),
        KeySpec::ApiKey(_) | KeySpec::Cookie(_) => Err(SECRET.to_owned()),
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

/// Returns whether a header holds credentials.
fn is_secret_header(name: &str) -> bool {
    ["authorization", "cookie", "proxy-authorization"]
        .iter()
        .any(|secret| name.eq_ignore_ascii_case(secret))
}

/// Returns the key of an address, or of the network that is counted as one caller.
fn address_key(value: &str, ipv4: u8, ipv6: u8) -> Result<Key, String> {
    let written = match value.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => match value.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address::of_client(address)),
            Err(_) => return Err("write an address such as `192.0.2.7`".to_owned()),
        },
    };
    let (address, bits) = address::network_of(written.addr(), ipv4, ipv6);
    let network = IpNet::new_assert(address, bits);
    if written != network {
        return Err(format!("its callers are networks: write `{network}`"));
    }
    Ok(Key::of_network(network.addr()))
}

const SECRET: &str =
    "this key is a secret, which must not stand in a file: choose the tier by `tier_from`";
