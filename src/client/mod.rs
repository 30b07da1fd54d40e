//! Calls that go out to APIs with rate limits.
//!
//! [`OutgoingLayer`] wraps an HTTP client. Each call waits for its turn under your policies, so that the API has no reason to
//! refuse it. If the API refuses a call, the call's keys are paused for all tasks and instances, for the time in the response and at
//! most 10 minutes by default. While Redis is down, each process heeds its own pauses. Calls that may be repeated are retried,
//! within a budget. Needs the feature `client`.
//!
//! ```
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use hyper_util::{client::legacy::{Client, Error}, rt::TokioExecutor};
//! use tollgate::{Policy, Quota, RateLimiter};
//! use tollgate::{client::{CallFailure, OutgoingLayer}, extract::HostHeader};
//! use tower::ServiceBuilder;
//!
//! let limiter = RateLimiter::builder().build()?; // .redis("redis://127.0.0.1/") for all instances
//! let outgoing = OutgoingLayer::builder(&limiter)
//!     .policy(Policy::new("rate", Quota::per_second(50).burst(5)).outgoing_key(HostHeader))
//!     .policy(Policy::concurrency("parallel", 20).outgoing_key(HostHeader))
//!     .classify_errors(|error: &Error| match error.is_connect() {
//!         true => CallFailure::NotSent,
//!         false => CallFailure::Transient,
//!     })
//!     .build()?;
//! let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
//! let client = ServiceBuilder::new().layer(outgoing).service(client);
//! # let _ = client;
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! # Guarantees
//!
//! - A call that gets no turn never reaches the client, and fails with [`OutgoingError::Limited`].
//! - The layer is always ready. The client is polled ready after the turn, so that calls in the line reserve nothing there.
//! - Errors of the client pass unchanged. So does the last response: a refusal that is not retried is returned.
//! - A request is sent again only if its body can be copied, and only after a failure that permits it: see [`CallFailure`].
//! - Slots of concurrency policies are held until the body of the response has ended or is dropped.
//! - In process and per key, `n` calls cause at most `n / 10 + 10` retries by default.
//!
//! # Limits in responses
//!
//! [`Observed`] reads what a response shows about the limits of the API that sent it. The layer obeys it, and other code can use
//! it as well.
//!
//! ```
//! use std::time::Duration;
//! use http::Response;
//! use tollgate::client::{Observed, Refusal};
//!
//! let response = Response::builder()
//!     .status(429)
//!     .header("x-ratelimit-limit-requests", "60")
//!     .header("x-ratelimit-remaining-requests", "0")
//!     .header("x-ratelimit-reset-requests", "6m0s")
//!     .header("retry-after-ms", "2500")
//!     .body(())?;
//! let observed = Observed::from(&response);
//! assert_eq!(observed.refusal(), Some(Refusal::Limited));
//! assert_eq!(observed.retry_after(), Some(Duration::from_millis(2_500)));
//!
//! let requests = &observed.limits()[0];
//! assert_eq!(requests.name(), Some("requests"));
//! assert_eq!((requests.limit(), requests.remaining()), (Some(60), Some(0)));
//! // 60 requests are back after 6 minutes, so one is back after 6 seconds.
//! assert_eq!(requests.next_unit(), Some(Duration::from_secs(6)));
//! # Ok::<(), http::Error>(())
//! ```
//!
//! For a gRPC call, read the trailers once the body has ended:
//!
//! ```
//! use http::{HeaderMap, HeaderValue, StatusCode};
//! use tollgate::client::{Observed, Refusal};
//!
//! let mut trailers = HeaderMap::new();
//! trailers.insert("grpc-status", HeaderValue::from_static("14"));
//! trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("-1"));
//! let observed = Observed::from_parts(StatusCode::OK, &trailers);
//! assert_eq!(observed.refusal(), Some(Refusal::Overloaded));
//! assert!(observed.must_not_retry());
//! ```
//!
//! `docs/outgoing.md` lists the APIs and headers that are read, and the rules for contradictions.

mod adaptive;
mod body;
mod budget;
mod builder;
mod by_type;
mod call;
mod charges;
mod current;
mod error;
mod future;
mod info;
mod layer;
mod observed;
mod rates;
mod reaction;
mod records;
mod request;
mod retry;
mod rule;
mod sent;
mod service;
pub(crate) mod shared;
mod subject;

pub use self::adaptive::Adaptive;
pub use self::body::OutgoingBody;
pub use self::builder::OutgoingLayerBuilder;
pub use self::error::{LimitedCall, OutgoingError};
pub use self::future::OutgoingFuture;
pub use self::info::OutgoingInfo;
pub use self::layer::OutgoingLayer;
pub use self::observed::{Observed, ObservedLimit, Refusal, ResetKind};
pub use self::retry::CallFailure;
pub use self::rule::OutgoingRule;
pub use self::service::Outgoing;
