//! The peer's address, and the key that it becomes.

use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};
use http::StatusCode;
use ipnet::IpNet;

use crate::{
    diagnosis::Code,
    error::{Error, ErrorKind},
    key::{Key, address},
    request::RequestHead,
};

use super::{address_header, caller_id::CallerId, extracted::Extracted, extractor::KeyExtractor};

/// The IP address of the peer, which is the other end of the connection.
///
/// With axum: serve with `into_make_service_with_connect_info::<SocketAddr>()`. Elsewhere: put a [`SocketAddr`] or an
/// [`IpAddr`] into the request's extensions. In tests of a `Router`: add axum's `MockConnectInfo` layer.
///
/// IPv6 addresses of one /64 network share a key, since one customer has all of them. The key is [`Key::from`] of the address.
/// For another prefix length, use [`ClientIp::peer().ipv6_prefix(128)`](super::ClientIp::ipv6_prefix). The module docs list
/// the [special IPv6 addresses](super#ipv6), such as those of clients behind NAT64.
///
/// # Behind a proxy
///
/// There the peer is the proxy, and all clients would share one count: use [`ClientIp`](super::ClientIp) instead.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerIp;

impl PeerIp {
    /// Returns the peer's address. `None` when the server does not provide it.
    #[must_use]
    #[inline]
    pub fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        #[cfg(feature = "axum")]
        if let Some(ConnectInfo(address)) = head.extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(address.ip());
        }
        #[cfg(feature = "axum")]
        if let Some(MockConnectInfo(address)) = head.extensions.get::<MockConnectInfo<SocketAddr>>()
        {
            return Some(address.ip());
        }
        if let Some(address) = head.extensions.get::<SocketAddr>() {
            return Some(address.ip());
        }
        head.extensions.get::<IpAddr>().copied()
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        // Not by `map`, which would move the key.
        match self.address(head) {
            Some(IpAddr::V4(address)) => Extracted::Found(Key::from_ipv4(address.octets())),
            Some(address) => Extracted::Found(Key::from(address)),
            None => Extracted::Absent,
        }
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        Vec::from_iter(caller.address().map(Key::from))
    }

    fn label(&self) -> &str {
        "peer-ip"
    }

    /// 500: the server does not provide addresses.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        if self.address(head).is_none() {
            return Some(Code::NoPeerAddress);
        }
        address_header::is_in(head.headers).then_some(Code::ForwardedIgnored)
    }
}

// === PrefixLengths ===

/// How many leading bits of an address make its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixLengths {
    pub ipv4: u8,
    pub ipv6: u8,
}

impl PrefixLengths {
    /// Single IPv4 addresses, and /64 networks of IPv6, as in [`Key::from`].
    pub const DEFAULT: Self = Self {
        ipv4: 32,
        ipv6: address::IPV6_PREFIX,
    };

    /// Checks that both lengths are in their range.
    pub fn validate(self) -> Result<(), Error> {
        let Self { ipv4, ipv6 } = self;
        if !(8..=32).contains(&ipv4) {
            let message = format!("ipv4_prefix({ipv4}): use 8 to 32 bits");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        if !(48..=128).contains(&ipv6) {
            let message = format!("ipv6_prefix({ipv6}): use 48 to 128 bits");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        Ok(())
    }

    /// Returns the network that the address belongs to: of IPv4 for an IPv4-mapped address, and for a client behind NAT64.
    pub fn network(self, address: IpAddr) -> IpNet {
        let (address, length) = address::network_of(address, self.ipv4, self.ipv6);
        IpNet::new_assert(address, length)
    }

    /// Returns the address of that network, as a key.
    #[inline]
    pub fn key(self, address: IpAddr) -> Key {
        let (address, _) = address::network_of(address, self.ipv4, self.ipv6);
        Key::of_network(address)
    }
}
