//! Key extractors: who a request is counted for.
//!
//! A [`KeyExtractor`] finds a request's [`Key`](crate::Key) in its head. Use one from this module, a closure, or a type
//! of your own.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, RequestHead, extract::{ApiKey, Extracted, Header, KeyExtractor, PeerIp, Route}};
//!
//! // Extractors of this module, alone or combined.
//! let by_address = PeerIp;
//! let by_key_or_address = ApiKey::header("x-api-key").or_else(PeerIp);
//! let by_tenant_and_route = Header::new("x-tenant").and(Route);
//!
//! // A closure.
//! let by_host = |head: &RequestHead| head.uri.host().map(Key::from);
//!
//! // A type of your own.
//! #[derive(Debug)]
//! struct Tenant;
//! impl KeyExtractor for Tenant {
//!     fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
//!         head.uri.path().split('/').nth(1).filter(|tenant| !tenant.is_empty()).map(Key::new).into()
//!     }
//! }
//! ```
//!
//! # Which one?
//!
//! A limit is only as strong as its key: a client that can vary the key at will gets a fresh count each time. Hashed
//! values leave the process only as 128 bits of a hash, keyed with a [`HashSecret`]; all others are readable in Redis.
//!
//! | extractor | key | hashed | clients can vary | without a key |
//! |---|---|---|---|---|
//! | [`ApiKey`] | API key in a header or the query, bearer token | yes | everything, unless something checks it | 401 |
//! | [`Claim`] | claim of a verified token | by the closure | which of their tokens they send | 401 |
//! | [`ClientIp`] | client's address behind proxies | no | their addresses; one IPv6 network is one key | 500 |
//! | [`Cookie`] | one cookie | yes, unless `plaintext()` | everything, unless something checks it | 401; 400 for plaintext |
//! | [`ExtensionKey`] | request extension set by an outer layer | by the closure | what that layer allows | 500 |
//! | [`FromBody`] (feature `body`) | one field of a JSON document or a form in the body | with `hashed()` | everything, unless the handler checks it | 400 |
//! | [`Global`] | the same for all requests | no | nothing | never |
//! | [`Header`] | one header | no | everything, unless a gateway sets it | 400 |
//! | [`HostHeader`] | authority or `Host` header | no | everything, unless the server rejects unknown hosts | 400 |
//! | [`PathParam`] | one parameter of axum's route | no | everything | 404 |
//! | [`PeerIp`] | peer's address | no | their addresses; one IPv6 network is one key | 500 |
//! | [`QueryParam`] | one query parameter | no | everything | 400 |
//! | [`Route`] | method and axum's route | no | a choice of your routes, plus nine keys | counted by method |
//! | [`RouteOrUnmatched`] | method and axum's route, or the method alone | no | a choice of your routes, plus nine keys | never |
//! | closures | as the closure returns | by the closure | | 400 |
//!
//! [`and`](KeyExtractor::and) and [`or_else`](KeyExtractor::or_else) join two extractors; [`map`](KeyExtractor::map) and
//! [`and_then`](KeyExtractor::and_then) change the keys of one. [`co_located_with`](KeyExtractor::co_located_with) keeps the keys of
//! two policies together in a Redis cluster. Extractors that read text written by clients return one
//! key for all spellings of a value.
//!
//! # Found, absent, ambiguous
//!
//! An extractor returns an [`Extracted`] key.
//!
//! - An absent key is handled by the rule's [`OnMissingKey`](crate::rules::OnMissingKey) choice, or by the second
//!   extractor of an `or_else`.
//! - A key is ambiguous if the request has it twice, or contradicts itself. Such a request is always rejected with 400: the
//!   limiter cannot know which value the inner service reads. Counting either would let clients choose their count, and
//!   handling the key as absent would let them choose to have none.
//!
//! | extractor | absent | ambiguous |
//! |---|---|---|
//! | [`ApiKey::bearer`] | no or empty `Authorization`, another scheme, no token | two lines, whatever they contain; a comma or space in the token; `Bearer` after a comma |
//! | [`ApiKey::header`], [`Header`] | no such header, or an empty one | two lines, also equal or empty ones |
//! | [`ApiKey::query`], [`QueryParam`] | no such parameter, or an empty one | two, also if one is empty or encoded |
//! | [`Claim`], [`ExtensionKey`] | no such extension; as the closure returns | as the closure returns |
//! | [`ClientIp`] | the server provides no peer address | from a trusted peer, a [single-value header](SingleHeader) that comes twice or contains a comma; lists are never ambiguous |
//! | [`Cookie`] | no such cookie, or an empty one | two, in one line or several |
//! | [`FromBody`] | no body, no such field, `null`, or an empty text | two such fields; a body that is not valid, too large or too slow, with a status of its own |
//! | [`Global`], [`RouteOrUnmatched`] | never | never |
//! | [`HostHeader`] | no host, or an empty one | two `Host` lines; `Host` and authority differ; an invalid host or port |
//! | [`PathParam`] | the route has no such parameter | the route has two |
//! | [`PeerIp`] | the server provides no peer address | never |
//! | [`Route`] | no route matched | never |
//! | [`and`](KeyExtractor::and) | one is absent, and none ambiguous | one is ambiguous |
//! | [`or_else`](KeyExtractor::or_else) | both are absent | the first is; or the first is absent and the second is ambiguous |
//! | [`map`](KeyExtractor::map) | as the wrapped extractor | as the wrapped extractor |
//! | [`and_then`](KeyExtractor::and_then), closures, [`AsyncKeyExtractor`] | as they return | as they return |
//!
//! Two equal values are ambiguous too: a client has no reason to send both, and the inner service may read them
//! differently.
//!
//! # Keys that must be looked up
//!
//! An [`AsyncKeyExtractor`] looks the key up, for example in a session store or over the network; see
//! [`Policy::key_async`](crate::Policy::key_async).
//!
//! # Requests without a key
//!
//! The rule's [`OnMissingKey`](crate::rules::OnMissingKey) choice applies to requests whose key is absent. Without
//! such a choice, [`Route`] counts them by method, and all other extractors reject them with the status in the first
//! table. [`and`](KeyExtractor::and) uses the status of the extractor whose key is absent.
//!
//! # Callers without a request
//!
//! Operators know a caller by its address or API key, and not by its key. [`keys_of`](KeyExtractor::keys_of) returns the keys
//! that an extractor makes of such a [`CallerId`]; `dashboard` (feature `dashboard`) looks them up and blocks them.
//!
//! # Behind a proxy
//!
//! [`PeerIp`] is the address at the other end of the connection. Behind a proxy that is the proxy's, so all clients share
//! one count. [`ClientIp`] finds the client's address in headers, which it reads only if a trusted proxy sent them:
//!
//! | clients connect | use |
//! |---|---|
//! | directly | [`PeerIp`], or [`ClientIp::peer`] for another IPv6 prefix |
//! | through proxies with known addresses | [`ClientIp::behind`] |
//! | through proxies in the same data centre | `ClientIp::behind(Networks::PRIVATE)`, see [`Networks::PRIVATE`] |
//! | through a known number of proxies, or by a Unix socket | [`ClientIp::behind_hops`] |
//! | through a CDN with its own header | `ClientIp::behind([..]).header(..)`, see [`SingleHeader`] |

