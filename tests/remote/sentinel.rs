//! A primary behind Sentinel: found by URL and by settings, and found again after a failover.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    decision::CountedBy,
    remote::{RedisStore, RedisStoreBuilder, Sentinel},
};

use crate::support::{Sentinels, Server};

const DEADLINE: Duration = Duration::from_millis(250);
const HUNG: Duration = Duration::from_secs(30);

fn policy() -> Policy {
    Policy::new("watched", Quota::per_hour(100_000_000))
}

fn limiter(builder: RedisStoreBuilder) -> RateLimiter {
    let limiter = RateLimiter::builder().redis(builder).deadline(DEADLINE);
    limiter.policy(policy()).build().expect("a usable limiter")
}

async fn check(limiter: &RateLimiter) -> Decision {
    let decision = limiter.check(&[policy().charge(Key::new("ada"))]).await;
    decision.expect("a decision, whatever breaks")
}

async fn decide(builder: RedisStoreBuilder) -> Result<Decision, Error> {
    let store = builder
        .deadline(Duration::from_secs(5))
        .connect_timeout(Duration::from_secs(5))
        .connections(1)
        .build()?;
    let limiter = RateLimiter::new(store, [policy()])?;
    limiter.check(&[policy().charge(Key::new("ada"))]).await
}

fn settings(sentinels: &[Server]) -> Sentinel {
    let all = Sentinel::new(Sentinels::NAME);
    sentinels.iter().fold(all, |all, sentinel| {
        all.address("127.0.0.1", sentinel.port())
    })
}

/// Decides until this server has decided.
async fn until_decided_by(limiter: &RateLimiter, server: &Server) {
    let started = Instant::now();
    loop {
        let is_shared = check(limiter).await.counted_by() == CountedBy::Shared;
        if is_shared && Sentinels::is_primary(server) {
            // The next one too: the primary may have changed in between.
            server.flush_stats();
            check(limiter).await;
            if server.command_calls().contains_key("evalsha") {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(started.elapsed() < HUNG, "it never decided");
    }
}

#[tokio::test]
async fn primary_is_found_by_url_and_by_settings_and_a_dead_sentinel_delays_nothing() {
    let watched = Sentinels::shared();
    decide(RedisStore::builder(watched.url()))
        .await
        .expect("by url");
    decide(RedisStore::builder(watched.url().replace("redis-", "redis+")).resp3(true))
        .await
        .expect("by the other url");
    let mut others = [Server::start(), Server::start()];
    others[0].kill();
    others[1].pause();
    let sentinel = settings(&others).address("127.0.0.1", watched.sentinels()[0].port());
    decide(RedisStoreBuilder::over_sentinel(sentinel))
        .await
        .expect("by the last sentinel");
}

#[tokio::test]
async fn name_that_no_sentinel_knows_is_an_error_with_that_name() {
    let watched = Sentinels::shared();
    let url = watched.url().replace("=limits", "=limit");
    let error = decide(RedisStore::builder(url))
        .await
        .expect_err("an unknown name");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
    assert!(error.to_string().contains("\"limit\""), "{error}");
}

#[tokio::test]
async fn server_that_is_no_sentinel_is_an_error_with_its_address() {
    let server = Server::start();
    let sentinel = Sentinel::new("limits").address("127.0.0.1", server.port());
    let error = decide(RedisStoreBuilder::over_sentinel(sentinel)).await;
    let error = error.expect_err("not a sentinel");
    let expected = format!(
        "the sentinel at {} did not return the primary: is it a sentinel?",
        server.address()
    );
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn passwords_of_the_sentinels_and_of_the_server_are_separate() {
    let watched = Sentinels::shared();
    // A sentinel of its own, which watches the same primary and needs a password.
    let server = &watched.servers[0];
    let password = "of the sentinel";
    let sentinel = Server::start_sentinel(&format!(
        "sentinel monitor limits 127.0.0.1 {} 2\nrequirepass \"{password}\"",
        server.port()
    ));
    let settings = settings(std::slice::from_ref(&sentinel));
    let error = decide(RedisStoreBuilder::over_sentinel(settings.clone())).await;
    let error = error.expect_err("no password");
    let expected = "its login is that of Sentinel::username and Sentinel::password";
    assert!(error.to_string().contains(expected), "{error}");
    let error = format!("{error:?}");
    assert!(error.contains("redis needs a password"), "{error}");
    let settings = settings.password(password);
    decide(RedisStoreBuilder::over_sentinel(settings))
        .await
        .expect("a decision");
}

#[tokio::test]
async fn failover_by_an_operator_is_followed_under_load() {
    let watched = Sentinels::start();
    let limiter = limiter(RedisStore::builder(watched.url()));
    until_decided_by(&limiter, &watched.servers[0]).await;
    let callers = load(&limiter);
    watched.fail_over();
    until_decided_by(&limiter, &watched.servers[1]).await;
    drop(callers);
}

#[tokio::test]
async fn primary_that_is_killed_is_replaced_by_the_promoted_replica() {
    let mut watched = Sentinels::start_with(Duration::from_millis(500));
    let limiter = limiter(RedisStore::builder(watched.url()));
    until_decided_by(&limiter, &watched.servers[0]).await;
    let callers = load(&limiter);
    watched.servers[0].kill();
    until_decided_by(&limiter, &watched.servers[1]).await;
    drop(callers);
}

#[tokio::test]
async fn replica_that_a_sentinel_takes_for_the_primary_is_not_used() {
    let primary = Server::start();
    let replica = Server::start();
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    // Alone, and with a quorum that it never reaches: it keeps what it was told.
    let process = Server::start_sentinel(&format!(
        "sentinel monitor limits 127.0.0.1 {} 9",
        replica.port()
    ));
    let address = replica.address();
    let sentinel = settings(std::slice::from_ref(&process));
    let builder = RedisStoreBuilder::over_sentinel(sentinel);
    let error = decide(builder).await.expect_err("a replica");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(
        error
            .to_string()
            .contains(&format!("{address} is a replica")),
        "{error}"
    );
}

/// Decides in the background, and fails the test if a decision fails.
fn load(limiter: &RateLimiter) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            loop {
                check(&limiter).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    callers
}
