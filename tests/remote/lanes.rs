//! Decisions that share connections: callers that leave, callers that stall, and runtimes that end meanwhile.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tollgate::{
    Decision, Error, ErrorKind, Key, Policy, Quota, RateLimiter,
    decision::CountedBy,
    remote::{RedisStore, RedisStoreBuilder},
    store::StoreFuture,
};

use crate::support::{Mode, Proxy, Server};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);
/// For faults that last several deadlines.
const BRIEF: Duration = Duration::from_millis(50);
/// A wait that no bounded decision reaches, however loaded the machine is.
const HUNG: Duration = Duration::from_secs(10);

fn policy() -> Policy {
    Policy::new("lanes", Quota::per_hour(1_000_000))
}

/// Returns a limiter without a breaker: it returns what the store itself returns.
fn bare(store: RedisStoreBuilder) -> RateLimiter {
    let store = store.build().expect("a usable store");
    RateLimiter::new(store, [policy()]).expect("a usable policy")
}

fn one_lane(url: impl AsRef<str>) -> RedisStoreBuilder {
    RedisStore::builder(url).connections(1)
}

fn ask(limiter: &RateLimiter, key: &str) -> StoreFuture<Decision> {
    limiter.check(&[policy().charge(Key::new(key))])
}

/// Polls a decision once: it is sent or queued, and no reply can arrive meanwhile.
async fn begin(answer: &mut StoreFuture<Decision>) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *answer).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Returns a runtime that runs only while a thread blocks on it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Requests a decision and waits for it. Fails the test if that takes too long.
async fn until_decided(limiter: &RateLimiter) -> Result<Decision, Error> {
    let started = Instant::now();
    loop {
        let result = ask(limiter, "ada").await;
        if result.is_ok() || started.elapsed() > HUNG {
            return result;
        }
        tokio::task::yield_now().await;
    }
}

// Regression: a full queue shed new requests although no task was sending the waiting ones.
#[test]
fn full_queue_without_a_dispatcher_is_sent_again() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let runtime = runtime();
    let answers: Vec<_> = runtime.block_on(async {
        ask(&limiter, "warm").await.expect("a decision");
        let mut answers: Vec<_> = (0..=16_384).map(|_| ask(&limiter, "ada")).collect();
        for answer in &mut answers {
            begin(answer).await;
        }
        answers
    });
    // Outside of a runtime, so that no task can be started for the decisions that wait behind the first.
    drop(answers);
    let decision = runtime.block_on(ask(&limiter, "ada"));
    assert!(decision.expect("room for one more").is_allowed());
}

// Regression: decisions that waited for a lane of an ended runtime stayed in the queue until their deadline.
#[test]
fn runtime_that_ends_leaves_the_decisions_of_others_to_them() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let (ours, other) = (runtime(), runtime());
    ours.block_on(ask(&limiter, "warm")).expect("a decision");
    server.pause();
    other.block_on(async {
        let mut first = ask(&limiter, "first");
        begin(&mut first).await;
        tokio::spawn(first);
    });
    let mut second = ask(&limiter, "second");
    ours.block_on(begin(&mut second));
    drop(other);
    server.resume();
    let started = Instant::now();
    ours.block_on(second).expect("a decision");
    assert!(started.elapsed() < HUNG / 2, "nobody carried it");
}

#[test]
fn caller_that_leaves_outside_of_a_runtime_leaves_the_lane_to_others() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let runtime = runtime();
    let (first, second) = runtime.block_on(async {
        ask(&limiter, "warm").await.expect("a decision");
        let (mut first, mut second) = (ask(&limiter, "first"), ask(&limiter, "second"));
        begin(&mut first).await;
        begin(&mut second).await;
        (first, second)
    });
    drop(first);
    let started = Instant::now();
    runtime.block_on(second).expect("a decision");
    assert!(started.elapsed() < HUNG / 2, "nobody carried it");
}

