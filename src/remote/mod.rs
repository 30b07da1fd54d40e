//! Counts in Redis, for the whole fleet: each decision is one atomic step of a script.
//!
//! # Examples
//!
//! ```no_run
//! use std::time::Duration;
//! use tollgate::{RateLimitLayer, remote::RedisStore};
//!
//! # fn example() -> Result<(), tollgate::Error> {
//! // With all defaults.
//! let builder = RateLimitLayer::builder().redis("redis://127.0.0.1/");
//!
//! // With custom settings.
//! let store = RedisStore::builder("redis://127.0.0.1/")
//!     .prefix("shop")
//!     .deadline(Duration::from_millis(20));
//! let builder = RateLimitLayer::builder().redis(store);
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//!
//! A decision waits until its deadline at most (default 50 ms), whatever breaks: the dial, the pool, the server, the
//! network. On a busy runtime it may end later, see [Runtime](#runtime).
//!
//! Two connections are held permanently. A decision never checks one out of the pool, so it costs no PING. If nothing
//! is under way it is sent at once. Others are sent together, up to 64 charges in one script call. Several calls are in
//! flight at a time, so a long round trip does not limit the throughput. No decision waits for a timer.
//!
//! # Overload
//!
//! The store never sends more than the server decides in about a sixth of the deadline. A decision that would come too
//! late is shed: it is not sent, costs the server nothing, and fails at once with
//! [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). At most 16,384 decisions wait.
//!
//! # Distance
//!
//! A new connection takes two round trips, and three with a password. With the default deadline, the first decisions of
//! a process are made by Redis if the round trip is at most about 10 ms. For a longer one raise the deadline to four
//! round trips or more.
//!
//! # Runtime
//!
//! A decision that is sent at once makes its call itself. Other calls, and dials, are Tokio tasks on the runtime of one
//! of the callers. The runtime must be able to use sockets (`enable_io`) and needs no timers. A thread named
//! `tollgate-watch`, one per store, keeps the deadlines, so they hold while a runtime is busy, blocked or not driven.
//! It sleeps while nothing is under way. Runtimes may end while others go on with the same store.
//!
//! If a busy runtime reads a reply late, the store uses it up to twice the deadline: a slow client does not count as a
//! failure of Redis.
//!
//! # Accuracy
//!
//! Exact, whatever the number of instances: the script reads, decides and writes as one step, by the server's clock.
//! A decision without a reply is not sent again, since it may have been made. That can count one request too many, and
//! never admits one too many. A decision that was not sent, since its connection was closed, goes over another one.
//!
//! A decision makes all its charges or none, even if the server refuses a command in the middle. Such a decision fails
//! alone: the others in the same call are made.
//!
//! # Memory
//!
//! One string per policy and key (a sorted set for concurrency). It expires about a second after the key is back at its
//! full quota. A token bucket takes 151 bytes on Redis 7.0 and 91 on Valkey 9.1, for keys of 16 characters. The
//! [guide](crate::algorithm::guide) has the other algorithms.
//!
//! # Clock steps
//!
//! Times come from the server. If its clock is set back, or if a replica with a slower clock takes over, keys in debt
//! wait that much longer, and nobody gains quota. For clocks that differ between instances, see
//! [`RedisStoreBuilder::client_time`].
//!
//! # Failovers
//!
//! Redis replicates asynchronously, so a new primary may lack the latest charges. A server that evicts keys under
//! memory pressure loses counts too: give the limiter one with `maxmemory-policy noeviction`.

mod batch;
mod builder;
mod client;
mod connection;
#[cfg(fuzzing)]
pub mod fuzzing;
mod protocol;
mod slot_guard;
mod store;

pub use self::builder::RedisStoreBuilder;
pub use self::protocol::Script;
pub use self::store::RedisStore;
