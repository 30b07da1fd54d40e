//! When the breaker opens and when it does not, on a store whose calls end as the test says, at times of the test's own.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use tollgate::{
    Charge, Decision, Error, ErrorKind, Key, OnOutage, Policy, Quota,
    clock::{Clock, Timestamp},
    decision::{CountedBy, Outcome, PolicyState, Retry, Usage},
    diagnosis::{Code, Warning},
    error::Phase,
    memory::MemoryStore,
    resilience::{Calls, ResilientStore},
    store::{Mode, Store, StoreFuture},
    testing::ScriptedStore,
};

use crate::support::{logged, over_a_full_store};

const DEADLINE: Duration = Duration::from_millis(50);
/// A wait that nothing here takes, however loaded the machine is.
const HUNG: Duration = Duration::from_secs(30);

// === The store ===

/// A store that decides when the test says so, and may report its calls.
#[derive(Clone, Debug)]
struct Fake {
    clock: Clock,
    /// `None` if each decision is a call.
    calls: Option<Calls>,
    /// The test is its deadline, so that a machine that stalls ends no decision.
    deadline: Option<Duration>,
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Mutex<VecDeque<oneshot::Sender<Result<Outcome, Error>>>>,
    probes: Mutex<VecDeque<Probe>>,
    probed: AtomicUsize,
}

/// How a probe ends; those that nothing was said about are good.
#[derive(Debug)]
enum Probe {
    Fails(Error),
    Panics,
}

impl Fake {
    fn new(reports_calls: bool) -> Self {
        Self {
            clock: Clock::manual(Timestamp::from_micros(1_700_000_000_000_000)),
            calls: reports_calls.then(Calls::new),
            deadline: None,
            inner: Arc::default(),
        }
    }

    fn behind_a_breaker(&self) -> ResilientStore {
        let local = MemoryStore::builder().clock(self.clock.clone()).build();
        let fake = Self {
            deadline: Some(DEADLINE),
            ..self.clone()
        };
        let mut builder = ResilientStore::builder(fake, local.expect("a usable store"))
            .clock(self.clock.clone())
            .deadline(DEADLINE);
        if let Some(calls) = &self.calls {
            builder = builder.calls(calls.clone());
        }
        builder.build().expect("a usable store")
    }

    /// Ends a call that took this long, and the decision that has waited longest with it.
    fn end(&self, took: Duration, result: Result<Outcome, Error>) {
        match (&self.calls, &result) {
            (Some(calls), Ok(_)) => calls.replied(took),
            (Some(calls), Err(error)) => calls.failed(error),
            (None, _) => {}
        }
        self.end_decision(result);
    }

    /// Ends the decision that has waited longest, without a call of its own.
    fn end_decision(&self, result: Result<Outcome, Error>) {
        let first = self.inner.waiting.lock().expect("no panic").pop_front();
        let first = first.expect("somebody waits");
        // Its caller may have left.
        let _ = first.send(result);
    }

    fn probe_next(&self, probes: impl IntoIterator<Item = Probe>) {
        let mut queue = self.inner.probes.lock().expect("no panic");
        queue.extend(probes);
    }

    fn probed(&self) -> usize {
        self.inner.probed.load(Ordering::Relaxed)
    }
}

impl Store for Fake {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let (sender, receiver) = oneshot::channel();
        self.inner
            .waiting
            .lock()
            .expect("no panic")
            .push_back(sender);
        let name = *charges[0].policy().name();
        let clock = self.clock.clone();
        StoreFuture::boxed(async move {
            let outcome = receiver.await.expect("the test answers")?;
            let now = clock.now();
            let (usage, retry) = (
                Usage::new(1, 0, now),
                match outcome {
                    Outcome::Allowed => Retry::Now,
                    _ => Retry::At(now + Duration::from_secs(1)),
                },
            );
            let state = PolicyState::counted(name, usage, retry);
            Ok(Decision::new(CountedBy::Shared, now, [state]))
        })
    }

    fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    fn reset(&self, _: &Policy, _: &Key) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    fn probe(&self) -> StoreFuture<()> {
        self.inner.probed.fetch_add(1, Ordering::Relaxed);
        let next = self.inner.probes.lock().expect("no panic").pop_front();
        StoreFuture::boxed(async move {
            match next {
                None => Ok(()),
                Some(Probe::Fails(error)) => Err(error),
                Some(Probe::Panics) => panic!("a probe that panics"),
            }
        })
    }
}

