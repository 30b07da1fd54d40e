//! Slots in Redis under faults and in great numbers: none leaks, none is granted twice, and each costs the same.

use std::time::{Duration, Instant};

use redis::Value;
use tokio::task::JoinSet;
use tollgate::{
    ErrorKind, Hold, Key, Policy, Quota, RateLimiter,
    algorithm::Algorithm,
    charge::Receipt,
    remote::{RedisStore, Script},
    store::Store,
};

use crate::support::{Mode, Proxy, Server};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_secs(1);
const LIMIT: u64 = 20;

fn slots() -> Policy {
    // No test waits until such a lease ends.
    let lease = Duration::from_secs(3_600);
    Policy::new("uploads", Quota::in_flight(LIMIT)).algorithm(Algorithm::Concurrency { lease })
}

fn direct(server: &Server, policy: &Policy) -> RateLimiter {
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    let store = store.build();
    RateLimiter::new(store.expect("a usable store"), [policy.clone()]).expect("a usable policy")
}

fn through(proxy: &Proxy, policy: &Policy) -> RateLimiter {
    let store = RedisStore::builder(proxy.url()).deadline(DEADLINE).build();
    RateLimiter::new(store.expect("a usable store"), [policy.clone()]).expect("a usable policy")
}

async fn take(limiter: &RateLimiter, policy: &Policy) -> Option<Receipt> {
    let charges = [policy.charge(Key::new("ada"))];
    let decision = limiter.check(&charges).await.expect("a decision");
    Receipt::of(&charges, &decision)
}

async fn take_all(limiter: &RateLimiter, policy: &Policy) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for _ in 0..LIMIT {
        receipts.push(take(limiter, policy).await.expect("a free slot"));
    }
    receipts
}

async fn remaining(limiter: &RateLimiter, policy: &Policy) -> u64 {
    let peek = limiter.peek(&[policy.charge(Key::new("ada"))]).await;
    let decision = peek.expect("a decision");
    decision.states()[0].usage().expect("counted").remaining
}

/// Waits until all slots are free, without timers.
async fn all_free(limiter: &RateLimiter, policy: &Policy) {
    let started = Instant::now();
    while remaining(limiter, policy).await != LIMIT {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "some stay taken"
        );
        tokio::task::yield_now().await;
    }
}

/// Tries to release slots, which fails.
async fn fail_to_release(limiter: &RateLimiter, receipts: Vec<Receipt>) {
    let receipts = receipts.into_iter();
    let released: JoinSet<_> = receipts.map(|receipt| limiter.settle(receipt)).collect();
    for released in released.join_all().await {
        released.expect_err("no reply comes");
    }
}

// Regression: a release was sent once, so a slot whose release was lost stayed taken until its lease ended.
#[tokio::test]
async fn slots_whose_release_is_lost_are_released_when_redis_replies_again() {
    for mode in [Mode::BlackHole, Mode::Reset] {
        let server = Server::start();
        let proxy = Proxy::start(server.address()).await;
        let policy = slots();
        let (faulty, direct) = (through(&proxy, &policy), direct(&server, &policy));
        let receipts = take_all(&faulty, &policy).await;
        proxy.set(mode);
        fail_to_release(&faulty, receipts).await;
        assert_eq!(remaining(&direct, &policy).await, 0, "{mode:?}");
        proxy.set(Mode::Pass);
        all_free(&direct, &policy).await;
    }
}

// Regression: the task that releases panicked on a runtime without timers.
#[test]
fn slots_are_released_again_on_a_runtime_without_timers() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().build().expect("a runtime");
    runtime.block_on(async {
        let server = Server::start();
        let proxy = Proxy::start(server.address()).await;
        let policy = slots();
        let (faulty, direct) = (through(&proxy, &policy), direct(&server, &policy));
        let receipts = take_all(&faulty, &policy).await;
        proxy.set(Mode::Reset);
        fail_to_release(&faulty, receipts).await;
        proxy.set(Mode::Pass);
        all_free(&direct, &policy).await;
    });
}

