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
//! Two connections are held permanently. A decision never checks one out of a pool, so it costs no PING. If nothing
//! is under way it is sent at once. Others are sent together, up to 64 charges in one script call. Several calls are in
//! flight at a time, so a long round trip does not limit the throughput. No decision waits for a timer.
//!
//! # Overload
//!
//! The store has at most as many charges in flight as the server decides in about a sixth of the deadline. A decision
//! that would come too late is shed: it is not sent, costs the server nothing, and fails at once with
//! [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). At most 16,384 decisions wait.
//!
//! # Distance
//!
//! A new connection takes two round trips, one or two more by TLS, and three more behind Sentinel. With the default
//! deadline and without TLS, the first decisions of a process are made by Redis if the round trip is at most about 10 ms.
//! For a longer one raise the deadline to four round trips or more.
//!
//! # Runtime
//!
//! A decision that is sent at once makes its call itself. Other calls, and dials, are Tokio tasks on the runtime of one
//! of the callers. The runtime should be able to use sockets (`enable_io`) and needs no timers. Without sockets, Tokio
//! reports a panic per dial, and the connection is made on a thread of tollgate. A thread named `tollgate-watch`, one per
//! store, keeps the deadlines, so they hold while a runtime is busy, blocked or not driven.
//! It sleeps while nothing is under way.
//!
//! Runtimes may end while others go on with the same store. The connections that they made, and the calls that they carried for
//! others, then go to a thread named `tollgate-home`, one per process, and no reply is lost. Connections of a
//! [pool](RedisStoreBuilder::over_pool) end with their runtime, since the pool drives them.
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
//! # Leased policies
//!
//! Policies with [`Consistency::Leased`](crate::Consistency::Leased) ask Redis about 6 times a second for each busy key, and spend units
//! that they got in advance. Redis counts these as spent until they come back. Those with
//! [`Consistency::Delayed`](crate::Consistency::Delayed) may be ahead of the limit by a part of the burst. Neither needs other
//! permissions. The page `docs/consistency.md` of the package has the bounds and costs.
//!
//! # Redis Cluster
//!
//! A cluster needs no setting: give the URL of any node. The store finds out by the first reply that the server is part
//! of a cluster, looks the slots up by `CLUSTER SLOTS`, and follows `MOVED` and `ASK`. It connects to each primary that
//! has keys to decide. Each node has its own window of calls in flight, and behind a builder its own circuit breaker: a
//! node that is down affects its own keys only. When a replica takes over, its keys go on there.
//!
//! Until the first reply, the node in the URL is the only one that the store knows. Use a host name that resolves to
//! several nodes: all its addresses are dialled, and the first that accepts is used. A user without the permission for
//! `CLUSTER SLOTS` works too, but each slot then costs a redirect, and
//! what a failover of the server in the URL lost is not restored.
//!
//! The identity of a caller is the hash tag of its keys, so all policies with the same key are one script on one node.
//! While their slot is being moved, a decision waits until its keys are on one node, at most until its deadline. A slot that no
//! node decides on, since it was left half moved, has no node, or nodes redirect in a circle, does not close its node to the
//! others: behind a builder [it has a breaker of its own](crate::resilience#slots-that-no-node-decides-on). That also happens
//! to a slot in a move that takes long if several decisions on it need two keys of which one does not exist yet, as those of new
//! callers under two policies do: the server refuses such a decision until the move has ended. A call
//! carries one command per slot, so a decision costs the servers about twice as much as on a single one.
//!
//! Policies with different keys are usually in different slots, unless [`co_located_with`] puts one key in the slot of the
//! other. No single script can decide them: all parts are charged
//! at the same time, and if one part is denied, the charges of the others are refunded in the background. Then
//!
//! - no limit is ever exceeded;
//! - a request may be denied although quota is left, while other requests that a second policy denies hold the last
//!   units. Each of them holds its units for about two round trips. With 32 callers that are denied all the time, the
//!   first such denial came after 3,937 of 4,000 units, in the worst of five runs;
//! - a process that ends leaves the units of its requests under way charged, until time gives them back: in a test with 32
//!   callers, 48 units at most. So does a refund that gets no reply.
//!
//! If two keys in different slots have a part in common, such as a tenant and a user of that tenant, the store warns
//! ([`Code::SeveralSlots`](crate::diagnosis::Code::SeveralSlots)).
//!
//! [`co_located_with`]: crate::extract::KeyExtractor::co_located_with
//!
//! A pool of the application ([`RedisStoreBuilder::over_pool`]) works for a cluster of one node only, since the store
//! cannot connect to others with its settings.
//!
//! # Servers
//!
//! | server | by URL | by settings |
//! |---|---|---|
//! | host and port | `redis://host:6379/0` | [`RedisStoreBuilder::tcp`] |
//! | Unix socket | `unix:///run/redis.sock` | [`RedisStoreBuilder::unix`] |
//! | TLS, with the feature `tls-rustls` | `rediss://host:6380` | `TlsConfig`: a custom CA, a client certificate |
//! | primary behind Sentinel | `redis-sentinel://host:26379,host:26379?sentinelMasterId=name` | [`Sentinel`] |
//! | ACL user | `redis://user:password@host` | [`RedisStoreBuilder::username`], [`RedisStoreBuilder::password`] |
//! | passwords that are rotated | | [`RedisStoreBuilder::credentials`] |
//! | RESP3 | `redis://host/?protocol=resp3` | [`RedisStoreBuilder::resp3`] |
//!
//! A host name is resolved, sentinels are asked, and credentials are requested at each dial. A lost connection and a
//! `READONLY` error lead to a new dial, so a failover by DNS or by Sentinel needs nothing else. Each failed dial makes
//! the next one wait, from 20 ms up to 2 s.
//!
//! A primary that is cut off from its sentinels and replicas, but not from some instances, goes on deciding for these
//! until the network heals, beside the new primary for the others: up to twice the limit meanwhile. With
//! `min-replicas-to-write 1` such a primary refuses to write, and the instances follow the new one.
//!
//! Passwords, tokens and keys never appear in `Debug` output, errors or log events. User names and addresses do.
//!
//! Tested versions, and what differs in Dragonfly, KeyDB and Garnet, are listed in `docs/servers.md` of the package.
//!
//! # Permissions
//!
//! An ACL user needs these rights; for another prefix replace `tollgate`:
//!
//! ```text
//! ACL SETUSER limiter on >password ~tollgate:* -@all +eval +evalsha +time +get +set +getrange +setrange
//!     +strlen +pexpire +zadd +zcount +zscore +zmscore +zrange +zrem +zremrangebyscore +del
//! ```
//!
//! These are optional:
//!
//! | rights | for |
//! |---|---|
//! | `+info` | the warning about a server that evicts keys, and the usage that a restart lost is restored |
//! | `+hget +hset +hdel` | [shared blocks](RedisStoreBuilder::shared_blocks) |
//! | `+hgetall +hset +hdel` | the order of callers that [wait](crate::acquire) in several instances; without it, each instance has its own |
//! | `+subscribe +publish &prefix:wake:*` | messages to callers that wait for slots, over one more connection; without it, they ask now and then |
//! | `+hget +hset +pttl` | [pauses](crate::RateLimiter::pause) |
//! | `+cluster\|slots +asking` | a cluster |
//! | `+client\|setinfo` (since Redis 7.2) | the name of this library in the list of clients; without it, each connection adds an entry to `ACL LOG` |
//! | `+ping +unwatch` | a pool of the application |
//! | `+select` | a database other than 0 |
//! | `+hlen +hexists +hset +hscan` | instances that share their top keys (feature `top-keys`) |
//!
//! # Rules
//!
//! Rules that all instances share (feature `reload`) are in one hash, `prefix:{!}:rules`, with the last ten versions. It has no
//! expiry. New versions are announced on the channel of that name. A layer that has its rules there holds one more connection
//! for them, in RESP3, so that a long text never delays a decision. An ACL user needs these rights besides:
//!
//! ```text
//! ACL SETUSER limiter &tollgate:* +subscribe +publish +hget +hset +hmget +hstrlen +hkeys +hdel
//! ```
//!
//! An instance that only reads needs `+hmget +hstrlen`, and `+subscribe` with the channel to learn of new rules at once.
//!
//! # Memory
//!
//! One string per policy and key (a sorted set for concurrency). It expires about a second after the key is back at its
//! full quota. A token bucket takes 151 bytes on Redis 7.0 and 91 on Valkey 9.1, for keys of 16 characters. The
//! [guide](crate::algorithm::guide) has the other algorithms.
//!
//! # Instances
//!
//! Behind a breaker, the store registers its instance in Redis, so that instances can share a quota while Redis is
//! [unavailable](crate::resilience#limits-during-an-outage): one small key (`prefix:{!}:members`, 100 bytes and about 80
//! for each instance). At most every two seconds a decision's reply is followed by one call that no decision waits for.
//! An idle instance sends nothing: it no longer counts after 10 s, and counts again with its next decision.
//!
//! # Blocks
//!
//! With [`RedisStoreBuilder::shared_blocks`], [blocked keys](crate::RateLimiter::block) are kept in three keys of one slot
//! (`prefix:{!}:blocks`, about 430 bytes for each block with a reason of 20 characters), until an hour after the last
//! block has ended. Each instance asks for changes after a decision, at most every 400 ms. Without a change, this takes
//! the server 6 us. If Redis loses them, instances that have seen a block go on to deny its key, and others do not know
//! it. A reply has at most 1,000 blocks, so a new instance has 30,000 of them after 30 round trips; until then it
//! denies those that have arrived.
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
mod blocks;
mod builder;
mod client;
mod cluster;
mod connection;
mod denial_cache;
mod denials;
#[cfg(feature = "top-keys")]
mod fleet_top_keys;
#[cfg(fuzzing)]
pub mod fuzzing;
mod key_states;
mod leases;
mod node;
mod primary;
mod protocol;
mod regions;
mod registration;
mod route;
#[cfg(feature = "reload")]
mod rule_store;
mod script_call;
mod sentinel;
mod server;
#[cfg(feature = "top-keys")]
mod shared_top_keys;
mod single_flight;
mod slot_guard;
mod store;
mod turns;
mod url;
mod wakes;

pub use self::builder::RedisStoreBuilder;
pub use self::connection::Credentials;
#[cfg(feature = "tls-rustls-no-provider")]
pub use self::connection::TlsConfig;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use self::leases::{LeaseTrial, TrialTaken};
#[doc(hidden)]
pub use self::protocol::Script;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use self::regions::RegionTrial;
pub use self::regions::Regions;
pub use self::sentinel::Sentinel;
pub use self::store::RedisStore;