// === Callers ===

fn policy() -> Policy {
    Policy::new("breaker", Quota::per_hour(1_000_000))
}

fn ask(store: &ResilientStore) -> StoreFuture<Decision> {
    store.decide(&[policy().charge(Key::new("ada"))])
}

/// Polls an answer one time.
fn poll(answer: &mut StoreFuture<Decision>) -> Poll<Decision> {
    let mut context = Context::from_waker(Waker::noop());
    let polled = Pin::new(answer).poll(&mut context);
    polled.map(|result| result.expect("a decision, whatever breaks"))
}

/// One decision, whose call ends in this way.
fn decide(store: &ResilientStore, fake: &Fake, took: Duration, result: Result<Outcome, Error>) {
    let mut answer = ask(store);
    if poll(&mut answer).is_pending() {
        fake.end(took, result);
        assert!(poll(&mut answer).is_ready());
    } else {
        // By the fallback: the breaker is open.
        let mut waiting = fake.inner.waiting.lock().expect("no panic");
        waiting.retain(|sender| !sender.is_closed());
    }
}

fn error(kind: ErrorKind, message: &'static str) -> Error {
    Error::new(kind, message)
}

const QUICK: Duration = Duration::from_millis(1);

fn is_degraded(store: &ResilientStore) -> bool {
    store.health().is_degraded()
}

/// Lets the prober work until the store decides again.
async fn until_steady(store: &ResilientStore) {
    let started = Instant::now();
    while is_degraded(store) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(started.elapsed() < HUNG, "never recovered");
    }
}

/// What callers saw of one stall.
#[derive(Debug, Default)]
struct Seen {
    opened_after: Option<u64>,
    /// Decisions that the store did not make.
    without: usize,
}

/// A stall of so many milliseconds, with 30 callers who come as it begins and ask again whenever they have an answer.
fn stall(reports_calls: bool, millis: u64) -> Seen {
    let fake = Fake::new(reports_calls);
    let store = fake.behind_a_breaker();
    let start = fake.clock.now();
    let mut seen = Seen::default();
    // Counted by nobody meanwhile: a decision after a merge would wait behind it.
    let policy = policy().on_outage(OnOutage::Allow);
    let ask = || store.decide(&[policy.charge(Key::new("ada"))]);
    let mut callers: Vec<(u64, StoreFuture<Decision>)> = (0..30).map(|_| (0, ask())).collect();
    for now in 1..millis + 1_000 {
        fake.clock.set(start + Duration::from_millis(now));
        for (asked, answer) in &mut callers {
            if let Poll::Ready(decision) = poll(answer) {
                seen.without += usize::from(decision.counted_by() != CountedBy::Shared);
            } else {
                let took = now - *asked;
                let result = match () {
                    () if now >= millis => Ok(Outcome::Allowed),
                    () if took >= 50 => Err(error(ErrorKind::Timeout(Phase::Reply), "late")),
                    () => continue,
                };
                fake.end(Duration::from_millis(took), result);
                let Poll::Ready(decision) = poll(answer) else {
                    panic!("it has an answer");
                };
                seen.without += usize::from(decision.counted_by() != CountedBy::Shared);
            }
            (*asked, *answer) = (now, ask());
        }
        if is_degraded(&store) {
            seen.opened_after = Some(now);
            break;
        }
    }
    seen
}

// Regression: the answers of one stall of 35 ms were taken for a slow store, and 0.6 s went without it.
#[test]
fn one_stall_of_35_ms_does_not_open_it() {
    for reports_calls in [true, false] {
        let seen = stall(reports_calls, 35);
        assert_eq!(seen.opened_after, None);
        assert_eq!(seen.without, 0);
    }
}

#[test]
fn one_stall_of_100_ms_fails_its_own_decisions_and_does_not_open_it() {
    for reports_calls in [true, false] {
        let seen = stall(reports_calls, 100);
        assert_eq!(seen.opened_after, None);
        assert_eq!(seen.without, 30, "those that waited for a deadline");
    }
}

#[test]
fn stall_of_500_ms_opens_it_once_failures_have_lasted_for_two_deadlines() {
    for reports_calls in [true, false] {
        assert_eq!(stall(reports_calls, 500).opened_after, Some(150));
    }
}

