//! Leased units: decisions without a round trip, within the limit whatever the instances do.

use std::{
    collections::HashSet,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tollgate::{
    Charge, Consistency, Decision, ErrorKind, Key, OnOutage, Percent, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    charge::Receipt,
    decision::CountedBy,
    remote::RedisStore,
    store::Store,
};

use crate::{
    fleet::shares::{until_degraded, until_shared},
    support::{Cluster, Mode, Proxy, Server},
};

const ADA: &str = "ada";

fn limiter(url: &str) -> RateLimiter {
    let store = RedisStore::builder(url).deadline(Duration::from_secs(5));
    let limiter = RateLimiter::builder().redis(store).build();
    limiter.expect("a usable limiter")
}

/// Returns instances on one server.
fn fleet<const N: usize>() -> (Server, [RateLimiter; N]) {
    let server = Server::start();
    let instances = [(); N].map(|()| limiter(&server.url()));
    (server, instances)
}

/// So little comes back in a test that it does not matter: a unit in an hour.
fn leased(name: &str) -> Policy {
    leased_of(1_000, name)
}

fn leased_of(limit: u64, name: &str) -> Policy {
    let quota = Quota::new(24, Duration::from_secs(86_400)).burst(limit);
    Policy::new(name, quota).consistency(Consistency::Leased)
}

/// As [`leased`], under each algorithm. Windows are so long that none ends in a test.
fn leased_by_all() -> [Policy; 4] {
    leased_by_all_of(1_000)
}

fn leased_by_all_of(limit: u64) -> [Policy; 4] {
    let window = |name, algorithm| {
        let policy = Policy::new(name, Quota::new(limit, Duration::from_secs(366 * 86_400)));
        policy.algorithm(algorithm).consistency(Consistency::Leased)
    };
    [
        leased_of(limit, "bucket"),
        window("clock", Algorithm::FixedWindow(WindowStart::Clock)),
        window("first_hit", Algorithm::FixedWindow(WindowStart::FirstHit)),
        window("sliding", Algorithm::SlidingWindow),
    ]
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    limiter.check(charges).await.expect("a decision")
}

/// Asks 32 times at once.
async fn check_together(limiter: &RateLimiter, charge: Charge<'_>) -> Vec<Decision> {
    let charges = [charge];
    join_all((0..32).map(|_| check(limiter, &charges))).await
}

/// Asks until a request is admitted by leased units. Returns the units that were admitted.
async fn until_leased(limiter: &RateLimiter, charge: Charge<'_>) -> u64 {
    let mut admitted = 0;
    loop {
        let decision = check(limiter, &[charge]).await;
        assert!(decision.is_allowed(), "{decision:?}");
        admitted += charge.units();
        if decision.counted_by() == CountedBy::Lease {
            return admitted;
        }
        tokio::task::yield_now().await;
    }
}

/// Takes all units that the fleet still admits on this instance. Returns how many there were.
async fn take_the_rest(limiter: &RateLimiter, charge: Charge<'_>) -> u64 {
    let mut admitted = 0;
    loop {
        while check(limiter, &[charge]).await.is_allowed() {
            admitted += charge.units();
            tokio::task::yield_now().await;
        }
        // Units of this instance may have been on their way back.
        limiter.drain().await.expect("drained");
        if !check(limiter, &[charge]).await.is_allowed() {
            return admitted;
        }
        admitted += charge.units();
    }
}

fn calls(server: &Server) -> u64 {
    let calls = server.command_calls();
    calls.get("evalsha").copied().unwrap_or(0)
}

#[tokio::test]
async fn busy_key_asks_redis_now_and_then() {
    let server = Server::start();
    let quota = Quota::per_second(1_000_000);
    let algorithms = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::SlidingWindow,
    ];
    for algorithm in algorithms {
        let policy = Policy::new("busy", quota).algorithm(algorithm);
        let policy = policy.consistency(Consistency::Leased);
        check_calls(&server, &policy).await;
    }
}