// Regression: 18 of 20 slots that were dropped within a stall stayed taken until their leases ended.
#[tokio::test]
async fn slots_that_are_dropped_within_a_stall_are_free_after_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = slots();
    let (stalled, direct) = (through(&proxy, &policy), direct(&server, &policy));
    let receipts = take_all(&stalled, &policy).await.into_iter();
    let holds: Vec<Hold> = receipts.map(|receipt| stalled.hold(receipt)).collect();
    proxy.stall(DEADLINE * 3);
    drop(holds);
    all_free(&direct, &policy).await;
}

#[tokio::test]
async fn release_that_arrives_twice_frees_no_slot_of_others() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = slots();
    let (faulty, direct) = (through(&proxy, &policy), direct(&server, &policy));
    let receipts = take_all(&faulty, &policy).await;
    // The releases arrive, and their replies do not.
    proxy.set(Mode::Truncate);
    fail_to_release(&faulty, receipts).await;
    all_free(&direct, &policy).await;
    // Neither do the replies to the retries.
    proxy.set(Mode::Reset);
    let others = take_all(&direct, &policy).await;
    let calls = || {
        let calls = server.command_calls();
        let of = |name: &str| calls.get(name).copied().unwrap_or_default();
        of("eval") + of("evalsha")
    };
    let before = calls();
    proxy.set(Mode::Pass);
    let released_again = tokio::time::timeout(Duration::from_secs(10), async {
        while calls() == before {
            tokio::task::yield_now().await;
        }
    });
    released_again.await.expect("they are released once more");
    assert_eq!(remaining(&direct, &policy).await, 0);
    drop(others);
}

#[tokio::test]
async fn take_whose_reply_is_lost_leaves_no_slot_taken() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = slots();
    let (faulty, direct) = (through(&proxy, &policy), direct(&server, &policy));
    drop(take(&faulty, &policy).await.expect("a free slot"));
    proxy.set(Mode::Truncate);
    let lost = faulty.check(&[policy.charge(Key::new("ada"))]).await;
    lost.expect_err("no reply comes");
    assert_eq!(remaining(&direct, &policy).await, LIMIT - 2, "it was taken");
    proxy.set(Mode::Pass);
    let looked = tokio::time::timeout(Duration::from_secs(10), async {
        while remaining(&direct, &policy).await != LIMIT - 1 {
            tokio::task::yield_now().await;
        }
    });
    looked.await.expect("its slot is free again");
}

// Regression: its slots were subtracted or added as often as the ticket was listed.
#[test]
fn ticket_that_is_listed_twice_counts_once() {
    let server = Server::start();
    let run = |arguments: Vec<Vec<u8>>| -> Vec<u8> {
        let mut command = redis::cmd("EVAL");
        command.arg(Script::DECIDE.source()).arg(1).arg("twice");
        let reply = command.arg(arguments).query(&mut server.connection());
        reply.expect("a reply")
    };
    let crowd = Crowd::of(3);
    let twice = |tag: u8, flag: &[u8]| -> Vec<Vec<u8>> {
        let member = [ticket(1), vec![0, 0, 1]].concat().repeat(2);
        [vec![tag], LEASE.to_vec(), flag.to_vec(), member].into()
    };
    let total = || -> u64 {
        let mut score = redis::cmd("ZSCORE");
        let score = score.arg("twice").arg("");
        let total: f64 = score.query(&mut server.connection()).expect("a total");
        total as u64
    };
    (0..3).for_each(|number| drop(run(crowd.take(number))));
    run(twice(b'e', b"0"));
    assert_eq!(total(), 2, "released");
    run(twice(b'k', b"1"));
    assert_eq!(total(), 3, "taken again");
    run(twice(b'k', b"0"));
    assert_eq!(total(), 3, "renewed");
}