// Regression: a busy runtime, whose callers wait long to be polled, was taken for a slow store.
#[test]
fn decisions_that_wait_for_their_own_runtime_do_not_open_it() {
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    for _ in 0..100 {
        let mut answers: Vec<_> = (0..64).map(|_| ask(&store)).collect();
        for answer in &mut answers {
            assert!(poll(answer).is_pending());
        }
        fake.clock.advance(Duration::from_millis(200));
        for answer in &mut answers {
            fake.end(QUICK, Ok(Outcome::Allowed));
            assert!(poll(answer).is_ready());
        }
    }
    assert!(!is_degraded(&store));
    assert_eq!(store.health().fallback_decisions(), 0);
}

// Regression: callers who left were held against a store that reports its calls.
#[test]
fn callers_who_leave_are_no_evidence_against_a_store_that_reports_its_calls() {
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    for _ in 0..1_000 {
        let mut answer = ask(&store);
        assert!(poll(&mut answer).is_pending());
        fake.clock.advance(Duration::from_millis(20));
        drop(answer);
        fake.end_decision(Ok(Outcome::Allowed));
    }
    assert!(!is_degraded(&store));
}

#[test]
fn store_that_is_slow_for_two_seconds_opens_it() {
    for reports_calls in [true, false] {
        let fake = Fake::new(reports_calls);
        let store = fake.behind_a_breaker();
        let start = fake.clock.now();
        let slow = Duration::from_millis(30);
        while !is_degraded(&store) {
            let mut answer = ask(&store);
            assert!(poll(&mut answer).is_pending());
            fake.clock.advance(slow);
            fake.end(slow, Ok(Outcome::Allowed));
            assert!(poll(&mut answer).is_ready());
            assert!(fake.clock.now().since(start) < HUNG, "never opened");
        }
        let after = fake.clock.now().since(start).as_millis();
        assert!((1_750..2_250).contains(&after), "after {after} ms");
        let health = store.health();
        let cause = health.cause().expect("it is degraded");
        assert_eq!(cause.kind(), ErrorKind::Timeout(Phase::Reply));
        assert!(cause.to_string().contains("25ms"), "{cause}");
    }
}

/// Nine denials, which write nothing and succeed, to each decision that writes.
fn mostly_denials(store: &ResilientStore, fake: &Fake, write: &Result<Outcome, Error>) {
    for _ in 0..9 {
        decide(store, fake, QUICK, Ok(Outcome::Limited));
    }
    decide(store, fake, QUICK, write.clone());
    fake.clock.advance(Duration::from_millis(10));
}

// Regression: a demoted primary was never given up while most decisions were denials, which write nothing.
#[test]
fn refused_writes_open_it_however_many_reads_succeed() {
    for reports_calls in [true, false] {
        logged();
        let fake = Fake::new(reports_calls);
        let store = fake.behind_a_breaker();
        let refused = Err(error(ErrorKind::Unavailable, "a read-only replica"));
        let start = fake.clock.now();
        while !is_degraded(&store) {
            mostly_denials(&store, &fake, &refused);
            assert!(fake.clock.now().since(start) < HUNG, "never opened");
        }
        let after = fake.clock.now().since(start).as_millis();
        assert!((100..200).contains(&after), "after {after} ms");
        let health = store.health();
        assert_eq!(health.since(), Some(start), "the first refused write");
        let cause = health.cause().expect("it is degraded");
        assert_eq!(cause.to_string(), "a read-only replica");
        assert!(health.fallback_decisions() >= 5, "{health:?}");
        let lines = logged();
        let opened: Vec<_> = lines
            .iter()
            .filter(|line| line.contains("degraded"))
            .collect();
        assert_eq!(opened.len(), 1, "{lines:#?}");
        assert!(opened[0].contains("a read-only replica"), "{lines:#?}");
    }
}

#[test]
fn writes_that_only_some_policies_are_refused_do_not_open_it() {
    for reports_calls in [true, false] {
        let fake = Fake::new(reports_calls);
        let store = fake.behind_a_breaker();
        let refused = Err(error(
            ErrorKind::Unavailable,
            "no permission for this command",
        ));
        for _ in 0..1_000 {
            mostly_denials(&store, &fake, &refused);
            decide(&store, &fake, QUICK, Ok(Outcome::Allowed));
        }
        assert!(!is_degraded(&store));
    }
}

