//! Callers that wait for their turn: in order, all or nothing, and without a loss when they leave.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use tollgate::{
    Charge, Key, Percent, Policy, Quota, RateLimiter,
    acquire::{Acquire, AcquireError, AcquireErrorKind, Permit, Priority},
    algorithm::{Algorithm, QueueLimits, WindowStart},
    block::Block,
    overload,
    policy::Penalty,
};

use super::place::{Place, check};

on_every_store! { lines, std::convert::identity, {
    callers_of_one_instance_have_their_turns_in_order
    caller_that_leaves_passes_its_place_on
    turn_that_comes_to_a_caller_that_has_left_is_given_back
    caller_waits_under_every_algorithm_until_there_is_room
    several_charges_are_made_together_or_not_at_all
    slot_that_is_free_again_goes_to_the_next_caller
    slots_of_a_caller_that_leaves_are_free_again
    higher_priority_goes_first
    lower_priority_gets_one_unit_in_eleven
    caller_whose_turn_is_too_late_gets_an_error_at_once
    try_overtakes_nobody
    cost_above_the_limit_never_has_a_turn
    blocked_key_has_no_turn
    wait_is_no_offence
    paused_key_has_no_turn_until_the_pause_ends
    shorter_pause_does_not_end_a_longer_one
    pause_and_callers_are_explained_with_the_next_turn
    lowered_quota_is_what_is_left
    queue_of_a_policy_is_not_waited_in_twice
    caller_that_borrows_waits_until_a_twentieth_is_free
    caller_that_waits_is_lent_no_slots
} }

const UNIT: Duration = Duration::from_millis(100);
const MILLISECOND: Duration = Duration::from_millis(1);

/// One unit in 100 ms, without a burst.
fn strict() -> Policy {
    Policy::new("strict", Quota::per_second(10).burst(1))
}

fn ada() -> Key {
    Key::new("ada")
}

/// A caller that has begun to wait.
struct Caller(Pin<Box<Acquire>>);

impl Caller {
    /// Begins to wait. There must be no room.
    async fn waiting(acquire: Acquire) -> Self {
        let mut caller = Self(Box::pin(acquire.max_wait(Duration::from_secs(60))));
        caller.assert_waits("it has just come").await;
        caller
    }

    /// Polls for some milliseconds, in which the store would give a turn if it could.
    async fn assert_waits(&mut self, why: &str) {
        let until = Instant::now() + 40 * MILLISECOND;
        while Instant::now() < until {
            let polled = self
                .0
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "{why}: {polled:?}");
            pass(MILLISECOND).await;
        }
    }

    async fn turn(self) -> Permit {
        self.ended().await.expect("a turn")
    }

    async fn ended(self) -> Result<Permit, AcquireError> {
        let ended = tokio::time::timeout(Duration::from_secs(20), self.0);
        ended.await.expect("a turn in time")
    }
}

/// Lets this much real time pass: a caller that has waited for longer is older.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Takes all units.
async fn exhaust(limiter: &RateLimiter, charge: Charge<'_>) {
    for _ in 0..1_000 {
        if !check(limiter, &[charge]).await.is_allowed() {
            return;
        }
    }
    panic!("the quota does not end");
}

async fn callers_of_one_instance_have_their_turns_in_order(place: Place) {
    let policy = strict();
    let limiter = place.instance(&[&policy]);
    exhaust(&limiter, policy.charge(ada())).await;
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(Caller::waiting(limiter.acquire(policy.charge(ada()))).await);
    }
    while !callers.is_empty() {
        let first = callers.remove(0);
        place.clock.advance(UNIT);
        let permit = first.turn().await;
        assert!(permit.waited() > Duration::ZERO);
        for other in &mut callers {
            other.assert_waits("there was one unit").await;
        }
    }
}

async fn caller_that_leaves_passes_its_place_on(place: Place) {
    let policy = strict();
    let limiter = place.instance(&[&policy]);
    exhaust(&limiter, policy.charge(ada())).await;
    let mut callers = Vec::new();
    for _ in 0..6 {
        callers.push(Caller::waiting(limiter.acquire(policy.charge(ada()))).await);
    }
    let last = callers.pop().expect("the last one");
    drop(callers);
    place.clock.advance(UNIT);
    drop(last.turn().await);
}

