//! Requests in flight: slots that are taken, held, released, and lost with the process that held them.

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use http_body_util::BodyExt;
use redis::Value;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter,
    algorithm::Algorithm,
    charge::Receipt,
    clock::{Clock, Timestamp},
    decision::Outcome,
    extract::Global,
    remote::RedisStore,
    store::Store,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::Server;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn slots(limit: u64, lease: Duration) -> Policy {
    Policy::new("uploads", Quota::in_flight(limit)).algorithm(Algorithm::Concurrency { lease })
}

fn in_process(policy: &Policy) -> RateLimiter {
    let limiter = RateLimiter::builder().policy(policy.clone()).build();
    limiter.expect("a usable policy")
}

fn on(server: &Server, policy: &Policy, clock: Option<&Clock>) -> RateLimiter {
    let mut store = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    if let Some(clock) = clock {
        store = store.client_time(clock.clone());
    }
    RateLimiter::new(store.build().expect("a usable store"), [policy.clone()])
        .expect("a usable policy")
}

/// Takes a slot, if one is free.
async fn take(limiter: &RateLimiter, policy: &Policy, key: &str, cost: u64) -> Option<Receipt> {
    let charges = [policy.charge(Key::new(key)).cost(cost)];
    let decision = limiter.check(&charges).await.expect("a decision");
    let receipt = Receipt::of(&charges, &decision);
    assert_eq!(receipt.is_some(), decision.outcome() == Outcome::Allowed);
    receipt
}

async fn remaining(limiter: &RateLimiter, policy: &Policy, key: &str) -> u64 {
    let peek = limiter.peek(&[policy.charge(Key::new(key))]).await;
    let decision = peek.expect("a decision");
    decision.states()[0].usage().expect("counted").remaining
}

/// Polls until this many slots are free.
async fn frees(limiter: &RateLimiter, policy: &Policy, key: &str, free: u64) {
    let looked = tokio::time::timeout(Duration::from_secs(10), async {
        while remaining(limiter, policy, key).await != free {
            tokio::task::yield_now().await;
        }
    });
    looked.await.expect("the slots come back");
}

// Regression: the headers of every response had the free slots, and none had the units left of the rate.
#[tokio::test]
async fn rate_is_reported_before_free_slots_however_few_they_are() {
    let server = Server::start();
    let slots = slots(3, Duration::from_secs(30));
    let rate = Policy::new("rate", Quota::per_minute(60));
    for limiter in [in_process(&slots), on(&server, &slots, None)] {
        for both in [[&slots, &rate], [&rate, &slots]] {
            let charges = both.map(|policy| policy.charge(Key::GLOBAL));
            let decision = limiter.check(&charges).await.expect("a decision");
            let narrowest = decision.narrowest().expect("it is counted");
            assert_eq!(narrowest.policy().as_str(), "rate");
            assert!(!narrowest.is_concurrency());
            assert!(
                decision
                    .state("uploads")
                    .expect("it was asked")
                    .is_concurrency()
            );
            limiter
                .reset(&slots, &Key::GLOBAL)
                .await
                .expect("it is reset");
        }
        let alone = limiter.check(&[slots.charge(Key::GLOBAL)]).await;
        let alone = alone.expect("a decision");
        assert_eq!(alone.narrowest(), alone.state("uploads"));
    }
}

async fn slots_are_taken_and_released(limiter: RateLimiter, policy: Policy) {
    let first = take(&limiter, &policy, "ada", 1).await.expect("free");
    let second = take(&limiter, &policy, "ada", 2).await.expect("free");
    assert!(take(&limiter, &policy, "ada", 1).await.is_none());
    assert!(
        take(&limiter, &policy, "bob", 3).await.is_some(),
        "another key"
    );
    assert_eq!(remaining(&limiter, &policy, "ada").await, 0);
    limiter.settle(second).await.expect("given back");
    assert_eq!(remaining(&limiter, &policy, "ada").await, 2);
    assert!(take(&limiter, &policy, "ada", 3).await.is_none());
    drop(limiter.hold(first));
    frees(&limiter, &policy, "ada", 3).await;
}

#[tokio::test]
async fn slots_are_taken_and_released_in_process() {
    let policy = slots(3, Duration::from_secs(30));
    slots_are_taken_and_released(in_process(&policy), policy).await;
}

#[tokio::test]
async fn slots_are_taken_and_released_in_redis() {
    let server = Server::start();
    let policy = slots(3, Duration::from_secs(30));
    slots_are_taken_and_released(on(&server, &policy, None), policy).await;
    // Only the slots of bob are left.
    assert_eq!(server.keys(), ["tollgate:{bob}:uploads#c"]);
}