//!
//! # IPv6
//!
//! A customer has a whole network of addresses, so [`Key::from`](crate::Key::from), [`PeerIp`], [`ClientIp`] and
//! [`CallerId`] make one key of it.
//!
//! | address | key |
//! |---|---|
//! | IPv4-mapped, `::ffff:203.0.113.9` | the IPv4 address |
//! | NAT64, `64:ff9b::203.0.113.9` (RFC 6052) | the IPv4 address, unless it is private, which translators must drop |
//! | local NAT64, `64:ff9b:1::/48` (RFC 8215) | the whole address: where it contains the IPv4 address is the operator's choice |
//! | 6to4 `2002::/16`, Teredo `2001::/32`, and all others | its /64 network, or that of [`ClientIp::ipv6_prefix`] |
//!
//! [`Networks`] and [`AddressList`](crate::matching::AddressList) match the IPv4 address of a NAT64 client too. The IPv4
//! addresses in 6to4 and Teredo are not used: both are out of use, and a sender can choose them.

// An extractor is one file, its two lines here, and its rows in the tables above.
mod address_header;
mod address_source;
mod api_key;
mod async_extractor;
mod caller_id;
mod client_ip;
mod combine;
mod cookie;
mod extension;
mod extracted;
mod extractor;
mod forwarded;
#[cfg(feature = "body")]
mod from_body;
mod global;
mod header;
mod host;
mod into_key;
#[cfg(feature = "body")]
mod json_pointer;
#[cfg(feature = "axum")]
mod matched_path;
mod network;
mod param;
mod path_param;
mod peer;
mod query;
mod route;

pub use self::address_header::SingleHeader;
pub use self::address_source::AddressSource;
pub use self::api_key::ApiKey;
pub use self::async_extractor::{AsyncKeyExtractor, KeyLookup};
pub use self::caller_id::CallerId;
pub use self::client_ip::ClientIp;
pub use self::combine::{And, AndThen, CoLocatedWith, Map, OrElse};
pub use self::cookie::Cookie;
pub use self::extension::{Claim, ExtensionKey};
pub use self::extracted::Extracted;
pub use self::extractor::KeyExtractor;
#[cfg(feature = "body")]
pub use self::from_body::FromBody;
pub use self::global::Global;
pub use self::header::Header;
pub(crate) use self::header::parse_header_name;
pub use self::host::HostHeader;
pub(crate) use self::host::{Host, without_user};
pub use self::into_key::IntoKey;
pub use self::network::{Network, Networks};
pub use self::path_param::PathParam;
pub use self::peer::PeerIp;
pub use self::query::QueryParam;
pub use self::route::{Route, RouteOrUnmatched};
pub use crate::key::HashSecret;
pub use crate::request::{BodyFault, BodyLimits};
