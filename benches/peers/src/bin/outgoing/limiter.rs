//! The limiters of the clients in Rust.

use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use throttle_net::Throttle;

use super::client::Client;

/// A limiter that the tasks of a process share.
pub enum Limiter {
    Governor(DefaultDirectRateLimiter),
    ThrottleNet(Throttle),
}

impl Limiter {
    /// Returns a limiter without bursts: one call each `interval`.
    pub fn new(client: Client, interval: Duration) -> Self {
        match client {
            Client::Bottleneck => unreachable!("it runs in Node"),
            Client::Governor => {
                let quota = Quota::with_period(interval).expect("it is not zero");
                Self::Governor(RateLimiter::direct(quota))
            }
            Client::ThrottleNet => Self::ThrottleNet(Throttle::smooth(1, interval)),
        }
    }

    /// Waits for a turn.
    pub async fn turn(&self) {
        match self {
            Self::Governor(limiter) => limiter.until_ready().await,
            Self::ThrottleNet(throttle) => throttle.acquire().await.expect("one unit fits"),
        }
    }

    /// Notes a 429, with its `Retry-After` if it has one.
    pub fn note_refusal(&self, retry_after: Option<Duration>) {
        match (self, retry_after) {
            (Self::ThrottleNet(throttle), Some(wait)) => throttle.pause_for(wait),
            // governor cannot be paused.
            (Self::Governor(_) | Self::ThrottleNet(_), _) => {}
        }
    }
}