#[tokio::test]
async fn caller_that_leaves_while_it_waits_is_not_charged() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    ask(&limiter, "warm").await.expect("a decision");
    let mut answers = ["first", "second", "third"].map(|key| ask(&limiter, key));
    for answer in &mut answers {
        begin(answer).await;
    }
    let [first, second, third] = answers;
    drop(second);
    first.await.expect("a decision");
    third.await.expect("a decision");
    assert_eq!(
        server.keys(),
        ["first", "third", "warm"].map(|key| format!("tollgate:{{{key}}}:lanes"))
    );
}

// Regression: a decision that also took a slot was sent all the same, and only the slot was released.
#[tokio::test]
async fn caller_that_leaves_while_it_waits_for_a_slot_too_is_not_charged() {
    let server = Server::start();
    let uploads = Policy::concurrency("uploads", 4);
    let store = one_lane(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), [policy(), uploads.clone()]);
    let limiter = limiter.expect("usable policies");
    let ask = |key: &str| {
        let key = Key::new(key);
        limiter.check(&[policy().charge(key), uploads.charge(key)])
    };
    ask("warm").await.expect("a decision");
    server.flush_stats();
    let mut answers = ["first", "second", "third"].map(ask);
    for answer in &mut answers {
        begin(answer).await;
    }
    let [first, second, third] = answers;
    drop(second);
    first.await.expect("a decision");
    third.await.expect("a decision");
    let second = server
        .keys()
        .into_iter()
        .filter(|key| key.contains("second"));
    assert_eq!(second.collect::<Vec<_>>(), Vec::<String>::new());
    // Longer than a release waits for its first try.
    let started = Instant::now();
    let mut others = 0;
    while started.elapsed() < Duration::from_millis(100) {
        ask(&format!("other-{others}")).await.expect("a decision");
        others += 1;
    }
    let calls = server.command_calls()["evalsha"];
    assert_eq!(calls, 2 + others, "nothing is released");
}

// Regression: a caller that made its own call held the lane for the connect timeout, polled or not.
#[tokio::test]
async fn caller_that_is_not_polled_holds_the_lane_for_a_deadline_at_most() {
    let server = Server::start();
    let store = one_lane(server.url()).deadline(DEADLINE);
    let limiter = bare(store.connect_timeout(Duration::from_secs(3_600)));
    ask(&limiter, "warm").await.expect("a decision");
    let mut stalled = ask(&limiter, "stalled");
    begin(&mut stalled).await;
    until_decided(&limiter).await.expect("the lane is free");
    drop(stalled);
}

// Regression: the first decision on each connection of an ended runtime failed.
#[test]
fn connection_whose_runtime_ended_is_not_used_again() {
    let server = Server::start();
    let limiter = bare(RedisStore::builder(server.url()).deadline(HUNG));
    for _ in 0..5 {
        let decision = runtime().block_on(ask(&limiter, "ada"));
        assert!(decision.expect("a decision").is_allowed());
    }
}

// Regression: the connection ended with the runtime that had made it. So a reply that was on its way was lost, and the
// decision failed although it was charged.
#[test]
fn runtime_that_ends_in_mid_call_loses_no_reply() {
    let server = Server::start();
    let proxy = runtime().block_on(Proxy::start(server.address()));
    let store = one_lane(proxy.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), [ages()]);
    let limiter = limiter.expect("a usable policy");
    for number in 1..=5 {
        let first = runtime();
        let decision = first.block_on(ask_ages(&limiter, 0));
        decision.expect("a connection is made at once");
        server.pause();
        let mut sent = ask_ages(&limiter, 0);
        first.block_on(begin(&mut sent));
        drop(first);
        server.resume();
        let decision = runtime().block_on(sent).expect("its reply arrives");
        let usage = decision.states()[0].usage().expect("it is counted");
        assert_eq!(usage.limit - usage.remaining, 2 * number);
    }
    assert_eq!(proxy.connections(), 1);
}