async fn turn_that_comes_to_a_caller_that_has_left_is_given_back(place: Place) {
    let policy = Policy::new("burst", Quota::per_hour(10));
    let limiter = place.instance(&[&policy]);
    for _ in 0..5 {
        // Polled once: what is asked for may come after it has left.
        let mut acquire = Box::pin(limiter.acquire(policy.charge(ada())));
        let polled = acquire
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Ok(permit)) = polled {
            permit.settle(|_, _| 0);
        }
    }
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let decision = limiter
            .peek(&[policy.charge(ada())])
            .await
            .expect("a state");
        let left = decision.states()[0].usage().expect("a usage").remaining;
        if left == 10 {
            break;
        }
        assert!(Instant::now() < until, "{left} are left");
        pass(MILLISECOND).await;
    }
}

async fn caller_waits_under_every_algorithm_until_there_is_room(place: Place) {
    let quota = Quota::new(2, 4 * UNIT);
    let ways = [
        ("token", Algorithm::TokenBucket),
        ("leaky", Algorithm::LeakyBucket),
        ("clock", Algorithm::FixedWindow(WindowStart::Clock)),
        ("first", Algorithm::FixedWindow(WindowStart::FirstHit)),
        ("sliding", Algorithm::SlidingWindow),
        ("log", Algorithm::SlidingLog),
    ];
    for (name, algorithm) in ways {
        let policy = Policy::new(name, quota).algorithm(algorithm);
        let limiter = place.instance(&[&policy]);
        exhaust(&limiter, policy.charge(ada())).await;
        let mut caller = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
        let decision = limiter
            .peek(&[policy.charge(ada())])
            .await
            .expect("a state");
        let denied = check(&limiter, &[policy.charge(ada())]).await;
        let wait = denied.retry_after().expect("a wait");
        assert!(wait > MILLISECOND, "{name}: {decision:?}");
        // A bucket is granted ahead of its time, and begins at its time.
        place.clock.advance(wait - MILLISECOND);
        let polled = caller
            .0
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "{name}");
        place.clock.advance(MILLISECOND);
        drop(caller.turn().await);
        let decision = check(&limiter, &[policy.charge(ada())]).await;
        let is_allowed = decision.is_allowed();
        let is_bucket = matches!(name, "token" | "leaky");
        assert!(!is_bucket || !is_allowed, "{name}: {decision:?}");
        place.clock.advance(Duration::from_secs(1));
    }
}

async fn several_charges_are_made_together_or_not_at_all(place: Place) {
    let (rate, hourly) = (strict(), Policy::new("hourly", Quota::per_hour(2)));
    let limiter = place.instance(&[&rate, &hourly]);
    let charges = [rate.charge(ada()), hourly.charge(ada())];
    drop(limiter.acquire(&charges).await.expect("room"));
    let caller = Caller::waiting(limiter.acquire(&charges)).await;
    let left =
        |decision: &tollgate::Decision| decision.states()[0].usage().map(|usage| usage.remaining);
    let peek = limiter
        .peek(&[hourly.charge(ada())])
        .await
        .expect("a state");
    assert_eq!(left(&peek), Some(1), "the rate denies");
    place.clock.advance(UNIT);
    drop(caller.turn().await);
    place.clock.advance(UNIT);
    let refused = limiter
        .acquire(&charges)
        .max_wait(Duration::from_secs(5))
        .await;
    let error = refused.expect_err("the hourly quota is used up");
    assert_eq!(error.kind(), AcquireErrorKind::TooLong);
    assert!(
        error.retry_after() > Some(Duration::from_secs(1_700)),
        "{error}"
    );
    assert!(
        check(&limiter, &[rate.charge(ada())]).await.is_allowed(),
        "not charged"
    );
}

async fn slot_that_is_free_again_goes_to_the_next_caller(place: Place) {
    let policy = Policy::concurrency("slots", 2);
    let limiter = place.instance(&[&policy]);
    let first = limiter.acquire(policy.charge(ada())).await.expect("a slot");
    let second = limiter.acquire(policy.charge(ada())).await.expect("a slot");
    let third = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
    let mut fourth = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
    drop(first);
    let third = third.turn().await;
    fourth.assert_waits("there are two slots").await;
    drop(second);
    drop((third, fourth.turn().await));
}

async fn slots_of_a_caller_that_leaves_are_free_again(place: Place) {
    let policy = Policy::concurrency("slots", 1);
    let limiter = place.instance(&[&policy]);
    for _ in 0..5 {
        let mut acquire = Box::pin(limiter.acquire(policy.charge(ada())));
        let _ = acquire
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        drop(acquire);
    }
    let permit = Caller(Box::pin(limiter.acquire(policy.charge(ada()))));
    drop(permit.turn().await);
}

