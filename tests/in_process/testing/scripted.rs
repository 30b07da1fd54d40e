//! The store whose decisions a test determines, and switches while it runs.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimiter,
    charge::Receipt,
    decision::{CountedBy, Outcome, Retry},
    store::Store,
    testing::{AskedCharge, ScriptedStore},
};

const SECOND: Duration = Duration::from_secs(1);

fn policy() -> Policy {
    Policy::new("api", Quota::per_minute(5))
}

fn limiter(store: &ScriptedStore) -> RateLimiter {
    RateLimiter::new(store.clone(), []).expect("a usable limiter")
}

async fn ask(store: &ScriptedStore) -> Result<Decision, tollgate::Error> {
    store.decide(&[policy().charge(Key::new("ada"))]).await
}

async fn remaining(store: &ScriptedStore) -> u64 {
    let decision = store.decide(&[policy().charge(Key::new("ada")).cost(0)]);
    let decision = decision.await.expect("a decision");
    let usage = decision.states()[0].usage();
    usage.expect("it is counted").remaining
}

#[tokio::test(start_paused = true)]
async fn store_follows_its_switch_while_the_test_runs() {
    let store = ScriptedStore::allowing();
    let switch = store.clone();
    let decision = ask(&store).await.expect("a decision");
    assert!(decision.is_allowed());
    let usage = decision.states()[0].usage().expect("it is counted");
    assert_eq!((usage.limit, usage.remaining), (5, 4));

    switch.deny(3 * SECOND);
    let decision = ask(&store).await.expect("a decision");
    assert_eq!(decision.outcome(), Outcome::Limited);
    assert_eq!(decision.retry_after(), Some(3 * SECOND));
    assert_eq!(remaining(&store).await, 0, "and a peek passes");

    switch.fail(ErrorKind::Connect);
    let error = ask(&store).await.expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Connect);

    switch.refuse_writes();
    let error = ask(&store).await.expect_err("it is read-only");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(remaining(&store).await, 5, "a peek writes nothing");

    switch.hang();
    let asked = tokio::time::timeout(3_600 * SECOND, ask(&store)).await;
    asked.expect_err("it never answers");

    switch.recover();
    assert!(ask(&store).await.expect("a decision").is_allowed());
}

#[tokio::test(start_paused = true)]
async fn slow_store_takes_tokio_time_whatever_else_it_does() {
    let store = ScriptedStore::denying(SECOND);
    store.slow_down(2 * SECOND);
    let started = Instant::now();
    let decision = ask(&store).await.expect("a decision");
    assert_eq!(started.elapsed(), 2 * SECOND);
    assert!(!decision.is_allowed());
    store.fail(ErrorKind::Unavailable);
    ask(&store).await.expect_err("it fails");
    assert_eq!(started.elapsed(), 4 * SECOND);
    store.recover();
    assert!(!ask(&store).await.expect("a decision").is_allowed());
    assert_eq!(started.elapsed(), 4 * SECOND, "it is quick again");
}

#[tokio::test(start_paused = true)]
async fn counting_store_counts_by_the_time_of_tokio() {
    let store = ScriptedStore::counting();
    for _ in 0..5 {
        let decision = ask(&store).await.expect("a decision");
        assert!(decision.is_allowed());
        assert_eq!(decision.counted_by(), CountedBy::Shared);
    }
    let denied = ask(&store).await.expect("a decision");
    assert_eq!(denied.retry_after(), Some(12 * SECOND));
    tokio::time::advance(12 * SECOND - Duration::from_micros(1)).await;
    assert!(!ask(&store).await.expect("a decision").is_allowed());
    tokio::time::advance(Duration::from_micros(1)).await;
    assert!(ask(&store).await.expect("a decision").is_allowed());
}

