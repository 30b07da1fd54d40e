//! Metrics of callers that wait, of pauses, and of calls that go out.

use std::{
    convert::Infallible,
    future::Future,
    pin::{Pin, pin},
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use metrics::set_default_local_recorder;
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter,
    acquire::Acquire,
    block::Block,
    client::OutgoingLayer,
    clock::{Clock, Timestamp},
    extract::Global,
    testing::ScriptedStore,
};
use tower::{Layer, ServiceExt, service_fn};

use super::metrics::{Exported, recorder};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// Returns a policy of one unit a second, and a limiter whose time stands still.
fn slow(name: &str) -> (Policy, RateLimiter) {
    let policy = Policy::new(name, Quota::per_second(1).burst(1));
    let limiter = RateLimiter::builder().clock(Clock::manual(START));
    (policy, limiter.build().expect("a limiter"))
}

/// Begins to wait.
fn begun(acquire: Acquire) -> Pin<Box<Acquire>> {
    let mut acquire = Box::pin(acquire);
    let mut context = Context::from_waker(Waker::noop());
    assert!(acquire.as_mut().poll(&mut context).is_pending());
    acquire
}

/// Sends a call to an API that responds with this status to all, and with a `Retry-After` of this many seconds.
async fn call(layer: &OutgoingLayer, method: Method, status: u16, retry_after: &'static str) {
    let client = service_fn(move |_: Request<Full<Bytes>>| async move {
        let response = Response::builder()
            .status(status)
            .header("retry-after", retry_after);
        Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).expect("a response"))
    });
    let request = Request::builder().method(method).uri("http://api.test/");
    let request = request.body(Full::from("sent")).expect("a request");
    // The error of a call that gets no turn is of no interest here.
    drop(layer.layer(client).oneshot(request).await);
}

/// A layer with a wide policy, and one that may be paused.
fn layer() -> OutgoingLayer {
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let wide = |name| Policy::new(name, Quota::per_second(10_000)).outgoing_key(Global);
    let layer = OutgoingLayer::builder(&limiter)
        .policy(wide("all").never_paused())
        .policy(wide("partner"))
        .max_wait(Duration::from_millis(300));
    layer.build().expect("a layer")
}

/// Does everything that the metrics of this file count.
pub(super) async fn happen() {
    let (policy, limiter) = slow("strict");
    drop(limiter.acquire(policy.charge(Key::GLOBAL)).await);
    let waiting = begun(limiter.acquire(policy.charge(Key::GLOBAL)));
    limiter.record_gauges("waits");
    drop(waiting);
    call(&layer(), Method::POST, 429, "60").await;
}

