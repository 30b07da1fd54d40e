//! The client's address behind proxies.

use std::{borrow::Cow, iter, net::IpAddr};

use http::{HeaderMap, HeaderValue, StatusCode};
use ipnet::IpNet;

use crate::{
    diagnosis::Code,
    error::{Error, ErrorKind},
    key::Key,
    request::RequestHead,
};

use super::{
    address_header::{AddressHeader, HeaderSyntax, SingleHeader},
    address_source::AddressSource,
    caller_id::CallerId,
    extracted::Extracted,
    extractor::KeyExtractor,
    forwarded,
    network::{Network, Networks},
    peer::{PeerIp, PrefixLengths},
};

/// The client's IP address, also behind proxies.
///
/// Use [`behind`](Self::behind) with the proxies' addresses, [`behind_hops`](Self::behind_hops) with their number, or
/// [`peer`](Self::peer) for a server without proxies. The server provides the peer's address as for
/// [`PeerIp`].
///
/// A proxy reports in a header which address it got a request from. Clients can send that header too, so an entry
/// counts only if a trusted proxy wrote it. The search starts at the peer, whose address nobody can forge. It then
/// reads the header from right to left, because the nearest proxy wrote the last entry:
///
/// ```text
/// X-Forwarded-For: 198.51.100.1,     203.0.113.9,   10.0.0.5      peer: 10.0.0.2
///                  made up by        the client     a proxy       a proxy
///                  the client        <- the first address that is not trusted
/// ```
///
/// # Guarantees
///
/// - Entries to the left of the client's own address never affect the result.
/// - A peer that is not trusted is the client, whatever headers it sends.
/// - A [single-value header](SingleHeader) that a trusted peer sends twice, or with several addresses joined by commas, is
///   ambiguous: one of them may come from the client.
/// - The search stops at an unreadable entry (empty, `unknown`, an obfuscated name such as `_hidden`, not UTF-8, or not an
///   address) and returns the last address before it. No entry is ever skipped.
/// - If all addresses are trusted, the leftmost is the client, which is one of your own machines.
/// - An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is converted to IPv4 before it is compared. Ports, brackets and zones
///   (`%eth0`) are parsed and dropped.
/// - The work is bounded: the nearest 32 entries are read, of up to 512 bytes each (`Forwarded`: 8 kB, since proxies copy
///   the client's `Host` into it). Beyond that the search stops at the last trusted address. Nothing is allocated.
///
/// # Which header?
///
/// The one that your proxies write, and only that one: any other header arrives as the client sent it. So you choose one
/// header, and the choice does not depend on which headers a request has.
///
/// # IPv6
///
/// A customer of an IPv6 provider has a whole network of addresses, so a count for each address limits nobody. Addresses
/// of one /64 share a key; see [`ipv6_prefix`](Self::ipv6_prefix).
///
/// # Examples
///
/// ```
/// use tollgate::extract::{ClientIp, Networks, SingleHeader};
///
/// // Proxies by address: the safest way, for any number of proxies.
/// let by_networks = ClientIp::behind(["10.0.0.0/8", "2001:db8:1::/48", "192.0.2.7"]);
/// let in_the_same_data_centre = ClientIp::behind(Networks::PRIVATE);
///
/// // Proxies by number, if their addresses are not known: here one load balancer.
/// let by_number = ClientIp::behind_hops(1);
///
/// // Another header than `X-Forwarded-For`.
/// let standard = ClientIp::behind(["10.0.0.0/8"]).forwarded();
/// let behind_a_cdn = ClientIp::behind(["198.51.100.0/24"]).header(SingleHeader::CfConnectingIp);
/// ```
///
/// For logs or address lists, without a key:
///
/// ```
/// use std::net::IpAddr;
/// use http::Request;
/// use tollgate::{RequestHead, extract::ClientIp};
///
/// let client_ip = ClientIp::behind(["10.0.0.0/8"]);
/// let request = Request::builder()
///     .header("x-forwarded-for", "198.51.100.1, 203.0.113.9, 10.0.0.5")
///     .extension(IpAddr::from([10, 0, 0, 2])) // axum's `ConnectInfo` in a server
///     .body(())
///     .expect("a request");
/// assert_eq!(client_ip.address(&RequestHead::from(&request)), Some(IpAddr::from([203, 0, 113, 9])));
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    proxies: TrustedProxies,
    header: AddressHeader,
    is_header_chosen: bool,
    prefixes: PrefixLengths,
    /// The error that `build()` returns. No proxy is trusted then.
    error: Option<Error>,
}

impl ClientIp {
    /// The peer's address; no header is read. For servers that clients reach directly.
    #[must_use]
    pub fn peer() -> Self {
        Self {
            proxies: TrustedProxies::None,
            header: AddressHeader::x_forwarded_for(),
            is_header_chosen: false,
            prefixes: PrefixLengths::DEFAULT,
            error: None,
        }
    }