// Regression: a runtime that ended in the background broke the connection in the middle of the decisions of the next one,
// which looked like a failure of the server: they failed, were charged all the same, and no new connection was made for a
// while.
#[test]
fn runtimes_that_end_in_the_background_fail_no_decision_of_others() {
    let server = Server::start();
    let store = RedisStore::builder(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), [ages()]);
    let limiter = limiter.expect("a usable policy");
    let mut failed = Vec::new();
    let mut used = 0;
    for number in 0..400 {
        let brief = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        for _ in 0..3 {
            match brief.block_on(ask_ages(&limiter, 0)) {
                Err(error) => failed.push(error.to_string()),
                Ok(decision) => {
                    let usage = decision.states()[0].usage().expect("it is counted");
                    used = usage.limit - usage.remaining;
                }
            }
        }
        if number % 3 == 0 {
            brief.shutdown_background();
        }
    }
    assert_eq!(failed, Vec::<String>::new(), "{} of 1,200", failed.len());
    assert_eq!(used, 1_200);
}

// Regression: a call for several callers failed for all of them when the runtime of the one that had sent it ended.
#[test]
fn runtime_that_ends_takes_no_decision_of_another_with_it() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let (ours, other) = (runtime(), runtime());
    ours.block_on(ask(&limiter, "warm")).expect("a decision");
    server.pause();
    let [mut first, mut second, mut third] =
        ["first", "second", "third"].map(|key| ask(&limiter, key));
    other.block_on(async {
        begin(&mut first).await;
        begin(&mut second).await;
    });
    ours.block_on(begin(&mut third));
    other.block_on(async {
        // The task that was started for the second caller sends for the third one too.
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    });
    drop(other);
    server.resume();
    for answer in [first, second, third] {
        ours.block_on(answer).expect("a decision");
    }
}

// Regression: only the deadline of a call ended an unresponsive connection, and no call reached its deadline.
#[tokio::test]
async fn unresponsive_connection_is_ended_although_every_caller_leaves_early() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = bare(one_lane(proxy.url()).deadline(DEADLINE));
    ask(&limiter, "ada").await.expect("a decision");
    proxy.set(Mode::BlackHole);
    let started = Instant::now();
    while proxy.connections() == 1 {
        let _ = tokio::time::timeout(DEADLINE / 10, ask(&limiter, "ada")).await;
        assert!(started.elapsed() < HUNG, "it is still in use");
    }
}

// Regression: without a later decision, a connection whose caller had left counted as unresponsive.
#[tokio::test]
async fn callers_that_leave_one_by_one_break_no_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = RateLimiter::builder()
        .redis(proxy.url())
        .deadline(BRIEF)
        .policy(policy())
        .build()
        .expect("a usable limiter");
    ask(&limiter, "ada").await.expect("a decision");
    let connections = proxy.connections();
    for _ in 0..8 {
        begin(&mut ask(&limiter, "ada")).await;
        // Longer than the deadline, without another decision.
        tokio::time::sleep(BRIEF * 3).await;
    }
    assert_eq!(proxy.connections(), connections);
    assert!(!limiter.health().is_degraded(), "{:?}", limiter.health());
}

// Regression: a runtime that was blocked for two deadlines had a healthy connection given up.
#[tokio::test]
async fn runtime_that_is_blocked_loses_no_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = bare(one_lane(proxy.url()).deadline(BRIEF));
    ask(&limiter, "ada").await.expect("a decision");
    for _ in 0..4 {
        let mut answer = ask(&limiter, "ada");
        begin(&mut answer).await;
        std::thread::sleep(BRIEF * 4);
        // In time or not, it ends at once, and the connection stays.
        let _ = answer.await;
        ask(&limiter, "ada").await.expect("a decision");
    }
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn connection_that_replies_is_kept_although_most_callers_leave_early() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = bare(one_lane(proxy.url()).deadline(DEADLINE * 2));
    ask(&limiter, "ada").await.expect("a decision");
    let started = Instant::now();
    while started.elapsed() < DEADLINE * 6 {
        let _ = tokio::time::timeout(Duration::ZERO, ask(&limiter, "ada")).await;
        ask(&limiter, "ada").await.expect("a decision");
    }
    assert_eq!(proxy.connections(), 1);
}

