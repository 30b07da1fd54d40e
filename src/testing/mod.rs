//! A kit for tests of your own limits, without Redis (feature `test-util`).
//!
//! | to test | use |
//! |---|---|
//! | a policy over time | [`Clock::tokio`](crate::clock::Clock::tokio), which Tokio's paused time moves |
//! | the responses | [`assert_allowed!`](crate::assert_allowed), [`assert_limited!`](crate::assert_limited), [`assert_remaining!`](crate::assert_remaining), [`assert_unavailable!`](crate::assert_unavailable) |
//! | outages, and [`OnOutage`](crate::OnOutage) | [`ScriptedStore`], which fails when the test wants it to, and records what it was asked |
//! | rule files, and layers as a whole | [`replay`], which sends requests at their times |
//!
//! The guide `docs/guide/testing.md` has a test of each kind.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Policy, Quota, RateLimitLayer, assert_allowed, assert_limited, extract::Global};
//! use tollgate::testing::{TestRequest, replay};
//!
//! let limits = RateLimitLayer::builder().policy(Policy::new("all", Quota::per_minute(1)).key(Global));
//! let get = || TestRequest::get("/");
//! let replayed = replay(limits, [get(), get().after(Duration::from_secs(20)), get().after(Duration::from_secs(40))])?;
//! assert_allowed!(replayed[0]);
//! assert_limited!(replayed[1], "all", 40);
//! assert_allowed!(replayed[2]);
//! # Ok::<(), tollgate::Error>(())
//! ```

mod answer;
mod asked;
#[cfg(feature = "redis")]
mod breakers;
mod findings;
mod macros;
#[cfg(feature = "redis")]
mod outage;
mod pending;
mod replay;
mod replayed;
mod scripted;
mod test_request;

pub use self::asked::AskedCharge;
pub use self::findings::Checked;
#[doc(hidden)]
pub use self::findings::{ExpectedWait, Findings};
pub use self::pending::PendingDecision;
pub use self::replay::replay;
pub use self::replayed::{Count, Replay, Replayed};
pub use self::scripted::ScriptedStore;
pub use self::test_request::TestRequest;