    /// Trusts proxies with these addresses or networks, in any number and order.
    ///
    /// Takes text such as `"10.0.0.0/8"` or `"192.0.2.7"`, [`IpAddr`]s and [`IpNet`]s. For proxies with private
    /// addresses there is [`Networks::PRIVATE`]. `build()` rejects invalid text, an empty list, and a `/0` network,
    /// which would let every client choose its address.
    #[must_use]
    pub fn behind<N: Into<Network>>(proxies: impl IntoIterator<Item = N>) -> Self {
        let networks = match Networks::new(proxies) {
            Ok(networks) => networks,
            Err(error) => return Self::peer().with_error(error),
        };
        if networks.is_empty() {
            return Self::peer().invalid(
                "behind() without a network trusts no proxy: name the proxies, or use ClientIp::peer()",
            );
        }
        if let Some(network) = networks.iter().find(|network| network.prefix_len() == 0) {
            return Self::peer().invalid(format!(
                "behind({network}) trusts every address, so clients can choose theirs: name the proxies' networks, or \
                 count the proxies with ClientIp::behind_hops(n)",
            ));
        }
        Self {
            proxies: TrustedProxies::Networks(networks),
            ..Self::peer()
        }
    }

    /// Trusts the nearest proxies by number, 1 to 32, whatever their addresses. Use 1 for a single load balancer.
    ///
    /// Use it if the proxies' addresses are not known, or if they connect by a Unix socket. Every request must come
    /// through all of them: a client that can reach the server, or an inner proxy, past the first one can choose its
    /// address.
    #[must_use]
    pub fn behind_hops(proxies: usize) -> Self {
        if !(1..=MAX_HOPS).contains(&proxies) {
            return Self::peer().invalid(format!(
                "behind_hops({proxies}): use 1 to {MAX_HOPS}, or ClientIp::peer() without a proxy"
            ));
        }
        Self {
            proxies: TrustedProxies::Nearest(proxies),
            ..Self::peer()
        }
    }

    /// Reads `X-Forwarded-For`.
    ///
    /// Default: yes, unless another header is chosen. Choosing two headers fails at `build()`.
    #[must_use]
    pub fn forwarded_for(self) -> Self {
        self.read(AddressHeader::x_forwarded_for())
    }

