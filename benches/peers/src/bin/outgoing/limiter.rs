//! The limiters of the clients in Rust.

use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use throttle_net::Throttle;
use tollgate::{Key, Policy};

use super::client::Client;

/// A limiter that the tasks of a process share.
pub enum Limiter {
    Governor(DefaultDirectRateLimiter),
    ThrottleNet(Throttle),
    Tollgate(tollgate::RateLimiter, Policy),
}

impl Limiter {
    /// Returns a limiter without bursts: one call each `interval`.
    ///
    /// With a Redis server, the processes share the limit of all of them, of which each `whole` is one call.
    pub fn new(
        client: Client,
        interval: Duration,
        (redis, whole): (Option<String>, Duration),
    ) -> Self {
        match client {
            Client::Bottleneck => unreachable!("it runs in Node"),
            Client::Governor => {
                let quota = Quota::with_period(interval).expect("it is not zero");
                Self::Governor(RateLimiter::direct(quota))
            }
            Client::ThrottleNet => Self::ThrottleNet(Throttle::smooth(1, interval)),
            Client::Tollgate => {
                let quota = tollgate::Quota::new(1, whole).burst(1);
                let policy = Policy::new("api", quota);
                let builder = tollgate::RateLimiter::builder().policy(policy.clone());
                let limiter = match redis {
                    Some(url) => builder.redis(url.as_str()).build(),
                    None => builder.build(),
                };
                Self::Tollgate(limiter.expect("a usable limiter"), policy)
            }
        }
    }

    /// Waits for a turn.
    pub async fn turn(&self) {
        match self {
            Self::Governor(limiter) => limiter.until_ready().await,
            Self::ThrottleNet(throttle) => throttle.acquire().await.expect("one unit fits"),
            Self::Tollgate(limiter, policy) => {
                let turn = limiter.acquire(policy.charge(Key::GLOBAL));
                let permit = turn.max_wait(Duration::from_secs(3_600)).await;
                drop(permit.expect("a turn within an hour"));
            }
        }
    }

    /// Notes a 429, with its `Retry-After` if it has one.
    pub async fn note_refusal(&self, retry_after: Option<Duration>) {
        match (self, retry_after) {
            (Self::Tollgate(limiter, policy), wait) => {
                let wait = wait.unwrap_or(Duration::from_secs(1));
                let paused = limiter.pause(&policy.charge(Key::GLOBAL), wait);
                paused.await.expect("the store can pause");
            }
            (Self::ThrottleNet(throttle), Some(wait)) => throttle.pause_for(wait),
            // governor cannot be paused.
            (Self::Governor(_) | Self::ThrottleNet(_), _) => {}
        }
    }
}