async fn check_calls(server: &Server, policy: &Policy) {
    let one = limiter(&server.url());
    let charge = policy.charge(Key::new(ADA));
    until_leased(&one, charge).await;
    server.flush_stats();
    let started = Instant::now();
    let (mut here, mut all) = (0_u64, 0_u64);
    while started.elapsed() < Duration::from_millis(500) {
        let decision = check(&one, &[charge]).await;
        assert!(decision.is_allowed(), "{decision:?}");
        here += u64::from(decision.counted_by() == CountedBy::Lease);
        all += 1;
        tokio::task::yield_now().await;
    }
    // Those that are not counted here are from while the leases grew.
    assert!(here * 10 > all * 9, "{here} of {all} here");
    assert!(calls(server) * 10 < all, "{} calls", calls(server));
}

#[tokio::test]
async fn instances_admit_no_more_than_the_limit_together() {
    let (_server, instances) = fleet::<4>();
    for policy in leased_by_all() {
        check_sum(&instances, policy.charge(Key::new(ADA))).await;
    }
}

async fn check_sum(instances: &[RateLimiter], charge: Charge<'_>) {
    let floods = instances.iter().map(|limiter| async {
        let (mut admitted, mut here) = (0_u64, 0_u64);
        for _ in 0..1_500 {
            let decision = check(limiter, &[charge]).await;
            admitted += u64::from(decision.is_allowed());
            here += u64::from(decision.counted_by() == CountedBy::Lease);
            tokio::task::yield_now().await;
        }
        (admitted, here)
    });
    let admitted = join_all(floods).await;
    let sum: u64 = admitted.iter().map(|(admitted, _)| admitted).sum();
    assert_eq!(sum, 1_000, "{admitted:?}");
    assert!(admitted.iter().any(|(_, here)| *here > 0), "{admitted:?}");
}

/// Asks 60 times for 32 units at once on each instance. Returns how many were admitted.
async fn flood_together(instances: &[RateLimiter], charge: Charge<'_>) -> usize {
    let floods = instances.iter().map(|limiter| async move {
        let mut admitted = 0;
        for _ in 0..60 {
            let decisions = check_together(limiter, charge).await;
            admitted += decisions
                .iter()
                .filter(|decision| decision.is_allowed())
                .count();
            tokio::task::yield_now().await;
        }
        admitted
    });
    join_all(floods).await.into_iter().sum()
}

#[tokio::test]
async fn delayed_instances_admit_the_overshoot_at_most() {
    let (_server, instances) = fleet::<4>();
    for policy in leased_by_all() {
        let policy = policy.consistency(Consistency::Delayed {
            overshoot: Percent::new(20.0),
        });
        let sum = flood_together(&instances, policy.charge(Key::new(ADA))).await;
        // More than the limit, since that is what it is for.
        assert!((1_001..=1_200).contains(&sum), "{sum}");
    }
}

#[tokio::test]
async fn requests_that_come_together_get_each_unit_once() {
    let (_server, instances) = fleet::<2>();
    for policy in leased_by_all() {
        let sum = flood_together(&instances, policy.charge(Key::new(ADA))).await;
        assert_eq!(sum, 1_000);
    }
}

#[tokio::test]
async fn requests_for_a_very_busy_key_wait_for_reports_together() {
    let (server, [one]) = fleet();
    // Units come back so fast that no denial is kept.
    let quota = Quota::per_second(5_000).burst(1_000);
    let policy = Policy::new("share", quota).consistency(Consistency::Leased);
    let charge = policy.charge(Key::new(ADA));
    let instances = [one];
    // The demand is an average.
    for _ in 0..5 {
        flood_together(&instances, charge).await;
    }
    server.flush_stats();
    let admitted = flood_together(&instances, charge).await;
    let asked = 60 * 32;
    // Each charge and each report reads the key once.
    let entries = server.command_calls().get("get").copied().unwrap_or(0);
    assert!(admitted < asked / 2, "{admitted} of {asked}");
    assert!(entries < asked as u64 / 4, "{entries} for {asked}");
}

