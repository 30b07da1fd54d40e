//! The clock of a limiter.
//!
//! Programs do not need this module, because [`Clock::system`] is the default. With the feature `test-util`, a test creates
//! a [`Clock::manual`](Clock) and moves it with `advance` instead of waiting.

mod monotonic;
#[cfg(feature = "redis")]
mod offset;
mod system;
mod timestamp;

pub use self::system::Clock;
pub(crate) use self::system::Reading;
pub use self::timestamp::Timestamp;
pub(crate) use self::timestamp::{micros, whole_seconds};
