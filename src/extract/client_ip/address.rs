//! The extractor.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, StatusCode, request::Parts};
use ipnet::IpNet;

use crate::{
    diagnosis::Code,
    error::{Error, ErrorKind},
    extract::{
        extracted::Extracted,
        extractor::KeyExtractor,
        grouping::Grouping,
        network::{Network, Networks},
        peer::{self, PeerIp},
    },
    key::Key,
};

use super::{
    element, node,
    source::{Form, SingleHeader, Source},
    trust::Trust,
    walk::{MAX_HOPS, walk},
};

/// The client's IP address, also behind proxies.
///
/// [`behind`](Self::behind) names the proxies, [`behind_hops`](Self::behind_hops) counts them, and
/// [`peer`](Self::peer) is for servers without any. How the server tells the peer is the same as for
/// [`PeerIp`](crate::extract::PeerIp).
///
/// A proxy tells in a header whom it got a request from. Clients can send that header too, so it is worth something
/// only as far as those who wrote it are trusted. The walk begins at the peer, whom nobody can make up, and reads the
/// header from its right end, where the nearest proxy wrote, to the left:
///
/// ```text
/// X-Forwarded-For: 198.51.100.1,     203.0.113.9,   10.0.0.5      peer: 10.0.0.2
///                  made up by        the client     a proxy       a proxy
///                  the client        <- the first that is not trusted
/// ```
///
/// # What it promises
///
/// - Nothing left of the client's own address has any influence on what is found.
/// - A peer that is not trusted is the client, whatever its headers say.
/// - A [single-value header](SingleHeader) that a trusted peer sends twice, or with several addresses joined by commas, is
///   ambiguous: one of them may be the client's own.
/// - What cannot be read stops the walk at the last address that could: an entry that is empty, `unknown`, a made-up
///   name (`_hidden`), not UTF-8 or no address at all. Nothing is ever skipped.
/// - When all are trusted, the leftmost is the client: it is a machine of your own then.
/// - An IPv4 address in IPv6 form (`::ffff:192.0.2.1`) is the IPv4 address, before it is compared with anything.
///   Ports, brackets and zones (`%eth0`) are understood and left out.
/// - The work is bounded: the nearest 32 entries are read, of 512 bytes each (`Forwarded`: 8 kB, since proxies copy the
///   client's `Host` into it). Beyond that the walk stops at the last trusted address. Nothing is allocated.
///
/// # Which header?
///
/// The one that your proxies write, and only that: a header that they do not write comes from the client as it is. So
/// one is chosen, and it does not depend on what is there.
///
/// # IPv6
///
/// A customer of an IPv6 provider has a whole network of addresses, so a count for each of them limits nobody.
/// Addresses of one /64 share a key; see [`ipv6_prefix`](Self::ipv6_prefix).
///
/// # Examples
///
/// ```
/// use tollgate::extract::{ClientIp, Networks, SingleHeader};
///
/// // Proxies by their addresses: the safest way, with any number of them.
/// let by_networks = ClientIp::behind(["10.0.0.0/8", "2001:db8:1::/48", "192.0.2.7"]);
/// let in_the_same_data_centre = ClientIp::behind(Networks::PRIVATE);
///
/// // Proxies by their number, where addresses are not known: one load balancer, say.
/// let by_number = ClientIp::behind_hops(1);
///
/// // Another header than `X-Forwarded-For`.
/// let standard = ClientIp::behind(["10.0.0.0/8"]).forwarded();
/// let behind_a_cdn = ClientIp::behind(["198.51.100.0/24"]).header(SingleHeader::CfConnectingIp);
/// ```
///
/// For a log or a list of addresses, without a key:
///
/// ```
/// use std::net::IpAddr;
/// use http::Request;
/// use tollgate::extract::ClientIp;
///
/// let client_ip = ClientIp::behind(["10.0.0.0/8"]);
/// let request = Request::builder()
///     .header("x-forwarded-for", "198.51.100.1, 203.0.113.9, 10.0.0.5")
///     .extension(IpAddr::from([10, 0, 0, 2])) // axum's `ConnectInfo` in a server
///     .body(())
///     .expect("a request");
/// let (parts, ()) = request.into_parts();
/// assert_eq!(client_ip.address(&parts), Some(IpAddr::from([203, 0, 113, 9])));
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    trust: Trust,
    source: Source,
    is_chosen: bool,
    grouping: Grouping,
    /// What `build()` reports. Nobody is trusted then.
    mistake: Option<Error>,
}

