//! The clock that Tokio's paused time moves.

use std::{panic, thread, time::Duration};

use tokio::runtime::{Builder, Runtime};
use tollgate::{
    Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    clock::{Clock, Timestamp},
};

/// 2024-01-01T00:00:00Z
const START: Timestamp = Timestamp::from_micros(1_704_067_200_000_000);
const MINUTE: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
}

#[tokio::test(start_paused = true)]
async fn advanced_time_moves_the_clock_on_all_threads() {
    let clock = Clock::tokio();
    let copy = clock.clone();
    assert_eq!(clock.now(), START);
    tokio::time::advance(Duration::from_micros(1_500)).await;
    assert_eq!(clock.now(), START + Duration::from_micros(1_500));
    let elsewhere = thread::spawn(move || copy.now()).join().expect("no panic");
    assert_eq!(elsewhere, START + Duration::from_micros(1_500));
    tokio::time::sleep(MINUTE).await;
    assert!(clock.now() >= START + MINUTE, "a sleep takes paused time");
    assert_eq!(clock.wall_time(clock.now()), clock.now());
}

#[tokio::test(start_paused = true)]
async fn clock_is_read_on_another_runtime() {
    let clock = Clock::tokio();
    tokio::time::advance(MINUTE).await;
    let copy = clock.clone();
    let other = thread::spawn(move || runtime().block_on(async move { copy.now() }));
    assert_eq!(other.join().expect("no panic"), clock.now());
}

#[tokio::test(start_paused = true)]
async fn windows_of_the_wall_clock_begin_with_the_test() {
    let limiter = RateLimiter::builder().clock(Clock::tokio());
    let limiter = limiter.build().expect("a usable limiter");
    for quota in [Quota::per_minute(2), Quota::per_hour(2), Quota::per_day(2)] {
        let policy = Policy::new("window", quota);
        let policy = policy.algorithm(Algorithm::FixedWindow(WindowStart::Clock));
        let key = Key::new(format!("{quota:?}"));
        let decision = limiter.check(&[policy.charge(key)]).await;
        let decision = decision.expect("a decision");
        let usage = decision.states()[0].usage().expect("it is counted");
        let left = usage.reset_at.since(decision.decided_at());
        assert_eq!(left, quota.period(), "a whole window");
    }
}

#[tokio::test]
async fn time_that_is_not_paused_moves_the_clock() {
    let clock = Clock::tokio();
    let before = clock.now();
    thread::sleep(Duration::from_millis(2));
    assert!(clock.now() >= before + Duration::from_millis(2));
}

#[test]
fn clock_outlives_its_runtime() {
    let runtime = runtime();
    let clock = runtime.block_on(async { Clock::tokio() });
    drop(runtime);
    assert!(clock.now() >= START);
}

#[test]
fn clock_of_tokio_needs_a_runtime_and_is_not_moved_by_hand() {
    let created = panic::catch_unwind(Clock::tokio);
    created.expect_err("there is no runtime");
    let clock = runtime().block_on(async { Clock::tokio() });
    panic::catch_unwind(panic::AssertUnwindSafe(|| clock.advance(MINUTE)))
        .expect_err("Tokio's time is not set here");
}