async fn higher_priority_goes_first(place: Place) {
    let policy = strict();
    let limiter = place.instance(&[&policy]);
    exhaust(&limiter, policy.charge(ada())).await;
    let caller = |priority| limiter.acquire(policy.charge(ada())).priority(priority);
    let low = Caller::waiting(caller(Priority::Low)).await;
    let normal = Caller::waiting(caller(Priority::Normal)).await;
    let high = Caller::waiting(caller(Priority::High)).await;
    let mut left = vec![high, normal, low];
    while !left.is_empty() {
        let first = left.remove(0);
        place.clock.advance(UNIT);
        drop(first.turn().await);
        for other in &mut left {
            other.assert_waits("there was one unit").await;
        }
    }
}

async fn lower_priority_gets_one_unit_in_eleven(place: Place) {
    let policy = strict();
    let limiter = place.instance(&[&policy]);
    exhaust(&limiter, policy.charge(ada())).await;
    let caller = |priority| limiter.acquire(policy.charge(ada())).priority(priority);
    let mut low = Caller::waiting(caller(Priority::Low)).await;
    let mut high = Vec::new();
    for _ in 0..14 {
        let mut acquire = Box::pin(caller(Priority::High).max_wait(Duration::from_secs(60)));
        let _ = acquire
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        high.push(acquire);
    }
    let mut units = 0;
    let until = Instant::now() + Duration::from_secs(20);
    'units: loop {
        place.clock.advance(UNIT);
        units += 1;
        loop {
            assert!(Instant::now() < until, "after {units} units");
            pass(MILLISECOND).await;
            let mut context = Context::from_waker(Waker::noop());
            if low.0.as_mut().poll(&mut context).is_ready() {
                break 'units;
            }
            let before = high.len();
            high.retain_mut(|caller| caller.as_mut().poll(&mut context).is_pending());
            if high.len() < before {
                break;
            }
        }
        assert!(!high.is_empty(), "the lower priority had no unit");
    }
    assert!((9..=13).contains(&units), "after {units} units");
}

async fn caller_whose_turn_is_too_late_gets_an_error_at_once(place: Place) {
    let (policy, slots) = (
        Policy::new("hourly", Quota::per_hour(1)),
        Policy::concurrency("slots", 5),
    );
    let limiter = place.instance(&[&policy, &slots]);
    exhaust(&limiter, policy.charge(ada())).await;
    let both = [policy.charge(ada()), slots.charge(ada())];
    // Regression: a caller that needed a slot besides waited in vain, although the slot was free.
    for charges in [&both[..1], &both] {
        let began = Instant::now();
        let refused = limiter
            .acquire(charges)
            .max_wait(Duration::from_secs(1_800));
        let error = refused.await.expect_err("an hour is too long");
        assert!(began.elapsed() < Duration::from_secs(60));
        assert_eq!(error.kind(), AcquireErrorKind::TooLong);
        let hour = Duration::from_secs(3_600);
        let away = error.retry_after().expect("a time");
        assert!(
            away <= hour && away > hour - Duration::from_secs(60),
            "{away:?}"
        );
        assert_eq!(error.policy(), Some("hourly"));
    }
}

async fn try_overtakes_nobody(place: Place) {
    let policy = strict();
    let (limiter, other) = (place.instance(&[&policy]), place.instance(&[&policy]));
    drop(
        limiter
            .try_acquire(policy.charge(ada()))
            .await
            .expect("room"),
    );
    let refused = limiter.try_acquire(policy.charge(ada())).await;
    let error = refused.expect_err("no room");
    assert_eq!(error.kind(), AcquireErrorKind::TooLong);
    let waiting = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
    place.clock.advance(UNIT);
    for limiter in [&limiter, &other] {
        let refused = limiter.try_acquire(policy.charge(ada())).await;
        assert!(refused.is_err(), "somebody waits");
    }
    drop(waiting.turn().await);
}

async fn cost_above_the_limit_never_has_a_turn(place: Place) {
    let policy = strict();
    let limiter = place.instance(&[&policy]);
    let refused = limiter.acquire(policy.charge(ada()).cost(2)).await;
    let error = refused.expect_err("it never fits");
    assert_eq!(error.kind(), AcquireErrorKind::CostAboveLimit);
    assert_eq!(
        error.to_string(),
        "the cost is above the limit, policy \"strict\""
    );
}