// Regression: reports that began on the runtime of a caller stopped those of all others while it was not driven.
#[test]
fn reports_go_on_while_a_runtime_is_not_driven() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let (_server, [one]) = fleet();
    let policy = leased("driven");
    let idle = runtime().expect("a runtime");
    let charge = policy.charge(Key::new(ADA));
    idle.block_on(until_leased(&one, charge));
    for _ in 0..200 {
        idle.block_on(check(&one, &[charge]));
    }
    let other = runtime().expect("a runtime");
    other.block_on(until_leased(&one, policy.charge(Key::new("bob"))));
    drop(idle);
}

#[tokio::test]
async fn requests_that_wait_are_decided_by_their_deadline() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let store = RedisStore::builder(proxy.url()).deadline(Duration::from_millis(300));
    let one = RateLimiter::builder().redis(store).build();
    let one = one.expect("a usable limiter");
    let policy = leased("late").on_outage(OnOutage::Allow);
    let charge = policy.charge(Key::new(ADA));
    let mut slowest = Duration::ZERO;
    for round in 0..120 {
        if round == 20 {
            proxy.set(Mode::BlackHole);
        }
        let asked_at = Instant::now();
        check_together(&one, charge).await;
        slowest = slowest.max(asked_at.elapsed());
    }
    // One deadline, with room for a busy machine: two would be 600 ms.
    assert!(slowest < Duration::from_millis(550), "{slowest:?}");
}

#[tokio::test]
async fn cold_key_is_charged_as_under_a_strict_policy() {
    let (server, [one]) = fleet();
    let lengths = [11, 12, 13, 19];
    for (policy, length) in leased_by_all().into_iter().zip(lengths) {
        let charge = policy.charge(Key::new(ADA));
        for _ in 0..2 {
            assert_eq!(check(&one, &[charge]).await.counted_by(), CountedBy::Shared);
        }
        assert_eq!(stored_length(&server, &policy), length);
        until_leased(&one, charge).await;
        assert_eq!(stored_length(&server, &policy), length + 22);
    }
}

fn stored_length(server: &Server, policy: &Policy) -> usize {
    let keys = server.keys();
    let name = format!("{{ada}}:{}", policy.name().as_str());
    let key = keys.iter().find(|key| key.contains(&name));
    server.query(&["STRLEN", key.expect("a state")])
}

#[tokio::test]
async fn drained_units_are_those_of_others() {
    let (_server, [one, other]) = fleet();
    for policy in leased_by_all() {
        let charge = policy.charge(Key::new(ADA));
        let spent = until_leased(&one, charge).await;
        one.drain().await.expect("drained");
        assert_eq!(spent + take_the_rest(&other, charge).await, 1_000);
        // It goes on to work.
        assert!(!check(&one, &[charge]).await.is_allowed());
    }
}

// Regression: the denial of a strict instance was kept for 2 s, although it was due to units that others had leased.
#[tokio::test]
async fn strict_instance_gets_units_that_others_give_back_at_once() {
    let (_server, [one, other]) = fleet();
    for policy in leased_by_all() {
        let strict = policy.clone().consistency(Consistency::Strict);
        let (charge, strict) = (policy.charge(Key::new(ADA)), strict.charge(Key::new(ADA)));
        let mut spent = until_leased(&one, charge).await;
        assert!(check(&other, &[strict.cost(700)]).await.is_allowed());
        // In few calls, before units of an idle key go back.
        spent += 700 + take_the_rest(&other, strict.cost(20)).await;
        spent += take_the_rest(&other, strict).await;
        assert!(spent < 1_000, "nothing is leased");
        one.drain().await.expect("drained");
        assert_eq!(spent + take_the_rest(&other, strict).await, 1_000);
        // What is spent alone denies now.
        let denial = check(&other, &[strict]).await;
        assert_eq!(denial.counted_by(), CountedBy::DenialCache);
    }
}

#[tokio::test]
async fn denied_group_gives_leased_units_back() {
    let (_server, [one]) = fleet();
    let policy = leased("group");
    let strict = Policy::new("strict", Quota::per_hour(1));
    let (charge, other) = (policy.charge(Key::new(ADA)), strict.charge(Key::new(ADA)));
    let mut spent = until_leased(&one, charge).await;
    assert!(check(&one, &[charge, other]).await.is_allowed());
    spent += 1;
    for _ in 0..20 {
        let decision = check(&one, &[charge, other]).await;
        assert!(!decision.is_allowed());
        let states: Vec<_> = decision
            .states()
            .iter()
            .map(|state| state.policy().as_str())
            .collect();
        assert_eq!(states, ["group", "strict"]);
        let denying = decision.denying().map(|state| state.policy().as_str());
        assert_eq!(denying, Some("strict"));
    }
    assert_eq!(spent + take_the_rest(&one, charge).await, 1_000);
}

