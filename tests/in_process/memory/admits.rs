//! `RateLimiter::admits` counts as `RateLimiter::check` does, whatever the text of the key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use proptest::prelude::*;
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, QueueLimits},
    block::Block,
    charge::KeyText,
    policy::Penalty,
    store::StoreFuture,
};

fn ready<T>(mut future: StoreFuture<T>) -> Result<T, tollgate::Error> {
    future.take_ready().expect("memory decides at once")
}

fn limiter_of(policy: &Policy) -> RateLimiter {
    let limiter = RateLimiter::builder().policy(policy.clone()).build();
    limiter.expect("a limiter")
}

fn admits<'a>(limiter: &RateLimiter, policy: &Policy, key: impl Into<KeyText<'a>>) -> bool {
    ready(limiter.admits(policy, key)).expect("decided")
}

/// Returns what `policy` has left for a key, without a charge.
fn left(limiter: &RateLimiter, policy: &Policy, key: Key) -> u64 {
    let peeked = ready(limiter.peek(&[policy.charge(key)])).expect("decided");
    let usage = peeked.states()[0].usage().expect("counted");
    usage.remaining
}

proptest! {
    #[test]
    fn every_text_counts_as_its_key(
        texts in prop::collection::vec("[a-z0-9.:@-]{0,50}|[ -~]{0,12}|\\PC{0,12}|[{}%|!^]{1,3}", 1..8),
    ) {
        let policy = Policy::new("texts", Quota::per_day(1_000));
        let limiter = limiter_of(&policy);
        for (index, text) in texts.iter().enumerate() {
            let key = Key::new(text);
            let before = left(&limiter, &policy, key);
            prop_assert!(admits(&limiter, &policy, text));
            prop_assert_eq!(left(&limiter, &policy, key), before - 1, "{} {:?}", index, text);
            prop_assert!(admits(&limiter, &policy, text.as_str()) && admits(&limiter, &policy, &key));
            prop_assert_eq!(left(&limiter, &policy, key), before - 3, "{} {:?}", index, text);
        }
    }
}

#[test]
fn texts_of_every_length_count_as_their_keys() {
    let policy = Policy::new("lengths", Quota::per_day(10));
    let limiter = limiter_of(&policy);
    for length in 0..=60 {
        let text = "x".repeat(length);
        assert!(admits(&limiter, &policy, &text));
        assert_eq!(
            left(&limiter, &policy, Key::new(&text)),
            9,
            "{length} characters"
        );
    }
}

#[test]
fn key_is_denied_once_its_quota_is_used_up_and_costs_count() {
    let policy = Policy::new("costly", Quota::per_day(10)).cost(3);
    let limiter = limiter_of(&policy);
    let admitted: Vec<bool> = (0..9).map(|_| admits(&limiter, &policy, "ada")).collect();
    assert_eq!(
        admitted,
        [true, true, true, false, false, false, false, false, false]
    );
    assert_eq!(left(&limiter, &policy, Key::new("ada")), 1);
    assert!(admits(&limiter, &policy, "grace"));
}

#[test]
fn every_algorithm_over_time_admits_its_quota() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow(Default::default()),
    ] {
        let policy = Policy::new("two", Quota::per_day(2)).algorithm(algorithm);
        let limiter = limiter_of(&policy);
        let admitted = [(); 3].map(|()| admits(&limiter, &policy, "ada"));
        assert_eq!(admitted, [true, true, false], "{algorithm:?}");
    }
}

#[test]
fn slots_and_queues_need_a_decision_and_are_not_charged() {
    let queue = Algorithm::LeakyQueue(QueueLimits::new(1, Duration::from_secs(60)));
    let slots = Policy::concurrency("slots", 1);
    let queue = Policy::new("queue", Quota::per_minute(1)).algorithm(queue);
    for policy in [slots, queue] {
        let limiter = limiter_of(&policy);
        for _ in 0..3 {
            let error = ready(limiter.admits(&policy, "ada")).expect_err("no answer");
            assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
            assert!(error.to_string().contains("check()"), "{error}");
        }
        let decision = ready(limiter.check(&[policy.charge(Key::new("ada"))])).expect("decided");
        assert!(decision.is_allowed() && decision.delay().is_none());
    }
}

#[test]
fn invalid_policy_is_an_error() {
    let policy = Policy::new("none", Quota::per_second(0));
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let error = ready(limiter.admits(&policy, "ada")).expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::InvalidQuota);
}

#[tokio::test]
async fn penalties_counted_denials_blocks_and_hooks_apply() {
    let penalty = Penalty::after(2, Duration::from_secs(60));
    let policy = Policy::new("strict", Quota::per_day(1)).penalty(penalty);
    let limiter = limiter_of(&policy);
    let admitted = [(); 4].map(|()| admits(&limiter, &policy, "ada"));
    assert_eq!(admitted, [true, false, false, false]);
    let ban = limiter
        .ban_status(&policy, &Key::new("ada"))
        .await
        .expect("read");
    assert!(ban.is_some_and(|ban| ban.is_banned()));

    let seen = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&seen);
    let policy = Policy::new("plain", Quota::per_day(10));
    let builder = RateLimiter::builder().policy(policy.clone());
    let builder = builder.on_decision(move |charges, _| {
        assert_eq!(charges[0].key(), &Key::new("ada"));
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let limiter = builder.build().expect("a limiter");
    assert!(admits(&limiter, &policy, "ada"));
    let block = Block::new(Key::new("ada"), Duration::from_secs(60));
    limiter.block(block).await.expect("blocked");
    let admits = limiter.admits(&policy, "ada").await;
    assert!(!admits.expect("decided"));
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

// Regression: a peek was counted among the decisions, unless somebody watched.
#[cfg(feature = "metrics")]
#[test]
fn peeks_are_left_out_of_the_metrics_and_charges_are_not() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let counted = |cost| {
        let policy = Policy::new(format!("costs-{cost}"), Quota::per_day(10)).cost(cost);
        let limiter = limiter_of(&policy);
        metrics::with_local_recorder(&recorder, || assert!(admits(&limiter, &policy, "ada")));
        let text = recorder.handle().render();
        text.contains(&format!(
            "tollgate_decisions_total{{policy=\"costs-{cost}\""
        ))
    };
    assert_eq!([counted(0), counted(1)], [false, true]);
}
