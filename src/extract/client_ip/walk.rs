//! From the peer to the client.

use std::net::IpAddr;

use super::trust::Trust;

/// The first address that is not trusted, or the last that could be read. Hops come the nearest first; one that is no
/// address is `None`.
///
/// The peer is `None` when the server does not tell it, as with a Unix socket.
pub(super) fn walk(
    trust: &Trust,
    peer: Option<IpAddr>,
    hops: impl Iterator<Item = Option<IpAddr>>,
) -> Option<IpAddr> {
    let mut found = peer.map(|peer| peer.to_canonical());
    let mut hops = hops.take(MAX_HOPS).enumerate();
    let mut distance = 0;
    while trust.includes(found, distance) {
        let Some((index, Some(address))) = hops.next() else {
            break;
        };
        found = Some(address);
        distance = index + 1;
    }
    found
}

/// The most entries that are read of a header.
pub(super) const MAX_HOPS: usize = 32;