// Regression: one key that could not be renewed kept the others of its batch from being taken again, and other callers
// got their slots.
#[tokio::test]
async fn slot_that_redis_lost_is_taken_again_beside_a_key_that_cannot_be_renewed() {
    let server = Server::start();
    let policy = |name| {
        let lease = Duration::from_millis(600);
        Policy::new(name, Quota::in_flight(LIMIT)).algorithm(Algorithm::Concurrency { lease })
    };
    let (address, user) = (policy("address"), policy("user"));
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    let store = store.build().expect("a usable store");
    let limiter =
        RateLimiter::new(store, [address.clone(), user.clone()]).expect("usable policies");
    let key = Key::new("ada");
    let charges = [address.charge(key), user.charge(key)];
    let decision = limiter.check(&charges).await.expect("a decision");
    let held = limiter.hold(Receipt::of(&charges, &decision).expect("there is room"));
    server.command(&["SET", "tollgate:{ada}:address#c", "another's"]);
    server.command(&["DEL", "tollgate:{ada}:user#c"]);
    let started = Instant::now();
    while remaining(&limiter, &user).await != LIMIT - 1 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "it is in flight, and not counted"
        );
        tokio::task::yield_now().await;
    }
    drop(held);
}

// Regression: the first key that failed kept the slots of all others from being taken again.
#[tokio::test]
async fn renewal_of_several_keys_fails_for_one_and_is_done_for_the_others() {
    let server = Server::start();
    let policy = |name| Policy::concurrency(name, LIMIT);
    let (address, user) = (policy("address"), policy("user"));
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(10));
    let store = store.build().expect("a usable store");
    let key = Key::new("ada");
    server.command(&["SET", "tollgate:{ada}:address#c", "another's"]);
    for charges in [
        [address.charge(key), user.charge(key)],
        [user.charge(key), address.charge(key)],
    ] {
        let error = store.renew(&charges).await.expect_err("it is not ours");
        assert_eq!(error.kind(), ErrorKind::ForeignValue);
    }
    let limiter = RateLimiter::new(store, [address, user.clone()]).expect("usable policies");
    assert_eq!(remaining(&limiter, &user).await, LIMIT - 2);
}

// === Actual costs ===

// Regression: an actual cost above the charge was lost while the store was unavailable.
#[tokio::test]
async fn actual_cost_of_a_request_in_an_outage_is_charged_after_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    let limiter = RateLimiter::builder()
        .redis(proxy.url())
        .deadline(DEADLINE / 4)
        .policy(tokens.clone())
        .build()
        .expect("a usable limiter");
    let (charges, others) = (
        [tokens.charge(Key::new("ada")).cost(10)],
        [tokens.charge(Key::new("bob"))],
    );
    let mut receipts = Vec::new();
    for _ in 0..3 {
        let decision = limiter.check(&charges).await.expect("a decision");
        receipts.extend(Receipt::of(&charges, &decision));
    }
    proxy.set(Mode::Reset);
    while !limiter.health().is_degraded() {
        limiter.check(&others).await.expect("a decision of its own");
    }
    for (receipt, price) in receipts.into_iter().zip([110, 210, 0]) {
        let settled = limiter.settle(receipt.actual_cost(|_, _| price)).await;
        settled.expect_err("the store is away");
    }
    proxy.set(Mode::Pass);
    let direct = direct(&server, &tokens);
    let started = Instant::now();
    while remaining(&direct, &tokens).await != 1_000 - 320 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "a price is lost"
        );
        tokio::task::yield_now().await;
    }
}

// Regression: a settlement that timed out while it waited for a dial counted as sent, and was lost.
#[tokio::test]
async fn actual_cost_that_a_down_server_missed_is_charged_when_it_is_up_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    let limiter = through(&proxy, &tokens);
    let charges = [tokens.charge(Key::new("ada")).cost(10)];
    let decision = limiter.check(&charges).await.expect("a decision");
    let receipt = Receipt::of(&charges, &decision).expect("it was charged");
    proxy.set(Mode::Reset);
    // The connection breaks.
    limiter.check(&charges).await.expect_err("reset");
    let settled = limiter.settle(receipt.actual_cost(|_, _| 110)).await;
    settled.expect_err("it cannot be sent");
    proxy.set(Mode::Pass);
    let direct = direct(&server, &tokens);
    let started = Instant::now();
    while remaining(&direct, &tokens).await > 1_000 - 110 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the price is lost"
        );
        tokio::task::yield_now().await;
    }
}

