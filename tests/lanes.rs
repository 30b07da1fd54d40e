//! Decisions that share connections: callers who leave, callers who stall, and runtimes that end under them.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    remote::{RedisStore, RedisStoreBuilder},
    store::Answer,
};

use crate::support::Server;

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);
/// A wait that no bounded decision reaches, however loaded the machine is.
const HUNG: Duration = Duration::from_secs(10);

fn policy() -> Policy {
    Policy::new("lanes", Quota::per_hour(1_000_000))
}

/// A limiter without a breaker: what the store itself answers.
fn bare(store: RedisStoreBuilder) -> RateLimiter {
    let store = store.build().expect("a usable store");
    RateLimiter::new(store, [policy()]).expect("a usable policy")
}

fn one_lane(url: impl AsRef<str>) -> RedisStoreBuilder {
    RedisStore::builder(url).connections(1)
}

fn ask(limiter: &RateLimiter, key: &str) -> Answer<Decision> {
    limiter.check(&[policy().charge(Key::new(key))])
}

/// Polls an answer one time: it is sent, or queued, and no reply can arrive meanwhile.
async fn begin(answer: &mut Answer<Decision>) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *answer).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// A runtime that runs only while somebody blocks on it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Asks until it is answered; fails the test when that takes too long.
async fn until_answered(limiter: &RateLimiter) -> Result<Decision, Error> {
    let started = Instant::now();
    loop {
        let result = ask(limiter, "ada").await;
        if result.is_ok() || started.elapsed() > HUNG {
            return result;
        }
        tokio::task::yield_now().await;
    }
}

// Regression: a full queue turned callers away before it looked whether anybody worked on it.
#[test]
fn full_queue_that_nobody_works_on_is_taken_up_again() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let runtime = runtime();
    let answers: Vec<_> = runtime.block_on(async {
        ask(&limiter, "warm").await.expect("a decision");
        let mut answers: Vec<_> = (0..=16_384).map(|_| ask(&limiter, "ada")).collect();
        for answer in &mut answers {
            begin(answer).await;
        }
        answers
    });
    // Outside of a runtime, so that nothing can be started for those who wait behind the first.
    drop(answers);
    let decision = runtime.block_on(ask(&limiter, "ada"));
    assert!(decision.expect("room for one more").is_allowed());
}

// Regression: what waited for a lane of an ended runtime was left in the queue until its deadline.
#[test]
fn runtime_that_ends_leaves_the_decisions_of_others_to_them() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let (ours, other) = (runtime(), runtime());
    ours.block_on(ask(&limiter, "warm")).expect("a decision");
    server.pause();
    other.block_on(async {
        let mut first = ask(&limiter, "first");
        begin(&mut first).await;
        tokio::spawn(first);
    });
    let mut second = ask(&limiter, "second");
    ours.block_on(begin(&mut second));
    drop(other);
    server.resume();
    let started = Instant::now();
    ours.block_on(second).expect("a decision");
    assert!(started.elapsed() < HUNG / 2, "nobody carried it");
}

#[test]
fn caller_who_leaves_outside_of_a_runtime_leaves_the_lane_to_others() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let runtime = runtime();
    let (first, second) = runtime.block_on(async {
        ask(&limiter, "warm").await.expect("a decision");
        let (mut first, mut second) = (ask(&limiter, "first"), ask(&limiter, "second"));
        begin(&mut first).await;
        begin(&mut second).await;
        (first, second)
    });
    drop(first);
    let started = Instant::now();
    runtime.block_on(second).expect("a decision");
    assert!(started.elapsed() < HUNG / 2, "nobody carried it");
}

// Regression: a caller who carries its own decision held the lane for as long as a dial may take, polled or not.
#[tokio::test]
async fn caller_who_is_not_polled_holds_the_lane_for_a_deadline_at_most() {
    let server = Server::start();
    let store = one_lane(server.url()).deadline(DEADLINE);
    let limiter = bare(store.connect_timeout(Duration::from_secs(3_600)));
    ask(&limiter, "warm").await.expect("a decision");
    let mut stalled = ask(&limiter, "stalled");
    begin(&mut stalled).await;
    until_answered(&limiter).await.expect("the lane is free");
    drop(stalled);
}

#[tokio::test]
async fn call_carries_64_charges_at_most() {
    let server = Server::start();
    let policies: Vec<_> = (0..15)
        .map(|number| Policy::new(format!("lanes-{number}"), Quota::per_hour(1_000)))
        .collect();
    let store = one_lane(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), policies.clone());
    let limiter = limiter.expect("usable policies");
    let all = |key: &str| {
        let charges: Vec<_> = policies
            .iter()
            .map(|one| one.charge(Key::new(key)))
            .collect();
        limiter.check(&charges)
    };
    all("warm").await.expect("a decision");
    server.flush_stats();
    let mut answers: Vec<_> = (0..6).map(|number| all(&number.to_string())).collect();
    for answer in &mut answers {
        begin(answer).await;
    }
    for answer in answers {
        answer.await.expect("a decision");
    }
    // One by itself, then four of 15 charges and the fifth.
    assert_eq!(server.command_calls()["evalsha"], 3);
}

// Regression: with a connection at hand the timer was made before anybody asked for a runtime, and panicked.
#[test]
fn caller_outside_of_a_runtime_is_told_so() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let mut cold = ask(&limiter, "ada");
    assert_eq!(refusal(&mut cold).kind(), ErrorKind::Connect);
    let runtime = runtime();
    runtime.block_on(ask(&limiter, "ada")).expect("a decision");
    let mut warm = ask(&limiter, "ada");
    assert!(refusal(&mut warm).to_string().contains("runtime"));
    let mut reset = limiter.reset(&policy(), &Key::new("ada"));
    assert!(refusal(&mut reset).to_string().contains("runtime"));
}

/// The error that an answer is at its first poll.
fn refusal<T: std::fmt::Debug>(answer: &mut Answer<T>) -> Error {
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(answer).poll(&mut context) {
        Poll::Ready(result) => result.expect_err("nobody to carry it"),
        Poll::Pending => panic!("nobody would wake it"),
    }
}