impl ClientIp {
    /// The other end of the connection; no header is read. For servers that clients reach directly.
    #[must_use]
    pub fn peer() -> Self {
        Self {
            trust: Trust::Nobody,
            source: Source::forwarded_for(),
            is_chosen: false,
            grouping: Grouping::default(),
            mistake: None,
        }
    }

    /// Behind proxies with these addresses or networks, in any number and order.
    ///
    /// Takes text such as `"10.0.0.0/8"` or `"192.0.2.7"`, [`IpAddr`]s and [`IpNet`]s. For proxies with private
    /// addresses there is [`Networks::PRIVATE`]. What is no network, no network at all, and `/0`, which would let
    /// every client choose its address, are reported at `build()`.
    #[must_use]
    pub fn behind<N: Into<Network>>(proxies: impl IntoIterator<Item = N>) -> Self {
        let networks = match Networks::new(proxies) {
            Ok(networks) => networks,
            Err(error) => return Self::peer().refused(error),
        };
        if networks.is_empty() {
            return Self::peer().refuse(
                "behind() without a network trusts nobody: name the proxies, or take ClientIp::peer()",
            );
        }
        if let Some(network) = networks.iter().find(|network| network.prefix_len() == 0) {
            return Self::peer().refuse(format!(
                "behind({network}) trusts everybody, so every client chooses its address: name the proxies' networks, or \
                 count the proxies with ClientIp::behind_hops(n)",
            ));
        }
        Self {
            trust: Trust::Networks(networks),
            ..Self::peer()
        }
    }

    /// Behind so many proxies, whatever their addresses: 1 to 32. 1 is a single load balancer.
    ///
    /// For when the proxies' addresses are not known, or connect by a Unix socket. Every request must come through
    /// all of them: who reaches the server, or a proxy further in, past the first one chooses its address.
    #[must_use]
    pub fn behind_hops(proxies: usize) -> Self {
        if !(1..=MAX_HOPS).contains(&proxies) {
            return Self::peer().refuse(format!(
                "behind_hops({proxies}): take 1 to {MAX_HOPS}, or ClientIp::peer() when there is no proxy"
            ));
        }
        Self {
            trust: Trust::Hops(proxies),
            ..Self::peer()
        }
    }

    /// Reads `X-Forwarded-For`.
    ///
    /// Default: yes, unless another header is chosen. Choosing two is reported at `build()`.
    #[must_use]
    pub fn forwarded_for(self) -> Self {
        self.read(Source::forwarded_for())
    }