// === Costs ===

/// A key with this many slots taken.
struct Crowd {
    key: String,
    limit: u64,
    taken: u64,
}

/// Number of calls in a round. All do the same, each to other slots.
const CALLS: u64 = 50;

impl Crowd {
    fn of(taken: u64) -> Self {
        Self {
            key: format!("crowd:{taken}"),
            limit: taken + CALLS,
            taken: 0,
        }
    }

    /// Runs [`CALLS`] calls with these arguments, each with another number. Returns the microseconds that Redis took
    /// for one.
    fn call(&self, server: &Server, arguments: impl Fn(u64) -> Vec<Vec<u8>>) -> f64 {
        server.flush_stats();
        let mut pipeline = redis::pipe();
        for number in 0..CALLS {
            let command = pipeline.cmd("EVALSHA").arg(Script::DECIDE.hash()).arg(1);
            command.arg(&self.key).arg(arguments(number));
        }
        let _: Vec<Value> = pipeline.query(&mut server.connection()).expect("replies");
        let stats = server.info("commandstats");
        let stats = stats["cmdstat_evalsha"].split(',');
        let micros = stats.filter_map(|stat| stat.strip_prefix("usec=")).next();
        let micros: f64 = micros.expect("a time").parse().expect("a number");
        micros / CALLS as f64
    }

    fn take(&self, number: u64) -> Vec<Vec<u8>> {
        let limit = self.limit.to_string().into_bytes();
        let ticket = ticket(self.taken + number);
        [b"c".to_vec(), b"1".to_vec(), limit, LEASE.to_vec(), ticket].into()
    }

    /// Renews or releases one slot.
    fn keep(&self, tag: u8, number: u64) -> Vec<Vec<u8>> {
        let member = [ticket(self.taken + number), vec![0, 0, 1]].concat();
        [vec![tag], LEASE.to_vec(), b"0".to_vec(), member].into()
    }

    fn deny(&self) -> Vec<Vec<u8>> {
        let cost = (self.limit + 1).to_string().into_bytes();
        let limit = self.limit.to_string().into_bytes();
        [b"c".to_vec(), cost, limit, LEASE.to_vec(), ticket(0)].into()
    }
}

fn ticket(number: u64) -> Vec<u8> {
    // So that the order of tickets is not that of takes.
    let ticket = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ticket.to_be_bytes().to_vec()
}

const LEASE: &[u8] = b"3600000";

/// Returns the microseconds of a take, a denial, a renewal and a release, each the least of many rounds.
fn costs(server: &Server, taken: u64) -> [f64; 4] {
    let mut crowd = Crowd::of(taken);
    while crowd.taken < taken {
        crowd.call(server, |number| crowd.take(number));
        crowd.taken += CALLS;
    }
    let mut least = [f64::MAX; 4];
    for _ in 0..20 {
        let round = [
            crowd.call(server, |number| crowd.take(number)),
            crowd.call(server, |_| crowd.deny()),
            crowd.call(server, |number| crowd.keep(b'k', number)),
            crowd.call(server, |number| crowd.keep(b'e', number)),
        ];
        for (least, micros) in least.iter_mut().zip(round) {
            *least = least.min(micros);
        }
    }
    least
}

// Regression: each operation read and wrote all slots of the key, so it took 20 times as long.
#[test]
fn slot_costs_about_the_same_among_ten_thousand_as_among_a_hundred() {
    let server = Server::start();
    server.command(&["SCRIPT", "LOAD", Script::DECIDE.source()]);
    let few = costs(&server, 100);
    let many = costs(&server, 10_000);
    for (few, many) in few.into_iter().zip(many) {
        assert!(
            many < few * 3.0,
            "{many} us among 10,000, {few} us among 100"
        );
    }
}