#[test]
fn peek_that_succeeds_is_not_a_write() {
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    let refused = Err(error(ErrorKind::Unavailable, "a read-only replica"));
    for _ in 0..20 {
        mostly_denials(&store, &fake, &refused);
        let mut peek = store.decide(&[policy().charge(Key::new("ada")).cost(0)]);
        if poll(&mut peek).is_pending() {
            fake.end(QUICK, Ok(Outcome::Allowed));
            assert!(poll(&mut peek).is_ready());
        }
    }
    assert!(is_degraded(&store));
}

// Regression: a one-shard cluster, where only calls with keys of several slots fail, was never given up.
#[tokio::test]
async fn errors_that_waiting_does_not_cure_open_it_and_are_looked_at_seldom() {
    for reports_calls in [true, false] {
        logged();
        let fake = Fake::new(reports_calls);
        let store = fake.behind_a_breaker();
        let cluster = Err(error(ErrorKind::Script, "part of a cluster"));
        let mut before = Instant::now();
        for round in 0..3 {
            assert!(!is_degraded(&store), "{round}");
            before = Instant::now();
            for _ in 0..30 {
                decide(&store, &fake, QUICK, Ok(Outcome::Allowed));
            }
            decide(&store, &fake, QUICK, cluster.clone());
            // A task that never yields is held back by Tokio.
            tokio::task::yield_now().await;
        }
        assert!(is_degraded(&store));
        let cause = store.health().cause().expect("it is degraded").to_string();
        assert_eq!(cause, "part of a cluster");
        let lines = logged();
        assert!(
            lines[0].contains("mode=degraded server=unknown error=part of a cluster"),
            "{lines:#?}"
        );
        while fake.probed() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(before.elapsed() < HUNG, "never probed");
        }
        let waited = before.elapsed();
        // Five times as long as the first wait of other outages may be.
        assert!(waited >= Duration::from_millis(500), "{waited:?}");
    }
}

// Regression: the first probe was sent half a second after a stall, however short it was.
#[tokio::test]
async fn stall_of_half_a_second_is_over_soon_after_its_end() {
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    let late = || error(ErrorKind::Timeout(Phase::Reply), "late");
    for _ in 0..5 {
        decide(&store, &fake, DEADLINE, Err(late()));
        fake.clock.advance(Duration::from_millis(30));
    }
    assert!(is_degraded(&store));
    let opened = Instant::now();
    // Those sent during the stall fail.
    fake.probe_next((0..2).map(|_| Probe::Fails(late())));
    until_steady(&store).await;
    // Three times 50 to 100 ms, and 20 between the two good ones.
    assert_eq!(fake.probed(), 4);
    let took = opened.elapsed();
    assert!(took >= Duration::from_millis(170), "{took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn failed_probe_with_another_cause_replaces_the_cause_and_is_logged_once() {
    logged();
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    for _ in 0..5 {
        decide(
            &store,
            &fake,
            QUICK,
            Err(error(ErrorKind::Connect, "refused")),
        );
        fake.clock.advance(Duration::from_millis(30));
    }
    let cause = || store.health().cause().map(ToString::to_string);
    assert_eq!(cause().as_deref(), Some("refused"));
    let loading = || Probe::Fails(error(ErrorKind::Unavailable, "loading"));
    fake.probe_next([loading(), loading()]);
    let started = Instant::now();
    while cause().as_deref() != Some("loading") {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(started.elapsed() < HUNG, "{:?}", cause());
    }
    until_steady(&store).await;
    assert_eq!(cause(), None);
    let lines = logged();
    let told: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("loading"))
        .collect();
    assert_eq!(told.len(), 1, "{lines:#?}");
}