async fn blocked_key_has_no_turn(place: Place) {
    let policy = strict();
    let limiter = place.instance(&[&policy]);
    let minute = Duration::from_secs(60);
    limiter
        .block(Block::new(ada(), minute))
        .await
        .expect("blocked");
    let error = limiter
        .acquire(policy.charge(ada()))
        .await
        .expect_err("blocked");
    assert_eq!(error.kind(), AcquireErrorKind::Blocked);
    assert_eq!(error.retry_after(), Some(minute));
    let other = limiter.acquire(policy.charge(Key::new("bob"))).await;
    drop(other.expect("another key"));
}

async fn wait_is_no_offence(place: Place) {
    let penalty = Penalty::after(2, Duration::from_secs(60));
    let policy = strict().count_denied(true).penalty(penalty);
    let limiter = place.instance(&[&policy]);
    drop(limiter.acquire(policy.charge(ada())).await.expect("room"));
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(Caller::waiting(limiter.acquire(policy.charge(ada()))).await);
    }
    for caller in callers {
        place.clock.advance(UNIT);
        drop(caller.turn().await);
    }
    let banned = limiter.ban_status(&policy, &ada()).await.expect("a status");
    assert!(banned.is_none(), "{banned:?}");
}

async fn paused_key_has_no_turn_until_the_pause_ends(place: Place) {
    let ways = [
        ("bucket", Algorithm::TokenBucket),
        ("window", Algorithm::FixedWindow(WindowStart::Clock)),
        ("log", Algorithm::SlidingLog),
    ];
    for (name, algorithm) in ways {
        let policy = Policy::new(name, Quota::per_second(10)).algorithm(algorithm);
        let (limiter, other) = (place.instance(&[&policy]), place.instance(&[&policy]));
        let pause = 5 * UNIT;
        other
            .pause(&policy.charge(ada()), pause)
            .await
            .expect("paused");
        let refused = limiter.try_acquire(policy.charge(ada())).await;
        let error = refused.expect_err("it is paused");
        assert_eq!(error.retry_after(), Some(pause), "{name}");
        let mut caller = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
        if name == "bucket" {
            let decision = check(&limiter, &[policy.charge(ada())]).await;
            assert_eq!(decision.retry_after(), Some(pause));
        }
        place.clock.advance(pause - MILLISECOND);
        caller.assert_waits(name).await;
        place.clock.advance(MILLISECOND);
        drop(caller.turn().await);
        if name == "bucket" {
            let refused = limiter.try_acquire(policy.charge(ada())).await;
            assert!(refused.is_err(), "no burst follows");
        }
        let bob = limiter.acquire(policy.charge(Key::new("bob"))).await;
        drop(bob.expect("another key"));
        place.clock.advance(Duration::from_secs(2));
    }
}

async fn shorter_pause_does_not_end_a_longer_one(place: Place) {
    let policy = strict();
    let limiter = place.instance(&[&policy]);
    for units in [5, 1] {
        let paused = limiter.pause(&policy.charge(ada()), units * UNIT);
        paused.await.expect("paused");
    }
    let refused = limiter.try_acquire(policy.charge(ada())).await;
    assert_eq!(refused.expect_err("paused").retry_after(), Some(5 * UNIT));
}

async fn pause_and_callers_are_explained_with_the_next_turn(place: Place) {
    let ways = [
        strict(),
        Policy::new("window", Quota::per_second(10)).algorithm(Algorithm::SlidingWindow),
        Policy::concurrency("slots", 1),
    ];
    for policy in ways {
        let (limiter, other) = (place.instance(&[&policy]), place.instance(&[&policy]));
        let explained = async || {
            let explanation = limiter.explain(&ada()).await.expect("explained");
            explanation.policies()[0].clone()
        };
        let before = explained().await;
        assert_eq!(before.paused_until(), None);
        assert_eq!(before.next_turn(), Some(Duration::ZERO));
        assert!(!before.to_string().contains("turn"), "{before}");

        let pause = 50 * UNIT;
        let paused = other.pause(&policy.charge(ada()), pause);
        paused.await.expect("paused");
        let paused = explained().await;
        assert_eq!(paused.paused_until(), Some(paused.counted_at() + pause));
        assert_eq!(paused.next_turn(), Some(pause), "{paused}");
        let lines = "\n  paused: as the other side asked, for 5 s\n  next turn: in 5 s";
        assert!(paused.to_string().ends_with(lines), "{paused}");

        let waiting = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
        let behind = explained().await;
        assert_eq!(behind.waiting_callers(), 1);
        assert!(behind.next_turn() >= Some(pause), "{behind}");
        let line = ", behind 1 caller of this instance";
        assert!(behind.to_string().ends_with(line), "{behind}");
        drop(waiting);
        let elsewhere = limiter.explain(&Key::new("bob")).await.expect("explained");
        assert_eq!(elsewhere.policies()[0].paused_until(), None);

        place.clock.advance(pause);
        let after = explained().await;
        assert_eq!(after.paused_until(), None);
        assert_eq!(after.waiting_callers(), 0);
    }
}

