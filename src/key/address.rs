//! IP addresses as clients are counted and matched by them.
//!
//! ```text
//! 192.0.2.7                      192.0.2.7             IPv4: the address
//! ::ffff:192.0.2.7               192.0.2.7             IPv4 on a socket of IPv6
//! 64:ff9b::192.0.2.7             192.0.2.7             NAT64 (RFC 6052): the IPv4 address in the last 32 bits
//! 64:ff9b::10.0.0.7              64:ff9b::a00:7        private, so no translator made it: the whole address
//! 64:ff9b:1::/48                 the whole address     local translators (RFC 8215), which choose the place of the IPv4 address
//! 2001:db8:0:1:2::3              2001:db8:0:1::/64     any other: the network of a customer, also 6to4 and Teredo
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Leading bits of an IPv6 address that identify a customer, unless a setting changes it.
pub(crate) const IPV6_PREFIX: u8 = 64;

/// Returns the network that an address is counted by, and its prefix length.
///
/// `ipv4` and `ipv6` are prefix lengths. Addresses that a translator makes are not grouped as IPv6: each belongs to another
/// IPv4 address.
#[inline]
pub(crate) fn network_of(address: IpAddr, ipv4: u8, ipv6: u8) -> (IpAddr, u8) {
    match of_client(address) {
        IpAddr::V4(address) => {
            let length = ipv4.min(32);
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            (Ipv4Addr::from_bits(address.to_bits() & mask).into(), length)
        }
        IpAddr::V6(address) => {
            let length = if is_of_translator(address) {
                128
            } else {
                ipv6.min(128)
            };
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            (Ipv6Addr::from_bits(address.to_bits() & mask).into(), length)
        }
    }
}

/// Returns the address by which a client is known: of IPv4 for an IPv4-mapped address, and for a client behind NAT64.
#[inline]
pub(crate) fn of_client(address: IpAddr) -> IpAddr {
    let canonical = address.to_canonical();
    translated(canonical).map_or(canonical, IpAddr::V4)
}

/// Returns the IPv4 address of a client behind NAT64.
///
/// Not a private one: translators drop these (RFC 6052, section 3.1), so that nobody passes for a host of this network.
#[inline]
pub(crate) fn translated(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let [0x64, 0xff9b, 0, 0, 0, 0, ..] = address.segments() else {
        return None;
    };
    let [.., a, b, c, d] = address.octets();
    let embedded = Ipv4Addr::new(a, b, c, d);
    let is_shared = a == 100 && b & 0xC0 == 64;
    let is_local = a == 0
        || is_shared
        || embedded.is_loopback()
        || embedded.is_private()
        || embedded.is_link_local();
    (!is_local).then_some(embedded)
}

/// Returns whether a translator makes such addresses: 64:ff9b::/96 and 64:ff9b:1::/48.
fn is_of_translator(address: Ipv6Addr) -> bool {
    matches!(
        address.segments(),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..]
    )
}