#[tokio::test(start_paused = true)]
async fn counting_store_settles_unless_it_fails() {
    let store = ScriptedStore::counting();
    let tokens = policy();
    let charges = [tokens.charge(Key::new("ada")).cost(4)];
    let receipt = || async {
        let decision = store.decide(&charges).await.expect("a decision");
        let receipt = Receipt::of(&charges, &decision).expect("a charge");
        receipt.actual_cost(|_, _| 1)
    };
    store.settle(receipt().await).await.expect("it settles");
    assert_eq!(remaining(&store).await, 4);
    let receipt = receipt().await;
    store.fail(ErrorKind::Unavailable);
    let failed = store.settle(receipt).await;
    assert_eq!(failed.expect_err("down").kind(), ErrorKind::Unavailable);
    store.recover();
    assert_eq!(remaining(&store).await, 0, "nothing was refunded");
}

#[tokio::test(start_paused = true)]
async fn every_operation_follows_the_switch() {
    let store = ScriptedStore::counting();
    let (policy, key) = (policy(), Key::new("ada"));
    let charge = policy.charge(key);
    let operations = async || {
        [
            store.reset(&policy, &key).await,
            store.renew(&[charge]).await,
            store.probe().await,
            store.pause(&charge, SECOND).await,
            store.lower(&charge, 3).await,
            store.paused_until(&charge).await.map(drop),
            store.ban_record(&policy, &key).await.map(drop),
            store.refresh_blocks().await,
        ]
        .map(|result| result.map_err(|error| error.kind()))
    };
    assert_eq!(operations().await, [Ok(()); 8]);
    store.refuse_writes();
    let refused = Err(ErrorKind::Unavailable);
    let (writes, reads) = ([refused; 5], [Ok(()); 3]);
    assert_eq!(operations().await.to_vec(), [&writes[..], &reads].concat());
    store.fail(ErrorKind::Script);
    assert_eq!(operations().await, [Err(ErrorKind::Script); 8]);
}

#[tokio::test]
async fn store_records_the_charges_of_each_decision_in_order() {
    let store = ScriptedStore::allowing();
    let limiter = limiter(&store);
    let (ada, grace) = (Key::new("ada"), Key::new("grace"));
    let (api, upload) = (policy(), Policy::new("upload", Quota::per_hour(9)).cost(3));
    let both = [api.charge(ada), upload.charge(grace)];
    limiter.check(&both).await.expect("a decision");
    store.fail(ErrorKind::Unavailable);
    limiter.check(&both[1..]).await.expect_err("it is down");
    limiter.peek(&both[..1]).await.expect_err("it is down");
    let upload = AskedCharge::new("upload", grace, 3);
    let expected = [
        vec![AskedCharge::new("api", ada, 1), upload],
        vec![upload],
        vec![AskedCharge::new("api", ada, 0)],
    ];
    assert_eq!(store.asked(), expected);
    assert_eq!(store.calls(), 3);
    assert_eq!(upload.policy().as_str(), "upload");
    assert_eq!((*upload.key(), upload.units()), (grace, 3));
}

#[tokio::test]
async fn denial_is_for_each_policy_but_one_in_shadow_denies_nothing() {
    use tollgate::charge::Enforcement;
    let store = ScriptedStore::denying(SECOND);
    let slots = Policy::concurrency("slots", 2);
    let charges = [
        policy().charge(Key::new("ada")).to_owned(),
        slots.charge(Key::new("ada")).to_owned(),
    ];
    let [api, slots] = charges.each_ref().map(|charge| charge.borrow());
    let decision = store.decide(&[api, slots]).await.expect("a decision");
    let retry = Retry::At(decision.decided_at() + SECOND);
    let states = decision.states().iter();
    let states: Vec<_> = states
        .map(|state| (state.retry(), state.is_concurrency()))
        .collect();
    assert_eq!(states, [(retry, false), (retry, true)]);
    let shadow = api.enforcement(Enforcement::Shadow);
    let decision = store.decide(&[shadow]).await.expect("a decision");
    assert!(decision.is_allowed());
    assert_eq!(decision.would_deny().count(), 1);
}

#[test]
fn store_works_without_a_runtime() {
    let store = ScriptedStore::counting();
    let mut decided = store.decide(&[policy().charge(Key::new("ada"))]);
    let decision = decided.take_ready().expect("at once").expect("a decision");
    assert!(decision.is_allowed());
    assert!(format!("{store:?}").contains("calls: 1"), "{store:?}");
}
