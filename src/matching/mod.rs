//! Matchers: which requests a rule counts, which ones are not limited, and which ones are forbidden.
//!
//! A [`Matcher`] compares the [head of a request](crate::RequestHead). Use one from this module, a combination of them, or a
//! closure `Fn(&RequestHead<'_>) -> bool`. Text is a [`PathPattern`]: `.skip("/health")`.
//!
//! | where | effect on matching requests |
//! |---|---|
//! | [`forbid`](crate::builder::RateLimitLayerBuilder::forbid) on the layer | rejected with 403, charged nothing |
//! | [`skip`](crate::builder::RateLimitLayerBuilder::skip) on the layer | not limited by any rule |
//! | [`when`](crate::rules::Rule::when), [`unless`](crate::rules::Rule::unless) on a rule | counted, or not counted, by the rule |
//! | [`cost_when`](crate::rules::Rule::cost_when) on a rule | charged another cost |
//!
//! The layer applies them in this order: a request that matches both `forbid` and `skip` is rejected, and no rule counts a
//! skipped request.
//!
//! # Ambiguous matches
//!
//! One resource can be requested with several spellings of its path: `/login`, `/login/`, `//login`, `/%6Cogin`,
//! `/x/../login`. Which of them reach the same handler depends on the inner service. So a matcher has three results: the
//! request [does not match](Match::Miss), it [matches](Match::Exact), or it is a [possible match](Match::Ambiguous), because
//! the inner service might read it as a matching one.
//!
//! A possible match is always handled in the stricter way. `when` and `forbid` treat it as a match, `unless` and `skip` do
//! not, and `cost_when` charges the highest possible cost. So clients cannot evade a limit, or slip into an exception, by
//! spelling a path in another way. The docs of [`PathPattern`], [`Methods`] and [`HostPattern`] list which spellings are
//! covered, and which are [not](PathPattern#not-covered).
//!
//! # Examples
//!
//! ```
//! use http::Method;
//! use tollgate::{
//!     Policy, Quota, RateLimitLayer, RequestHead,
//!     extract::{ApiKey, ClientIp, PeerIp},
//!     matching::{AddressList, HasHeader, KeyList, Matcher, Methods, PathPattern, Preflight},
//! };
//!
//! let writes = Methods::new([Method::GET]).not().and(PathPattern::prefix("/api"));
//! let layer = RateLimitLayer::builder()
//!     // Always rejected. Without a proxy in front, use `PeerIp` in place of `ClientIp`.
//!     .forbid(AddressList::new(ClientIp::behind(["192.0.2.0/24"]), ["203.0.113.0/24"]))
//!     .forbid(KeyList::new(ApiKey::header("x-api-key"), [tollgate::Key::secret("leaked-key")]))
//!     // Never limited.
//!     .skip(PathPattern::new("/health"))
//!     .skip(Preflight)
//!     .skip(AddressList::new(PeerIp, ["10.0.0.0/8"]))
//!     // Few logins, expensive writes, and a closure for anything else.
//!     .policy(
//!         Policy::new("login", Quota::per_minute(5))
//!             .key(PeerIp)
//!             .when(Methods::new([Method::POST]).and(PathPattern::new("/login"))),
//!     )
//!     .policy(
//!         Policy::new("api", Quota::per_minute(300))
//!             .key(PeerIp)
//!             .when(PathPattern::prefix("/api"))
//!             .unless(|head: &RequestHead| head.uri.query() == Some("cached"))
//!             .cost_when(PathPattern::new("/api/reports/{id}"), 20)
//!             .cost_when(writes, 5),
//!     )
//!     .build()?;
//! # Ok::<(), tollgate::Error>(())
//! ```

mod combine;
mod header;
mod host;
mod lists;
mod matcher;
mod method;
mod path;

pub use self::combine::{And, Not, Or};
pub use self::header::HasHeader;
pub use self::host::HostPattern;
pub use self::lists::{AddressList, KeyList};
pub use self::matcher::{IntoMatcher, Match, Matcher};
pub use self::method::{Methods, Preflight};
pub use self::path::PathPattern;
