//! The Tower layer for services that are not HTTP.
//!
//! [`CallLimitLayer`] limits calls with any request type: jobs, messages, queries, commands of a custom protocol. It
//! decides like [`RateLimitLayer`](crate::RateLimitLayer), with the same policies, stores and outage choices, on all
//! policies of a call together. Closures define what HTTP defines for the other layer:
//!
//! | question | answer |
//! |---|---|
//! | key of a call | [`Policy::key_of`](crate::Policy::key_of), a function of the request |
//! | outcome of a rejected call | the layer's closure: it takes the request and a [`Rejection`](crate::rejection::Rejection), and returns a response or an error of the service's own types |
//! | access to the decision | [`on_admitted`](CallLimitLayerBuilder::on_admitted) |
//! | real cost | the charge, or the result of [`settle`](CallLimitLayerBuilder::settle) |
//! | time that slots are held | until the response is ready, or until the [`Hold`](crate::Hold) of [`hold_with`](CallLimitLayerBuilder::hold_with) is dropped |
//!
//! # Guarantees
//!
//! - A denied call never reaches the inner service, and what the service reserved for it in `poll_ready` is released.
//! - The layer calls the service that was polled ready. After a wait in a queue, it polls the service again.
//! - Errors of the inner service pass unchanged. The error type can be any type, `Send` or not.
//! - A call in a queue starts at its time. If it is dropped before, those behind it move up.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, Policy, Quota, RateLimiter, call::CallLimitLayer, rejection::Rejection};
//! use tower::{ServiceBuilder, service_fn};
//!
//! struct Job { tenant: u64, pages: u64 }
//! #[derive(Debug)]
//! struct Busy { retry_after: Option<u64> }
//!
//! let limiter = RateLimiter::builder().build()?;
//! let deny = |_: Job, rejection: &Rejection| {
//!     Err::<u64, _>(Busy { retry_after: rejection.retry_after_secs() })
//! };
//! let layer = CallLimitLayer::builder(&limiter, deny)
//!     .policy(
//!         Policy::new("pages", Quota::per_minute(1_000))
//!             .key_of(|job: &Job| Some(Key::from(job.tenant)))
//!             .cost_by(|job| job.pages),
//!     )
//!     .policy(Policy::concurrency("printers", 4).key_of(|_| Some(Key::GLOBAL)))
//!     .build()?;
//! let print = ServiceBuilder::new()
//!     .layer(layer)
//!     .service(service_fn(|job: Job| async move { Ok::<u64, Busy>(job.pages) }));
//! # let _ = print;
//! # Ok::<(), tollgate::Error>(())
//! ```

mod admission;
mod builder;
mod layer;
mod rule;
mod service;
mod settle;

pub use self::builder::CallLimitLayerBuilder;
pub use self::layer::CallLimitLayer;
pub use self::rule::CallRule;
pub use self::service::{CallFuture, CallLimit};
pub use self::settle::{CallOutcome, CompletedCall};
