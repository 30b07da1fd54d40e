//! Whose request is it? Keys from requests.
//!
//! A [`KeyExtractor`] looks at the head of a request and tells whom to count. The usual ones are here; a closure is
//! one too; and the trait is small enough to write your own.
//!
//! # Examples
//!
//! ```
//! use http::request::Parts;
//! use tollgate::{Key, extract::{ApiKey, Header, KeyExtractor, PeerIp, Route}};
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
//!     fn extract(&self, parts: &Parts) -> Option<Key> {
//!         parts.uri.path().split('/').nth(1).filter(|tenant| !tenant.is_empty()).map(Key::new)
//!     }
//! }
//! ```
//!
//! # When it takes waiting
//!
//! An [`AsyncKeyExtractor`] looks the key up, in a session store or over the network; see
//! [`Policy::key_async`](crate::Policy::key_async).
//!
//! # When there is no key
//!
//! An extractor that finds nothing answers `None`; what happens then is the rule's
//! [`MissingKey`](crate::middleware::MissingKey) choice, not the extractor's.
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

mod client_ip;
mod combine;
mod extractor;
mod fixed;
mod grouping;
mod header;
mod lookup;
mod network;
mod peer;
mod route;

pub use self::client_ip::{ClientIp, SingleHeader};
pub use self::combine::{And, OrElse};
pub use self::extractor::KeyExtractor;
pub use self::fixed::{Extension, Global};
pub use self::header::{ApiKey, Header};
pub use self::lookup::{AsyncKeyExtractor, KeyLookup};
pub use self::network::{Network, Networks};
pub use self::peer::PeerIp;
pub use self::route::Route;
pub use crate::key::HashKey;