#[tokio::test]
async fn waits_are_recorded_by_how_they_ended_under_the_first_policy() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let (policy, limiter) = slow("strict");
    let other = Policy::new("other", Quota::per_hour(100));
    let charges = [policy.charge(Key::GLOBAL), other.charge(Key::GLOBAL)];
    let turn = limiter.acquire(&charges).await;
    drop(turn.expect("a turn at once"));
    let waiting = begun(limiter.acquire(&charges));
    let late = limiter.acquire(&charges);
    let late = late.max_wait(Duration::from_millis(1)).await;
    assert!(late.is_err());
    drop(waiting);
    let never = limiter.acquire(policy.charge(Key::GLOBAL).cost(2)).await;
    assert!(never.is_err());
    let block = Block::new(Key::GLOBAL, Duration::from_secs(60));
    limiter.block(block).await.expect("blocked");
    assert!(limiter.acquire(&charges).await.is_err());
    let broken = ScriptedStore::failing(ErrorKind::InvalidConfig, "broken");
    let broken = RateLimiter::new(broken, [policy.clone()]).expect("a limiter");
    assert!(broken.acquire(policy.charge(Key::GLOBAL)).await.is_err());

    let exported = Exported::of(&recorder.handle().render());
    let counts = exported.values("tollgate_turn_wait_seconds_count");
    let expected = ["denied", "failed", "left", "too_late", "turn"];
    let expected = expected.map(|outcome| {
        let labels = format!(r#"policy="strict",outcome="{outcome}""#);
        (labels, 1.0)
    });
    assert_eq!(counts, expected);
    let sum = exported.value("tollgate_turn_wait_seconds_sum", r#""turn""#);
    assert_eq!(sum.to_bits(), 0.0_f64.to_bits(), "it did not wait");
}

#[tokio::test]
async fn time_of_a_caller_that_waited_is_recorded() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let policy = Policy::new("strict", Quota::per_second(20).burst(1));
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let mut waited = 0.0;
    for _ in 0..3 {
        let permit = limiter.acquire(policy.charge(Key::GLOBAL)).await;
        waited += permit.expect("a turn").waited().as_secs_f64();
    }
    let exported = Exported::of(&recorder.handle().render());
    let sum = exported.value("tollgate_turn_wait_seconds_sum", r#""turn""#);
    assert!(waited > 0.05, "{waited}");
    assert!((sum - waited).abs() < 0.05, "{sum} and {waited}");
}

#[tokio::test]
async fn gauge_of_waiting_callers_falls_as_they_leave_or_have_their_turn() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let clock = Clock::manual(START);
    let policy = Policy::new("slots", Quota::per_second(1).burst(1));
    let idle = Policy::new("idle", Quota::per_second(1));
    let limiter = RateLimiter::builder().policy(idle).clock(clock.clone());
    let limiter = limiter.build().expect("a limiter");
    let waiting = || {
        limiter.record_gauges("jobs");
        let exported = Exported::of(&recorder.handle().render());
        exported.values("tollgate_waiting_callers")
    };
    let is = |callers| {
        let labels = r#"limiter="jobs",policy="slots""#.to_owned();
        vec![(labels, callers)]
    };
    drop(limiter.acquire(policy.charge(Key::GLOBAL)).await);
    assert_eq!(waiting(), [], "nobody has waited");
    let mut first = pin!(limiter.acquire(policy.charge(Key::GLOBAL)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    let second = begun(limiter.acquire(policy.charge(Key::GLOBAL)));
    assert_eq!(waiting(), is(2.0));
    drop(second);
    assert_eq!(waiting(), is(1.0));
    clock.advance(Duration::from_secs(1));
    drop(first.await.expect("a turn"));
    assert_eq!(waiting(), is(0.0));
}

#[tokio::test]
async fn refusals_and_pauses_count_under_the_policy_that_is_paused() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let layer = layer();
    call(&layer, Method::POST, 429, "60").await;
    let exported = Exported::of(&recorder.handle().render());
    let one = |labels: &str| vec![(labels.to_owned(), 1.0)];
    assert_eq!(
        exported.values("tollgate_outgoing_refusals_total"),
        one(r#"policy="partner",kind="limited""#)
    );
    assert_eq!(
        exported.values("tollgate_pauses_total"),
        one(r#"policy="partner",result="stored""#)
    );
    assert_eq!(
        exported.values("tollgate_outgoing_retries_total"),
        one(r#"policy="partner",outcome="too_late""#)
    );
}

#[tokio::test]
async fn retries_and_those_without_a_budget_are_counted() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let partner = Policy::new("partner", Quota::per_second(10_000));
    let layer = OutgoingLayer::builder(&limiter)
        .policy(partner.outgoing_key(Global))
        .max_retries(1)
        .retry_percent(0);
    let layer = layer.build().expect("a layer");
    tokio::time::pause();
    for _ in 0..12 {
        call(&layer, Method::GET, 500, "1").await;
    }
    let exported = Exported::of(&recorder.handle().render());
    assert_eq!(
        exported.values("tollgate_outgoing_retries_total"),
        [
            (r#"policy="partner",outcome="over_budget""#.to_owned(), 2.0),
            (r#"policy="partner",outcome="retried""#.to_owned(), 10.0),
        ]
    );
    assert!(
        exported
            .values("tollgate_outgoing_refusals_total")
            .is_empty()
    );
}

#[tokio::test]
async fn pause_that_could_not_be_stored_is_counted_as_failed() {
    let recorder = recorder();
    let _installed = set_default_local_recorder(&recorder);
    let policy = Policy::new("partner", Quota::per_second(10));
    let broken = ScriptedStore::failing(ErrorKind::Unavailable, "broken");
    let limiter = RateLimiter::new(broken, [policy.clone()]).expect("a limiter");
    let paused = limiter.pause(&policy.charge(Key::GLOBAL), Duration::from_secs(1));
    assert!(paused.await.is_err());
    let exported = Exported::of(&recorder.handle().render());
    assert_eq!(
        exported.values("tollgate_pauses_total"),
        [(r#"policy="partner",result="failed""#.to_owned(), 1.0)]
    );
}
