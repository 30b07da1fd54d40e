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
//! In this order: a request that [`forbid`](crate::builder::RateLimitLayerBuilder::forbid) matches gets 403 and is charged
//! nothing; one that [`skip`](crate::builder::RateLimitLayerBuilder::skip) matches passes without being counted; the others
//! are counted by each rule that [counts](crate::rules::Rule::when) them. See [`matching`](crate::matching).
//!
//! # Which status
//!
//! All rules look at the request before it is answered, and the first row that applies decides; of the last three rows, the
//! first rule that has one:
//!
//! | the request, or its caller | status | charged |
//! |---|---|---|
//! | on a deny list, or of a forbidden tier | 403 | nothing |
//! | over a limit, of any policy that has a key | 429 | nothing |
//! | nobody could decide | 503 | nothing |
//! | the key of a policy is ambiguous | 400 | the other policies |
//! | the key of a policy is absent, and its rule rejects | by the extractor: 401, 400, 404 or 500 | the other policies |
//! | the key of a policy could not be looked up, and its rule rejects | 503 | the other policies |
//!
//! So a client that leaves its credentials out spends its quota by address: at five a minute it gets five answers of 401,
//! and then 429. The other policies are settled by that response, and slots of theirs are free again at once.
//!
//! # Keys and tiers that are looked up
//!
//! The policies that need no [lookup](crate::Policy::key_async), of a key or a [tier](crate::tiers), are decided first, in
//! one call of the store. A request that one of them denies, or that has no key under one of them, causes no lookup. Then
//! all lookups run at the same time, and the other policies are decided in a second call. Handlers, headers and responses see one
//! decision, with the states of all policies in the order of the rules.
//!
//! - If the second call denies, what the first one charged is given back, but for policies that
//!   [count denied requests](crate::Policy::count_denied). Until then, which is as long as lookups and the second call take,
//!   others see it charged and may be denied for it.
//! - If a lookup finds no key, or an ambiguous one, or fails, and the rule rejects, what the first call charged stands. So it
//!   does when the looked-up tier is forbidden, and when the client goes away meanwhile: each has caused a lookup.
//! - Slots that the first call took are held during the lookups, and a queue's turn is waited for after them.
//!
//! Without a lookup all policies are decided in one call.
//!
//! Put a policy by address beside one that looks up, and let it [count denied requests](crate::Policy::count_denied): each
//! lookup then costs the address a unit, also when the second call denies. Without `count_denied` such a denial is given back
//! to the address, so a client whose looked-up quota is used up causes a lookup with every request. In both cases a client
//! that hangs up while it waits in a queue gets its charges back, and its lookup was free. Where that matters, set no queue on
//! the layer that looks up, or put the policy by address on a [layer outside of it](#one-layer-inside-another), whose
//! charge stands in both cases.
//!
//! # What handlers see
//!
//! [`RateLimitInfo`] tells what was decided; with axum it is an extractor. The innermost layer's
//! [`Decision`](crate::Decision) is in the request's extensions too. A [`Rejection`](crate::rejection::Rejection) is in the extensions of the response
//! that was made from it, where outer layers see it.
//!
//! # Headers
//!
//! [`Headers`](crate::headers::Headers) says which: `X-RateLimit-*` by default, the drafts' `RateLimit`, Discord's, several at once, or none. The
//! limit is what can be taken at once, so for a bucket its burst. `Retry-After` is whole seconds, rounded up, at least 1.
//! What the inner service has set itself [stays](crate::headers::Headers#beside-headers-that-are-there-already). When nobody could count, no
//! number is made up.
//!
//! # Answers
//!
//! A [`RejectionFormat`](crate::rejection::RejectionFormat) is JSON by default, or problem+json, text, what the request accepts, or made by a closure. The status is
//! 429 over a limit, 503 when nobody could decide, and the extractor's choice when a key is missing; with a 401 comes the
//! extractor's [challenge](crate::extract::KeyExtractor::challenge) as `WWW-Authenticate`. With the feature `grpc`, gRPC
//! clients get a status that they can read.
//!
//! Each of them carries `Cache-Control: no-store`, unless it sets `Cache-Control` itself.
//!
//! # What it costs in the end
//!
//! [`Rule::settle`](crate::rules::Rule::settle) refunds or charges the difference once a request has ended: a [`CompletedRequest`](crate::rules::CompletedRequest) holds how. A client
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
mod first_decision;
pub(crate) mod future;
mod info;
pub(crate) mod layer;
mod resolve;
mod service;
mod settle;
mod with_lookups;

pub use self::actual_cost::ActualCost;
pub use self::body::ResponseBody;
pub use self::info::{MissingRateLimitInfo, RateLimitInfo};
pub use self::service::{RateLimit, ResponseFuture};
