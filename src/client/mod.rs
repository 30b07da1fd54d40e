//! Calls that go out to APIs with rate limits.
//!
//! [`Observed`] reads what a response shows about the limits of the API that sent it. Needs the feature `client`.
//!
//! # Examples
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

mod observed;

pub use self::observed::{Observed, ObservedLimit, Refusal, ResetKind};
