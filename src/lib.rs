//! Rate limiting for Tower and Axum: exact in Redis for the whole fleet, in process by default, still limiting when
//! Redis is down.
//!
//! # Examples
//!
//! In process, 100 requests a minute per address, 20 of them at once:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # fn example() -> Result<axum::Router, tollgate::Error> {
//! use axum::{Router, routing::get};
//! use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};
//!
//! let limit = RateLimitLayer::builder()
//!     .policy(Policy::new("per-ip", Quota::per_minute(100).burst(20)).key(PeerIp))
//!     .build()?;
//! let app = Router::new().route("/", get(|| async { "hello" })).layer(limit);
//! # Ok(app)
//! # }
//! ```
//!
//! For the whole fleet, add `.redis("redis://127.0.0.1/")`. What then happens when Redis is away is each policy's
//! [`OnOutage`] choice; see [`resilience`](resilience/index.html).
//!
//! # Features
//!
//! | feature | default | brings |
//! |---|---|---|
//! | `axum` | yes | addresses from `ConnectInfo`, [`Route`](extract::Route) and [`PathParam`](extract::PathParam), [`RateLimitInfo`](middleware::RateLimitInfo) as an extractor |
//! | `redis` | yes | counting in Redis: [`remote`](remote/index.html) and [`resilience`](resilience/index.html) |
//! | `tracing` | yes | [warnings](diagnosis) and transitions as log lines: install a subscriber to see them |
//! | `grpc` | no | answers that gRPC clients can read |
//! | `test-util` | no | a [`clock`] that tests move by hand |
//!
//! # Where to look
//!
//! | for | see |
//! |---|---|
//! | how much, and what a request costs | [`Quota`], [`Policy`] |
//! | whose request it is | [`extract`], [`Key`] |
//! | which requests a rule counts, who is let pass or refused | [`matching`] |
//! | other quotas for some callers | [`tiers`] |
//! | the layer, its headers, its answers | [`RateLimitLayer`], [`middleware`] |
//! | limiting without HTTP | [`RateLimiter`]; Tower services: [`call`] |
//! | which algorithm to take | [`algorithm::guide`] |
//! | how counting works, and its bounds | [`algorithm`] |
//! | memory in process | [`memory`] |
//! | Redis: waiting, accuracy, failover | [`remote`](remote/index.html) |
//! | outages | [`resilience`](resilience/index.html) |
//! | a store of your own | [`store`] |
//! | warnings and their codes | [`diagnosis`] |

pub mod algorithm;
#[cfg(feature = "redis")]
mod backoff;
pub mod builder;
pub mod call;
mod charge;
pub mod clock;
mod decision;
pub mod diagnosis;
pub mod error;
mod error_chain;
pub mod extract;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod headers;
mod hold;
mod key;
mod limiter;
mod log;
pub mod matching;
pub mod memory;
pub mod middleware;
mod policy;
mod policy_name;
mod quota;
pub mod rejection;
#[cfg(feature = "redis")]
pub mod remote;
#[cfg(feature = "redis")]
pub mod resilience;
mod retry;
pub mod rules;
mod settlement;
mod spawn;
pub mod state;
pub mod store;
mod sync;
mod ticket;
mod tier;
pub mod tiers;
mod timer;

pub use self::decision::Decision;
pub use self::error::{Error, ErrorKind};
pub use self::hold::Hold;
pub use self::key::Key;
pub use self::limiter::RateLimiter;
pub use self::middleware::layer::RateLimitLayer;
pub use self::policy::{OnOutage, Policy};
pub use self::quota::Quota;

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../DESIGN.md")]
struct Design;
