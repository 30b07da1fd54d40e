//! Overload: when requests are shed, and whose.
//!
//! Rate limits protect a service from one client. An [`Overload`] protects it from all of them together: while more requests come than
//! the service can serve in time, it sheds those that matter least, so that the others are served as if there was no overload. It
//! needs no number: it follows the times of the responses, and how many there are.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, overload::{Overload, Priority}};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let overload = Overload::adaptive().build()?;
//!
//! // For each request, before anything is done for it:
//! let place = overload.enter(Priority::Critical, Some(&Key::new("ada")))?;
//! // .. the handler ..
//! place.answered();
//! # Ok(())
//! # }
//! ```
//!
//! # When is a request shed?
//!
//! An `Overload` counts the requests in flight: from [`enter`](Overload::enter) until the head of the response. How many there may be
//! changes with each window of 0.1 to 1 s:
//!
//! | the window | the limit |
//! |---|---|
//! | there was room at some time | stays, and up to four times as many may be in flight: bursts are not shed |
//! | there was no room, and responses came as quickly as ever | rises by a fifth |
//! | there was no room, and four of five responses took half as long again | overload: the limit is kept, and looked for |
//!
//! In overload the limit swings by a fifth around its value, and falls as long as fewer requests in flight are served as fast. So a
//! service whose requests differ (most take a millisecond, some take seconds) is not throttled because of the slow ones. Overload ends
//! when less than 5 % is shed.
//!
//! A client that hangs up early is not counted. One that has waited longer than the quickest fifth of responses counts as lost, and if
//! more are lost than served, the limit falls by a third.
//!
//! # Whose requests are shed?
//!
//! - **By class.** The lowest class gets places up to the limit, and each class above it a quarter of the limit more, at least 6
//!   places. So [`Priority::Critical`] is served as long as it alone fits.
//! - **By key, within a class.** A key gets a place while it has fewer than four times the free ones. A key that tries more often than
//!   the fair rate of its class is filtered before that, so nine requests in ten from one tenant do not take the places of the
//!   others. Keys are counted by their hash in 64 KiB of counters, however many there are.
//!
//! There is no queue: a request that waits is served too late for somebody. The client's own retry is the queue.
//!
//! # What it does not see
//!
//! Work that was accepted before requests come here, in the run queue of the executor. A handler that computes for long without an
//! `await` delays the requests behind it before they are counted.

mod adaptive;
mod controller;
mod overload;
mod priority;
mod shares;
mod times;

pub use self::overload::{InFlight, Overload, OverloadBuilder, Shed};
pub use self::priority::Priority;