// Regression: decisions that were not sent in time counted as failures of the store.
#[test]
fn shed_decisions_take_the_outage_choice_and_are_no_evidence_against_the_store() {
    for reports_calls in [true, false] {
        logged();
        let fake = Fake::new(reports_calls);
        let store = fake.behind_a_breaker();
        let mut shed = 0;
        for _ in 0..1_000 {
            for choice in [OnOutage::Allow, OnOutage::Local, OnOutage::Deny] {
                let policy = policy().on_outage(choice);
                let mut answer = store.decide(&[policy.charge(Key::new("ada"))]);
                assert!(poll(&mut answer).is_pending());
                fake.end_decision(Err(error(ErrorKind::Overloaded, "too late to be sent")));
                shed += 1;
                let Poll::Ready(decision) = poll(&mut answer) else {
                    panic!("no wait after the store has answered");
                };
                let expected = match choice {
                    OnOutage::Allow => (Outcome::Allowed, CountedBy::Uncounted),
                    OnOutage::Local => (Outcome::Allowed, CountedBy::Fallback),
                    _ => (Outcome::Unavailable, CountedBy::Uncounted),
                };
                assert_eq!((decision.outcome(), decision.counted_by()), expected);
            }
            fake.clock.advance(Duration::from_millis(1));
        }
        let health = store.health();
        assert!(!health.is_degraded());
        assert_eq!(health.shed_decisions(), shed);
        assert_eq!(health.fallback_decisions(), 0);
        assert_eq!(logged().len(), 1, "one line, however many");

        decide(&store, &fake, QUICK, Ok(Outcome::Allowed));
        assert_eq!(logged().len(), 0, "it may go on");
        fake.clock.advance(Duration::from_secs(11));
        decide(&store, &fake, QUICK, Ok(Outcome::Allowed));
        decide(&store, &fake, QUICK, Ok(Outcome::Allowed));
        let lines = logged();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("shed_decisions=3000"), "{lines:#?}");
    }
}

// Regression: a decision that was shed at once still got a future, and its caller waited to be polled.
#[test]
fn decision_that_is_shed_at_once_returns_at_once() {
    for reports_calls in [true, false] {
        let store = over_a_full_store(reports_calls);
        for _ in 0..100 {
            let decision = ask(&store).take_ready().expect("at once");
            let decision = decision.expect("a decision, whatever breaks");
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
        }
        let health = store.health();
        assert!(!health.is_degraded());
        assert_eq!(health.shed_decisions(), 100);
        assert_eq!(health.fallback_decisions(), 0);
    }
}

#[test]
fn foreign_values_are_no_evidence_and_logged_once() {
    for reports_calls in [true, false] {
        logged();
        let fake = Fake::new(reports_calls);
        let store = fake.behind_a_breaker();
        for _ in 0..1_000 {
            let mut answer = ask(&store);
            assert!(poll(&mut answer).is_pending());
            fake.end_decision(Err(error(ErrorKind::ForeignValue, "not ours")));
            assert!(poll(&mut answer).is_ready());
            fake.clock.advance(Duration::from_millis(1));
        }
        let health = store.health();
        assert_eq!(health.mode(), Mode::Failing, "all of them failed");
        assert_eq!(health.fallback_decisions(), 1_000);
        let codes: Vec<Code> = store.warnings().iter().map(Warning::code).collect();
        assert_eq!(codes, [Code::ForeignValue]);
        let lines = logged();
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains("code=TG021"), "{lines:#?}");
        assert!(lines[1].contains("mode=failing"), "{lines:#?}");
    }
}

/// Makes decisions 10 ms apart for these seconds, of which one in `nth` fails.
fn fail_one_in(store: &ResilientStore, fake: &Fake, nth: u64, seconds: u64) {
    for number in 1..=seconds * 100 {
        let result = if number % nth == 0 {
            Err(error(ErrorKind::Timeout(Phase::Reply), "late"))
        } else {
            Ok(Outcome::Allowed)
        };
        decide(store, fake, QUICK, result);
        fake.clock.advance(Duration::from_millis(10));
    }
}

// Regression: a store that failed for ever, but not always, was healthy, and nothing named the reason.
#[test]
fn store_that_fails_one_decision_in_twenty_is_not_well_until_it_does_not() {
    for reports_calls in [true, false] {
        logged();
        let fake = Fake::new(reports_calls);
        let store = fake.behind_a_breaker();
        fail_one_in(&store, &fake, 1_000, 20);
        let health = store.health();
        assert!(health.is_well(), "one in 1,000: {health:?}");
        assert!(health.cause().is_some(), "the latest reason");
        assert_eq!(logged().len(), 0, "of no interest");
        fail_one_in(&store, &fake, 20, 20);
        let health = store.health();
        assert_eq!(health.mode(), Mode::Failing);
        assert!(!health.is_well() && !health.is_degraded());
        let share = health.affected_share();
        assert!((0.045..0.055).contains(&share), "{share}");
        assert_eq!(health.cause().expect("the reason").to_string(), "late");
        fail_one_in(&store, &fake, 1_000_000, 12);
        let health = store.health();
        assert!(health.is_well(), "{health:?}");
        assert_eq!(health.affected_share(), 0.0);
        assert!(health.cause().is_none());
        let lines = logged();
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains("mode=failing"), "{lines:#?}");
        assert!(lines[1].contains("mode=healthy"), "{lines:#?}");
    }
}

