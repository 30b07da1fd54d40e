//! The keys that are denied most often, in bounded memory.
//!
//! [`TopKeys`] records denied requests and shows, for each policy, the keys with the most of them in the last minutes.
//! A limiter or a layer that gets one records each request that it denies, whether Redis, this process or the fallback
//! counted it. Needs the feature `top-keys`.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, Policy, Quota, RateLimiter, top_keys::{ShownKeys, TopKeys}};
//!
//! # async fn example() -> Result<(), tollgate::Error> {
//! let policy = Policy::new("per-ip", Quota::per_minute(2));
//! let top_keys = TopKeys::builder().shown_keys(ShownKeys::plain()).build()?;
//! let limiter = RateLimiter::builder().policy(policy.clone()).top_keys(top_keys).build()?;
//!
//! for _ in 0..5 {
//!     limiter.check(&[policy.charge(Key::new("203.0.113.7"))]).await?;
//! }
//! let snapshot = limiter.top_keys().expect("the limiter records them");
//! let list = snapshot.policy("per-ip").expect("three requests were denied");
//! let top = &list.keys()[0];
//! assert_eq!((top.key(), top.count(), top.error()), ("203.0.113.7", 3, 0));
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(example()).expect("decided");
//! ```
//!
//! With [settings](TopKeysBuilder): `TopKeys::builder().capacity(1_000).window(Duration::from_secs(3_600))`.
//!
//! # Accuracy
//!
//! Each key has a `count` and an `error`. The true number of denied requests is at least `count - error` and at most
//! `count`. With a capacity of `m` and `N` denied requests under the policy in the window:
//!
//! - The error is at most `N / m`: 0.4 % of all denied requests with the default of 256.
//! - Each key with more than `N / m` denied requests is in the list.
//! - If at most `m` keys were denied, every count is exact.
//!
//! The algorithm is Space-Saving (Metwally, Agrawal and El Abbadi, 2005). A client that rotates its keys can raise the
//! error to its bound and fill the end of the list. It can neither hide a key with more than `N / m` denied requests, nor
//! can it use more memory.
//!
//! # Window
//!
//! Counts are kept in two halves of the window, and the older one is dropped when a half ends. A snapshot therefore covers
//! between half a [window](TopKeysBuilder::window) and a whole one: 5 to 10 minutes by default.
//! [`since`](Snapshot::since) returns the start of that time. Halves begin at multiples of their length since the Unix
//! epoch.
//!
//! # Cost
//!
//! Admitted requests are not recorded, and cost a limiter without top keys nothing. To record a denied request, a thread locks its own counts. It waits only while all
//! shards of the policy are locked. A record allocates nothing, except for the first one of a policy in each shard.
//!
//! A policy takes at most `shards * 2 * capacity * 96` bytes, with one shard for each core, rounded up to a power of two,
//! and at most 8: 98 kB on two cores and 393 kB on 8 or more, by default. It takes nothing before it denies a request, and
//! never more, whatever clients send.
//!
//! # Personal data
//!
//! Addresses and user names are personal data. So snapshots show a keyed hash of each key, unless
//! [`ShownKeys::plain`] allows plain text. The counters themselves hold keys as they are, in the memory of the process.
//!
//! # Log
//!
//! With [`log_every`](TopKeysBuilder::log_every), the ten keys that each policy denied most often in an interval are an event at the
//! level INFO, with the target `tollgate` and the message `top denied keys`, for those who read logs and not dashboards:
//!
//! | field | value |
//! |---|---|
//! | `policy` | its name |
//! | `since`, `until` | the interval, in seconds since the Unix epoch; it begins later if the process does |
//! | `denied` | the denied requests of all keys |
//! | `keys` | `203.0.113.7 120, 198.51.100.4 30-32`: keys as they are shown, and how often each was denied, at least and at most |
//!
//! # Whole fleet
//!
//! With [`share_top_keys`](crate::builder::RateLimiterBuilder), each instance writes its counts to Redis, and
//! [`RateLimiter::fleet_top_keys`](crate::RateLimiter::fleet_top_keys) returns the sum:
//!
//! - **Bound**: an instance shares the 100 largest counts of each policy, so the error of a sum is at most `N / 100`, with the
//!   denied requests of the whole fleet as `N`. With a [capacity](TopKeysBuilder::capacity) below 100, it is `N / m` for the
//!   smallest capacity.
//! - **Age**: written at most every two seconds, after a decision's reply. A sum lacks what was denied since.
//! - **Size**: for each half of the window, a hash `prefix:{!}:top:<number>` with a field for each instance, about 4 kB per
//!   policy. It holds at most 1,000 instances, those that were restarted in that time among them; more are left out. It
//!   expires with the window.
//! - **Cost**: one script call for each write, and none while nothing is denied. A sum is only read when it is asked for, 16
//!   instances at a time.
//! - **Window**: all instances need the same one, and clocks that agree. An instance that ends counts until the window is over.
//!   After a restart of Redis, instances write the current half again, and not the previous one.
//!
//! - **Versions**: the sum leaves out a value of another version of tollgate that this instance cannot read.
//!   [`Snapshot::unread`] counts these values.
//!
//! Give each limiter a separate recorder: one that two limiters share counts twice.
//!
//! Programs can also exchange snapshots as bytes ([`Snapshot::encode`], [`Snapshot::decode`]) and add them up by
//! [`Snapshot::merge`]. The error of a merged count is at most `N / m` again, with the denied requests of all instances as
//! `N`. All instances need the same [`ShownKeys::hashed`] secret, or plain text, so that a key looks the same everywhere.

mod builder;
mod codec;
mod counts;
mod halves;
mod interval_log;
mod merged_list;
mod recorder;
mod shown_keys;
mod snapshot;
mod summary;

pub use self::builder::TopKeysBuilder;
pub use self::recorder::TopKeys;
pub use self::shown_keys::ShownKeys;
pub use self::snapshot::{PolicyTopKeys, Snapshot, TopKey};
