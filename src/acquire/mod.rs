//! Waiting for a turn: callers that would rather wait than be denied, such as workers that call somebody's API.
//!
//! [`RateLimiter::acquire`](crate::RateLimiter::acquire) waits until all charges of a caller are made, all or nothing, under
//! policies of every algorithm. Callers get their turns in the order in which they came, over all instances that share a
//! Redis store. A caller that leaves gives its place back.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Key, Policy, Quota, RateLimiter, acquire::Priority};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rate = Policy::new("partner-api", Quota::per_second(100).burst(1));
//! let parallel = Policy::concurrency("partner-api-parallel", 20);
//! let limiter = RateLimiter::builder().policy(rate.clone()).policy(parallel.clone()).build()?;
//!
//! let key = Key::new("our-credential");
//! let permit = limiter
//!     .acquire(&[rate.charge(key), parallel.charge(key)])
//!     .max_wait(Duration::from_secs(5))
//!     .priority(Priority::High)
//!     .await?;
//! // ... the call. Its slot is free again when the permit is dropped.
//! drop(permit);
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! - Callers of one [`Priority`] go first come, first served. Callers of several instances that came within 10 ms of each other
//!   are in no order.
//! - A higher priority goes first. While it takes all units, a lower one gets one unit in eleven.
//! - A caller that needs several keys waits in the line of the key that is free last. If another key denies it when its turn
//!   comes, it keeps its place there.
//! - Callers that wait for more units than others are not overtaken by those.
//!
//! # In one instance, and over a fleet
//!
//! Callers that wait for the same charges form one queue per instance. A store in Redis has one entry per queue, and grants units
//! up to 10 ms before they can be used, or two round trips and 2 ms if that is more, but at most 50 ms. So a bucket without a
//! burst loses no time between two calls, and one call to Redis can fetch several turns.
//!
//! Each set of charges is a queue of its own, such as one key for all and one for each user. Of the queues of an instance that wait
//! for one key, only 2 to 16 ask the store at a time: those whose callers came first.
//!
//! A slot that is released goes to the caller that waits longest. If that one waits in another instance, a message over Redis wakes
//! it, on one more connection. Where Redis forbids messages, and for connections of a pool, it asks now and then.
//!
//! | event | effect |
//! |---|---|
//! | a caller leaves | its place goes to the next one; a unit that was granted to it is refunded |
//! | a process is killed | its place blocks others until it is due, and 20 ms more; its slots come back with their lease |
//! | Redis is down | each instance goes on by the policy's [`OnOutage`](crate::OnOutage) setting, in its own order. A burst that is smaller than the number of instances is granted by as many of them as it has units |
//! | Redis replies too late | the caller waits and asks again; until the outage is certain, nobody decides without Redis |
//! | keys in several slots of a cluster, or a custom store without lines | callers wait in the order of their instance |
//!
//! A caller that does not poll its future still gets its turn, and holds the slots from then on. Await the future in the task that
//! does the work.
//!
//! Policies that are [leased](crate::Consistency::Leased) are asked strictly. A [penalty](crate::policy) and
//! [counted denials](crate::Policy::count_denied) do not count callers that wait. A leaky queue is asked without its queue: its requests
//! have turns of their own, which the [layer](crate::algorithm::QueueLimits) keeps in order.

mod acquire;
mod begin;
mod error;
mod gates;
mod line;
mod lines;
mod pauses;
mod permit;
mod recorded;
mod server_clock;
mod task;

pub use self::acquire::Acquire;
pub(crate) use self::begin::MaxWait;
pub use self::error::{AcquireError, AcquireErrorKind};
#[cfg(feature = "explain")]
pub(crate) use self::lines::KeyWait;
pub(crate) use self::lines::Lines;
pub use self::permit::Permit;
pub use crate::charge::Priority;