    /// Reads `Forwarded` (RFC 7239).
    ///
    /// Default: `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(self) -> Self {
        self.read(Source::forwarded())
    }

    /// Reads a header that holds one address. It is believed when the peer is trusted; one that comes twice is ambiguous.
    ///
    /// Default: `X-Forwarded-For`.
    #[must_use]
    pub fn header(self, header: impl Into<SingleHeader>) -> Self {
        let header = header.into();
        if header.is_list() {
            return self.refuse(format!(
                "{} is a list, and its left end is the client's: take forwarded_for() or forwarded()",
                header.name()
            ));
        }
        self.read(header.into())
    }

    /// Sets how many leading bits of an IPv6 address are the key: 48 to 128.
    ///
    /// Default: 64, the smallest network that providers hand out. 56 where they hand out a /56: with 64 their
    /// customers have 256 keys each.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.grouping.ipv6 = bits;
        self
    }

    /// Sets how many leading bits of an IPv4 address are the key: 8 to 32.
    ///
    /// Default: 32, the whole address.
    #[must_use]
    pub fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.grouping.ipv4 = bits;
        self
    }

    /// Returns the client's address; `None` without a peer address, or when the header is ambiguous.
    ///
    /// For logs and for lists of addresses. An IPv4 address is never in IPv6 form. Settings that `build()` would
    /// refuse trust nobody.
    #[must_use]
    pub fn address(&self, parts: &Parts) -> Option<IpAddr> {
        self.resolve(peer::address(parts), &parts.headers)
    }

    /// The network of the client that the key is made of, such as `2001:db8:1:2::/64`.
    #[must_use]
    pub fn network(&self, parts: &Parts) -> Option<IpNet> {
        Some(self.grouping.network(self.address(parts)?))
    }

    /// The client's address by a peer and headers, where there is no request at hand. `None` as for
    /// [`address`](Self::address).
    #[must_use]
    pub fn resolve(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let lines = headers.get_all(self.source.name()).iter();
        self.follow(peer, lines.map(HeaderValue::as_bytes)).found()
    }

    /// Returns the client's address, or whether it is absent or ambiguous.
    pub(in crate::extract) fn client(&self, parts: &Parts) -> Extracted<IpAddr> {
        let lines = parts.headers.get_all(self.source.name()).iter();
        self.follow(peer::address(parts), lines.map(HeaderValue::as_bytes))
    }

    /// The client's address by a peer and the lines of the header, in their order.
    pub(crate) fn follow<'a>(
        &self,
        peer: Option<IpAddr>,
        lines: impl DoubleEndedIterator<Item = &'a [u8]>,
    ) -> Extracted<IpAddr> {
        match self.source.form() {
            Form::Forwarded => walk(&self.trust, peer, element::forwarded(lines)).into(),
            Form::ForwardedFor => walk(&self.trust, peer, element::forwarded_for(lines)).into(),
            Form::Single => self.believe(peer, lines, node::address),
            Form::SingleWithPort => self.believe(peer, lines, node::address_before_port),
        }
    }

    /// Whether the header is believed when this peer sends it.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trust.includes(Some(peer.to_canonical()), 0)
    }

    /// The address in a header that a trusted peer sends once.
    fn believe<'a>(
        &self,
        peer: Option<IpAddr>,
        lines: impl Iterator<Item = &'a [u8]>,
        address: fn(&[u8]) -> Option<IpAddr>,
    ) -> Extracted<IpAddr> {
        // Lines that a proxy on the way has joined are as many as they were before.
        let mut values = lines.flat_map(|line| line.split(|byte| *byte == b','));
        let is_trusted = self.trust.includes(peer.map(|peer| peer.to_canonical()), 0);
        match Extracted::only(&mut values) {
            Extracted::Ambiguous if is_trusted => Extracted::Ambiguous,
            value => {
                let told = value.found().and_then(address);
                walk(&self.trust, peer, std::iter::once(told)).into()
            }
        }
    }

    fn read(mut self, source: Source) -> Self {
        if self.is_chosen {
            return self.refuse(
                "two headers with the client's address: read the one that your proxies write, since the other is the client's",
            );
        }
        if matches!(self.trust, Trust::Nobody) {
            return self.refuse(
                "a header that is believed from nobody: name the proxies with ClientIp::behind([..])",
            );
        }
        self.source = source;
        self.is_chosen = true;
        self
    }

    fn refuse(self, message: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        self.refused(Error::new(ErrorKind::InvalidConfig, message))
    }

    fn refused(mut self, error: Error) -> Self {
        // The first mistake: the others may follow from it.
        self.mistake.get_or_insert(error);
        self.trust = Trust::Nobody;
        self
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        self.client(parts).map(|address| self.grouping.key(address))
    }

    fn label(&self) -> &str {
        "client-ip"
    }

    /// 500: the server was started without telling addresses.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        if matches!(self.trust, Trust::Nobody) {
            return PeerIp.diagnose(parts);
        }
        let peer = peer::address(parts).map(|peer| peer.to_canonical());
        if self.trust.includes(peer, 0) {
            return None;
        }
        match peer {
            None => Some(Code::NoPeerAddress),
            Some(_) if parts.headers.contains_key(self.source.name()) => {
                Some(Code::ForwardedUntrusted)
            }
            Some(_) => None,
        }
    }

    fn validate(&self) -> Result<(), Error> {
        match &self.mistake {
            Some(mistake) => Err(mistake.clone()),
            None => self.grouping.validate(),
        }
    }
}