async fn lowered_quota_is_what_is_left(place: Place) {
    let ways = [
        ("bucket", Algorithm::TokenBucket),
        ("window", Algorithm::FixedWindow(WindowStart::Clock)),
        ("sliding", Algorithm::SlidingWindow),
        ("log", Algorithm::SlidingLog),
        ("first", Algorithm::FixedWindow(WindowStart::FirstHit)),
    ];
    for (name, algorithm) in ways {
        let policy = Policy::new(name, Quota::per_hour(100)).algorithm(algorithm);
        let limiter = place.instance(&[&policy]);
        for (lowered, left) in [(60, 60), (90, 60), (3, 3)] {
            let done = limiter.lower(&policy.charge(ada()), lowered);
            done.await.expect("lowered");
            let decision = limiter
                .peek(&[policy.charge(ada())])
                .await
                .expect("a state");
            let usage = decision.states()[0].usage().expect("a usage");
            assert_eq!(usage.remaining, left, "{name}, lowered to {lowered}");
        }
        place.clock.advance(Duration::from_secs(7_200));
        let decision = limiter
            .peek(&[policy.charge(ada())])
            .await
            .expect("a state");
        let usage = decision.states()[0].usage().expect("a usage");
        assert_eq!(usage.remaining, 100, "{name}: it heals within a window");
    }
}

async fn queue_of_a_policy_is_not_waited_in_twice(place: Place) {
    let queue = Algorithm::LeakyQueue(QueueLimits::new(10, Duration::from_secs(1)));
    let policy = Policy::new("queue", Quota::per_second(10)).algorithm(queue);
    let limiter = place.instance(&[&policy]);
    drop(limiter.acquire(policy.charge(ada())).await.expect("room"));
    let first = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
    let second = Caller::waiting(limiter.acquire(policy.charge(ada()))).await;
    drop(first);
    place.clock.advance(UNIT);
    drop(second.turn().await);
    let decision = check(&limiter, &[policy.charge(ada())]).await;
    assert_eq!(
        decision.delay(),
        Some(UNIT),
        "the state is that of the queue"
    );
}

async fn caller_that_borrows_waits_until_a_twentieth_is_free(place: Place) {
    let policy = Policy::new("lent", Quota::per_second(10).burst(20))
        .reserve(overload::Priority::Critical, Percent::new(50.0))
        .lend(Duration::from_secs(1));
    let limiter = place.instance(&[&policy]);
    let of = |class| policy.charges(ada(), class)[0];
    exhaust(&limiter, of(overload::Priority::Normal)).await;
    let mut caller = Caller::waiting(limiter.acquire(of(overload::Priority::Normal))).await;
    let critical = check(&limiter, &[of(overload::Priority::Critical)]).await;
    assert!(critical.is_allowed());
    place.clock.advance(UNIT);
    caller
        .assert_waits("one unit is free, and is not lent")
        .await;
    place.clock.advance(UNIT);
    drop(caller.turn().await);
    let critical = check(&limiter, &[of(overload::Priority::Critical)]).await;
    assert!(critical.is_allowed());
}

// Regression: what callers had in their turns was not noted, so slots that the class needed were lent to them.
async fn caller_that_waits_is_lent_no_slots(place: Place) {
    let policy = Policy::concurrency("lent", 20)
        .reserve(overload::Priority::Critical, Percent::new(50.0))
        .lend(Duration::from_secs(1));
    let limiter = place.instance(&[&policy]);
    let mut permits = Vec::new();
    let others = || policy.charges(ada(), overload::Priority::Normal);
    while let Ok(permit) = limiter.try_acquire(&others()).await {
        permits.push(permit);
    }
    assert_eq!(permits.len(), 10);
    assert!(check(&limiter, &others()).await.is_allowed());
}