// Regression: the thread that keeps deadlines fell asleep meanwhile, and a request that was submitted again did not
// wake it.
#[test]
fn decision_that_is_submitted_again_after_its_runtime_stalled_keeps_its_deadline() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = mute.local_addr().expect("an address");
    let store = one_lane(format!("redis://{address}/")).deadline(BRIEF);
    let limiter = bare(store.connect_timeout(Duration::from_secs(3_600)));
    let runtime = runtime();
    let mut answer = ask(&limiter, "ada");
    runtime.block_on(begin(&mut answer));
    std::thread::sleep(BRIEF * 20);
    let ended = runtime.block_on(async { tokio::time::timeout(HUNG, answer).await });
    let error = ended.expect("it ends").expect_err("nobody answers");
    assert!(matches!(error.kind(), ErrorKind::Timeout(_)), "{error:?}");
}

// Regression: a panic in foreign code ended the thread that keeps deadlines, and all later decisions waited forever.
#[test]
fn subscriber_that_panics_does_not_end_the_deadlines() {
    const PANICS: &str = "TOLLGATE_SUBSCRIBER_PANICS";
    if std::env::var_os(PANICS).is_some() {
        return runtime().block_on(decide_with_a_subscriber_that_panics());
    }
    // In a process of its own, whose subscriber is nobody else's.
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args([
            "remote::lanes::subscriber_that_panics_does_not_end_the_deadlines",
            "--exact",
        ])
        .env(PANICS, "")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:#?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

async fn decide_with_a_subscriber_that_panics() {
    let panics = Arc::new(AtomicUsize::new(0));
    let subscriber = tracing_subscriber::fmt().with_writer({
        let panics = Arc::clone(&panics);
        move || {
            if std::thread::current().name() == Some("tollgate-watch") {
                panics.fetch_add(1, Ordering::Relaxed);
                panic!("a subscriber that fails");
            }
            std::io::sink()
        }
    });
    subscriber.init();
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = mute.local_addr().expect("an address");
    let store = one_lane(format!("redis://{address}/")).deadline(BRIEF);
    let store = store.connect_timeout(Duration::from_secs(3_600));
    let limiter = RateLimiter::builder().redis(store).policy(policy());
    let limiter = limiter.build().expect("a usable limiter");
    let probed = async {
        // Each probe ends by its deadline, which the thread keeps.
        while limiter.health().probes() < 3 {
            let decision = ask(&limiter, "ada").await.expect("a decision");
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HUNG, probed)
        .await
        .expect("probes end");
    assert_eq!(panics.load(Ordering::Relaxed), 1, "the breaker opens");
}

// Regression: a dial on a runtime that is not driven kept its place in the pool, so no other dial could start.
#[test]
fn dial_that_is_not_driven_is_replaced() {
    let server = Server::start();
    let store = one_lane(server.url()).deadline(DEADLINE);
    let limiter = bare(store.connect_timeout(DEADLINE));
    let idle = runtime();
    let mut stalled = ask(&limiter, "stalled");
    idle.block_on(async {
        begin(&mut stalled).await;
        // The worker and the dial are polled, and wait for the socket.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    });
    let decision = runtime().block_on(until_decided(&limiter));
    decision.expect("another dial");
    drop(stalled);
}

// Regression: the reply was awaited on the runtime of the caller that filled the call, and the others timed out once that had
// left.
#[test]
fn full_call_does_not_depend_on_the_runtime_of_the_caller_that_fills_it() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let (driven, idle) = (runtime(), runtime());
    let warm = driven.block_on(ask(&limiter, "warm"));
    warm.expect("a decision");
    server.flush_stats();
    let mut answers: Vec<_> = (0..64)
        .map(|number| ask(&limiter, &number.to_string()))
        .collect();
    // One is sent alone, and the dispatcher of the others has no turn.
    driven.block_on(async {
        for answer in &mut answers {
            begin(answer).await;
        }
    });
    let mut last = ask(&limiter, "last");
    idle.block_on(begin(&mut last));
    driven.block_on(async {
        for answer in answers {
            answer.await.expect("a decision");
        }
    });
    assert_eq!(server.command_calls()["evalsha"], 2);
    drop(last);
}

#[tokio::test]
async fn call_carries_64_charges_at_most() {
    let server = Server::start();
    let policies: Vec<_> = (0..15)
        .map(|number| Policy::new(format!("lanes-{number}"), Quota::per_hour(1_000)))
        .collect();
    let store = one_lane(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), policies.clone());
    let limiter = limiter.expect("usable policies");
    let all = |key: &str| {
        let charges: Vec<_> = policies
            .iter()
            .map(|one| one.charge(Key::new(key)))
            .collect();
        limiter.check(&charges)
    };
    all("warm").await.expect("a decision");
    server.flush_stats();
    let mut answers: Vec<_> = (0..6).map(|number| all(&number.to_string())).collect();
    for answer in &mut answers {
        begin(answer).await;
    }
    for answer in answers {
        answer.await.expect("a decision");
    }
    // One alone, then four of 15 charges, and the fifth.
    assert_eq!(server.command_calls()["evalsha"], 3);
}

// Regression: if a connection was up, the timer was made before the check for a runtime, and panicked.
#[test]
fn caller_outside_of_a_runtime_gets_an_error() {
    let server = Server::start();
    let limiter = bare(one_lane(server.url()).deadline(HUNG));
    let mut cold = ask(&limiter, "ada");
    assert_eq!(refusal(&mut cold).kind(), ErrorKind::Connect);
    let runtime = runtime();
    runtime.block_on(ask(&limiter, "ada")).expect("a decision");
    let mut warm = ask(&limiter, "ada");
    assert!(refusal(&mut warm).to_string().contains("runtime"));
    let mut reset = limiter.reset(&policy(), &Key::new("ada"));
    assert!(refusal(&mut reset).to_string().contains("runtime"));
}

/// Returns the error of a decision at its first poll.
fn refusal<T: std::fmt::Debug>(answer: &mut StoreFuture<T>) -> Error {
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(answer).poll(&mut context) {
        Poll::Ready(result) => result.expect_err("nobody to carry it"),
        Poll::Pending => panic!("nobody would wake it"),
    }
}

// Regression: each connection that was closed while idle failed one decision before another one was made.
#[tokio::test]
async fn connections_that_the_server_closed_fail_no_decision() {
    let mut server = Server::start();
    let store = RedisStore::builder(server.url()).connections(3);
    let limiter = bare(store.deadline(HUNG));
    for _ in 0..3 {
        let mut callers: Vec<_> = (0..3).map(|_| ask(&limiter, "ada")).collect();
        for caller in &mut callers {
            begin(caller).await;
        }
        for caller in callers {
            caller.await.expect("a decision");
        }
    }
    server.restart();
    // Idle connections notice when the runtime looks at its sockets.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    let (policy, key) = (policy(), Key::new("ada"));
    limiter.reset(&policy, &key).await.expect("it is forgotten");
    ask(&limiter, "ada").await.expect("a decision");
}

#[tokio::test]
async fn decision_that_was_sent_on_a_connection_that_ended_is_not_sent_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let store = one_lane(proxy.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), [ages()]);
    let limiter = limiter.expect("a usable policy");
    ask_ages(&limiter, 0).await.expect("a decision");
    server.flush_stats();
    proxy.set(Mode::Delay(HUNG));
    let answer = tokio::spawn(ask_ages(&limiter, 1));
    while !server.command_calls().contains_key("evalsha") {
        tokio::task::yield_now().await;
    }
    proxy.set(Mode::Reset);
    let error = answer
        .await
        .expect("no panic")
        .expect_err("its reply is lost");
    assert_eq!(error.kind(), ErrorKind::Connect, "{error:?}");
    proxy.set(Mode::Pass);
    let decision = ask_ages(&limiter, 1).await.expect("a decision");
    let usage = decision.states()[0].usage().expect("it is counted");
    assert_eq!(usage.limit - usage.remaining, 2);
}

