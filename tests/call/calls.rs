//! Calls that count in Redis.

use std::time::Duration;

use tollgate::{Key, Policy, Quota, RateLimiter, call::CallLimitLayer, rejection::Rejection};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::Server;

#[tokio::test]
async fn calls_of_two_processes_share_a_count_in_redis() {
    let server = Server::start();
    let process = || {
        let limiter = RateLimiter::builder()
            .redis(server.url())
            .deadline(PATIENCE);
        let limiter = limiter.build().expect("it is well set up");
        let policy = Policy::new("p", Quota::per_minute(2));
        let rule = policy.key_of(|_: &&'static str| Some(Key::GLOBAL));
        let layer = CallLimitLayer::builder(&limiter, deny).policy(rule);
        let echo = service_fn(async |who: &'static str| Ok(who.to_owned()));
        layer.build().expect("it is well set up").layer(echo)
    };
    let (one, other) = (process(), process());
    assert!(one.clone().oneshot("ada").await.is_ok());
    assert!(other.clone().oneshot("ada").await.is_ok());
    assert!(one.oneshot("ada").await.is_err());
    assert!(other.oneshot("ada").await.is_err());
}

fn deny(who: &'static str, rejection: &Rejection) -> Result<String, String> {
    Err(format!("{who}: {}", rejection.message()))
}

const PATIENCE: Duration = Duration::from_secs(10);
