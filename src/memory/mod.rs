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
//! A key takes one slot of 24 bytes in a table that is at most three quarters full and grows by half: 32 to 48 bytes
//! a key, and at most `32 * max_keys` bytes in all (32 MB with the default of 1,000,000), whatever clients send.
//! While one of the shards grows, its old table lives beside the new one.
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

mod builder;
mod fingerprint;
mod pools;
mod shard;
mod shelf;
mod steps;
mod store;
mod table;

pub use self::builder::MemoryStoreBuilder;
pub use self::store::MemoryStore;