// === Everything at once ===

/// A caller with its own key and cost, so that it recognizes the replies to its own calls.
struct Caller {
    limiter: RateLimiter,
    policy: Policy,
    cost: u64,
    key: String,
    /// The least and the most units that its calls may have used.
    used: (u64, u64),
    is_patient: bool,
    seed: u64,
}

impl Caller {
    fn new(limiter: &RateLimiter, round: u64, number: u64) -> Self {
        Self {
            limiter: limiter.clone(),
            policy: ages(),
            cost: number + 1,
            key: format!("caller-{round}-{number}"),
            used: (0, 0),
            is_patient: number.is_multiple_of(4),
            seed: (round << 8) + number + 1,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    /// Requests this many decisions. Unless it is patient, it leaves three of four after a few polls.
    async fn run(mut self, calls: usize) {
        for _ in 0..calls {
            let charge = self.policy.charge(Key::new(&self.key)).cost(self.cost);
            let answer = self.limiter.check(&[charge]);
            let polls = match self.random(4) {
                _ if self.is_patient => u64::MAX,
                0 => u64::MAX,
                _ => self.random(6),
            };
            self.used.1 += self.cost;
            match left_after(answer, polls).await {
                // It left, or its runtime ended: the charge may have been made.
                None => {}
                Some(Err(error)) => assert_eq!(error.kind(), ErrorKind::Connect, "{error:?}"),
                Some(Ok(decision)) => self.judge(&decision),
            }
        }
    }

    fn judge(&mut self, decision: &Decision) {
        let usage = decision.states()[0].usage().expect("it is counted");
        let used = usage.limit - usage.remaining;
        assert!(decision.is_allowed());
        assert_eq!(used % self.cost, 0, "another's reply");
        assert!(
            (self.used.0 + self.cost..=self.used.1).contains(&used),
            "{used} of {:?}",
            self.used
        );
        // A call that was left may still be made: the most is the sum of all requested units.
        self.used.0 = used;
    }
}

/// Returns a policy whose units do not come back while the test runs.
fn ages() -> Policy {
    Policy::new(
        "ages",
        Quota::new(1, Duration::from_secs(3_600)).burst(100_000),
    )
}

async fn left_after(
    mut answer: StoreFuture<Decision>,
    polls: u64,
) -> Option<Result<Decision, Error>> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = Pin::new(&mut answer).poll(context).map(Some);
        if polls != u64::MAX {
            context.waker().wake_by_ref();
        }
        polled
    })
    .await
}

