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
//! let mut decision = limiter.check(&[policy.charge(Key::new("ada"))]);
//! let decision = decision.take_ready().expect("memory answers at once")?;
//! assert!(decision.is_allowed());
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! # Memory
//!
//! Each algorithm in use has its own tables, which are at most three quarters full with `max_keys` keys. They take at most
//! this much, whatever clients send:
//!
//! | used | bytes per key of `max_keys` | with 1,000,000 keys |
//! |---|---|---|
//! | token bucket, leaky bucket | 24 * 4/3 = 32 | 32 MB |
//! | refunds to buckets | 24 * 4/3 = 32 | 32 MB |
//! | fixed window | 28 * 4/3 = 37.4 | 37.4 MB |
//! | sliding window | 36 * 4/3 = 48 | 48 MB |
//! | sliding log | (64 + 64) * 4/3 + 64 = 234.7 | 234.7 MB |
//! | requests in flight | 64 | 70.4 MB |
//! | all of them | 448.1 | 454.5 MB |
//!
//! The numbers are hard caps on the allocated bytes, also while a table grows and its old and new memory coexist. They do not
//! include 2 kB for each shard (there are at most 16 per core, rounded up to a power of two), up to 1.2 kB for each
//! policy that overflows in a shard, 4 kB for each thread at work, and what the allocator adds. An unused store takes next to nothing; tables
//! grow with the number of keys and shrink after a flood.
//!
//! - **Refunds** are kept only for keys where requests overlap: a refund of the last charge of a key needs no memory. A
//!   refund for which there is no memory is not made, so the key owes what it was charged.
//! - **Requests in flight** take 44 bytes for the only one of a key, and 36 for each one of several. All keys together have
//!   `64 * (max_keys + 100,000)` bytes, so `max_keys` requests fit, however many of them are of one key, and one key can
//!   always fill the highest limit. A request for which there is no memory is denied, and counted in
//!   [`overflowed`](MemoryStore::overflowed). The memory of slots whose lease has ended is reclaimed within a second.
//! - **Logs** take 16 bytes for each entry. Every log may have 4, and all together another `4 * max_keys`. A full log that
//!   cannot have more drops every other entry, whose units then come back with those of the next one: later than they
//!   should, and never earlier. While there is memory a log is exact, and when there is none it is strict.
//!
//! # When it is full
//!
//! A key whose bucket is full again needs no slot: its slot goes to the next newcomer. A key in debt is never
//! forgotten. When all slots near a newcomer's place hold keys in debt, newcomers of one policy share one bucket
//! until slots come free, and whoever gets a slot then starts with that bucket's debt. So a flood of made-up keys
//! costs neither memory nor the limit; what it can cost is that *new* callers are counted together for a while.
//!
//! # What a clock step does
//!
//! Nothing: the process counts by the monotonic clock. The exception is a machine whose clock is set only after the process
//! has started: the stored times then move with the clock once, as [`Clock`](crate::clock::Clock) describes, so that debts,
//! windows and leases last as long as they would have. Charges made before that moment are no longer refunded.
//!
//! # Accuracy
//!
//! Keys are told apart by a 96-bit fingerprint under a random key per process: nobody can aim at a collision, and
//! with a million keys one happens with a chance of 6e-18.

mod budget;
mod builder;
mod capacity;
mod fingerprint;
mod in_flight;
mod pools;
mod refunds;
mod shard;
mod shelf;
mod slab;
mod steps;
mod store;
mod table;
mod tickets;

pub use self::builder::MemoryStoreBuilder;
pub use self::store::MemoryStore;
