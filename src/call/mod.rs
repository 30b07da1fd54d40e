//! The layer for Tower services that speak no HTTP.
//!
//! [`CallLimitLayer`] limits calls of any request type: jobs, messages, queries, commands of a protocol of your own. It
//! decides as [`RateLimitLayer`](crate::RateLimitLayer) does, with the same policies, stores and outage choices: all
//! policies of a call together. What HTTP settles by itself, closures say here:
//!
//! | question | answer |
//! |---|---|
//! | whom to count | [`Policy::key_of`](crate::Policy::key_of), a function of the request |
//! | what a denied call gets | the layer's closure, which takes the request and a [`Rejection`](crate::rejection::Rejection), and makes a response or an error of the service's own types |
//! | how the service learns the decision | [`on_admitted`](CallLimitLayerBuilder::on_admitted) |
//! | what it really cost | what was charged, or what [`settle`](CallLimitLayerBuilder::settle) returns when it has ended |
//! | how long slots are held | until the response is there, or as long as [`hold_with`](CallLimitLayerBuilder::hold_with) keeps them |
//!
//! # What it promises
//!
//! - A denied call never reaches the inner service, and what that had reserved for it is given back.
//! - The service that was polled ready is the one that is called; after a wait in a queue, one that is polled ready then.
//! - Errors of the inner service pass unchanged; the error type may be anything, also neither `Send` nor an `Error`.
//! - A call that waits in a queue starts at its turn; dropped before, it gives its turn back.
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
mod completed;
mod layer;
mod rule;
mod service;
mod settle;

pub use self::builder::CallLimitLayerBuilder;
pub use self::completed::{CallOutcome, CompletedCall};
pub use self::layer::CallLimitLayer;
pub use self::rule::CallRule;
pub use self::service::{CallFuture, CallLimit};
