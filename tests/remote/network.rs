//! Decisions over a network: distance, stalls, demotion, overload, and runtimes that are slow themselves.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use tokio::task::{JoinSet, yield_now};
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    remote::{RedisStore, RedisStoreBuilder},
    store::StoreFuture,
};

use crate::support::{Mode, Proxy, Server};

/// A wait that no bounded decision reaches, however loaded the machine is.
const HUNG: Duration = Duration::from_secs(10);

fn policy() -> Policy {
    Policy::new("network", Quota::per_hour(1_000_000))
}

/// A limiter without a breaker: it returns what the store itself returns.
fn bare(store: RedisStoreBuilder) -> RateLimiter {
    let store = store.build().expect("a usable store");
    RateLimiter::new(store, [policy()]).expect("a usable policy")
}

fn ask(limiter: &RateLimiter, key: &str) -> StoreFuture<Decision> {
    limiter.check(&[policy().charge(Key::new(key))])
}

/// Polls a decision once.
async fn begin(decision: &mut StoreFuture<Decision>) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *decision).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

fn scripts_run(server: &Server) -> u64 {
    let calls = server.command_calls();
    let count = |command: &str| calls.get(command).copied().unwrap_or(0);
    count("eval") + count("evalsha")
}

/// Lets the runtime run until the server has run this many scripts.
async fn until_scripts_run(server: &Server, wanted: u64) {
    let started = Instant::now();
    while scripts_run(server) < wanted {
        let run = scripts_run(server);
        assert!(started.elapsed() < HUNG, "only {run} of {wanted} calls");
        for _ in 0..100 {
            yield_now().await;
        }
    }
}

// Regression: a lane had one call in flight, so that distance limited the rate.
#[tokio::test]
async fn sixteen_calls_are_in_flight_before_the_first_reply() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = bare(RedisStore::builder(proxy.url()).deadline(HUNG * 6));
    ask(&limiter, "warm").await.expect("a decision");
    server.flush_stats();
    proxy.set(Mode::Delay(HUNG * 6));
    let mut waiting = Vec::new();
    for number in 1..=16 {
        let mut decision = ask(&limiter, "ada");
        begin(&mut decision).await;
        waiting.push(decision);
        until_scripts_run(&server, number).await;
    }
    // A seventeenth call waits until it has four charges.
    for _ in 0..3 {
        let mut decision = ask(&limiter, "ada");
        begin(&mut decision).await;
        waiting.push(decision);
    }
    for _ in 0..1_000 {
        yield_now().await;
    }
    assert_eq!(scripts_run(&server), 16);
    let mut decision = ask(&limiter, "ada");
    begin(&mut decision).await;
    waiting.push(decision);
    until_scripts_run(&server, 17).await;
    proxy.set(Mode::Pass);
    for decision in waiting {
        decision.await.expect("a decision");
    }
}

// Regression: 54 % of the decisions of a thousand callers at 5 ms came too late.
#[tokio::test]
async fn four_thousand_callers_at_five_milliseconds_are_all_decided_in_a_few_round_trips() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = bare(RedisStore::builder(proxy.url()).deadline(HUNG));
    ask(&limiter, "warm").await.expect("a decision");
    proxy.set(Mode::RoundTrip(Duration::from_millis(200)));
    server.flush_stats();
    let mut callers = JoinSet::new();
    for _ in 0..4_000 {
        let limiter = limiter.clone();
        callers.spawn(async move { ask(&limiter, "ada").await });
    }
    let started = Instant::now();
    for decision in callers.join_all().await {
        decision.expect("a decision");
    }
    // 4,000 decisions are 63 calls: with two in flight they took 32 round trips, which is 6.4 s.
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

// Regression: the reply was in the socket, and the timer was checked first.
#[tokio::test]
async fn blocked_runtime_loses_no_decision() {
    let server = Server::start();
    // Longer than a server on a busy machine takes for a reply.
    let deadline = Duration::from_millis(250);
    let limiter = bare(RedisStore::builder(server.url()).deadline(deadline));
    ask(&limiter, "warm").await.expect("a decision");
    for _ in 0..5 {
        let mut decision = ask(&limiter, "ada");
        begin(&mut decision).await;
        // The fault: a handler blocks the only thread.
        thread::sleep(deadline * 7 / 5);
        decision.await.expect("a decision");
    }
}

// Regression: ten tasks with a fiftieth of the deadline a poll left 97 to 99 % of decisions without a reply in time.
#[tokio::test]
async fn busy_runtime_loses_no_decision() {
    let server = Server::start();
    // Longer than a server on a busy machine takes for a reply.
    let deadline = Duration::from_millis(250);
    let limiter = bare(RedisStore::builder(server.url()).deadline(deadline));
    ask(&limiter, "warm").await.expect("a decision");
    let mut busy = JoinSet::new();
    for _ in 0..10 {
        busy.spawn(async move {
            loop {
                let started = Instant::now();
                while started.elapsed() < deadline / 50 {
                    std::hint::spin_loop();
                }
                yield_now().await;
            }
        });
    }
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            for _ in 0..4 {
                ask(&limiter, "ada").await?;
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(result) = callers.join_next().await {
        result.expect("no panic").expect("a decision");
    }
}

// Regression: a runtime without timers panicked in the caller's future.
#[test]
fn runtime_without_timers_is_enough() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    let limiter = bare(RedisStore::builder(server.url()).deadline(HUNG));
    runtime.block_on(async {
        for _ in 0..3 {
            ask(&limiter, "ada").await.expect("a decision");
        }
        server.pause();
        let short = bare(RedisStore::builder(server.url()).deadline(Duration::from_millis(20)));
        let error = ask(&short, "ada").await.expect_err("the server is paused");
        assert!(matches!(error.kind(), ErrorKind::Timeout(_)), "{error:?}");
        server.resume();
    });
}

// Regression: each failure ended the connection, and each decision dialled: 1,363 connections in 10 s.
#[tokio::test]
async fn demoted_primary_is_not_stormed_with_connections() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = bare(RedisStore::builder(proxy.url()));
    ask(&limiter, "ada").await.expect("a decision");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let (before, started) = (proxy.connections(), Instant::now());
    let mut asked = 0_u32;
    while started.elapsed() < Duration::from_secs(2) {
        let error = ask(&limiter, "ada").await.expect_err("it is a replica");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        asked += 1;
        yield_now().await;
    }
    let dials = proxy.connections() - before;
    assert!(asked > 100, "{asked}");
    // At once, then after 20, 40, 80, 160, 320 and 640 ms, or half of that.
    assert!(dials <= 10, "{dials} dials for {asked} decisions");
}