    /// Reads `Forwarded` (RFC 7239).
    ///
    /// Default: `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(self) -> Self {
        self.read(AddressHeader::forwarded())
    }

    /// Reads a header with a single address. It is used if the peer is trusted; a header that comes twice is ambiguous.
    ///
    /// Default: `X-Forwarded-For`.
    #[must_use]
    pub fn header(self, header: impl Into<SingleHeader>) -> Self {
        let header = header.into();
        if header.is_list() {
            return self.invalid(format!(
                "{} is a list whose left end clients write: use forwarded_for() or forwarded()",
                header.name()
            ));
        }
        self.read(header.into())
    }

    /// Sets how many leading bits of an IPv6 address make the key: 48 to 128.
    ///
    /// Default: 64, the smallest network that providers assign. Use 56 for providers that assign a /56: with 64, each of
    /// their customers has 256 keys.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.prefixes.ipv6 = bits;
        self
    }

    /// Sets how many leading bits of an IPv4 address make the key: 8 to 32.
    ///
    /// Default: 32, the whole address.
    #[must_use]
    pub fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.prefixes.ipv4 = bits;
        self
    }

    /// Returns the client's address. `None` without a peer address, or if the header is ambiguous.
    ///
    /// For logs and address lists. IPv4-mapped IPv6 addresses are converted to IPv4. With settings that `build()`
    /// rejects, no proxy is trusted.
    #[must_use]
    pub fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        self.resolve(PeerIp.address(head), head.headers)
    }

    /// Returns the client's network that the key is made from, such as `2001:db8:1:2::/64`.
    #[must_use]
    pub fn network(&self, head: &RequestHead<'_>) -> Option<IpNet> {
        Some(self.prefixes.network(self.address(head)?))
    }

    /// Returns the client's address for a peer and headers, outside of a request. `None` as for
    /// [`address`](Self::address).
    #[must_use]
    pub fn resolve(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        self.client(peer, headers).found()
    }

    /// Returns whether the header of this peer is trusted.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.contains(Some(peer), 0)
    }

    /// As [`trusts`](Self::trusts), for the peer of a request. Proxies that are trusted by number may have no address.
    #[cfg(feature = "dashboard")]
    pub(crate) fn trusts_peer_of(&self, head: &RequestHead<'_>) -> bool {
        self.proxies.contains(PeerIp.address(head), 0)
    }

    fn client(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Extracted<IpAddr> {
        let lines = headers.get_all(&self.header.name).iter();
        self.resolve_lines(peer, lines.map(HeaderValue::as_bytes))
    }

    /// Returns the client's address for a peer and the lines of the header, in their order.
    pub(crate) fn resolve_lines<'a>(
        &self,
        peer: Option<IpAddr>,
        lines: impl DoubleEndedIterator<Item = &'a [u8]>,
    ) -> Extracted<IpAddr> {
        match self.header.syntax {
            HeaderSyntax::Forwarded => self.proxies.client(peer, forwarded::forwarded(lines)),
            HeaderSyntax::Single => self.single_address(peer, lines, forwarded::address),
            HeaderSyntax::SingleWithPort => {
                self.single_address(peer, lines, forwarded::address_with_port)
            }
            HeaderSyntax::XForwardedFor => {
                self.proxies.client(peer, forwarded::x_forwarded_for(lines))
            }
        }
    }

    /// Returns the address in a header that a trusted peer sends once, else the peer.
    fn single_address<'a>(
        &self,
        peer: Option<IpAddr>,
        lines: impl Iterator<Item = &'a [u8]>,
        parse: fn(&[u8]) -> Option<IpAddr>,
    ) -> Extracted<IpAddr> {
        // A proxy may have joined several lines by commas: they are still several values.
        let values = lines.flat_map(|line| line.split(|byte| *byte == b','));
        match Extracted::single(values) {
            Extracted::Ambiguous if self.proxies.contains(peer, 0) => Extracted::Ambiguous,
            value => {
                let address = value.found().and_then(parse);
                self.proxies.client(peer, iter::once(address))
            }
        }
    }

    fn read(mut self, header: AddressHeader) -> Self {
        if self.is_header_chosen {
            return self.invalid(
                "two headers chosen for the client's address: keep the one that your proxies write, since clients can \
                 send the other",
            );
        }
        if matches!(self.proxies, TrustedProxies::None) {
            return self.invalid(
                "a header is chosen, but no proxy is trusted to send it: name the proxies with ClientIp::behind([..])",
            );
        }
        self.header = header;
        self.is_header_chosen = true;
        self
    }

    fn invalid(self, message: impl Into<Cow<'static, str>>) -> Self {
        self.with_error(Error::new(ErrorKind::InvalidConfig, message))
    }

    fn with_error(mut self, error: Error) -> Self {
        // Keeps the first error: the others may follow from it.
        self.error.get_or_insert(error);
        self.proxies = TrustedProxies::None;
        self
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let address = self.extract_address(head);
        address.map(|address| self.prefixes.key(address))
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        let address = caller.address();
        Vec::from_iter(address.map(|address| self.prefixes.key(address)))
    }

    fn label(&self) -> &str {
        "client-ip"
    }

    /// 500: the server does not provide addresses.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        if matches!(self.proxies, TrustedProxies::None) {
            return KeyExtractor::diagnose(&PeerIp, head);
        }
        let peer = PeerIp.address(head);
        if self.proxies.contains(peer, 0) {
            return None;
        }
        if peer.is_none() {
            return Some(Code::NoPeerAddress);
        }
        let is_forwarded = head.headers.contains_key(&self.header.name);
        is_forwarded.then_some(Code::ForwardedUntrusted)
    }

    fn validate(&self) -> Result<(), Error> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => self.prefixes.validate(),
        }
    }
}

impl AddressSource for ClientIp {
    fn extract_address(&self, head: &RequestHead<'_>) -> Extracted<IpAddr> {
        self.client(PeerIp.address(head), head.headers)
    }

    fn validate(&self) -> Result<(), Error> {
        KeyExtractor::validate(self)
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        KeyExtractor::diagnose(self, head)
    }
}

// === TrustedProxies ===

/// The proxies whose entries count.
#[derive(Clone, Debug)]
enum TrustedProxies {
    /// This many, counted from the server.
    Nearest(usize),
    /// Those with an address in these networks.
    Networks(Networks),
    None,
}

impl TrustedProxies {
    /// Returns the first address that is not trusted, or the last readable one: the client.
    ///
    /// `hops` are the entries of the header, the nearest first; `None` is an unreadable one. `peer` is `None` when the
    /// server does not provide it, as with a Unix socket.
    fn client(
        &self,
        peer: Option<IpAddr>,
        hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Extracted<IpAddr> {
        let mut client = peer.map(|peer| peer.to_canonical());
        let mut distance = 0;
        let mut hops = hops.take(MAX_HOPS);
        while self.contains(client, distance)
            && let Some(Some(address)) = hops.next()
        {
            client = Some(address);
            distance += 1;
        }
        client.into()
    }

    /// Returns whether an address is trusted, with this many proxies between it and the server.
    fn contains(&self, address: Option<IpAddr>, distance: usize) -> bool {
        match self {
            Self::Nearest(count) => distance < *count,
            Self::Networks(networks) => address.is_some_and(|address| networks.contains(address)),
            Self::None => false,
        }
    }
}

/// The most entries of a header that are read.
const MAX_HOPS: usize = 32;
