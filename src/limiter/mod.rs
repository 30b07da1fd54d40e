//! The rate limiter.

mod enforce;
mod known_policy;
mod lent_slots;
pub(crate) mod limiter;
#[cfg(feature = "reload")]
mod replaceable;
mod short_way;
mod turns;

#[cfg(feature = "rules")]
pub(crate) use self::known_policy::MAX_POLICIES;
pub(crate) use self::known_policy::unknown_policy;
pub(crate) use self::limiter::RateLimiter;
#[cfg(feature = "reload")]
pub(crate) use self::replaceable::Replaceable;
