//! Lists of addresses and of keys.

use std::{
    collections::HashSet,
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;

use crate::{
    diagnosis::Code,
    error::Error,
    extract::{AddressSource, Extracted, KeyExtractor, Network, Networks},
    key::{Key, address},
    request::RequestHead,
};

use super::matcher::{Match, Matcher};

/// A list of networks; matches requests from their addresses.
///
/// Behind a proxy, the address of the peer is the proxy's: use [`ClientIp`](crate::extract::ClientIp) as the source there.
/// A list by [`PeerIp`](crate::extract::PeerIp) that gets forwarded requests is reported
/// ([TG003](crate::diagnosis)).
///
/// An ambiguous address is a possible match. An absent one does not match, so `forbid` lets such requests pass to the
/// rules; if the server provides no addresses, the layer logs a warning ([TG001](crate::diagnosis)). A lookup is a binary
/// search, so lists of many thousands are fine; adjacent networks are joined. IPv4-mapped IPv6 addresses are converted to
/// IPv4, in the list and in requests. A client behind NAT64 matches by its IPv4 address too.
#[derive(Clone)]
pub struct AddressList<A> {
    source: A,
    ranges: Result<AddressRanges, Error>,
}

impl<A: AddressSource> AddressList<A> {
    /// Matches requests whose address, as the source finds it, belongs to one of the networks: text such as
    /// `"203.0.113.0/24"` or `"192.0.2.7"`, [`IpAddr`]s or [`IpNet`]s. Invalid text fails when the layer is built.
    pub fn new<N: Into<Network>>(source: A, networks: impl IntoIterator<Item = N>) -> Self {
        let networks = Networks::new(networks);
        Self {
            source,
            ranges: networks.map(|networks| AddressRanges::new(networks.iter())),
        }
    }
}

impl<A: AddressSource> Matcher for AddressList<A> {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        // Not reached: `build()` has failed already.
        let Ok(ranges) = &self.ranges else {
            return Match::Miss;
        };
        match self.source.extract_address(head) {
            Extracted::Absent => Match::Miss,
            Extracted::Ambiguous => Match::Ambiguous,
            Extracted::Found(address) => ranges.contains(address).into(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        if let Err(error) = &self.ranges {
            return Err(error.clone());
        }
        self.source.validate()
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        self.source.diagnose(head)
    }
}

impl<A> fmt::Debug for AddressList<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressList")
            .field("ranges", &self.ranges)
            .finish_non_exhaustive()
    }
}

// === KeyList ===

/// A list of keys; matches requests whose key, as an extractor finds it, is one of them.
///
/// An absent key does not match. An ambiguous one, such as a header that comes twice, is a possible match, since a
/// handler may read either value. Browsers send two cookies of one name if a cookie is set for two paths, so do not
/// forbid by cookies. A lookup takes the same time for lists of any length.
#[derive(Clone)]
pub struct KeyList<E> {
    extractor: E,
    keys: HashSet<Key>,
}

impl<E: KeyExtractor> KeyList<E> {
    /// Matches requests whose key is one of these. Make the keys as the extractor does: `Key::secret("..")` for an
    /// [`ApiKey`](crate::extract::ApiKey), `Key::new("..")` for a header.
    pub fn new(extractor: E, keys: impl IntoIterator<Item = Key>) -> Self {
        Self {
            extractor,
            keys: keys.into_iter().collect(),
        }
    }
}

impl<E: KeyExtractor> Matcher for KeyList<E> {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        match self.extractor.extract(head) {
            Extracted::Absent => Match::Miss,
            Extracted::Ambiguous => Match::Ambiguous,
            Extracted::Found(key) => self.keys.contains(&key).into(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.extractor.validate()
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        self.extractor.diagnose(head)
    }
}

impl<E: KeyExtractor> fmt::Debug for KeyList<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList")
            .field("by", &self.extractor.label())
            .field("keys", &self.keys.len())
            .finish()
    }
}

// === AddressRanges ===

/// Networks as sorted ranges of addresses, first and last, with gaps between them.
#[derive(Clone, Debug)]
struct AddressRanges {
    ipv4: Box<[(u128, u128)]>,
    ipv6: Box<[(u128, u128)]>,
}

impl AddressRanges {
    /// Networks of IPv4-mapped addresses must be converted to IPv4, as [`Networks`] does.
    fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
        for network in networks {
            match network {
                IpNet::V4(network) => {
                    ipv4.push((ipv4_bits(network.network()), ipv4_bits(network.broadcast())));
                }
                IpNet::V6(network) => {
                    ipv6.push((network.network().into(), network.broadcast().into()));
                }
            }
        }
        Self {
            ipv4: joined(ipv4),
            ipv6: joined(ipv6),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.has(address)
            || address::translated(address).is_some_and(|address| self.has(address.into()))
    }

    fn has(&self, address: IpAddr) -> bool {
        let (ranges, address) = match address {
            IpAddr::V4(address) => (&self.ipv4, ipv4_bits(address)),
            IpAddr::V6(address) => (&self.ipv6, address.into()),
        };
        let after = ranges.partition_point(|(first, _)| *first <= address);
        after > 0 && address <= ranges[after - 1].1
    }
}

fn ipv4_bits(address: Ipv4Addr) -> u128 {
    address.to_bits().into()
}

/// Sorts the ranges, and joins those that overlap or are adjacent.
fn joined(mut ranges: Vec<(u128, u128)>) -> Box<[(u128, u128)]> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, previous| {
        let is_adjacent = next.0 <= previous.1.saturating_add(1);
        if is_adjacent {
            previous.1 = previous.1.max(next.1);
        }
        is_adjacent
    });
    ranges.into()
}
