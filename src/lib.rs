//! Rate limiting for Tower and Axum, in process or in Redis for all instances. It also limits while Redis is down.
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
//! To count for all instances of a service, add `.redis("redis://127.0.0.1/")`. While Redis is down, each policy
//! applies its [`OnOutage`] setting; see [`resilience`](resilience/index.html).
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `axum` | yes | addresses from `ConnectInfo`, [`Route`](extract::Route) and [`PathParam`](extract::PathParam), [`RateLimitInfo`](middleware::RateLimitInfo) and others as extractors, [`Rejection`](rejection::Rejection) as a response |
//! | `body` | no | keys and costs from the bodies of requests: [`FromBody`](extract/index.html) |
//! | `redis` | yes | counts in Redis: [`remote`](remote/index.html) and [`resilience`](resilience/index.html) |
//! | `tracing` | yes | [warnings](diagnosis), outages and [decisions](telemetry) as log events: install a subscriber to see them |
//! | `grpc` | no | rejections that gRPC clients understand |
//! | `rules` | no | rules in YAML, TOML and JSON files: `config` |
//! | `dashboard` | no | a web page and an API for operators: `dashboard` |
//! | `reload` | no | rules that change while the service runs, from a watched file or from Redis: `config::reload` |
//! | `metrics` | no | [metrics](telemetry) through the `metrics` facade |
//! | `client` | no | calls that go out: they wait for their turn, obey the API, and are retried safely: `client` |
//! | `explain` | no | why a client was limited: `explain` |
//! | `top-keys` | no | the keys that are denied most often: `top_keys` |
//! | `tls-rustls` | no | TLS to Redis, by rustls with the cryptography of ring unless the application installs another: `remote::TlsConfig` |
//! | `tls-rustls-no-provider` | no | the same without ring: the application installs a provider for rustls |
//! | `test-util` | no | a kit for tests of your limits: `testing`, and a [`clock`] that tests move |
//!
//! # Where to look
//!
//! | topic | see |
//! |---|---|
//! | the names that most limits need | [`prelude`] |
//! | quotas, and the cost of a request | [`Quota`], [`Policy`] |
//! | keys: which client a request belongs to | [`extract`], [`Key`] |
//! | which requests a rule applies to, and which are skipped or forbidden | [`matching`] |
//! | different quotas for some clients | [`tiers`] |
//! | the layer, and [`Decision`]s in handlers | [`RateLimitLayer`], [`middleware`] |
//! | decisions in handlers, WebSockets | [`RateLimiter::enforce`], [`middleware::RequestHold`] |
//! | keys, costs and tiers of a policy | [`rules`] |
//! | response headers | [`headers`] |
//! | responses to rejected requests | [`rejection`] |
//! | bans after repeated denials | [`policy::Penalty`] |
//! | denying a key for a time | [`block`], [`RateLimiter::block`] |
//! | more requests than the service can serve | [`overload`] |
//! | limiting without HTTP | [`RateLimiter`]; Tower services: [`call`] |
//! | which algorithm to choose | [`algorithm::guide`] |
//! | how algorithms count, and their bounds | [`algorithm`] |
//! | memory in process | [`memory`] |
//! | Redis: deadlines, accuracy, failover | [`remote`](remote/index.html) |
//! | outages of Redis | [`resilience`](resilience/index.html) |
//! | metrics, and an event per decision | [`telemetry`] |
//! | why a client was limited | `explain` (feature `explain`) |
//! | the keys that are denied most often | `top_keys` (feature `top-keys`) |
//! | rules in files | `config` (feature `rules`) |
//! | live decisions and kill switches in a browser | `dashboard` (feature `dashboard`) |
//! | rules that change while the service runs | `config::reload` (feature `reload`) |
//! | calls to APIs that have rate limits | `client` (feature `client`) |
//! | a custom store | [`store`] |
//! | tests of your limits, without Redis | `testing` (feature `test-util`) |
//! | warnings about misconfigurations | [`diagnosis`] |

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod acquire;
pub mod algorithm;
pub mod block;
mod block_check;
pub mod builder;
pub mod call;
pub mod charge;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "rules")]
pub mod config;
#[cfg(feature = "dashboard")]
pub mod dashboard;
pub mod decision;
pub mod diagnosis;
pub mod error;
#[cfg(feature = "explain")]
pub mod explain;
pub mod extract;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod headers;
mod hold;
mod key;
mod limiter;
pub mod matching;
pub mod memory;
pub mod middleware;
pub mod overload;
pub mod policy;
pub mod prelude;
mod priority;
pub mod rejection;
#[cfg(feature = "redis")]
pub mod remote;
mod request;
#[cfg(feature = "redis")]
pub mod resilience;
pub mod rules;
pub mod store;
mod task;
pub mod telemetry;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod tiers;
#[cfg(feature = "top-keys")]
pub mod top_keys;

pub use self::algorithm::quota::Quota;
pub use self::charge::charge::Charge;
pub use self::decision::decision::Decision;
pub use self::error::{Error, ErrorKind};
pub use self::hold::Hold;
pub use self::key::key::Key;
pub use self::limiter::limiter::RateLimiter;
pub use self::middleware::layer::RateLimitLayer;
pub use self::policy::{
    consistency::{Consistency, Percent},
    on_outage::OnOutage,
    policy::Policy,
};
pub use self::request::RequestHead;

// These types exist only to run the examples of the documents as doc tests.

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(
    doctest,
    feature = "axum",
    feature = "dashboard",
    feature = "explain",
    feature = "metrics",
    feature = "redis",
    feature = "top-keys"
))]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

/// The pages of the guide. Their code may use every feature.
#[cfg(all(
    doctest,
    feature = "axum",
    feature = "body",
    feature = "redis",
    feature = "rules",
    feature = "test-util"
))]
mod guide {
    #[doc = include_str!("../docs/guide/behind-proxies.md")]
    struct BehindProxies;

    #[doc = include_str!("../docs/guide/browsers.md")]
    struct Browsers;

    #[doc = include_str!("../docs/guide/composition.md")]
    struct Composition;

    #[doc = include_str!("../docs/guide/first-limit.md")]
    struct FirstLimit;

    #[doc = include_str!("../docs/guide/graphql.md")]
    struct GraphQl;

    #[doc = include_str!("../docs/guide/handlers.md")]
    struct Handlers;

    #[doc = include_str!("../docs/guide/language-models.md")]
    struct LanguageModels;

    #[doc = include_str!("../docs/guide/login.md")]
    struct Login;

    #[doc = include_str!("../docs/guide/moving.md")]
    struct Moving;

    #[doc = include_str!("../docs/guide/options.md")]
    struct Options;

    #[doc = include_str!("../docs/guide/overload.md")]
    struct Overload;

    #[doc = include_str!("../docs/guide/sockets.md")]
    struct Sockets;

    #[doc = include_str!("../docs/guide/testing.md")]
    struct Testing;

    #[doc = include_str!("../docs/guide/tiers.md")]
    struct Tiers;
}

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../docs/consistency.md")]
struct StrictAndLeased;

#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../docs/outgoing.md")]
struct Outgoing;
