//! Rate limit headers of responses.
//!
//! [`Headers`] chooses the families: `X-RateLimit-*` by default, the IETF drafts' `RateLimit`, Discord's, several or none.
//! No other module writes these headers. `client` reads the headers of other APIs.
//!
//! # Browsers and CORS
//!
//! Scripts of another origin can read none of these headers, `Retry-After` included, unless the CORS layer lists them in
//! `Access-Control-Expose-Headers`. Put that layer outside of the limit. Rejections then have CORS headers too, without which a
//! script sees a network error in place of the 429, and preflights are not counted:
//!
//! ```
//! use axum::{Router, http::HeaderValue, routing::get};
//! use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp, headers::Headers};
//! use tower::ServiceBuilder;
//! use tower_http::cors::CorsLayer;
//!
//! let headers = Headers::legacy().with(Headers::reason());
//! let cors = CorsLayer::new()
//!     .allow_origin(HeaderValue::from_static("https://app.example.com"))
//!     // retry-after, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, x-ratelimit-reason
//!     .expose_headers(headers.header_names());
//! let limit = RateLimitLayer::builder()
//!     .policy(Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp))
//!     .headers(headers)
//!     .build()?;
//! # #[cfg(feature = "axum")]
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(ServiceBuilder::new().layer(cors).layer(limit));
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! Clients of gRPC-Web also read `grpc-status`, `grpc-message` and `grpc-status-details-bin`.
//!
//! # Decisions in handlers
//!
//! A layer writes the headers of its own decisions, and the response made of a [`Rejection`](crate::rejection::Rejection) has its
//! own. A [`HeaderWriter`] writes the headers of a decision that a handler makes.
//!
//! # Files
//!
//! | file | role |
//! |---|---|
//! | `choice` | the families and their options |
//! | `pending` | numbers of an admitted request's headers, until its response is there |
//! | `families` | header names and values of each family |
//! | `writer` | the order in which headers are written |
//! | `merge` | headers that the inner service or an inner layer has set |
//! | `drafts`, `terms` | the drafts' lists of policies, and the quota and window of each policy |
//! | `numbers` | numbers as header values |
//! | `value_buffer` | text of the drafts' lists |

mod choice;
mod drafts;
mod families;
mod merge;
mod numbers;
mod pending;
mod terms;
mod value_buffer;
mod writer;

pub use self::choice::{
    DiscordHeaders, DiscordScope, Headers, LegacyHeaders, ResetFormat, ShownLimit,
};
pub(crate) use self::pending::PendingHeaders;
pub(crate) use self::terms::PolicyTerms;
pub use self::writer::HeaderWriter;
