//! Assertions about responses and decisions. They are exported from the root of the crate.

/// Asserts that a request was neither limited nor rejected.
///
/// Takes a response, a decision or a [replayed](crate::testing::replay) request. A response of the handler counts as allowed,
/// whatever its status is.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Policy, Quota, RateLimiter, assert_allowed};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = RateLimiter::builder().build()?;
/// let policy = Policy::new("api", Quota::per_minute(10));
/// assert_allowed!(limiter.check(&[policy.charge(Key::new("ada"))]).await?);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// Panics if it was not allowed, and lists what was found: the status, the reason, each policy, and the headers.
#[macro_export]
macro_rules! assert_allowed {
    ($result:expr $(,)?) => {
        $crate::testing::Findings::of(&$result).assert_allowed()
    };
}

/// Asserts that a request was limited, with the policy and the wait.
///
/// Takes a response, a decision or a [replayed](crate::testing::replay) request. Policy and wait are optional. A number of
/// seconds is compared with `Retry-After`, which is rounded up, and a `Duration` with the exact wait of the decision.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Policy, Quota, RateLimiter, assert_limited, clock::Clock};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let limiter = RateLimiter::builder().clock(Clock::tokio()).build()?;
/// let policy = Policy::new("login", Quota::per_minute(5).burst(1));
/// let charge = policy.charge(Key::new("ada"));
/// limiter.check(&[charge]).await?;
/// let decision = limiter.check(&[charge]).await?;
/// assert_limited!(decision);
/// assert_limited!(decision, "login", 12);
/// assert_limited!(decision, "login", Duration::from_secs(12));
/// # Ok::<(), tollgate::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
///
/// Panics if anything differs, and lists what was found: the status, the reason, each policy, and the headers.
#[macro_export]
macro_rules! assert_limited {
    ($result:expr $(,)?) => {
        $crate::testing::Findings::of(&$result).assert_limited(None, None)
    };
    ($result:expr, $policy:expr $(,)?) => {
        $crate::testing::Findings::of(&$result).assert_limited(Some($policy), None)
    };
    ($result:expr, $policy:expr, $wait:expr $(,)?) => {
        $crate::testing::Findings::of(&$result)
            .assert_limited(Some($policy), Some(::core::convert::Into::into($wait)))
    };
}

/// Asserts how many units a policy has left, or without a policy the narrowest one.
///
/// An allowed response shows this in its headers only: the narrowest policy in any family, and a policy by name in
/// [`Headers::draft11`](crate::headers::Headers::draft11).
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Policy, Quota, RateLimiter, assert_remaining};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = RateLimiter::builder().build()?;
/// let policy = Policy::new("api", Quota::per_minute(10));
/// let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await?;
/// assert_remaining!(decision, "api", 9);
/// assert_remaining!(decision, 9);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// Panics if the number differs or is not shown, and lists what was found.
#[macro_export]
macro_rules! assert_remaining {
    ($result:expr, $units:expr $(,)?) => {
        $crate::testing::Findings::of(&$result).assert_remaining(None, $units)
    };
    ($result:expr, $policy:expr, $units:expr $(,)?) => {
        $crate::testing::Findings::of(&$result).assert_remaining(Some($policy), $units)
    };
}

/// Asserts that a request got no decision, because the store is down.
///
/// That is a 503, if the outage choice of a policy is to [deny](crate::OnOutage::Deny).
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "redis")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Key, OnOutage, Policy, Quota, RateLimiter, assert_unavailable, testing::ScriptedStore};
///
/// let redis = ScriptedStore::counting();
/// let limiter = RateLimiter::new(redis.behind_breaker(), [])?;
/// let policy = Policy::new("orders", Quota::per_hour(20)).on_outage(OnOutage::Deny);
/// redis.hang();
/// assert_unavailable!(limiter.check(&[policy.charge(Key::new("ada"))]).await?);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "redis"))]
/// # fn main() {}
/// ```
///
/// # Panics
///
/// Panics if it is not, and lists what was found.
#[macro_export]
macro_rules! assert_unavailable {
    ($result:expr $(,)?) => {
        $crate::testing::Findings::of(&$result).assert_unavailable()
    };
}
