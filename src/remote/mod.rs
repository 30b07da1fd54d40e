//! Counts in Redis, for the whole fleet: each decision is one atomic step of a script.
//!
//! # Examples
//!
//! ```no_run
//! use std::time::Duration;
//! use tollgate::{RateLimitLayer, remote::RedisStore};
//!
//! # fn example() -> Result<(), tollgate::Error> {
//! // The usual way: everything at its default.
//! let builder = RateLimitLayer::builder().redis("redis://127.0.0.1/");
//!
//! // With settings of your own.
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
//! A decision waits for at most its deadline (default 50 ms), whatever breaks: dialling, the pool, the server, the network.
//! A busy runtime may look at a reply later, see [Runtime](#runtime).
//! Two connections are held permanently; a decision never checks one out of the pool, so it costs no PING. A decision that
//! finds nothing under way is sent at once, or after one turn of the runtime if others were just answered with the one
//! before. Others travel together, up to 64 charges in one script call, and several calls are in flight at a time, so a
//! long round trip limits no rate. There is no timer.
//!
//! # Overload
//!
//! More is not sent than the server answers in about a sixth of the deadline. A decision that would come too late is shed: it is
//! not sent, costs the server nothing, and fails at once with
//! [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). At most 16,384 decisions wait.
//!
//! # Distance
//!
//! A new connection takes two round trips, and three with a password. With the default deadline the first decisions of a
//! process are made by Redis if the round trip is at most about 10 ms. For a longer one raise the deadline: four round
//! trips at least.
//!
//! # Runtime
//!
//! A decision that is sent at once makes its call itself; the others, and dials, are carried by Tokio tasks on the
//! runtime of one of the callers. The runtime must be able to use sockets (`enable_io`), and needs no timers. A thread named
//! `tollgate-watch`, one per store, keeps the deadlines, so they hold while a runtime is busy, blocked or not driven. It
//! sleeps while there is nothing to watch. Runtimes may end while others go on with the same store.
//!
//! A reply that a busy runtime reads late is used up to twice the deadline: slowness of this process does not count against
//! Redis.
//!
//! # Accuracy
//!
//! Exact, whatever the number of instances: the script reads, decides and writes as one step by the server's clock.
//! A decision whose reply did not come is not asked again, since it may have been made: that can count one request too
//! many, and never admits one too many. One that found its connection closed was not sent, and goes over another.
//!
//! All charges of a decision are made, or none, even if the server refuses a command in the middle. Such a decision fails
//! alone: the others in the same call are made.
//!
//! # Memory
//!
//! One string per policy and key (a sorted set for concurrency), which expires about a second after the key is back at its
//! full quota. A token bucket
//! takes 151 bytes on Redis 7.0 and 91 on Valkey 9.1, for keys of 16 characters; the [guide](crate::algorithm::guide)
//! has the others.
//!
//! # What a clock step does
//!
//! Times come from the server. When its clock is set back, or a replica whose clock is behind takes over, keys in
//! debt wait that much longer; nobody gains. For clocks that differ between instances, see
//! [`RedisStoreBuilder::client_time`].
//!
//! # What a failover does
//!
//! Redis replicates asynchronously: what the new primary has not seen is forgotten. A server that evicts keys under
//! memory pressure forgets them too: give the limiter `maxmemory-policy noeviction`.

mod batch;
mod builder;
mod connection;
#[cfg(fuzzing)]
pub mod fuzzing;
mod node;
mod protocol;
mod slot_guard;
mod store;

pub use self::builder::RedisStoreBuilder;
pub use self::protocol::Script;
pub use self::store::RedisStore;