#[tokio::test]
async fn slots_that_are_not_renewed_come_back_when_their_lease_ends() {
    let (server, clock) = (Server::start(), Clock::manual(START));
    let policy = slots(2, Duration::from_secs(5));
    let limiter = on(&server, &policy, Some(&clock));
    // Receipts that are dropped without a settlement, as by a process that dies.
    drop(take(&limiter, &policy, "ada", 1).await);
    clock.advance(Duration::from_secs(3));
    drop(take(&limiter, &policy, "ada", 1).await);
    assert!(take(&limiter, &policy, "ada", 1).await.is_none());
    clock.advance(Duration::from_micros(1_999_999));
    assert!(take(&limiter, &policy, "ada", 1).await.is_none());
    clock.advance(Duration::from_micros(1));
    assert_eq!(remaining(&limiter, &policy, "ada").await, 1);
    clock.advance(Duration::from_secs(3));
    assert_eq!(remaining(&limiter, &policy, "ada").await, 2);
}

#[tokio::test]
async fn slots_that_are_held_outlive_their_lease() {
    let server = Server::start();
    let policy = slots(1, Duration::from_millis(150));
    let limiter = on(&server, &policy, None);
    let receipt = take(&limiter, &policy, "ada", 1).await.expect("free");
    let hold = limiter.hold(receipt);
    let renewed = || {
        let key = "tollgate:{ada}:uploads#c";
        // The only ticket, which comes last, and the end of its lease.
        let last = server.command(&["ZRANGE", key, "-1", "-1", "WITHSCORES"]);
        let last: Vec<(Vec<u8>, u64)> = redis::from_redis_value(last).expect("a member");
        last.first().expect("the slot is there").1
    };
    let first = renewed();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while renewed() < first + 600 {
        assert!(tokio::time::Instant::now() < deadline, "nobody renews");
        assert!(take(&limiter, &policy, "ada", 1).await.is_none(), "held");
    }
    drop(hold);
    frees(&limiter, &policy, "ada", 1).await;
}

// Regression: the renewal task did not wake early for a lease that was shorter than those it knew when it fell asleep.
#[tokio::test]
async fn short_lease_is_renewed_beside_a_long_one() {
    let server = Server::start();
    let long = Policy::new("long", Quota::in_flight(1)).algorithm(Algorithm::Concurrency {
        lease: Duration::from_secs(3_600),
    });
    let short = slots(1, Duration::from_millis(150));
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    let store = store.build().expect("a usable store");
    let limiter = RateLimiter::new(store, [long.clone(), short.clone()]).expect("usable policies");
    let mut holds = Vec::new();
    for policy in [&long, &short] {
        let receipt = take(&limiter, policy, "ada", 1).await.expect("free");
        holds.push(limiter.hold(receipt));
    }
    let state = || server.command(&["DUMP", "tollgate:{ada}:uploads#c"]);
    let first = state();
    let looked = tokio::time::timeout(Duration::from_secs(10), async {
        while state() == first {
            tokio::task::yield_now().await;
        }
    });
    looked.await.expect("it is renewed");
    assert_ne!(state(), Value::Nil, "renewed and not ended");
}

// Regression: the reply to a settlement was not checked.
#[tokio::test]
async fn settling_at_a_foreign_value_is_an_error() {
    let server = Server::start();
    let policy = slots(1, Duration::from_secs(30));
    let limiter = on(&server, &policy, None);
    let receipt = take(&limiter, &policy, "ada", 1).await.expect("free");
    server.command(&["SET", "tollgate:{ada}:uploads#c", "somebody else's"]);
    let error = limiter.settle(receipt).await.expect_err("a foreign value");
    assert_eq!(error.kind(), tollgate::ErrorKind::ForeignValue);
}

// Regression: the reply held a negative number, and with it every decision of the call failed.
#[tokio::test]
async fn total_below_the_slots_of_ended_leases_counts_as_no_slots() {
    let server = Server::start();
    let policy = slots(3, Duration::from_secs(30));
    let limiter = on(&server, &policy, Some(&Clock::manual(START)));
    let key = "tollgate:{ada}:uploads#c";
    for total in ["0", "8", "35"] {
        server.command(&["DEL", key]);
        server.command(&["ZADD", key, total, ""]);
        for number in 0..40 {
            let ended = (START.as_micros() / 1_000 - 50 + number).to_string();
            let member = format!("ended{number:0>3}\0\0\u{1}");
            server.command(&["ZADD", key, &ended, &member]);
        }
        assert_eq!(remaining(&limiter, &policy, "ada").await, 3);
        let receipt = take(&limiter, &policy, "ada", 2).await.expect("free");
        assert_eq!(remaining(&limiter, &policy, "ada").await, 1);
        limiter.settle(receipt).await.expect("given back");
        assert_eq!(remaining(&limiter, &policy, "ada").await, 3);
    }
}

