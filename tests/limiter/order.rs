//! The order of callers that wait in different queues: by the time at which they came.
//!
//! In real time, since the ages of callers are real.

use std::{
    convert::Infallible,
    future::Future,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use http::{Request, Response};
use tokio::task::JoinHandle;
use tollgate::{
    Key, OnOutage, Policy, Quota, RateLimiter,
    acquire::{Acquire, Permit, Priority},
    client::{Adaptive, OutgoingLayer},
    decision::CountedBy,
    extract::Global,
    memory::MemoryStore,
    remote::RedisStore,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    fleet::shares::until_degraded,
    remote::servers::{REGISTRATION_RIGHTS, RIGHTS},
    support::Server,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Two limiters on one store.
async fn on_each_store<F>(test: impl Fn(RateLimiter, RateLimiter, Policy) -> F, policy: Policy)
where
    F: Future<Output = ()>,
{
    let memory = MemoryStore::new();
    let limiter = |policy: &Policy| {
        RateLimiter::new(memory.clone(), [policy.clone()]).expect("a usable policy")
    };
    test(limiter(&policy), limiter(&policy), policy.clone()).await;
    let server = Server::start();
    let limiter = |policy: &Policy| {
        // A busy machine takes longer than the default of 50 ms, and then each limiter counts on its own.
        let store = RedisStore::builder(server.url())
            .deadline(PATIENCE)
            .connect_timeout(PATIENCE);
        RateLimiter::builder()
            .policy(policy.clone())
            .redis(store)
            .build()
            .expect("a usable policy")
    };
    test(limiter(&policy), limiter(&policy), policy.clone()).await;
}

fn key() -> Key {
    Key::new("ada")
}

/// Begins to wait in a task, and lets the next caller come 30 ms later.
async fn wait(acquire: Acquire) -> JoinHandle<(Permit, Instant)> {
    let task = tokio::spawn(async move {
        let permit = acquire.await.expect("a turn");
        (permit, Instant::now())
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    task
}

async fn began(task: JoinHandle<(Permit, Instant)>) -> Instant {
    task.await.expect("no panic").1
}

#[tokio::test]
async fn caller_of_another_instance_that_came_earlier_goes_first() {
    let policy = Policy::new("strict", Quota::per_second(5).burst(1));
    on_each_store(
        |one, other, policy| async move {
            // A busy machine notes each start late, so only what lies before the first charge bounds all of them.
            let before = Instant::now();
            drop(one.acquire(policy.charge(key())).await.expect("room"));
            let mut callers = Vec::new();
            for limiter in [&other, &one, &one, &other, &one] {
                callers.push(wait(limiter.acquire(policy.charge(key()))).await);
            }
            let mut starts = Vec::new();
            for caller in callers {
                starts.push(began(caller).await);
            }
            assert!(starts.is_sorted(), "{starts:?}");
            let took = starts[4] - before;
            assert!(took >= Duration::from_millis(1_000 - 25), "{took:?}");
        },
        policy,
    )
    .await;
}

#[tokio::test]
async fn caller_that_needs_two_keys_is_not_passed_over() {
    let policy = Policy::new("one", Quota::per_second(20).burst(1));
    on_each_store(
        |limiter, other, one| async move {
            let two = Policy::new("two", Quota::per_second(5).burst(1));
            let both = [one.charge(key()), two.charge(key())];
            drop(limiter.acquire(&both).await.expect("room"));
            let both = wait(limiter.acquire(&both)).await;
            let alone = wait(other.acquire(two.charge(key()))).await;
            let later = wait(other.acquire(one.charge(key()))).await;
            let (both, alone, later) = (began(both).await, began(alone).await, began(later).await);
            assert!(both < alone, "it came earlier");
            assert!(later < both, "its key was not needed yet");
        },
        policy,
    )
    .await;
}

// Regression: a pause was forgotten once Redis was down, and one that was made then was lost.
#[tokio::test]
async fn pauses_of_an_instance_outlast_an_outage() {
    let mut server = Server::start();
    let policy = Policy::new("api", Quota::per_second(100));
    let store = RedisStore::builder(server.url());
    let builder = RateLimiter::builder().policy(policy.clone()).redis(store);
    let limiter = builder.build().expect("a usable policy");
    let [before, meanwhile, other] = ["before", "meanwhile", "other"].map(Key::new);
    let minute = Duration::from_secs(60);
    let pause = limiter.pause(&policy.charge(before), minute);
    pause.await.expect("it is stored");
    server.kill();
    until_degraded(std::slice::from_ref(&limiter)).await;
    let pause = limiter.pause(&policy.charge(meanwhile), minute);
    pause.await.expect_err("it cannot be stored");
    for key in [before, meanwhile] {
        let acquire = limiter.acquire(policy.charge(key));
        let error = acquire.max_wait(Duration::from_secs(1)).await;
        let error = error.expect_err("it is paused");
        assert!(error.retry_after() > Some(minute / 2), "{error}");
    }
    let free = limiter.acquire(policy.charge(other)).await;
    drop(free.expect("it is not paused"));
}

// Regression: a call that nobody polled held the reading of the rate, and all calls to its key waited for it.
#[tokio::test]
async fn call_that_is_not_polled_keeps_no_other_from_its_rate() {
    let server = Server::start();
    let limiter = RateLimiter::builder().redis(server.url()).build();
    let policy = Policy::new("api", Quota::per_second(100)).outgoing_key(Global);
    let layer = OutgoingLayer::builder(&limiter.expect("a usable limiter"))
        .policy(policy.adaptive(Adaptive::default()))
        .build()
        .expect("a usable layer");
    let answer = async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()));
    let client = layer.layer(service_fn(answer));
    let call = || Box::pin(client.clone().oneshot(Request::new(String::new())));
    let mut left = call();
    let mut context = Context::from_waker(Waker::noop());
    assert!(left.as_mut().poll(&mut context).is_pending());
    call().await.expect("a response");
    drop(left);
}

#[tokio::test]
async fn larger_cost_is_not_overtaken_by_smaller_ones() {
    let policy = Policy::new("bytes", Quota::per_second(10).burst(3));
    on_each_store(
        |one, other, policy| async move {
            drop(
                one.acquire(policy.charge(key()).cost(3))
                    .await
                    .expect("room"),
            );
            let large = wait(one.acquire(policy.charge(key()).cost(3))).await;
            let small = wait(one.acquire(policy.charge(key()))).await;
            let far = wait(other.acquire(policy.charge(key()))).await;
            let large = began(large).await;
            assert!(large < began(small).await && large < began(far).await);
        },
        policy,
    )
    .await;
}

#[tokio::test]
async fn units_are_used_without_a_gap_and_never_too_early() {
    let policy = Policy::new("fast", Quota::per_second(200).burst(1));
    on_each_store(
        |one, other, policy| async move {
            let mut callers = Vec::new();
            for number in 0..60 {
                let limiter = if number % 2 == 0 { &one } else { &other };
                let acquire = limiter.acquire(policy.charge(key()));
                callers.push(tokio::spawn(async move {
                    let permit = acquire.await.expect("a turn");
                    permit.decision().decided_at()
                }));
            }
            let mut starts = Vec::new();
            for caller in callers {
                starts.push(caller.await.expect("no panic").as_micros());
            }
            starts.sort_unstable();
            for pair in starts.windows(2) {
                assert!(pair[1] - pair[0] >= 5_000, "{starts:?}");
            }
        },
        policy,
    )
    .await;
}

#[tokio::test]
async fn callers_that_give_up_cost_nobody_a_unit() {
    let policy = Policy::new("patience", Quota::per_second(20).burst(1));
    on_each_store(
        |one, other, policy| async move {
            drop(one.acquire(policy.charge(key())).await.expect("room"));
            // Each second caller leaves before its turn.
            let mut staying = Vec::new();
            let mut leaving = Vec::new();
            for number in 0..40 {
                let limiter = if number % 4 < 2 { &one } else { &other };
                let acquire = limiter.acquire(policy.charge(key()));
                let task = tokio::spawn(async move { acquire.await.expect("a turn").waited() });
                if number % 2 == 0 {
                    staying.push(task);
                } else {
                    leaving.push(task);
                }
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            for task in leaving {
                task.abort();
            }
            let mut longest = Duration::ZERO;
            for task in staying {
                longest = longest.max(task.await.expect("no panic"));
            }
            // 20 callers at 20 a second; 40 would take 2 s.
            assert!(longest < Duration::from_millis(1_700), "{longest:?}");
        },
        policy,
    )
    .await;
}

// Regression: a queue that had asked in vain for long slept on when its turn came, and others overtook it.
#[tokio::test]
async fn queue_behind_many_others_has_its_turn_on_time() {
    let policy = Policy::new("fast", Quota::per_second(500).burst(1));
    on_each_store(
        |one, other, policy| async move {
            let mut callers = Vec::new();
            for (limiter, count) in [(&one, 100), (&other, 20), (&one, 100)] {
                for _ in 0..count {
                    let acquire = limiter.acquire(policy.charge(key()));
                    callers.push(tokio::spawn(async move {
                        let permit = acquire.await.expect("a turn");
                        permit.decision().decided_at()
                    }));
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            let mut starts = Vec::new();
            for caller in callers {
                starts.push(caller.await.expect("no panic"));
            }
            let last = starts[100..120].iter().max().expect("some callers");
            let earlier = starts[120..].iter().filter(|start| *start < last).count();
            assert!(earlier <= 10, "{earlier} that came later went first");
        },
        policy,
    )
    .await;
}

// Regression: each of 1,000 sets of charges had a place of its own in the line of the key that they share, and asked by itself.
#[tokio::test]
async fn thousand_users_of_one_key_are_few_queues_at_the_store() {
    let server = Server::start();
    // No instance decides by itself, however slow the test is.
    let strict = |policy: Policy| policy.on_outage(OnOutage::Deny);
    let global = strict(Policy::new("global", Quota::per_second(400).burst(1)));
    let user = strict(Policy::new("user", Quota::per_second(5)));
    let builder = RateLimiter::builder()
        .policy(global.clone())
        .policy(user.clone());
    let limiter = builder.redis(server.url()).build();
    let limiter = limiter.expect("a usable limiter");
    drop(limiter.acquire(global.charge(key())).await.expect("room"));
    let callers: Vec<_> = (0..USERS)
        .map(|number| {
            let charges = [global.charge(key()), user.charge(Key::from(number))];
            let acquire = limiter.acquire(&charges);
            tokio::spawn(async move {
                let permit = acquire.await.expect("a turn");
                permit.decision().decided_at().as_micros()
            })
        })
        .collect();
    let mut most = 0;
    while callers.iter().any(|caller| !caller.is_finished()) {
        for line in server.keys().iter().filter(|key| key.ends_with("#q")) {
            let places = server.command(&["HLEN", line]);
            most = most.max(redis::from_redis_value(places).expect("a number"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut starts = Vec::new();
    for caller in callers {
        starts.push(caller.await.expect("no panic"));
    }
    starts.sort_unstable();
    let gaps = starts.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.min() >= Some(2_500), "{starts:?}");
    assert!((1..=40_u64).contains(&most), "{most} queues");
    let calls = server.command_calls()["evalsha"];
    assert!(calls < 4 * USERS, "{calls} calls");
}

const USERS: u64 = 1_000;

/// Waits until so many instances listen to messages about slots.
async fn listeners(server: &Server, count: usize) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let channels = server.command(&["PUBSUB", "CHANNELS", "tollgate:wake:*"]);
        let channels: Vec<String> = redis::from_redis_value(channels).expect("names");
        if channels.len() == count {
            return;
        }
        assert!(Instant::now() < until, "{channels:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

// Regression: the instance that released a slot took it again, while one that had waited for longer asked now and then.
#[tokio::test]
async fn slot_that_is_released_goes_to_the_instance_that_waits_longest() {
    let server = Server::start();
    let policy = Policy::concurrency("slots", 1);
    let limiter = || {
        let builder = RateLimiter::builder().policy(policy.clone());
        builder
            .redis(server.url())
            .build()
            .expect("a usable limiter")
    };
    let (one, other) = (limiter(), limiter());
    let charge = || policy.charge(key());
    let first = one.acquire(charge()).await.expect("a slot");
    let mut callers = Vec::new();
    for limiter in [&other, &one, &other, &one, &one, &other] {
        callers.push(wait(limiter.acquire(charge())).await);
    }
    listeners(&server, 2).await;
    let published = || server.command_calls().get("publish").copied();
    assert_eq!(published(), None);
    drop(first);
    let mut starts = Vec::new();
    for caller in callers {
        let (permit, start) = caller.await.expect("no panic");
        starts.push(start);
        drop(permit);
    }
    assert!(starts.is_sorted(), "{starts:?}");
    assert!(published() >= Some(5), "{:?}", published());
}

#[tokio::test]
async fn user_that_may_not_publish_releases_slots_all_the_same() {
    let server = Server::start();
    let mut user = vec!["ACL", "SETUSER", "limiter", "on", ">secret", "~tollgate:*"];
    user.extend(RIGHTS.iter().chain(&REGISTRATION_RIGHTS));
    user.extend(["+hgetall", "+hset", "+hdel"]);
    server.command(&user);
    let url = format!("redis://limiter:secret@{}", server.address());
    let policy = Policy::concurrency("slots", 1);
    let limiter = RateLimiter::builder()
        .policy(policy.clone())
        .redis(url.as_str());
    let limiter = limiter.build().expect("a usable limiter");
    for _ in 0..3 {
        let permit = limiter.acquire(policy.charge(key())).await.expect("a slot");
        let waiting = wait(limiter.acquire(policy.charge(key()))).await;
        drop(permit);
        let (permit, _) = waiting.await.expect("no panic");
        assert_eq!(permit.decision().counted_by(), CountedBy::Shared);
    }
}

// Regression: instances whose callers all wait did not register, so in an outage each of them granted the whole rate.
#[tokio::test]
async fn instance_whose_callers_wait_is_one_of_the_fleet() {
    let server = Server::start();
    let policy = Policy::new("api", Quota::per_second(100));
    let limiter = || {
        let builder = RateLimiter::builder().policy(policy.clone());
        builder
            .redis(server.url())
            .build()
            .expect("a usable limiter")
    };
    let limiters = [limiter(), limiter(), limiter()];
    let until = Instant::now() + Duration::from_secs(20);
    let instances = |limiter: &RateLimiter| limiter.health().instances();
    while limiters.iter().any(|limiter| instances(limiter) != Some(3)) {
        assert!(
            Instant::now() < until,
            "{:?}",
            limiters.each_ref().map(instances)
        );
        for limiter in &limiters {
            drop(limiter.acquire(policy.charge(key())).await.expect("room"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// Regression: an ACL user that may not use hashes opened the breaker with its first caller that waited.
#[tokio::test]
async fn user_without_the_rights_of_lines_has_turns_without_an_order() {
    let server = Server::start();
    let mut user = vec!["ACL", "SETUSER", "limiter", "on", ">secret", "~tollgate:*"];
    user.extend(RIGHTS.iter().chain(&REGISTRATION_RIGHTS));
    server.command(&user);
    let url = format!("redis://limiter:secret@{}", server.address());
    let policy = Policy::new("strict", Quota::per_second(50).burst(1));
    let limiter = RateLimiter::builder()
        .policy(policy.clone())
        .redis(url.as_str());
    let limiter = limiter.build().expect("a usable limiter");
    let mut callers = Vec::new();
    for _ in 0..5 {
        let acquire = limiter.acquire(policy.charge(key()));
        callers.push(tokio::spawn(async move { acquire.await.expect("a turn") }));
    }
    for caller in callers {
        let permit = caller.await.expect("no panic");
        assert_eq!(permit.decision().counted_by(), CountedBy::Shared);
    }
    let paused = limiter
        .pause(&policy.charge(key()), Duration::from_secs(1))
        .await;
    paused.expect_err("no right to pause");
    let permit = limiter.acquire(policy.charge(key())).await.expect("a turn");
    assert_eq!(permit.decision().counted_by(), CountedBy::Shared);
}

// Regression: a queue that left its line asked for nobody, and the script failed.
#[tokio::test]
async fn lines_are_empty_once_nobody_waits() {
    let server = Server::start();
    let policy = Policy::new("strict", Quota::per_second(20).burst(1));
    let limiter = RateLimiter::builder()
        .policy(policy.clone())
        .redis(server.url());
    let limiter = limiter.build().expect("a usable limiter");
    drop(limiter.acquire(policy.charge(key())).await.expect("room"));
    let first = wait(limiter.acquire(policy.charge(key()))).await;
    let second = wait(limiter.acquire(policy.charge(key()))).await;
    first.abort();
    second.abort();
    no_line_is_left(&server).await;
    // Reproducer: what was owed to a lower priority stayed for a minute.
    let charge = || limiter.acquire(policy.charge(key()));
    let low = wait(charge().priority(Priority::Low)).await;
    let mut callers = vec![low];
    for _ in 0..4 {
        callers.push(wait(charge().priority(Priority::High)).await);
    }
    for caller in callers {
        began(caller).await;
    }
    no_line_is_left(&server).await;
}

async fn no_line_is_left(server: &Server) {
    let until = Instant::now() + Duration::from_secs(10);
    while server.keys().iter().any(|key| key.ends_with("#q")) {
        assert!(Instant::now() < until, "{:?}", server.keys());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
