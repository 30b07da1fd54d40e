//! Callers that wait in process: what a review of their lines found.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use tollgate::{
    Key, Policy, Quota, RateLimiter,
    acquire::{Acquire, AcquireErrorKind},
    block::{Block, BlockTarget},
    clock::{Clock, Timestamp},
    memory::MemoryStore,
};

fn key() -> Key {
    Key::new("ada")
}

fn limiter(policies: &[&Policy]) -> RateLimiter {
    let policies = policies.iter().map(|policy| (*policy).clone());
    let builder = policies.fold(
        RateLimiter::builder(),
        tollgate::builder::RateLimiterBuilder::policy,
    );
    builder.build().expect("usable policies")
}

/// Begins to wait.
fn begun(acquire: Acquire) -> Pin<Box<Acquire>> {
    let mut acquire = Box::pin(acquire);
    let polled = acquire
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "{polled:?}");
    acquire
}

// Regression: callers under a changed limit joined the line of those under the old one, and were charged as they were.
#[tokio::test]
async fn changed_limit_counts_while_others_wait_under_the_old_one() {
    let old = Policy::new("api", Quota::per_second(100));
    let new = Policy::new("api", Quota::per_second(10));
    let limiter = limiter(&[&old]);
    drop(
        limiter
            .acquire(old.charge(key()).cost(100))
            .await
            .expect("room"),
    );
    let waiting = begun(limiter.acquire(old.charge(key())));
    let permit = limiter.acquire(new.charge(key())).await.expect("a turn");
    let usage = permit.decision().states()[0].usage().expect("a usage");
    assert_eq!(usage.limit, 10);
    drop(waiting);
}

// Regression: a line whose callers had failed stayed, and no later caller of its key was woken.
#[tokio::test]
async fn key_has_turns_again_after_a_block_that_ended_a_wait() {
    let policy = Policy::new("api", Quota::per_second(10).burst(1));
    let limiter = limiter(&[&policy]);
    drop(limiter.acquire(policy.charge(key())).await.expect("room"));
    let waiting = begun(limiter.acquire(policy.charge(key())));
    let hour = Duration::from_secs(3_600);
    limiter
        .block(Block::new(key(), hour))
        .await
        .expect("blocked");
    let error = waiting.await.expect_err("blocked");
    assert_eq!(error.kind(), AcquireErrorKind::Blocked);
    limiter
        .unblock(BlockTarget::new(key(), None))
        .await
        .expect("unblocked");
    for _ in 0..3 {
        drop(limiter.acquire(policy.charge(key())).await.expect("a turn"));
    }
}

// Regression: the task of such a line asked again and again, and never let go of its thread.
#[tokio::test]
async fn nothing_is_acquired_at_once() {
    let limiter = limiter(&[]);
    let permit = limiter.acquire(&[]).await.expect("nothing denies");
    assert!(permit.decision().states().is_empty());
}

// Regression: each caller was taken for one place further behind than it was, once units were granted ahead.
#[tokio::test]
async fn caller_whose_unit_is_granted_is_not_refused_for_the_next_one() {
    let policy = Policy::new("api", Quota::per_second(5).burst(1));
    let limiter = limiter(&[&policy]);
    drop(limiter.acquire(policy.charge(key())).await.expect("room"));
    let first = limiter.acquire(policy.charge(key()));
    let first = begun(first.max_wait(Duration::from_millis(350)));
    let second = begun(limiter.acquire(policy.charge(key())));
    drop(first.await.expect("its turn is after 200 ms"));
    drop(second.await.expect("its turn is after 400 ms"));
}

// Regression: a unit that was given back was refunded although later ones were granted, which were then granted twice.
#[tokio::test]
async fn units_behind_one_that_is_given_back_are_not_granted_twice() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let store = store.expect("a usable store");
    let policy = Policy::new("api", Quota::per_second(500).burst(1));
    let limiter = || RateLimiter::new(store.clone(), [policy.clone()]).expect("a usable policy");
    let limiters = [limiter(), limiter(), limiter()];
    let wait = |limiter: &RateLimiter| -> Vec<Pin<Box<Acquire>>> {
        let acquire = || Box::pin(limiter.acquire(policy.charge(key())));
        let mut callers = vec![acquire(), acquire()];
        for caller in &mut callers {
            let _ = caller
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
        }
        callers
    };
    let leaving = wait(&limiters[0]);
    tokio::task::yield_now().await;
    let mut staying = wait(&limiters[1]);
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    drop(leaving);
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    staying.extend(wait(&limiters[2]));
    let mut starts = Vec::new();
    for caller in staying {
        let ticking = clock.clone();
        let ticks = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ticking.advance(Duration::from_millis(1));
            }
        });
        let permit = caller.await.expect("a turn");
        ticks.abort();
        starts.push(permit.decision().decided_at().as_micros());
    }
    starts.sort_unstable();
    for pair in starts.windows(2) {
        assert!(pair[1] - pair[0] >= 2_000, "{starts:?}");
    }
}

