//! The address at the other end of the connection.

use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};
use http::{HeaderName, StatusCode, header::FORWARDED, request::Parts};

use crate::{diagnosis::Code, key::Key};

use super::{extracted::Extracted, extractor::KeyExtractor, grouping::Grouping};

/// The IP address of the connection's other end.
///
/// With axum: serve with `into_make_service_with_connect_info::<SocketAddr>()`. Elsewhere: put a [`SocketAddr`] or an
/// [`IpAddr`] into the request's extensions. In tests of a `Router`: add axum's `MockConnectInfo` layer.
///
/// IPv6 addresses of one /64 share a key, since one customer has them all;
/// [`ClientIp::peer().ipv6_prefix(128)`](super::ClientIp::ipv6_prefix) tells them apart.
///
/// # Behind a proxy
///
/// The other end is the proxy then, so all clients share one count: take [`ClientIp`](super::ClientIp).
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerIp;

impl PeerIp {
    /// The address, when the server tells it.
    #[must_use]
    pub fn address(&self, parts: &Parts) -> Option<IpAddr> {
        address(parts)
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        let address = self.address(parts);
        address
            .map(|address| Grouping::default().key(address))
            .into()
    }

    fn label(&self) -> &str {
        "peer-ip"
    }

    /// 500: the server was started without telling addresses.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        if self.address(parts).is_none() {
            return Some(Code::NoPeerAddress);
        }
        let is_forwarded = |name| parts.headers.contains_key(name);
        let is_forwarded = is_forwarded(X_FORWARDED_FOR) || is_forwarded(FORWARDED);
        is_forwarded.then_some(Code::ForwardedIgnored)
    }
}

/// The address of the connection's other end, as the server tells it.
#[inline]
pub(super) fn address(parts: &Parts) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(ConnectInfo(address)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() {
        return Some(address.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(MockConnectInfo(address)) = parts.extensions.get::<MockConnectInfo<SocketAddr>>() {
        return Some(address.ip());
    }
    if let Some(address) = parts.extensions.get::<SocketAddr>() {
        return Some(address.ip());
    }
    parts.extensions.get::<IpAddr>().copied()
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
