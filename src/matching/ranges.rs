//! Networks as sorted ranges of addresses.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Ranges of addresses that neither overlap nor touch, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranges {
    v4: Box<[(u128, u128)]>,
    v6: Box<[(u128, u128)]>,
}

impl Ranges {
    /// From networks that are canonical: IPv4 in IPv6 form is IPv4.
    pub(super) fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match network {
                IpNet::V4(network) => {
                    v4.push((bits(network.network()), bits(network.broadcast())));
                }
                IpNet::V6(network) => {
                    v6.push((network.network().into(), network.broadcast().into()));
                }
            }
        }
        Self {
            v4: joined(v4),
            v6: joined(v6),
        }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let (ranges, address) = match address.to_canonical() {
            IpAddr::V4(address) => (&self.v4, bits(address)),
            IpAddr::V6(address) => (&self.v6, address.into()),
        };
        let after = ranges.partition_point(|(first, _)| *first <= address);
        after > 0 && address <= ranges[after - 1].1
    }
}

fn bits(address: Ipv4Addr) -> u128 {
    u32::from(address).into()
}

fn joined(mut ranges: Vec<(u128, u128)>) -> Box<[(u128, u128)]> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, former| {
        let meets = next.0 <= former.1.saturating_add(1);
        if meets {
            former.1 = former.1.max(next.1);
        }
        meets
    });
    ranges.into()
}
