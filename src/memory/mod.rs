//! Counts in this process: exact, in bounded memory, without a background task.
//!
//! This is the default store. It also counts locally while a shared store is unavailable.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, Policy, Quota, RateLimiter, memory::MemoryStore};
//!
//! let policy = Policy::new("logins", Quota::per_minute(5));
//! let store = MemoryStore::builder().max_keys(10_000).build()?;
//! let limiter = RateLimiter::new(store, [policy.clone()])?;
//! let mut decision = limiter.check(&[policy.charge(Key::new("ada"))]);
//! let decision = decision.take_ready().expect("memory decides at once")?;
//! assert!(decision.is_allowed());
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! # Memory
//!
//! Each algorithm in use has its own tables, which are at most three quarters full with `max_keys` keys. They take at most
//! this many bytes, whatever clients send:
//!
//! | used | bytes per key of `max_keys` | with 1,000,000 keys |
//! |---|---|---|
//! | token bucket, leaky bucket | 24 * 4/3 = 32 | 32 MB |
//! | refunds to buckets | 24 * 4/3 = 32 | 32 MB |
//! | turns that were given up in queues | 48 * 4/3 = 64 | 64 MB |
//! | fixed window | 28 * 4/3 = 37.4 | 37.4 MB |
//! | sliding window | 36 * 4/3 = 48 | 48 MB |
//! | sliding log | (64 + 64) * 4/3 + 64 = 234.7 | 234.7 MB |
//! | requests in flight | 64 | 70.4 MB |
//! | denials under a [penalty](crate::policy) | 56 * 4/3 = 74.7 | 74.7 MB |
//! | all of them | 586.8 | 593.2 MB |
//!
//! The numbers are hard limits on the allocated bytes, also while a table grows and its old and new memory coexist. They do
//! not include 2 kB for each shard (there are at most 16 per core, rounded up to a power of two), up to 1.2 kB for each
//! policy that overflows in a shard, 4 kB for each thread at work, and the overhead of the allocator. An unused store takes
//! almost nothing. Tables grow with the number of keys and shrink after a flood.
//!
//! - **Refunds** take memory only for keys whose requests overlap: a refund of the last charge of a key needs none. Without
//!   memory, a refund is not made, and the key owes what it was charged. Turns that callers give up in the middle of a
//!   queue take up to 32 entries for each key, in the memory of logs.
//! - **Requests in flight** take 44 bytes for the only one of a key, and 36 for each one of several. All keys together have
//!   `64 * (max_keys + 100,000)` bytes. That is enough for `max_keys` requests, however many of them are on one key, and one
//!   key can always fill the highest limit. A request without memory is denied, and counted in
//!   [`overflowed`](MemoryStore::overflowed). The memory of slots whose lease has ended is reclaimed within a second.
//! - **Logs** take 16 bytes for each entry. Every log may have 4 entries, and all logs together another `4 * max_keys`. A
//!   full log that cannot have more drops every other entry, whose units then come back with those of the next one: later
//!   than they should, never earlier. So a log is exact while there is memory, and strict when there is none.
//!
//! # When it is full
//!
//! A key whose bucket is full again needs no slot: the next new key takes its slot. A key that is not back at full quota is
//! never evicted. When all slots near the place of a new key hold keys in debt, the new keys of one policy share one bucket
//! until slots become free, and a key that then gets a slot starts with that bucket's debt. A flood of made-up keys can
//! therefore neither exhaust the memory nor lift the limit. While it lasts, *new* callers may be counted together.
//!
//! # Clock steps
//!
//! A step of the wall clock does not change any count, because the process counts by the monotonic clock. Only times that are
//! shown outside follow it: see [`Clock::wall_time`](crate::clock::Clock::wall_time). The exception is a machine
//! whose clock is set only after the process has started: all stored times then move with the clock once, as
//! [`Clock`](crate::clock::Clock) describes, so that debts, windows and leases last as long as before. Charges made before
//! that moment cannot be refunded.
//!
//! # Accuracy
//!
//! A key is identified by a 96-bit fingerprint under a random key per process. Nobody can aim at a collision, and among a
//! million keys the probability of one is 6e-18.

mod bans;
mod buckets;
mod builder;
mod capacity;
mod corrections;
mod decide_all;
mod fallback;
mod hot_key;
mod in_flight;
mod keyed;
mod line_book;
mod locked_shards;
mod rates;
mod refunds;
mod result;
mod shard;
mod slab;
mod store;
mod table;
mod tickets;
mod turns;
mod verdict;

pub use self::builder::MemoryStoreBuilder;
pub use self::store::MemoryStore;
pub(crate) use self::verdict::{BucketCharge, Verdict};
