//! The Tower layer for HTTP services.
//!
//! [`RateLimitLayer`](crate::RateLimitLayer) wraps any service of HTTP requests, with any body. For each request it finds
//! the keys of its rules, decides on all policies together, and either calls the inner service or responds on its own.
//!
//! # Guarantees
//!
//! - A denied request never reaches the inner service, and what the service reserved for it in `poll_ready` is released.
//! - The layer calls the service that was polled ready. After a wait in a queue, it polls the service again.
//! - Errors of the inner service pass unchanged, so a `Router` accepts the layer.
//! - All clones share one count, on any number of routes.
//! - In process, a decision about one policy neither awaits nor allocates; several policies take one allocation. The
//!   decision in the request's extensions takes another one.
//!
//! # Which requests are limited
//!
//! A request that matches [`forbid`](crate::builder::RateLimitLayerBuilder::forbid) gets 403 and is not charged. One that
//! matches [`skip`](crate::builder::RateLimitLayerBuilder::skip) passes without being counted. Each rule then counts the
//! others if its [conditions](crate::rules::Rule::when) match. See [`matching`](crate::matching).
//!
//! # Which status
//!
//! All rules look at the request before the layer responds, and the first row that applies decides. For the last four
//! rows, the first such rule decides:
//!
//! | request or caller | status | charged |
//! |---|---|---|
//! | forbidden by the layer or by its tier | 403 | nothing; after a lookup, the policies decided first |
//! | over a limit of any policy with a key | 429 | nothing, except policies that count denied requests |
//! | no decision is available | 503 | nothing, unless the reply got lost |
//! | a policy's key is ambiguous | 400 | the other policies |
//! | a policy needs the [body](crate::extract::BodyFault), which cannot be read | 413, 408, 400 or 500 | the policies decided first |
//! | a policy's key is absent, and its rule rejects | by the extractor: 401, 400, 404 or 500 | the other policies |
//! | a policy's key lookup failed, and its rule rejects | 503 | the other policies |
//! | the body that a policy needs is too large, too slow or malformed | 413, 408 or 400 | the other policies |
//!
//! For example, a client that omits its credentials still uses its quota by address: with five a minute it gets 401 five
//! times, then 429. The response settles the other policies and releases their slots.
//!
//! # Keys and tiers that are looked up
//!
//! Policies without a [lookup](crate::Policy::key_async) of a key or [tier](crate::tiers) are decided first, in one call of
//! the store. A request that one of them denies, or that has no key under one of them, causes no lookup. Then all lookups
//! run concurrently, and the other policies are decided in a second call. Handlers, headers and responses see one decision,
//! with the states of all policies in the order of the rules.
//!
//! - If the second call denies, the charges of the first one are refunded, except for policies that
//!   [count denied requests](crate::Policy::count_denied). Until then other requests on these keys may be denied.
//! - If a lookup finds no key or an ambiguous one, or fails, and the rule rejects, the charges of the first call are
//!   kept. The same applies to a forbidden tier, and to a client that disconnects during the lookups: each has caused a
//!   lookup.
//! - A [body](crate::extract::KeyExtractor::body_limits) that a key or a cost needs is read at the same time. It has a time of its own,
//!   5 s by default, in place of the [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout).
//! - Slots of the first call are held during the lookups. A request waits in a queue after them.
//! - A body that a key or a cost needs is read at the same time as the lookups, within limits of its own.
//!
//! Without lookups, all policies are decided in one call.
//!
//! To limit lookups by address, put a policy by address beside the one that looks up, and let it
//! [count denied requests](crate::Policy::count_denied): each lookup then costs the address a unit, even if the second call
//! denies. Without `count_denied`, a client with an exhausted looked-up quota causes a lookup with each request. In both
//! cases a client that disconnects while it waits in a queue is refunded, so its lookup was free. To prevent that, use no
//! queue on the layer that looks up, or put the policy by address on an [outer layer](#one-layer-inside-another).
//!
//! # What handlers see
//!
//! [`RateLimitInfo`] holds the decisions, and with axum is an extractor. The innermost layer's
//! [`Decision`](crate::Decision) is also in the extensions of requests that a rule counts. Do not extract it with axum's
//! `Extension<Decision>`, which responds to all others with 500 and the name of the type. Responses to rejected requests have
//! a [`Rejection`](crate::rejection::Rejection) in their extensions, for outer layers.
//!
//! More extractors:
//!
//! | extractor | for handlers that | there if a layer around has |
//! |---|---|---|
//! | [`ActualCost`] | know the cost of the request | a rule that [settles](crate::rules::Rule::settle) |
//! | [`RateLimiter`](crate::RateLimiter) | [decide](crate::RateLimiter::enforce) on more than the rules | [`share_limiter`](crate::builder::RateLimitLayerBuilder::share_limiter) |
//! | [`RequestHold`] | keep the slot of the request for a WebSocket | a [concurrency](crate::Policy::concurrency) policy |
//!
//! # Headers
//!
//! [`Headers`](crate::headers::Headers) chooses them: `X-RateLimit-*` by default, `RateLimit` of the IETF drafts, Discord's,
//! several or none. The limit is the number of units that can be taken at once, for a bucket its burst, unless
//! [`limit`](crate::headers::Headers::limit) chooses the units of its period. `Retry-After` is
//! whole seconds, rounded up, at least 1, and longer at random with a
//! [jitter](crate::builder::RateLimitLayerBuilder::retry_after_jitter). Headers of the inner service
//! [stay](crate::headers::Headers#beside-headers-that-are-there-already). Headers are omitted if no count is available.
//!
//! # Responses to rejected requests
//!
//! [`RejectionFormat`](crate::rejection::RejectionFormat) makes them: JSON by default, problem+json, text, by the request's
//! `Accept`, or by a closure. The status is 429 over a limit, 503 if no decision is available, and the extractor's choice
//! for a missing key. A 401 has the extractor's [challenge](crate::extract::KeyExtractor::challenge) in
//! `WWW-Authenticate`. With the feature `grpc`, gRPC clients get a gRPC status. Each response has
//! `Cache-Control: no-store`, unless it sets `Cache-Control` itself.
//!
//! # The real cost of a request
//!
//! [`Rule::settle`](crate::rules::Rule::settle) refunds or charges the difference when a request has ended: its closure
//! receives a [`CompletedRequest`](crate::rules::CompletedRequest).
//! [`settle_by_handler`](crate::rules::Rule::settle_by_handler) needs no closure: handlers set the [`ActualCost`]. Clients
//! that disconnect are charged unless the closure returns 0 for them.
//!
//! # One layer inside another
//!
//! Each layer decides on its own: the outer one has charged a request that the inner one denies. [`RateLimitInfo`] and the
//! lists of draft 11 contain the policies of all layers; limit, remaining and reset describe the narrowest policy. Put
//! policies that belong together on one layer. Two layers that charge a request under the same policy name are reported as
//! [`Code::ChargedTwice`].
//!
//! A request waits for a store no longer than one deadline, however many layers on one
//! [limiter](crate::builder::RateLimitLayerBuilder::limiter) it passes. The waits for lookups are not part of it. A layer that
//! finds less than half of the deadline left does not ask the store: each policy applies its [`OnOutage`](crate::OnOutage)
//! setting. So the round trips of all layers should take less than half of the deadline, for example two of 10 ms with the
//! default of 50 ms. Layers with limiters of their own have a deadline each, and so have calls of a
//! [`CallLimitLayer`](crate::call::CallLimitLayer).
//!
//! [`Code::ChargedTwice`]: crate::diagnosis::Code::ChargedTwice
//!
//! # Among other layers
//!
//! All layers of tower-http, tower and axum can stand outside or inside of the limit, also in one `ServiceBuilder`.
//!
//! - **The inner service must be `Clone`**, like the services of axum and tonic. While a request waits for its
//!   decision, it keeps the service that was polled ready, and a clone takes its place. Put a `BufferLayer` between the
//!   limit and a service that is not `Clone`, such as `BoxService` or tower's own `RateLimit`.
//! - **The response body is a [`ResponseBody`]** around the inner one, so a function of a layer outside takes
//!   `Response<ResponseBody<_>>`. With axum, [`boxed_body`](crate::RateLimitLayer::boxed_body) makes it axum's `Body`.
//! - **An optional limit** needs that: `option_layer(limit.map(RateLimitLayer::boxed_body))`. Where the limit may be switched
//!   while the service runs, use [`RuleMode::Off`](crate::rules::RuleMode::Off) instead.
//! - **Boxed**, the layer fits `BoxLayer`, `BoxCloneServiceLayer` and `BoxCloneSyncServiceLayer`. A struct field needs no box,
//!   since the layer has no type parameters.
//! - **A layer that limits the service of a tonic server** keeps its name with tonic's `LayerExt`: `limit.named_layer(service)`.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # fn example(app: axum::Router, limit: Option<tollgate::RateLimitLayer>) -> axum::Router {
//! use tollgate::RateLimitLayer;
//! use tower::util::option_layer;
//!
//! app.layer(option_layer(limit.map(RateLimitLayer::boxed_body)))
//! # }
//! ```
//!
//! [Behind CORS](crate::headers#browsers-and-cors) shows what browsers need. In tests, Tokio's paused time
//! [moves no limit](crate::clock#paused-tokio-time).
//!
//! # Examples
//!
//! Two policies, decided together, and a custom response:
//!
//! ```
//! use http::{Response, StatusCode};
//! use tollgate::{Policy, Quota, RateLimitLayer, extract::{Global, PeerIp}, rejection::Rejection};
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

pub(crate) mod actual_cost;
pub(crate) mod admission;
mod body;
#[cfg(feature = "body")]
mod body_read;
#[cfg(feature = "axum")]
mod boxed_body;
mod clone_service;
pub(crate) mod current_rules;
#[cfg(feature = "axum")]
mod extractors;
mod first_decision;
pub(crate) mod future;
pub(crate) mod gate;
pub(crate) mod handles;
pub(crate) mod held;
mod info;
pub(crate) mod layer;
mod missing;
#[cfg(not(feature = "body"))]
mod no_body_read;
mod request_hold;
mod resolve;
pub(crate) mod respond;
mod service;
mod settle;
mod waits;
mod with_lookups;

pub use self::actual_cost::ActualCost;
pub use self::body::ResponseBody;
#[cfg(feature = "axum")]
pub use self::boxed_body::{BoxedBody, BoxedBodyFuture, BoxedBodyLayer};
pub use self::clone_service::CloneService;
pub use self::info::RateLimitInfo;
pub use self::missing::{
    MissingActualCost, MissingRateLimitInfo, MissingRateLimiter, MissingRequestHold,
};
pub use self::request_hold::RequestHold;
pub use self::service::{RateLimit, ResponseFuture};
