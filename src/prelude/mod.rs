//! The names that most limits need: `use tollgate::prelude::*;`.
//!
//! It leaves out names that other crates or the standard library have too, such as `Header`, `Route` and `Error`: import them from
//! their modules. `tower::limit` has a `RateLimitLayer` too, so do not import all of its names. Of the traits it has the methods only, so import a trait by its name to implement it.
//!
//! # Examples
//!
//! ```
//! use tollgate::prelude::*;
//!
//! let limit = RateLimitLayer::builder()
//!     .policy(Policy::new("per-ip", Quota::per_minute(600)).key(PeerIp))
//!     .policy(Policy::new("caller", Quota::per_minute(60)).key(ApiKey::header("x-api-key").or_else(PeerIp)))
//!     .policy(Policy::new("global", Quota::per_second(5_000)).key(Global))
//!     .skip("/health")
//!     .build()?;
//! # Ok::<(), tollgate::Error>(())
//! ```

pub use crate::{
    algorithm::{Algorithm, quota::Quota},
    extract::{ApiKey, ClientIp, Global, KeyExtractor as _, PeerIp},
    headers::{Headers, ShownLimit},
    key::key::Key,
    limiter::limiter::RateLimiter,
    matching::{AddressList, Matcher as _, Methods, PathPattern},
    middleware::{ActualCost, RateLimitInfo, layer::RateLimitLayer},
    policy::{on_outage::OnOutage, policy::Policy},
    rejection::{Rejection, RejectionFormat},
    request::RequestHead,
    rules::{OnMissingKey, Rule, RuleMode},
    tiers::{Tier, TierCache, TierTable},
};

#[cfg(feature = "redis")]
pub use crate::remote::RedisStore;
