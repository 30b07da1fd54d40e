//! Which requests? Matchers for rules, for requests that are not limited, and for those that are refused.
//!
//! A [`Matcher`] looks at the head of a request. The usual ones are here, they can be combined, and a closure
//! `Fn(&Parts) -> bool` is one too.
//!
//! | where | what it does |
//! |---|---|
//! | [`forbid`](crate::builder::RateLimitLayerBuilder::forbid) on the layer | 403, charges nothing |
//! | [`skip`](crate::builder::RateLimitLayerBuilder::skip) on the layer | passes, not limited by any rule |
//! | [`when`](crate::rules::Rule::when), [`unless`](crate::rules::Rule::unless) on a rule | which requests the rule counts |
//! | [`cost_when`](crate::rules::Rule::cost_when) on a rule | what they cost |
//!
//! In this order: a request that is to be denied is denied though it is to be skipped too; a skipped one is counted by no
//! rule.
//!
//! # In doubt, a request is counted
//!
//! There is more than one way to write a request for the same thing: `/login`, `/login/`, `//login`, `/%6Cogin`,
//! `/x/../login`. Which of them reach the same handler depends on what stands behind the layer. So a matcher has three
//! answers: it [`Matches`](Match::Exact), it [`Differs`](Match::Miss), or it
//! [`Resembles`](Match::Possible), when it could be meant but is written otherwise. What resembles is decided
//! toward the limit: `when` and `deny` take it as a match, `unless` and `skip` do not, and of costs the higher one counts.
//! So neither can a limit be slipped past, nor an exception be slipped into, by writing a path in another way.
//!
//! # Examples
//!
//! ```
//! use http::{Method, request::Parts};
//! use tollgate::{
//!     Policy, Quota, RateLimitLayer,
//!     extract::{ApiKey, PeerIp},
//!     matching::{AddressList, HasHeader, KeyList, Matcher, Methods, PathPattern, Preflight},
//! };
//!
//! let writes = Methods::new([Method::GET]).not().and(PathPattern::prefix("/api"));
//! let layer = RateLimitLayer::builder()
//!     // Refused, whatever else they are.
//!     .forbid(AddressList::new(PeerIp, ["203.0.113.0/24"]))
//!     .forbid(KeyList::new(ApiKey::header("x-api-key"), [tollgate::Key::secret("leaked-key")]))
//!     // Not limited.
//!     .skip(PathPattern::new("/health"))
//!     .skip(Preflight)
//!     .skip(AddressList::new(PeerIp, ["10.0.0.0/8"]))
//!     // Logins are few, writes are dear, and a closure can look at anything.
//!     .policy(
//!         Policy::new("login", Quota::per_minute(5))
//!             .key(PeerIp)
//!             .when(Methods::new([Method::POST]).and(PathPattern::new("/login"))),
//!     )
//!     .policy(
//!         Policy::new("api", Quota::per_minute(300))
//!             .key(PeerIp)
//!             .when(PathPattern::prefix("/api"))
//!             .unless(|parts: &Parts| parts.uri.query() == Some("cached"))
//!             .cost_when(PathPattern::new("/api/reports/{id}"), 20)
//!             .cost_when(writes, 5),
//!     )
//!     .build()?;
//! # Ok::<(), tollgate::Error>(())
//! ```

mod combine;
mod head;
mod lists;
mod matcher;
mod path;
mod ranges;
mod reading;

pub use self::combine::{And, Not, Or};
pub use self::head::{HasHeader, HostPattern, Methods, Preflight};
pub use self::lists::{AddressList, KeyList};
pub use self::matcher::{Match, Matcher};
pub use self::path::PathPattern;
