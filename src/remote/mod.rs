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
//!     .connections(4)
//!     .deadline(Duration::from_millis(20));
//! let builder = RateLimitLayer::builder().redis(store);
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//!
//! A decision waits at most its deadline (default 50 ms), whatever breaks: dialling, the pool, the server, the network.
//! A few connections are held for good; a decision never checks one out of the pool, so it costs no PING. What arrives
//! while a call is under way goes in the next one, up to 64 charges in one script call: no timer, and no delay when the
//! connection is idle. At most 16,384 decisions wait; beyond that they fail at once.
//!
//! While every connection is busy, a decision waits for a reply before it is sent: up to two round trips in all. The
//! breaker takes an answer later than half the deadline for a bad one, so keep the deadline above four round trips: the
//! default suits networks up to about 10 ms.
//!
//! # Runtime
//!
//! A decision that finds a connection idle makes its call itself; the others, and dials, are carried by Tokio tasks on the
//! runtime of a decision that found them missing. So runtimes must be driven, and answers polled: a caller who stops
//! polling keeps a connection from the others for a deadline, a runtime that nobody drives for a few seconds. Runtimes
//! may end while others go on with the same store.
//!
//! # Accuracy
//!
//! Exact, whatever the number of instances: the script reads, decides and writes as one step by the server's clock.
//! A decision whose reply did not come is not asked again, since it may have been made: that can count a request too
//! many, and never admits one too many. One that found its connection closed was not sent, and goes over another.
//!
//! # Memory
//!
//! One short string per policy and key, which expires about a second after nothing is owed any more. A token bucket
//! takes 151 bytes on Redis 7.0 and 91 on Valkey 9.1, for keys of 16 characters; the [guide](crate::algorithm::guide)
//! has the others.
//!
//! # What a clock step does
//!
//! Times come from the server. When its clock is set back, or a replica whose clock is behind takes over, keys in
//! debt wait that much longer; nobody gains. What clocks that differ between instances do with
//! [`RedisStoreBuilder::client_time`] is said there.
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