#[tokio::test]
async fn refunds_of_leased_units_are_exact() {
    let (_server, [one]) = fleet();
    for policy in leased_by_all() {
        check_refunds(&one, policy.charge(Key::new(ADA))).await;
    }
}

async fn check_refunds(one: &RateLimiter, charge: Charge<'_>) {
    let (receipts, spent) = receipts_of_leased_units(one, charge, 200).await;
    for receipt in receipts {
        let settled = one.settle(receipt.actual_cost(|_, _| 0)).await;
        settled.expect("settled");
    }
    let rest = take_the_rest(one, charge).await;
    // Never more, and nearly all of them: what was reported is refunded as far as Redis can tell it from other charges.
    assert!(spent + rest <= 1_200, "{spent} and {rest}");
    assert!(spent + rest >= 1_190, "{spent} and {rest}");
}

/// Asks until so many requests were admitted by leased units. Returns their receipts, and the units that were admitted.
async fn receipts_of_leased_units(
    limiter: &RateLimiter,
    charge: Charge<'_>,
    count: usize,
) -> (Vec<Receipt>, u64) {
    let mut admitted = until_leased(limiter, charge).await;
    let mut receipts = Vec::new();
    while receipts.len() < count {
        let decision = check(limiter, &[charge]).await;
        admitted += 1;
        // Redis cannot tell one that it counted itself from leased units before it that were not reported.
        if decision.counted_by() == CountedBy::Lease {
            receipts.push(Receipt::of(&[charge], &decision).expect("it was charged"));
        }
        tokio::task::yield_now().await;
    }
    (receipts, admitted)
}

#[test]
fn refunds_of_leased_units_that_are_not_reported_need_no_runtime() {
    let (_server, [one]) = fleet();
    let policy = leased("driverless");
    let charge = policy.charge(Key::new(ADA));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut spent, mut refunded) = (0, 0);
    while refunded < 10 {
        let (receipts, admitted) = runtime.block_on(receipts_of_leased_units(&one, charge, 1));
        spent += admitted;
        for receipt in receipts {
            match block_on(one.settle(receipt.actual_cost(|_, _| 0))) {
                Ok(()) => refunded += 1,
                // Redis has to make it.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Connect),
            }
        }
    }
    let rest = runtime.block_on(take_the_rest(&one, charge));
    assert_eq!(spent + rest, 1_000 + refunded);
}

#[tokio::test]
async fn refunds_of_leased_units_in_an_outage_are_made_here_or_afterwards() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let store = RedisStore::builder(proxy.url()).deadline(Duration::from_millis(250));
    let one = RateLimiter::builder().redis(store).build();
    let one = one.expect("a usable limiter");
    let policy = leased("outage").on_outage(OnOutage::Deny);
    let charge = policy.charge(Key::new(ADA));
    let (receipts, mut spent) = receipts_of_leased_units(&one, charge, 50).await;
    proxy.set(Mode::Refuse);
    // Units that are left would count as spent.
    spent += take_the_rest(&one, charge).await;
    until_degraded(std::slice::from_ref(&one)).await;
    let refunds = receipts
        .into_iter()
        .map(|receipt| one.settle(receipt.actual_cost(|_, _| 0)));
    for result in join_all(refunds).await {
        let kind = result.map_err(|error| error.kind());
        assert!(
            matches!(kind, Ok(()) | Err(ErrorKind::Unavailable)),
            "{kind:?}"
        );
    }
    proxy.set(Mode::Pass);
    until_shared(&one).await;
    // Those that Redis has to make are tried again in the background. A report that was lost has leased units to nobody.
    let mut rest = 0;
    while spent + rest < 1_010 {
        rest += take_the_rest(&one, charge).await;
    }
    assert!(spent + rest <= 1_050, "{spent} and {rest}");
}

