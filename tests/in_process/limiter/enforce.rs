//! Decisions in handlers: permits, rejections, and policies by name.

use std::{
    error::Error as _,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use http::StatusCode;
use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    algorithm::{Algorithm, QueueLimits},
    builder::RateLimiterBuilder,
    charge::AsCharges,
    clock::{Clock, Timestamp},
    extract::Global,
    rejection::{Reason, Rejection},
    testing::ScriptedStore,
    tiers::Tier,
};

fn limiter(policies: impl IntoIterator<Item = Policy>) -> RateLimiter {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_250_000));
    let builder = RateLimiter::builder().clock(clock);
    let builder = policies
        .into_iter()
        .fold(builder, RateLimiterBuilder::policy);
    builder.build().expect("it is well set up")
}

async fn remaining(limiter: &RateLimiter, policy: &Policy) -> Option<u64> {
    let peeked = limiter.peek(policy.charge(Key::GLOBAL)).await;
    peeked.expect("it is in process").remaining()
}

#[tokio::test]
async fn permit_has_the_decision_and_keeps_its_charges() {
    let policy = Policy::new("searches", Quota::per_minute(2));
    let limiter = limiter([]);
    let permit = limiter.enforce(policy.charge(Key::GLOBAL)).await;
    let permit = permit.expect("two are allowed");
    let decision = permit.decision();
    assert_eq!((decision.limit(), decision.remaining()), (Some(2), Some(1)));
    assert_eq!(decision.reset_after(), Some(Duration::from_secs(30)));
    assert_eq!(permit.waited(), Duration::ZERO);
    drop(permit);
    assert_eq!(remaining(&limiter, &policy).await, Some(1));
}

#[tokio::test]
async fn permit_is_settled_to_its_actual_cost() {
    let policy = Policy::new("searches", Quota::per_minute(10));
    let limiter = limiter([]);
    let permit = limiter.enforce(policy.charge(Key::GLOBAL).cost(8)).await;
    permit
        .expect("ten are allowed")
        .settle(|_, charged| charged - 5);
    assert_eq!(remaining(&limiter, &policy).await, Some(7));
}

#[tokio::test]
async fn denial_is_the_rejection_of_the_layer() {
    let policy = Policy::new("searches", Quota::per_minute(1));
    let limiter = limiter([]);
    let charge = policy.charge(Key::GLOBAL);
    drop(limiter.enforce(charge).await.expect("one is allowed"));
    let rejection = limiter.enforce(charge).await.expect_err("one is allowed");
    assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejection.retry_after_secs(), Some(60));
    let message = "rate limit searches exceeded, retry in 60 seconds";
    assert_eq!(rejection.message(), message);
    assert_eq!(rejection.to_string(), message);
    assert!(rejection.source().is_none());
    let decision = rejection.decision().expect("one was made");
    assert_eq!((decision.limit(), decision.remaining()), (Some(1), Some(0)));
}

#[tokio::test]
async fn several_charges_are_made_together_or_not_at_all() {
    let user = Policy::new("user", Quota::per_minute(5));
    let slots = Policy::concurrency("slots", 1);
    let limiter = limiter([]);
    let charges = [user.charge(Key::GLOBAL), slots.charge(Key::GLOBAL)];
    let permit = limiter.enforce(&charges).await.expect("a slot is free");
    let rejection = limiter.enforce(&charges).await.expect_err("it is taken");
    assert!(matches!(rejection.reason(), Reason::Limited { policy } if policy.as_str() == "slots"));
    assert_eq!(remaining(&limiter, &user).await, Some(4));
    assert_eq!(remaining(&limiter, &slots).await, Some(0));
    drop(permit);
    assert_eq!(remaining(&limiter, &slots).await, Some(1));
    drop(limiter.enforce(&charges).await.expect("it is free again"));
    assert_eq!(remaining(&limiter, &user).await, Some(3));
}

