//! The breaker with the Redis store, which reports its calls.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimiter,
    decision::CountedBy,
    remote::{RedisStore, RedisStoreBuilder},
};

use crate::support::{Proxy, Server, logged};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);
/// Longer than anything here takes on a loaded machine.
const HUNG: Duration = Duration::from_secs(30);

fn policy() -> Policy {
    Policy::new("modest", Quota::per_hour(1_000_000))
}

fn limiter(server: impl Into<RedisStoreBuilder>, policies: &[Policy]) -> RateLimiter {
    let builder = RateLimiter::builder().redis(server).deadline(DEADLINE);
    let with_policies = policies
        .iter()
        .fold(builder, |builder, policy| builder.policy(policy.clone()));
    with_policies.build().expect("a usable limiter")
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    let decision = limiter.check(charges).await;
    decision.expect("a decision, whatever breaks")
}

// Regression: the deadline of a decision was a timer of the runtime, which panics where there are none.
#[test]
fn runtime_without_timers_counts_in_redis_before_and_after_an_outage() {
    let mut server = Server::start();
    let policy = policy();
    let limiter = limiter(server.url(), std::slice::from_ref(&policy));
    let charge = policy.charge(Key::new("ada"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    let until = async |wanted: CountedBy| {
        let started = Instant::now();
        while check(&limiter, &[charge]).await.counted_by() != wanted {
            tokio::task::yield_now().await;
            assert!(started.elapsed() < HUNG, "never {wanted:?}");
        }
    };
    runtime.block_on(until(CountedBy::Shared));
    server.kill();
    runtime.block_on(async {
        while !limiter.health().is_degraded() {
            until(CountedBy::Fallback).await;
        }
    });
    server.restart();
    runtime.block_on(until(CountedBy::Shared));
}

// Regression: the same, in a runtime that cannot open a socket either.
#[test]
fn runtime_without_sockets_decides_in_redis_by_a_connection_that_is_made_elsewhere() {
    logged();
    let server = Server::start();
    let policy = policy();
    // Long enough for a panic with its backtrace, and a thread that begins.
    let builder = RateLimiter::builder().redis(server.url());
    let builder = builder.deadline(Duration::from_secs(5));
    let limiter = builder.policy(policy.clone()).build();
    let limiter = limiter.expect("a usable limiter");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(async {
        for _ in 0..2 {
            let decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
            assert!(decision.is_allowed());
            assert_eq!(decision.counted_by(), CountedBy::Shared);
        }
    });
    let lines = logged();
    assert!(lines.is_empty(), "{lines:#?}");
}

// Regression: a runtime with long tasks counted as a slow server, and each instance admitted a whole quota.
#[tokio::test]
async fn busy_runtime_does_not_open_the_breaker_of_an_idle_server() {
    let server = Server::start();
    let policy = policy();
    let limiter = RateLimiter::builder()
        .redis(server.url())
        .deadline(Duration::from_secs(1))
        .policy(policy.clone())
        .build()
        .expect("a usable limiter");
    check(&limiter, &[policy.charge(Key::new("ada"))]).await;
    let mut busy = JoinSet::new();
    for _ in 0..10 {
        busy.spawn(async {
            loop {
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(20) {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
        });
    }
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        callers.spawn(async move {
            for _ in 0..8 {
                check(&limiter, &[policy.charge(Key::new("ada"))]).await;
                let health = limiter.health();
                assert!(!health.is_degraded(), "given up: {health:?}");
            }
        });
    }
    while let Some(result) = callers.join_next().await {
        result.expect("no panic");
    }
}

// Regression: decisions that timed out while they waited for a dial were not reported until the dial had failed.
#[tokio::test]
async fn server_that_hangs_opens_the_breaker_before_the_next_dial_has_failed() {
    let server = Server::start();
    let policy = policy();
    let store = RedisStore::builder(server.url()).connect_timeout(HUNG * 10);
    let limiter = limiter(store, std::slice::from_ref(&policy));
    check(&limiter, &[policy.charge(Key::new("ada"))]).await;
    server.pause();
    let started = Instant::now();
    while !limiter.health().is_degraded() {
        check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        assert!(started.elapsed() < HUNG, "never degraded");
    }
    server.resume();
    while limiter.health().is_degraded() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(started.elapsed() < HUNG * 2, "never recovered");
    }
}

// Regression: each refused write ended its connection and the next decision dialled: 1,363 connections in 10 s.
#[tokio::test]
async fn server_turned_replica_is_not_dialled_for_each_refused_write() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let greedy = Policy::new("greedy", Quota::per_day(1));
    let modest = policy();
    let limiter = limiter(proxy.url(), &[greedy.clone(), modest.clone()]);
    let denied = greedy.charge(Key::new("ada"));
    check(&limiter, &[denied]).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = proxy.connections();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        for _ in 0..9 {
            check(&limiter, &[denied]).await;
        }
        check(&limiter, &[modest.charge(Key::new("ada"))]).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(limiter.health().is_degraded());
    let dialled = proxy.connections() - before;
    assert!(dialled <= 30, "{dialled} connections in 2 s");
}