/// Drives a future on this thread, without a runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Arc::new(Unpark(thread::current())).into();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

#[tokio::test]
async fn reset_leaves_only_leased_units_charged() {
    let server = Server::start();
    let other = limiter(&server.url());
    // Enough for the leases to grow on a busy machine.
    for policy in leased_by_all_of(10_000) {
        let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(5));
        let store = store.build().expect("a usable store");
        let one = RateLimiter::new(store.clone(), [policy.clone()]);
        let one = one.expect("a usable limiter");
        let charge = policy.charge(Key::new(ADA));
        while store.stats().leased_units() < Some(20) {
            until_leased(&one, charge).await;
        }
        other.reset(&policy, &Key::new(ADA)).await.expect("reset");
        // A reset that deleted the key would grant those units once more.
        let charge = charge.cost(10);
        let all = take_the_rest(&one, charge).await + take_the_rest(&other, charge).await;
        assert!((7_500..=10_000).contains(&all), "{all}");
    }
}

// Regression: decisions by leased units were in no share, so one failure among a few calls looked like an outage.
#[tokio::test]
async fn decisions_without_a_call_count_in_the_share_of_those_that_failed() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let one = limiter(&proxy.url());
    let policy = leased("healthy").on_outage(OnOutage::Allow);
    let charge = policy.charge(Key::new(ADA));
    let mut decided = 0;
    let mut places = HashSet::new();
    // Admitted and denied, by leased units, after waits, by Redis and from the denial cache.
    while !(places.contains(&CountedBy::Lease) && places.contains(&CountedBy::DenialCache)) {
        for decision in check_together(&one, charge).await {
            places.insert(decision.counted_by());
            decided += 1;
        }
    }
    proxy.set(Mode::Refuse);
    let strict = Policy::new("strict", Quota::per_hour(1)).on_outage(OnOutage::Allow);
    let failed = check(&one, &[strict.charge(Key::new(ADA))]).await;
    assert_eq!(failed.counted_by(), CountedBy::Uncounted);
    let share = one.health().affected_share();
    assert!(
        (share - 1.0 / f64::from(decided + 1)).abs() < 1e-9,
        "{share} of {decided}"
    );
}

