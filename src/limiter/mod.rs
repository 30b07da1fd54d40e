//! The rate limiter, and how it denies blocked keys before it asks the store.

pub mod acquire;
mod block_check;
mod block_wait;
mod known_policy;
pub(crate) mod limiter;
mod short_way;
mod turns;

pub(crate) use self::block_check::BlockRefresh;
#[cfg(feature = "rules")]
pub(crate) use self::known_policy::MAX_POLICIES;
pub(crate) use self::limiter::RateLimiter;
