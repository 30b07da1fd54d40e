//! Whose request is it? Keys from requests.
//!
//! A [`KeyExtractor`] looks at the head of a request and tells whom to count. The usual ones are here; a closure is
//! one too; and the trait is small enough to write your own.
//!
//! # Examples
//!
//! ```
//! use http::request::Parts;
//! use tollgate::{Key, extract::{ApiKey, Extracted, Header, KeyExtractor, PeerIp, Route}};
//!
//! // One of the usual ones, alone or combined.
//! let by_address = PeerIp;
//! let by_key_or_address = ApiKey::header("x-api-key").or_else(PeerIp);
//! let by_tenant_and_route = Header::new("x-tenant").and(Route);
//!
//! // A closure.
//! let by_host = |parts: &Parts| parts.uri.host().map(Key::from);
//!
//! // A type of your own.
//! #[derive(Debug)]
//! struct Tenant;
//! impl KeyExtractor for Tenant {
//!     fn extract(&self, parts: &Parts) -> Extracted<Key> {
//!         parts.uri.path().split('/').nth(1).filter(|tenant| !tenant.is_empty()).map(Key::new).into()
//!     }
//! }
//! ```
//!
//! # Which one?
//!
//! What a client can vary decides what a limit is worth: who can vary the key at will has a fresh count each time. What
//! is hashed leaves the process only as 128 bits under a [`HashSecret`]; the rest can be read in Redis.
//!
//! | extractor | what | secret | what a client can vary | missing |
//! |---|---|---|---|---|
//! | [`ApiKey`] | key in a header or the query, bearer token | hashed | all of it, until something checks it | 401 |
//! | [`ClientIp`] | the client's address behind proxies | no | its addresses: an IPv6 network is one key | 500 |
//! | [`Claim`] | a claim of a token that was verified | as the closure makes it | nothing but which of its tokens it sends | 401 |
//! | [`Cookie`] | one cookie | hashed, or `plaintext()` | all of it, until something checks it | 401, 400 |
//! | [`ExtensionKey`] | what an outer layer left in the extensions | as the closure makes it | what that layer lets it | 500 |
//! | [`Global`] | everybody | no | nothing | never |
//! | [`Header`] | one header | no | all of it, unless a gateway sets it | 400 |
//! | [`HostHeader`] | authority or `Host` | no | all of it, unless the server refuses unknown hosts | 400 |
//! | [`PathParam`] | one parameter of axum's route | no | all of it | 404 |
//! | [`PeerIp`] | the connection's other end | no | its addresses: an IPv6 network is one key | 500 |
//! | [`QueryParam`] | one parameter of the query | no | all of it | 400 |
//! | [`Route`] | method and axum's route | no | among the endpoints there are, and nine more | counts by method |
//! | [`RouteOrUnmatched`] | the same, the rest by method | no | among the endpoints there are, and nine more | never |
//! | closures | whatever they look at | as they make it | | 400 |
//!
//! [`and`](KeyExtractor::and) and [`or_else`](KeyExtractor::or_else) join two; [`map`](KeyExtractor::map) and
//! [`and_then`](KeyExtractor::and_then) change what was found. Extractors that read what the client wrote return one key
//! for all ways to write one value.
//!
//! # Found, absent, ambiguous
//!
//! An extractor returns an [`Extracted`] key. One that is absent is handled by the rule's
//! [`OnMissingKey`](crate::rules::OnMissingKey) choice, or by the second extractor of an `or_else`. One that is ambiguous,
//! because it is there twice or contradicts itself, is rejected with 400 in any case: nobody knows which of the
//! two the service behind reads, so counting either would let a client pick its count, and calling it absent would let it
//! pick having none.
//!
//! | extractor | absent | ambiguous |
//! |---|---|---|
//! | [`ApiKey::bearer`] | no `Authorization`, an empty one, another scheme, no token | two lines, whatever is in them; a comma or space in the token; `Bearer` behind a comma |
//! | [`ApiKey::header`], [`Header`] | no such header, an empty one | two lines, also equal or empty ones |
//! | [`ApiKey::query`], [`QueryParam`] | no such parameter, an empty one | two, also when one is empty or encoded |
//! | [`Cookie`] | no such cookie, an empty one | two, in one line or several |
//! | [`ClientIp`] | the server provides no peer address | from a trusted peer, a [single-value header](SingleHeader) that is there twice or holds a comma; lists are read as lists |
//! | [`HostHeader`] | no host, an empty one | two `Host` lines; `Host` and authority differ; not a valid host and port |
//! | [`PathParam`] | the route has no such parameter | the route has it twice |
//! | [`PeerIp`] | the server provides no peer address | never |
//! | [`Route`] | no route matched | never |
//! | [`Claim`], [`ExtensionKey`] | no such extension; as the closure returns | as the closure returns |
//! | [`Global`], [`RouteOrUnmatched`] | never | never |
//! | [`and`](KeyExtractor::and) | either is absent, and none ambiguous | either is |
//! | [`or_else`](KeyExtractor::or_else) | both are | the first is; or it is absent, and the second is |
//! | [`map`](KeyExtractor::map) | the inner one is | the inner one is |
//! | [`and_then`](KeyExtractor::and_then), closures, [`AsyncKeyExtractor`] | as they return | as they return |
//!
//! Two values that are equal are ambiguous too: a client has no reason to send them, and only a comparison that knows how
//! the service reads them could call them one.
//!
//! # When it takes waiting
//!
//! An [`AsyncKeyExtractor`] looks the key up, in a session store or over the network; see
//! [`Policy::key_async`](crate::Policy::key_async).
//!
//! # When there is no key
//!
//! The rule's [`OnMissingKey`](crate::rules::OnMissingKey) choice decides about a request whose key is absent. Without
//! one, [`Route`] counts such requests by their method, and for all others the request is rejected with the status in the
//! first table. An [`and`](KeyExtractor::and) takes the status of the half that is absent.
//!
//! # Behind a proxy
//!
//! [`PeerIp`] is the other end of the connection. Behind a proxy that is the proxy, and all clients share one count.
//! [`ClientIp`] finds the client, by headers that only your proxies are believed about:
//!
//! | clients come | take |
//! |---|---|
//! | directly | [`PeerIp`], or [`ClientIp::peer`] for another IPv6 prefix |
//! | through proxies whose addresses are known | [`ClientIp::behind`] |
//! | through proxies in the same data centre | `ClientIp::behind(Networks::PRIVATE)`, see [`Networks::PRIVATE`] |
//! | through proxies whose number is known, or by a Unix socket | [`ClientIp::behind_hops`] |
//! | through a CDN that sets a header of its own | `ClientIp::behind([..]).header(..)`, see [`SingleHeader`] |

mod api_key;
mod claim;
mod client_ip;
mod combine;
mod cookie;
mod extracted;
mod extractor;
mod fixed;
mod grouping;
mod header;
mod host;
mod lookup;
mod mapped;
mod named;
mod network;
mod path_param;
mod peer;
mod percent;
mod query;
mod route;
mod source;
#[cfg(feature = "axum")]
mod template;

pub use self::api_key::ApiKey;
pub use self::claim::Claim;
pub use self::client_ip::{ClientIp, SingleHeader};
pub use self::combine::{And, OrElse};
pub use self::cookie::Cookie;
pub use self::extracted::Extracted;
pub use self::extractor::KeyExtractor;
pub use self::fixed::{ExtensionKey, Global};
pub use self::header::Header;
pub(crate) use self::header::parsed as header_name;
pub use self::host::HostHeader;
pub use self::lookup::{AsyncKeyExtractor, KeyLookup};
pub use self::mapped::{AndThen, Map};
pub use self::network::{Network, Networks};
pub use self::path_param::PathParam;
pub use self::peer::PeerIp;
pub use self::query::QueryParam;
pub use self::route::{Route, RouteOrUnmatched};
pub use self::source::AddressSource;
pub use crate::key::HashSecret;
