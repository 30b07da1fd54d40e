//! The layer for Tower and HTTP, and what it is made of.
//!
//! [`RateLimitLayer`](crate::RateLimitLayer) wraps any service of HTTP requests, with any body. For each request it
//! takes the keys of its rules, decides on all of them together, and either calls the inner service or answers itself.
//!
//! # What it promises
//!
//! - A denied request never reaches the inner service, and costs it no readiness: what the inner service had reserved
//!   for the request is given back.
//! - The service that was polled ready is the one that is called; after a wait in a queue, one that is polled ready then.
//! - Errors of the inner service pass unchanged, so a `Router` takes the layer as it is.
//! - All clones, on however many routes, share one count.
//! - With the in-process store a decision about one policy neither awaits nor allocates; several take one allocation.
//!   Handing it to the handler costs the box that every extension takes.
//!
//! # Which requests
//!
//! In this order: a request that [`deny`](crate::builder::RateLimitLayerBuilder::deny) matches gets 403 and is charged
//! nothing; one that [`skip`](crate::builder::RateLimitLayerBuilder::skip) matches passes without being counted; the others
//! are counted by each rule that [counts](Rule::when) them. See [`matching`](crate::matching).
//!
//! Keys that must be [looked up](crate::Policy::key_async) and [tiers](crate::tiers) come before the decision, all at the
//! same time, and nothing is charged until they are there.
//!
//! # What handlers see
//!
//! [`RateLimitInfo`] tells what was decided; with axum it is an extractor. The innermost layer's
//! [`Decision`](crate::Decision) is in the request's extensions too. A [`Rejection`] is in the extensions of the response
//! that was made from it, where outer layers see it.
//!
//! # Headers
//!
//! [`Headers`] says which: `X-RateLimit-*` by default, the drafts' `RateLimit`, Discord's, several at once, or none. The
//! limit is what can be taken at once, so for a bucket its burst. `Retry-After` is whole seconds, rounded up, at least 1.
//! What the inner service has set itself [stays](Headers#beside-headers-that-are-there-already). When nobody could count, no
//! number is made up.
//!
//! # Answers
//!
//! A [`Denial`] is JSON by default, or problem+json, text, what the request accepts, or made by a closure. The status is
//! 429 over a limit, 503 when nobody could decide, and the extractor's choice when a key is missing; with a 401 comes the
//! extractor's [challenge](crate::extract::KeyExtractor::challenge) as `WWW-Authenticate`. With the feature `grpc`, gRPC
//! clients get a status that they can read.
//!
//! Each of them carries `Cache-Control: no-store`, unless it sets `Cache-Control` itself.
//!
//! # What it costs in the end
//!
//! [`Rule::settle`] refunds or charges the difference once a request has ended: a [`CompletedRequest`] holds how. A client
//! that goes away is charged unless the closure says otherwise.
//!
//! # One layer inside another
//!
//! Each decides on its own: a request that the inner one denies has been charged by the outer one. [`RateLimitInfo`]
//! and the lists of draft 11 contain the policies of all layers; limit, remaining and reset are those of the narrowest one.
//! Policies that belong together go on one layer. Two layers that charge one request under one policy's name are reported, as
//! [`Code::ChargedTwice`].
//!
//! [`Code::ChargedTwice`]: crate::diagnosis::Code::ChargedTwice
//!
//! # Examples
//!
//! Two policies, decided together, and an answer of one's own:
//!
//! ```
//! use http::{Response, StatusCode};
//! use tollgate::{Policy, Quota, RateLimitLayer, extract::{Global, PeerIp}, middleware::Rejection};
//!
//! let layer = RateLimitLayer::builder()
//!     .policy(Policy::new("per-ip", Quota::per_minute(100).burst(20)).key(PeerIp))
//!     .policy(Policy::new("everybody", Quota::per_second(5_000)).key(Global))
//!     .on_rejection(|rejection: &Rejection| {
//!         let mut response = Response::new(rejection.message());
//!         *response.status_mut() = StatusCode::ENHANCE_YOUR_CALM;
//!         response
//!     })
//!     .build()?;
//! # trait Calm { const ENHANCE_YOUR_CALM: StatusCode; }
//! # impl Calm for StatusCode { const ENHANCE_YOUR_CALM: StatusCode = StatusCode::TOO_MANY_REQUESTS; }
//! # Ok::<(), tollgate::Error>(())
//! ```

mod actual_cost;
mod body;
pub mod call;
mod charging;
mod completed;
mod conditions;
mod denial;
mod finding;
mod future;
pub(crate) mod gate;
mod headers;
mod info;
pub(crate) mod layer;
mod next;
mod rejection;
mod rule;
mod service;
mod settling;
pub(crate) mod shared;
mod watch;

pub(crate) use self::headers::Plan;

pub use self::actual_cost::ActualCost;
pub use self::body::ResponseBody;
pub use self::completed::{BodyOutcome, CompletedRequest, RequestOutcome};
pub use self::denial::{Denial, MakeRejection, RejectionBody};
pub use self::future::ResponseFuture;
pub use self::headers::{Discord, Headers, Legacy, Reset, Scope};
pub use self::info::{MissingRateLimitInfo, RateLimitInfo};
pub use self::rejection::{Reason, Rejection};
pub use self::rule::{MissingKey, Rule};
pub use self::service::RateLimit;