// Regression: a take on a new key, and so a probe, succeeded where a take on another key was refused.
#[tokio::test]
async fn server_out_of_memory_refuses_every_take_and_the_probe_but_no_release() {
    let server = Server::start();
    let policy = slots(3, Duration::from_secs(30));
    let limiter = on(&server, &policy, None);
    let receipt = take(&limiter, &policy, "ada", 1).await.expect("free");
    let builder = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    let store = builder.build().expect("a usable store");
    let charge = |key: &'static str| policy.charge(Key::new(key));
    store.decide(&[charge("eve")]).await.expect("a decision");
    store.probe().await.expect("a healthy server");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for key in ["ada", "bob"] {
        let error = store.decide(&[charge(key)]).await.expect_err(key);
        assert_eq!(error.kind(), tollgate::ErrorKind::Unavailable, "{error}");
    }
    store.probe().await.expect_err("it could take no slots");
    limiter.settle(receipt).await.expect("given back");
    assert_eq!(
        server
            .keys()
            .iter()
            .filter(|key| key.contains("ada"))
            .count(),
        0
    );
}

#[tokio::test]
async fn released_ticket_frees_its_own_slots_only() {
    let server = Server::start();
    let policy = slots(100, Duration::from_secs(30));
    let limiter = on(&server, &policy, None);
    let mut receipts = Vec::new();
    for cost in 1..=10 {
        receipts.push((
            cost,
            take(&limiter, &policy, "ada", cost).await.expect("free"),
        ));
    }
    let mut free = 45;
    for index in [4, 8, 0, 0, 5, 2, 3, 0, 1, 0] {
        let (cost, receipt) = receipts.remove(index);
        limiter.settle(receipt).await.expect("given back");
        free += cost;
        assert_eq!(remaining(&limiter, &policy, "ada").await, free);
    }
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn concurrent_callers_never_hold_more_than_the_limit() {
    let server = Server::start();
    let policy = slots(5, Duration::from_secs(30));
    for limiter in [in_process(&policy), on(&server, &policy, None)] {
        let (held, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            let (held, most) = (Arc::clone(&held), Arc::clone(&most));
            tasks.spawn(async move {
                for _ in 0..50 {
                    let Some(receipt) = take(&limiter, &policy, "ada", 1).await else {
                        continue;
                    };
                    most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, Ordering::SeqCst);
                    limiter.settle(receipt).await.expect("given back");
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(most.load(Ordering::SeqCst), 5);
        assert_eq!(remaining(&limiter, &policy, "ada").await, 5);
    }
}

#[tokio::test]
async fn slot_is_held_until_the_body_has_ended() {
    let layer = RateLimitLayer::builder()
        .policy(Policy::concurrency("uploads", 1).key(Global))
        .build()
        .expect("a usable layer");
    let inner = service_fn(|_: Request<String>| {
        ready(Ok::<_, Infallible>(Response::new("body".to_owned())))
    });
    let service = layer.layer(inner);
    let call = || {
        let answer = service.clone().oneshot(Request::new(String::new()));
        async { answer.await.expect("infallible") }
    };
    let first = call().await;
    assert_eq!(first.status().as_u16(), 200);
    assert_eq!(
        call().await.status().as_u16(),
        429,
        "the first body is still there"
    );
    let body = first
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert_eq!(body, "body");
    let dropped = call().await;
    assert_eq!(dropped.status().as_u16(), 200, "the first has ended");
    drop(dropped);
    assert_eq!(
        call().await.status().as_u16(),
        200,
        "the second was dropped"
    );
}

#[test]
fn limit_in_flight_that_is_counted_as_a_rate_is_refused_with_the_way_out() {
    let forgotten = Policy::new("uploads", Quota::in_flight(5));
    let refused = forgotten.validate().expect_err("a rate takes time");
    assert_eq!(refused.kind(), tollgate::ErrorKind::InvalidQuota);
    assert!(
        refused.to_string().contains("Policy::concurrency"),
        "{refused}"
    );
}
