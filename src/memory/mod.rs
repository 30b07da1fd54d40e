//! Counts in this process: exact, bounded, without any background task.
//!
//! The embedded default. It also stands in while a shared store is away.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, Policy, Quota, RateLimiter, memory::MemoryStore};
//!
//! let policy = Policy::new("logins", Quota::per_minute(5));
//! let store = MemoryStore::builder().max_keys(10_000).build()?;
//! let limiter = RateLimiter::new(store, [policy.clone()])?;
//! let answer = limiter.check(&[policy.charge(Key::new("ada"))]);
//! let decision = answer.now_or_later().expect("memory answers at once")?;
//! assert!(decision.is_allowed());
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! # Memory
//!
//! A key takes one slot in a table that is at most three quarters full and grows by half. There is a table for each way
//! of counting that is in use, and each takes at most `slot * 4 / 3 * max_keys` bytes, whatever clients send:
//!
//! | counted by | slot | with 1,000,000 keys |
//! |---|---|---|
//! | token bucket, leaky bucket | 24 bytes | 32 MB |
//! | fixed window | 28 bytes | 38 MB |
//! | sliding window | 36 bytes | 48 MB |
//! | sliding log | 64 bytes | 85 MB, and the entries |
//!
//! An entry of a log takes 16 bytes. Each log may have 4, and all together another `4 * max_keys`: at most
//! `(64 + 64) * 4 / 3 * max_keys + 64 * max_keys` bytes with the slots, which is 235 MB, and what the allocator adds. A
//! log that would need more drops every other entry, whose units then come back with those of the next one: later than
//! they should, and never earlier. So while there is memory a log is exact, and when there is none it is strict.
//!
//! While one of the shards grows, its old table lives beside the new one. What newcomers of a policy share takes up to a
//! kilobyte for each policy and shard.
//!
//! # When it is full
//!
//! A key whose bucket is full again needs no slot: its slot goes to the next newcomer. A key in debt is never
//! forgotten. When all slots near a newcomer's place hold keys in debt, newcomers of one policy share one bucket
//! until slots come free, and whoever gets a slot then starts with that bucket's debt. So a flood of made-up keys
//! costs neither memory nor the limit; what it can cost is that *new* callers are counted together for a while.
//!
//! # Accuracy
//!
//! Keys are told apart by a 96-bit fingerprint under a random key per process: nobody can aim at a collision, and
//! with a million keys one happens with a chance of 6e-18.

mod budget;
mod builder;
mod fingerprint;
mod flights;
mod pools;
mod returned;
mod shard;
mod shelf;
mod steps;
mod store;
mod table;

pub use self::builder::MemoryStoreBuilder;
pub use self::store::MemoryStore;
