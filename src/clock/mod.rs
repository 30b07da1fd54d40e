//! The clock of a limiter.
//!
//! Programs do not need this module, because [`Clock::system`] is the default. With the feature `test-util`, tests move the
//! time instead of waiting:
//!
//! | clock | moved by | for |
//! |---|---|---|
//! | [`Clock::tokio`](Clock) | `tokio::time::advance`, and sleeps | tests under `#[tokio::test(start_paused = true)]` |
//! | [`Clock::manual`](Clock) | `advance` and `set` of the clock | tests without a runtime |
//!
//! # Paused Tokio time
//!
//! By default, `tokio::time::pause` and `advance` move no limit: quotas count by the time of the system. They do move the waits
//! in a queue and the timeouts of lookups, which are timers of Tokio. With [`Clock::tokio`](Clock), limits and timers move
//! together. Redis counts by the clock of its server, which no test moves.
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # {
//! use std::time::Duration;
//! use tollgate::{Policy, Quota, RateLimitLayer, clock::{Clock, Timestamp}, extract::Global};
//!
//! let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
//! let limit = RateLimitLayer::builder()
//!     .policy(Policy::new("all", Quota::per_minute(1)).key(Global))
//!     .clock(clock.clone())
//!     .build()?;
//! // the first request passes, and the second one gets 429
//! clock.advance(Duration::from_secs(60));
//! // the third one passes
//! # }
//! # Ok::<(), tollgate::Error>(())
//! ```

mod moment;
mod monotonic;
#[cfg(feature = "redis")]
mod offset;
#[cfg(feature = "test-util")]
mod runtime;
mod system;
mod timestamp;
mod wall;

pub(crate) use self::moment::Moment;
#[cfg(feature = "test-util")]
pub(crate) use self::runtime::START;
pub use self::system::Clock;
pub(crate) use self::system::Reading;
pub use self::timestamp::Timestamp;
pub(crate) use self::timestamp::{micros, time_until, whole_seconds};