#[test]
fn callers_that_leave_and_runtimes_that_end_mix_up_no_replies_and_block_no_caller() {
    let server = Server::start();
    let store = RedisStore::builder(server.url()).deadline(HUNG).build();
    let limiter = RateLimiter::new(store.expect("a usable store"), [ages()]);
    let limiter = limiter.expect("a usable policy");
    std::thread::scope(|scope| {
        let lasting = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let mut callers = JoinSet::new();
                for number in 0..24 {
                    callers.spawn(Caller::new(&limiter, 0, number).run(300));
                }
                callers.join_all().await;
            });
        });
        for round in 1.. {
            if lasting.is_finished() {
                break;
            }
            runtime().block_on(async {
                for number in 0..8 {
                    // Keys of this round. They are dropped with the runtime, in mid-call.
                    tokio::spawn(Caller::new(&limiter, round, number).run(300));
                }
                let _ = ask_ages(&limiter, round).await;
            });
        }
        lasting.join().expect("every caller is served");
    });
    let decision = runtime().block_on(ask_ages(&limiter, 0));
    assert!(decision.expect("a decision").is_allowed());
}

fn ask_ages(limiter: &RateLimiter, number: u64) -> StoreFuture<Decision> {
    limiter.check(&[ages().charge(Key::new(format!("round-{number}")))])
}