#[tokio::test]
async fn leased_units_outlast_a_stall() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Policy::new("stall", Quota::per_second(100_000)).consistency(Consistency::Leased);
    let store = RedisStore::builder(proxy.url()).build();
    let store = store.expect("a usable store");
    let one = RateLimiter::new(store.clone(), [policy.clone()]);
    let one = one.expect("a usable limiter");
    let charge = policy.charge(Key::new(ADA));
    while store.stats().leased_units() < Some(100) {
        // Until the leases are as large as the demand, a decision may come too late.
        let _ = one.check(&[charge]).await;
        tokio::task::yield_now().await;
    }
    proxy.set(Mode::BlackHole);
    for _ in 0..50 {
        let decision = check(&one, &[charge]).await;
        assert_eq!(decision.counted_by(), CountedBy::Lease);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn nodes_of_a_cluster_lease_too() {
    let cluster = Cluster::shared(3);
    let one = limiter(&cluster.nodes[0].url());
    let policy = leased("cluster");
    for key in ["leased-a", "leased-b", "leased-c", "leased-d", "leased-e"] {
        let charge = policy.charge(Key::new(key));
        let spent = until_leased(&one, charge).await;
        assert_eq!(spent + take_the_rest(&one, charge).await, 1_000, "{key}");
    }
}

#[tokio::test]
async fn flood_on_a_denied_key_asks_redis_now_and_then() {
    let (server, [one]) = fleet();
    for policy in leased_by_all() {
        check_flood(&server, &one, policy.charge(Key::new(ADA))).await;
    }
}

async fn check_flood(server: &Server, one: &RateLimiter, charge: Charge<'_>) {
    take_the_rest(one, charge).await;
    // Once a report has shown that the debt alone denies.
    while check(one, &[charge]).await.counted_by() != CountedBy::DenialCache {
        tokio::task::yield_now().await;
    }
    server.flush_stats();
    let charges = [charge];
    let flood = (0..2_000).map(|_| one.check(&charges));
    for decision in join_all(flood).await {
        assert!(!decision.expect("a decision").is_allowed());
    }
    // At most a report, and the registration of the instance.
    assert!(calls(server) <= 2, "{} calls", calls(server));
}

#[test]
fn policies_that_cannot_be_leased_are_refused_with_the_reason() {
    use tollgate::policy::Penalty;

    let windowed = |limit, algorithm| {
        let policy = Policy::new("windowed", Quota::per_hour(limit)).algorithm(algorithm);
        policy.consistency(Consistency::Leased)
    };
    let refused = [
        (
            windowed(100, Algorithm::SlidingLog),
            "a sliding log needs the time of each request",
        ),
        (
            windowed(15, Algorithm::FixedWindow(WindowStart::Clock)),
            "set a limit of 16 or more",
        ),
        (
            windowed(15, Algorithm::SlidingWindow),
            "set a limit of 16 or more",
        ),
        (
            windowed(100, Algorithm::SlidingWindow).count_denied(true),
            "remove penalty(), backoff() and count_denied()",
        ),
        (
            leased("denied").count_denied(true),
            "remove penalty(), backoff() and count_denied()",
        ),
        (
            leased("ban").penalty(Penalty::after(3, Duration::from_secs(3_600))),
            "remove penalty(), backoff() and count_denied()",
        ),
        (
            Policy::new("small", Quota::per_second(15)).consistency(Consistency::Leased),
            "set a burst of 16 or more",
        ),
        (
            Policy::concurrency("slots", 100).consistency(Consistency::Leased),
            "slots are held",
        ),
    ];
    for percent in [0.0, 0.05, 100.1, -1.0, f64::NAN, f64::INFINITY] {
        let overshoot = Percent::new(percent);
        let policy = leased("percent").consistency(Consistency::Delayed { overshoot });
        let error = policy.validate().expect_err("not a usable overshoot");
        assert!(
            error.to_string().contains("0.1 to 100 %"),
            "{percent}: {error}"
        );
    }
    for (policy, reason) in refused {
        let error = policy.validate().expect_err(reason).to_string();
        assert!(
            error.contains("cannot be Leased") && error.contains(reason),
            "{error}"
        );
    }
}

/// 100,000 pass too, in a minute and 52 MB.
const CROWD: u64 = 2_000;

#[tokio::test]
async fn crowd_of_keys_that_just_qualify_gives_all_units_back() {
    let server = Server::start();
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(5));
    let store = store.build().expect("a usable store");
    let one = RateLimiter::builder().store(store.clone()).build();
    let (one, other) = (one.expect("a usable limiter"), limiter(&server.url()));
    let policy = Policy::new("crowd", Quota::per_day(10).burst(1_000));
    let leased = policy.clone().consistency(Consistency::Leased);
    let key = |number: u64| Key::new(number.to_string());
    let mut held = 0;
    for chunk in (0..CROWD).collect::<Vec<_>>().chunks(500) {
        for _ in 0..8 {
            let asked = chunk.iter().map(async |number| {
                let decision = check(&one, &[leased.charge(key(*number))]).await;
                assert!(decision.is_allowed(), "{decision:?}");
            });
            join_all(asked).await;
        }
        let stats = store.stats();
        assert!(stats.leased_keys().is_some_and(|keys| keys <= 65_536));
        held = held.max(stats.leased_units().unwrap_or(0));
    }
    assert!(held > 0, "they are leased");
    one.drain().await.expect("drained");
    assert_eq!(store.stats().leased_keys(), Some(0));
    for number in 0..CROWD {
        // Under the leased policy, so that Redis knows how much the units take that were spent and are not reported.
        let charge = leased.charge(key(number));
        // A single unit is not worth a call, and counts as spent.
        let rest = check(&other, &[charge.cost(991)]).await;
        assert!(rest.is_allowed(), "{number}: {rest:?}");
        check(&other, &[charge]).await;
        assert!(!check(&other, &[charge]).await.is_allowed(), "{number}");
    }
}
