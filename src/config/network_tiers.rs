//! Tiers of networks: an address has the tier of the smallest network that contains it.

use std::{collections::HashMap, net::IpAddr};

use ipnet::IpNet;

use crate::{key::Key, tiers::Tier};

/// Tiers of networks.
///
/// A lookup truncates the address to each length that a network has, from the longest: at most 33 lengths of IPv4 and 129 of
/// IPv6, for any number of networks.
#[derive(Default)]
pub(super) struct NetworkTiers {
    tiers: HashMap<IpNet, Tier>,
    ipv4: Vec<u8>,
    ipv6: Vec<u8>,
}

impl NetworkTiers {
    pub fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    pub fn tiers(&self) -> impl Iterator<Item = &Tier> {
        self.tiers.values()
    }

    /// Sets the tier of a network without host bits. Returns the one that it had.
    pub fn insert(&mut self, network: IpNet, tier: Tier) -> Option<Tier> {
        let lengths = match network {
            IpNet::V4(_) => &mut self.ipv4,
            IpNet::V6(_) => &mut self.ipv6,
        };
        let length = network.prefix_len();
        let index = lengths.partition_point(|other| *other > length);
        if lengths.get(index) != Some(&length) {
            lengths.insert(index, length);
        }
        self.tiers.insert(network, tier)
    }

    /// Returns the tier of a key that is an address.
    pub fn of(&self, key: &Key) -> Option<&Tier> {
        if self.is_empty() {
            return None;
        }
        let address: IpAddr = key.as_str().parse().ok()?;
        let lengths = match address {
            IpAddr::V4(_) => &self.ipv4,
            IpAddr::V6(_) => &self.ipv6,
        };
        let mut networks = lengths.iter().filter_map(|length| {
            let network = IpNet::new(address, *length).ok()?;
            self.tiers.get(&network.trunc())
        });
        networks.next()
    }
}