#[tokio::test]
async fn failed_store_is_a_503_with_its_error() {
    let store = ScriptedStore::failing(ErrorKind::Unavailable, "down");
    let limiter = RateLimiter::new(store, []).expect("a limiter");
    let policy = Policy::new("searches", Quota::per_minute(1));
    let charge = policy.charge(Key::GLOBAL);
    let enforced = limiter.enforce(charge).await.expect_err("it is down");
    let checked = async { Ok::<_, Rejection>(limiter.check(charge).await?) };
    for rejection in [enforced, checked.await.expect_err("it is down")] {
        assert_eq!(rejection.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(rejection.code(), "unavailable");
        let error = rejection.error().expect("the store's");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(rejection.source().expect("it").to_string(), "down");
    }
}

#[tokio::test]
async fn charges_that_cannot_be_made_are_a_503_that_shows_the_mistake() {
    let policy = Policy::new("searches", Quota::per_minute(5));
    let limiter = limiter([]);
    let twice = [policy.charge(Key::GLOBAL); 2];
    let rejection = limiter.enforce(&twice).await.expect_err("a mistake");
    assert_eq!(rejection.status(), StatusCode::SERVICE_UNAVAILABLE);
    let kind = rejection.error().map(tollgate::Error::kind);
    assert_eq!(kind, Some(ErrorKind::DuplicatePolicy));
    assert_eq!(remaining(&limiter, &policy).await, Some(5));
}

#[tokio::test]
async fn future_that_is_never_polled_charges_nothing() {
    let policy = Policy::new("searches", Quota::per_minute(5));
    let limiter = limiter([]);
    drop(limiter.enforce(policy.charge(Key::GLOBAL)));
    assert_eq!(remaining(&limiter, &policy).await, Some(5));
}

// === Queues ===

/// A turn in 100 ms, by the clock of the system.
fn queue() -> (RateLimiter, Policy) {
    let algorithm = Algorithm::LeakyQueue(QueueLimits::new(10, Duration::from_secs(10)));
    let policy = Policy::new("prints", Quota::per_second(10)).algorithm(algorithm);
    let limiter = RateLimiter::builder().build();
    (limiter.expect("it is well set up"), policy)
}

#[tokio::test]
async fn call_waits_for_its_turn_in_a_queue() {
    let (limiter, policy) = queue();
    let started = Instant::now();
    let charge = policy.charge(Key::GLOBAL);
    let first = limiter.enforce(charge).await.expect("a turn");
    assert_eq!(first.waited(), Duration::ZERO);
    let second = limiter.enforce(charge).await.expect("a turn");
    assert!(second.waited() >= Duration::from_millis(50), "{second:?}");
    assert!(started.elapsed() >= Duration::from_millis(95));
}

#[tokio::test]
async fn caller_that_leaves_a_queue_is_refunded() {
    let (limiter, policy) = queue();
    let charge = policy.charge(Key::GLOBAL);
    drop(limiter.enforce(charge).await.expect("a turn"));
    let used = async || {
        let peeked = limiter.peek(charge).await.expect("it is in process");
        peeked.reset_after().expect("it is counted")
    };
    let mut waiting = Box::pin(limiter.enforce(charge));
    assert!(waiting.as_mut().now_or_never().is_none());
    let with_it = used().await;
    assert!(with_it > Duration::from_millis(100), "{with_it:?}");
    drop(waiting);
    let without = used().await;
    assert!(without <= Duration::from_millis(100), "{without:?}");
}

// === Rejections of decisions ===

#[tokio::test]
async fn only_a_denial_has_a_rejection() {
    let policy = Policy::new("searches", Quota::per_minute(1));
    let limiter = limiter([]);
    let charge = policy.charge(Key::GLOBAL);
    let check = async || limiter.check(charge).await.expect("it is in process");
    assert!(Rejection::of(&check().await).is_none());
    let denial = check().await;
    let rejection = Rejection::of(&denial).expect("it is denied");
    assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejection.decision(), Some(&denial));
}

// === One charge or several ===

#[tokio::test]
async fn charges_are_taken_one_by_one_and_in_any_list() {
    async fn units<'a>(limiter: &RateLimiter, charges: impl AsCharges<'a>) -> usize {
        let decision: Decision = limiter.check(charges).await.expect("it is in process");
        decision.states().len()
    }
    let policies = ["a", "b"].map(|name| Policy::new(name, Quota::per_minute(100)));
    let limiter = limiter([]);
    let [one, other] = policies.each_ref().map(|policy| policy.charge(Key::GLOBAL));
    let list: Vec<Charge<'_>> = vec![one, other];
    assert_eq!(units(&limiter, one).await, 1);
    assert_eq!(units(&limiter, &[one, other]).await, 2);
    assert_eq!(units(&limiter, &list).await, 2);
    assert_eq!(units(&limiter, &list[1..]).await, 1);
    assert_eq!(units(&limiter, &[]).await, 0);
}

#[test]
fn check_of_one_charge_does_not_allocate() {
    let policy = Policy::new("searches", Quota::per_minute(1_000_000));
    let limiter = limiter([]);
    let charge = policy.charge(Key::GLOBAL);
    let check = || {
        let decided = limiter.check(charge).now_or_never();
        assert!(decided.expect("ready").expect("a decision").is_allowed());
        let peeked = limiter.peek(charge).now_or_never();
        peeked.expect("ready").expect("a decision");
    };
    check();
    let allocated = allocation_counter::measure(check);
    assert_eq!(allocated.count_total, 0);
}

// === Policies by name ===

#[test]
fn policies_of_the_limiter_and_of_its_layers_have_their_names() {
    let limiter = limiter([Policy::new("own", Quota::per_minute(1))]);
    let tier = |_: &tollgate::RequestHead<'_>, _: &Key| None::<Tier>;
    let rule = Policy::new("of-layer", Quota::per_hour(7)).cost(3);
    let layer = RateLimitLayer::builder()
        .limiter(&limiter)
        .policy(rule.key(Global).tier_by(tier))
        .build();
    let layer = layer.expect("it is well set up");
    for limiter in [&limiter, layer.limiter()] {
        let policy = limiter.policy("of-layer").expect("the layer's");
        assert_eq!(policy.quota(), Quota::per_hour(7));
        assert_eq!(policy.charge(Key::GLOBAL).units(), 3);
        assert!(limiter.policy("own").is_ok());
    }
    let error = limiter.policy("other").expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(
        error.to_string(),
        r#"the limiter has no policy "other"; its policies are "own", "of-layer""#
    );
}

#[test]
fn limiter_without_policies_has_none_to_list() {
    let error = limiter([]).policy("own").expect_err("there is none");
    assert_eq!(
        error.to_string(),
        r#"the limiter has no policy "own"; it has none"#
    );
}