// Regression: a caller that kept its place here blocked all that wanted fewer units, as long as it waited elsewhere.
#[tokio::test]
async fn caller_that_waits_for_another_key_leaves_units_to_others() {
    let (here, hourly) = (
        Policy::new("here", Quota::per_second(10)),
        Policy::new("hourly", Quota::per_hour(1)),
    );
    let limiter = limiter(&[&here, &hourly]);
    drop(limiter.acquire(hourly.charge(key())).await.expect("room"));
    drop(
        limiter
            .acquire(here.charge(key()).cost(8))
            .await
            .expect("room"),
    );
    let both = [here.charge(key()).cost(5), hourly.charge(key())];
    let both = limiter.acquire(&both).max_wait(Duration::from_secs(7_200));
    let both = begun(both);
    for _ in 0..3 {
        let permit = limiter.acquire(here.charge(key())).await;
        drop(permit.expect("its units are left to others"));
    }
    drop(both);
}

// Regression: the time until the next question for a slot was taken for the time until one is free.
#[tokio::test]
async fn caller_that_waits_for_a_slot_waits_as_long_as_it_wants() {
    let policy = Policy::concurrency("slots", 1);
    let limiter = limiter(&[&policy]);
    let held = limiter.acquire(policy.charge(key())).await.expect("a slot");
    let wait = Duration::from_millis(15);
    let error = limiter.acquire(policy.charge(key())).max_wait(wait).await;
    let error = error.expect_err("it is held");
    assert_eq!(error.kind(), AcquireErrorKind::TooLong);
    assert!(error.waited() >= wait, "{error}");
    drop(held);
}

// Regression: callers that could not have their turns in time came back together, when the first of them could have had its own.
#[tokio::test]
async fn callers_that_are_too_late_learn_of_their_own_turns() {
    let policy = Policy::new("api", Quota::per_second(10).burst(1));
    let limiter = limiter(&[&policy]);
    drop(limiter.acquire(policy.charge(key())).await.expect("room"));
    let wait = Duration::from_secs(2);
    let callers = [(); 3].map(|()| limiter.acquire(policy.charge(key())).max_wait(wait));
    let callers = callers.map(begun);
    let pause = limiter.pause(&policy.charge(key()), Duration::from_secs(60));
    pause.await.expect("it is paused");
    let mut turns = Vec::new();
    for caller in callers {
        let error = caller.await.expect_err("the pause is longer");
        turns.push(error.retry_after().expect("a time"));
    }
    assert!(
        turns[2] >= turns[0] + Duration::from_millis(150),
        "{turns:?}"
    );
}

// Regression: the time before the first poll was added to the deadline.
#[tokio::test]
async fn deadline_counts_from_its_own_time() {
    let policy = Policy::new("api", Quota::per_minute(600).burst(1));
    let limiter = limiter(&[&policy]);
    drop(limiter.acquire(policy.charge(key())).await.expect("room"));
    let acquire = limiter.acquire_until(Instant::now(), policy.charge(key()));
    let error = acquire.await.expect_err("it is over");
    assert_eq!(error.waited(), Duration::ZERO);
    assert!(
        error.retry_after() <= Some(Duration::from_millis(100)),
        "{error}"
    );
}

// Regression: a line whose last caller was granted a turn that had not started was forgotten, with the callers that came before the
// start. Another one was forgotten if its only old caller left while its question was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_many_users_on_one_key_all_have_their_turns() {
    let all = Policy::new("all", Quota::per_second(150).burst(1));
    let user = Policy::new("user", Quota::per_second(1_000));
    let limiter = limiter(&[&all, &user]);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..24_u64 {
        let (limiter, all, user) = (limiter.clone(), all.clone(), user.clone());
        tasks.spawn(async move {
            for turn in 0..12_u64 {
                let charges = [all.charge(Key::GLOBAL), user.charge(Key::from(number / 3))];
                let acquire = limiter.acquire(&charges).max_wait(Duration::from_secs(60));
                let patience = match turn % 4 {
                    3 => Duration::from_millis(number * 7),
                    _ => Duration::from_secs(10),
                };
                let turn = tokio::time::timeout(patience, acquire).await;
                assert!(
                    turn.is_ok() || patience < Duration::from_secs(1),
                    "forgotten"
                );
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("every caller has a turn");
    }
}