// === The prober ===

fn degrade(store: &ResilientStore, fake: &Fake) {
    while !is_degraded(store) {
        decide(
            store,
            fake,
            QUICK,
            Err(error(ErrorKind::Connect, "refused")),
        );
        fake.clock.advance(Duration::from_millis(30));
    }
}

/// Asks until the store decides again: a prober that has gone is replaced by those who ask.
async fn ask_until_steady(store: &ResilientStore) {
    let started = Instant::now();
    while is_degraded(store) {
        drop(ask(store));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(started.elapsed() < HUNG, "never recovered");
    }
}

#[tokio::test]
async fn prober_that_panics_is_replaced() {
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    degrade(&store, &fake);
    fake.probe_next([Probe::Panics, Probe::Panics]);
    ask_until_steady(&store).await;
    assert_eq!(fake.probed(), 4);
}

#[test]
fn prober_that_goes_with_its_runtime_is_replaced() {
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    let first = tokio::runtime::Runtime::new().expect("a runtime");
    first.block_on(async { degrade(&store, &fake) });
    drop(first);
    let second = tokio::runtime::Runtime::new().expect("a runtime");
    second.block_on(ask_until_steady(&store));
}

#[test]
fn breaker_that_a_report_opens_outside_of_any_runtime_is_probed_on_that_of_the_decisions() {
    let fake = Fake::new(true);
    let store = fake.behind_a_breaker();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { decide(&store, &fake, QUICK, Ok(Outcome::Allowed)) });
    degrade(&store, &fake);
    runtime.block_on(until_steady(&store));
}

// Regression: the prober of a store with a deadline that nothing reaches panicked, and nobody probed any more.
#[test]
fn deadline_above_an_hour_is_refused() {
    for deadline in [Duration::MAX, Duration::from_secs(3_601)] {
        let builder = ResilientStore::builder(Fake::new(true), MemoryStore::new());
        let error = builder.deadline(deadline).build();
        let error = error.expect_err("it is above an hour");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("hour"), "{error}");
    }
    let builder = ResilientStore::builder(Fake::new(true), MemoryStore::new());
    assert!(builder.deadline(Duration::from_secs(3_600)).build().is_ok());
}

// Regression: the deadline and the prober used timers of the runtime, which panic where there are none.
#[test]
fn runtime_without_timers_gets_its_decisions_and_its_store_back() {
    let fake = Fake::new(false);
    let store = ResilientStore::builder(fake.clone(), MemoryStore::new())
        .deadline(DEADLINE)
        .build()
        .expect("a usable store");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        while !is_degraded(&store) {
            let decision = ask(&store).await.expect("a decision, whatever breaks");
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
        }
        let started = Instant::now();
        while is_degraded(&store) {
            tokio::task::yield_now().await;
            assert!(started.elapsed() < HUNG, "never recovered");
        }
    });
}

// Regression: a custom store takes no merges, and its health counted them.
#[tokio::test]
async fn local_charges_of_a_custom_store_are_not_merged() {
    let custom = ScriptedStore::counting();
    custom.fail(ErrorKind::Connect);
    let store = ResilientStore::builder(custom.clone(), MemoryStore::new());
    let store = store.build().expect("a usable store");
    let policy = policy().on_outage(OnOutage::Local);
    let decide = async || {
        let decided = store.decide(&[policy.charge(Key::new("ada"))]).await;
        decided.expect("a decision").counted_by()
    };
    let started = Instant::now();
    while !is_degraded(&store) {
        assert_eq!(decide().await, CountedBy::Fallback);
        assert!(started.elapsed() < HUNG, "it stays closed");
    }
    custom.recover();
    until_steady(&store).await;
    decide().await;
    let health = store.health();
    let merges = [
        health.merges(),
        health.pending_merges(),
        health.unconfirmed_merges(),
    ];
    assert_eq!(merges, [0; 3], "{health:?}");
}
