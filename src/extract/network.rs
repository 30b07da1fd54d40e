//! IP networks, and sets of them.
//!
//! # Why do IPv6 addresses count by /64, also for `PeerIp`?
//!
//! A customer gets a whole network, at least a /64, and may use a new address for each request. A count per address limits nobody
//! and fills the table. So grouping is the default everywhere. You can set the prefix from 48 to 128, such as /56 where providers
//! assign that. `Key::from` groups too. So a block, a tier or an explanation for an address uses the key that the rules
//! count, and a closure cannot forget the prefix. `src/key/address.rs` has a table.
//!
//! Addresses of a NAT64 translator (`64:ff9b::/96`) are an exception: each is a separate IPv4 client, so it counts by the IPv4
//! address, and matches networks of IPv4. A private one is not used, because a translator must drop it (RFC 6052), and it could
//! match a trusted proxy. In `64:ff9b:1::/48` (RFC 8215) the operator chooses the place of the IPv4 address, so the whole address
//! counts. In 6to4 and Teredo addresses a sender can choose it, and both are out of use, so they count by /64.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};

use crate::{
    error::{Error, ErrorKind},
    key::address,
};

/// A set of IP networks.
///
/// A lookup compares the address with each network, which suits up to a few hundred: the proxies or offices of a company.
/// For long lists, [`AddressList`](crate::matching::AddressList) uses a binary search.
///
/// # Examples
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::extract::Networks;
///
/// let offices = Networks::new(["192.0.2.0/24", "2001:db8::/32"])?;
/// assert!(offices.contains(IpAddr::from([192, 0, 2, 7])));
/// assert!(!offices.contains(IpAddr::from([198, 51, 100, 7])));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Networks {
    networks: Box<[IpNet]>,
}

impl Networks {
    /// The networks that are not on the internet: loopback, private and link-local ones.
    ///
    /// For [`ClientIp::behind`](crate::extract::ClientIp::behind), if the proxies run in the same data centre or on the same
    /// machine and clients do not.
    pub const PRIVATE: [&'static str; 8] = [
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    ];

    /// Makes a set of networks: text such as `"10.0.0.0/8"` or `"192.0.2.7"`, [`IpAddr`]s or [`IpNet`]s.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for text that is not a network.
    pub fn new<N: Into<Network>>(networks: impl IntoIterator<Item = N>) -> Result<Self, Error> {
        let networks = networks.into_iter().map(|network| network.into().parsed);
        Ok(Self {
            networks: networks.collect::<Result<_, _>>()?,
        })
    }

    /// Returns whether the address belongs to one of the networks. An IPv4-mapped IPv6 address is converted to IPv4.
    ///
    /// A client behind NAT64 belongs to the networks of both addresses: `64:ff9b::203.0.113.9` to `203.0.113.0/24`, and to
    /// `64:ff9b::/96`.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let has = |address: IpAddr| {
            let mut networks = self.networks.iter();
            networks.any(|network| network.contains(&address))
        };
        has(address) || address::translated(address).is_some_and(|address| has(address.into()))
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Returns the networks, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        self.networks.iter().copied()
    }
}

// === Network ===

/// One IP network, made from text, an address or an [`IpNet`]: see [`Networks::new`].
#[derive(Clone, Debug)]
pub struct Network {
    parsed: Result<IpNet, Error>,
}

impl From<&str> for Network {
    fn from(text: &str) -> Self {
        if let Some(network) = parse(text) {
            return Self::from(network);
        }
        Self {
            parsed: Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "{text:?} is not a network: write it as \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\""
                ),
            )),
        }
    }
}

impl From<&String> for Network {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<String> for Network {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<IpNet> for Network {
    fn from(network: IpNet) -> Self {
        Self {
            parsed: Ok(unmapped(network).trunc()),
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self::from(IpNet::from(address))
    }
}

impl From<Ipv4Addr> for Network {
    fn from(address: Ipv4Addr) -> Self {
        Self::from(IpAddr::from(address))
    }
}

impl From<Ipv6Addr> for Network {
    fn from(address: Ipv6Addr) -> Self {
        Self::from(IpAddr::from(address))
    }
}

/// Parses a network or an address, by the rules of the standard library: octets with leading zeros are refused, because some
/// programs read them as octal.
fn parse(text: &str) -> Option<IpNet> {
    let Some((address, length)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    let is_plain = length.bytes().all(|digit| digit.is_ascii_digit())
        && (length == "0" || !length.starts_with('0'));
    let length = length.parse().ok().filter(|_| is_plain)?;
    IpNet::new(address.parse().ok()?, length).ok()
}

/// Converts a network of IPv4-mapped addresses to IPv4, as lookups convert addresses.
fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else {
        return network;
    };
    match (mapped.addr().to_ipv4_mapped(), mapped.prefix_len()) {
        (Some(address), prefix @ 96..) => Ipv4Net::new_assert(address, prefix - 96).into(),
        _ => network,
    }
}
