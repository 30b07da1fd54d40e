//! "Why was I limited?": the state of a key under every policy, for operators.
//!
//! [`RateLimiter::explain`](crate::RateLimiter::explain) returns the state of a key under all policies of a limiter.
//! [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) takes the head of a request, and also returns what each rule
//! does with it: whether it counts the request, in which mode, under which tier. Both charge nothing, and are not counted as
//! decisions; during an outage they are among the [fallback decisions](crate::store::Health::fallback_decisions), as all peeks.
//! Needs the feature `explain`.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, Policy, Quota, RateLimiter, decision::Outcome};
//!
//! # async fn example() -> Result<(), tollgate::Error> {
//! let policy = Policy::new("per-user", Quota::per_hour(2));
//! let limiter = RateLimiter::builder().policy(policy.clone()).record_denials(1_000).build()?;
//! let ada = Key::new("ada");
//! for _ in 0..5 {
//!     limiter.check(&[policy.charge(ada)]).await?;
//! }
//! let explanation = limiter.explain(&ada).await?;
//! let state = explanation.policy("per-user").expect("a policy of the limiter");
//! assert_eq!(state.outcome(), Outcome::Limited);
//! assert_eq!(state.last_denial().map(|denial| denial.count()), Some(3));
//! println!("{explanation}");
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(example()).expect("explained");
//! ```
//!
//! It prints:
//!
//! ```text
//! store: healthy
//! per-user: limited, 0 of 2 units left, all back in 60 min
//!   quota: 2 per 60 min by token_bucket, 1 a request
//!   counted by: in_process
//!   last denial: 1 ms ago, limited, counted by in_process, retry in 30 min; 3 in 1 ms
//! ```
//!
//! # Age
//!
//! The state is read from where the next request would be counted: Redis, this process, or the fallback. It is as old as the
//! [call](PolicyExplanation::counted_at), also if this instance has leased units or keeps a denial. During an outage it continues
//! from the last state that Redis returned, which is as old as the outage [at least](PolicyExplanation::shared_count_age).
//!
//! # Leases and kept denials
//!
//! Under a [leased](crate::Consistency::Leased) policy, this instance may hold units of the key. The next request takes one of them,
//! and its headers continue from the last reply to a report:
//!
//! ```text
//! all: allowed, 940 of 1000 units left, all back in 60 s
//!   quota: 1000 per 60 s by token_bucket, 1 a request
//!   counted by: lease
//!   lease: 20 units here, 31 elsewhere 85 ms ago
//! ```
//!
//! A denial by Redis is kept in this instance for 2 s at most (`RedisStoreBuilder::denial_cache`). Units that came back since, for
//! example after a reset by another instance, are shown, and admit requests afterwards:
//!
//! ```text
//! login: limited, 5 of 5 units left
//!   quota: 5 per 60 s by token_bucket, 1 a request
//!   counted by: denial_cache
//!   denied from the cache of this instance for 1200 ms
//! ```
//!
//! # Bans
//!
//! Under a policy with a [penalty](crate::policy), the state contains the ban of the key, or its denials that count towards
//! one. A ban ends in time, or by [`reset`](crate::RateLimiter::reset):
//!
//! ```text
//! login: limited by a ban, 5 of 5 units left
//!   quota: 5 per 60 s by token_bucket, 1 a request
//!   counted by: shared
//!   ban: number 2, for 90 s, ends in 9 min or by a reset of the key
//! ```
//!
//! # Blocks
//!
//! A [block](crate::RateLimiter::block) of the key is shown with its end and its reason. In Redis, the explanation first brings
//! the list of blocks up to date:
//!
//! ```text
//! login: limited by a block, 5 of 5 units left
//!   quota: 5 per 60 s by token_bucket, 1 a request
//!   counted by: shared
//!   block: for 3 min, ends in 57 min or by unblocking the key, reason: scraping
//! ```
//!
//! # Pauses and callers that wait
//!
//! A key that the other side of a call asked to [pause](crate::RateLimiter::pause) is shown with the end of the pause. Both a pause
//! and callers of this instance that [wait for a turn](crate::acquire) add the time that a caller would wait who asked now:
//!
//! ```text
//! partner: limited, 0 of 100 units left, all back in 32 s
//!   quota: 100 per 60 s by token_bucket, 1 a request
//!   counted by: shared
//!   paused: as the other side asked, for 30 s
//!   next turn: in 31 s, behind 2 callers of this instance
//! ```
//!
//! # Reserves
//!
//! A policy of which a part is [reserved](crate::Policy::reserve) is shown with the classes that may use it. Here, a request of another
//! class asks for a bucket of 40 that [lends](crate::Policy::lend) its reserve, so it sees 38 units:
//!
//! ```text
//! api: limited, 0 of 38 units left, all back in 760 ms
//!   quota: 50 per 1 s, burst 40 by token_bucket, 1 a request
//!   reserve: 20 % for critical, of which all but 2 units are lent
//!   counted by: shared
//! ```
//!
//! # Last denials
//!
//! A limiter keeps them only with
//! [`record_denials(n)`](crate::builder::RateLimiterBuilder::record_denials), for `n` pairs of policy and key, in 65 bytes
//! each. They are denials by this instance. A pair keeps one entry however often it is denied. The entries are in sets of
//! eight by a hash that clients do not know, and a new pair replaces the entry of its set that was denied the longest time
//! ago. So a client that rotates its keys can evict others; it cannot use more memory.
//!
//! # Personal data
//!
//! An explanation contains neither the key nor values of the request, only names from the configuration (policies, tiers,
//! labels of extractors, and addresses of servers) and the reasons of blocks. It is for operators: do not send it to clients.

mod ask;
mod explanation;
mod request;

pub use self::explanation::{Explanation, PolicyExplanation};
pub use self::request::{RequestExplanation, RuleExplanation, RuleFinding};
pub use crate::telemetry::denials::LastDenial;
