//! Several instances on one Redis, and the quota that they share while it is unavailable.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::Value;
use tokio::task::JoinSet;
use tollgate::{
    Charge, ErrorKind, Key, OnOutage, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, QueueLimits, WindowStart},
    builder::RateLimiterBuilder,
    clock::Clock,
    decision::{CountedBy, Outcome, PolicyState},
    remote::{RedisStore, Script},
    store::Store,
};

use crate::support::{Mode, Proxy, Server};

/// Longer than the default, so that a loaded machine does not look like an outage.
const DEADLINE: Duration = Duration::from_millis(250);
/// A wait that nothing here takes, however loaded the machine is.
pub(crate) const HUNG: Duration = Duration::from_secs(60);
/// The size of most fleets here.
const INSTANCES: usize = 8;

/// Returns a policy of this many units for each algorithm. None of the units comes back while a test runs.
fn policies(units: u64) -> Vec<Policy> {
    let daily = |name| Policy::new(name, Quota::per_day(units));
    let lease = Duration::from_secs(3_600);
    vec![
        daily("token-bucket"),
        Policy::new("leaky-bucket", Quota::per_day(units).burst(units))
            .algorithm(Algorithm::LeakyBucket),
        daily("leaky-queue").algorithm(Algorithm::LeakyQueue(QueueLimits::new(
            units - 1,
            Duration::MAX,
        ))),
        daily("first-hit").algorithm(Algorithm::FixedWindow(WindowStart::FirstHit)),
        daily("sliding-log").algorithm(Algorithm::SlidingLog),
        daily("sliding-window").algorithm(Algorithm::SlidingWindow),
        Policy::concurrency("concurrency", units).algorithm(Algorithm::Concurrency { lease }),
    ]
}

/// The same without requests in flight, which are not merged.
pub(crate) fn rate_policies(units: u64) -> Vec<Policy> {
    let mut policies = policies(units);
    policies.retain(|policy| policy.name().as_str() != "concurrency");
    policies
}

fn builder(server: &Server) -> RateLimiterBuilder {
    RateLimiter::builder()
        .redis(server.url())
        .deadline(DEADLINE)
}

pub(crate) fn fleet(server: &Server, instances: usize) -> Vec<RateLimiter> {
    let instances = (0..instances).map(|_| builder(server).build());
    instances
        .map(|built| built.expect("a usable limiter"))
        .collect()
}

/// Returns the only instance of a fleet, which reaches the server through a proxy.
async fn acquainted_by_proxy(server: &Server) -> (Proxy, [RateLimiter; 1]) {
    let proxy = Proxy::start(server.address()).await;
    let limiter = RateLimiter::builder().redis(proxy.url()).deadline(DEADLINE);
    let one = [limiter.build().expect("a usable limiter")];
    until_acquainted(&one).await;
    (proxy, one)
}

/// A policy that nothing else uses.
pub(crate) fn idle() -> Policy {
    Policy::new("idle", Quota::per_second(1_000_000))
}

/// Decides on every instance until this holds for all.
async fn until(fleet: &[RateLimiter], holds: impl Fn(&RateLimiter) -> bool) {
    let (started, idle) = (Instant::now(), idle());
    while !fleet.iter().all(&holds) {
        assert!(started.elapsed() < HUNG, "{:?}", fleet[0].health());
        for one in fleet {
            one.check(&[idle.charge(Key::GLOBAL)])
                .await
                .expect("a decision");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn until_acquainted(fleet: &[RateLimiter]) {
    let instances = fleet.len() as u64;
    until(fleet, |one| one.health().instances() == Some(instances)).await;
}

pub(crate) async fn until_degraded(fleet: &[RateLimiter]) {
    until(fleet, |one| one.health().is_degraded()).await;
}

/// Returns whether Redis decides for an instance again, and has its local charges.
fn has_merged(one: &RateLimiter) -> bool {
    let health = one.health();
    !health.is_degraded() && health.pending_merges() == 0
}

pub(crate) async fn until_merged(fleet: &[RateLimiter]) {
    until(fleet, has_merged).await;
}

/// Decides on an instance until Redis does.
pub(crate) async fn until_shared(one: &RateLimiter) {
    let (started, idle) = (Instant::now(), idle());
    loop {
        let decision = one.check(&[idle.charge(Key::GLOBAL)]).await;
        if decision.expect("a decision").counted_by() == CountedBy::Shared {
            return;
        }
        assert!(started.elapsed() < HUNG, "{:?}", one.health());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Makes this many requests on each instance in turn. Returns the number that each admitted.
async fn admitted(fleet: &[RateLimiter], policy: &Policy, key: Key, requests: u64) -> Vec<u64> {
    let mut admitted = vec![0; fleet.len()];
    for _ in 0..requests {
        for (one, admitted) in fleet.iter().zip(&mut admitted) {
            *admitted += admitted_together(one, [policy.charge(key)], 1).await;
        }
    }
    admitted
}

/// Makes this many requests with the same charges on an instance. Returns the number that is admitted.
async fn admitted_together<const N: usize>(
    one: &RateLimiter,
    charges: [Charge<'_>; N],
    requests: u64,
) -> u64 {
    let mut admitted = 0;
    for _ in 0..requests {
        let decision = one.check(&charges).await.expect("a decision");
        admitted += u64::from(decision.is_allowed());
    }
    admitted
}

#[tokio::test]
async fn fleet_admits_a_limit_once_while_redis_is_down() {
    let mut server = Server::start();
    let fleet = fleet(&server, INSTANCES);
    until_acquainted(&fleet).await;
    server.kill();
    until_degraded(&fleet).await;
    for units in [3, 20, 64] {
        for policy in policies(units) {
            for key in ["ada", "bob"].map(|key| Key::new(format!("{key}{units}"))) {
                let admitted = admitted(&fleet, &policy, key, units + 1).await;
                let sum: u64 = admitted.iter().sum();
                assert_eq!(sum, units, "{}: {admitted:?}", policy.name());
                let fair = units / INSTANCES as u64;
                assert!(admitted.iter().all(|one| (fair..=fair + 1).contains(one)));
            }
        }
    }
}

#[tokio::test]
async fn outage_continues_from_the_last_state_that_redis_returned() {
    let mut server = Server::start();
    let fleet = fleet(&server, INSTANCES);
    until_acquainted(&fleet).await;
    let key = Key::new("ada");
    let (units, used) = (40, 27);
    for policy in policies(units) {
        for one in fleet.iter().cycle().take(used as usize) {
            let decision = one.check(&[policy.charge(key)]).await.expect("a decision");
            assert_eq!(decision.counted_by(), CountedBy::Shared);
        }
        for one in &fleet {
            one.peek(&[policy.charge(key)]).await.expect("a decision");
        }
    }
    server.kill();
    until_degraded(&fleet).await;
    for policy in policies(units) {
        let admitted = admitted(&fleet, &policy, key, units).await;
        let sum: u64 = admitted.iter().sum();
        // The part of a bucket that is left is rounded down on each instance.
        let is_bucket = policy.name().as_str().starts_with(['t', 'l']);
        let least = if is_bucket { 1 } else { units - used };
        let name = policy.name();
        assert!(
            (least..=units - used).contains(&sum),
            "{name}: {admitted:?}"
        );
    }
}

#[tokio::test]
async fn key_starts_an_outage_with_a_full_share_if_no_key_is_kept() {
    let mut server = Server::start();
    let one = [builder(&server)
        .warm_keys(0)
        .build()
        .expect("a usable limiter")];
    let policy = Policy::new("cold", Quota::per_day(5));
    assert_eq!(admitted(&one, &policy, Key::new("ada"), 9).await, [5]);
    server.kill();
    until_degraded(&one).await;
    assert_eq!(admitted(&one, &policy, Key::new("ada"), 9).await, [5]);
}

#[tokio::test]
async fn client_sees_the_whole_limit_and_a_time_to_retry_at_an_instance_without_a_unit() {
    let mut server = Server::start();
    let fleet = fleet(&server, 2);
    until_acquainted(&fleet).await;
    server.kill();
    until_degraded(&fleet).await;
    let mut retries = 0;
    for policy in policies(2) {
        let key = Key::new("ada");
        for one in &fleet {
            // Costs more than the one unit of a share.
            let charge = policy.charge(key).cost(2);
            let decision = one.check(&[charge]).await.expect("a decision");
            assert!(!decision.is_allowed());
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
            let usage = decision.states()[0].usage().expect("it is counted");
            assert_eq!((usage.limit, usage.remaining), (2, 1), "{}", policy.name());
            assert_eq!(decision.retry_after(), Some(Duration::from_secs(5)));
            retries += 1;
        }
    }
    assert_eq!(retries, 14);
}

#[tokio::test]
async fn refund_of_a_local_charge_is_made_to_the_share() {
    let mut server = Server::start();
    let fleet = fleet(&server, 2);
    until_acquainted(&fleet).await;
    server.kill();
    until_degraded(&fleet).await;
    for policy in policies(8) {
        // A refund in a queue needs the exact time of the charge, and slots are released instead.
        let charges = [policy.charge(Key::new("ada")).cost(4)];
        for _ in 0..3 {
            let decision = fleet[0].check(&charges).await.expect("a decision");
            assert!(decision.is_allowed(), "{}", policy.name());
            let receipt = tollgate::charge::Receipt::of(&charges, &decision).expect("a charge");
            let receipt = receipt.actual_cost(|_, _| 0);
            fleet[0].settle(receipt).await.expect("it is settled");
        }
    }
}

// Regression: the refund returned Ok, and after the outage the units were used as before.
#[tokio::test]
async fn refund_by_an_operator_fails_during_an_outage() {
    let mut server = Server::start();
    let fleet = fleet(&server, 1);
    let choices = [OnOutage::Allow, OnOutage::Deny, OnOutage::Local];
    let policies = choices.map(|choice| {
        let name = format!("orders-{choice:?}").to_lowercase();
        Policy::new(name, Quota::per_day(10)).on_outage(choice)
    });
    let ada = Key::new("ada");
    for policy in &policies {
        let decision = fleet[0].check(&[policy.charge(ada).cost(7)]).await;
        assert_eq!(
            decision.expect("a decision").counted_by(),
            CountedBy::Shared
        );
    }
    server.kill();
    until_degraded(&fleet).await;
    for policy in &policies {
        let refunded = fleet[0].refund(policy, &ada, 7).await;
        let error = refunded.expect_err("nothing is refunded");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test]
async fn fixed_number_of_instances_is_not_learned_and_rounds_shares_up() {
    let mut server = Server::start();
    let policy = Policy::new("fixed", Quota::per_day(10));
    let fleet: Vec<RateLimiter> = (0..4)
        .map(|_| builder(&server).instances(4).build())
        .map(|built| built.expect("a usable limiter"))
        .collect();
    assert_eq!(fleet[0].health().instances(), Some(4));
    assert!((fleet[0].health().share() - 0.25).abs() < f64::EPSILON);
    assert_eq!(admitted(&fleet, &policy, Key::new("bob"), 1).await, [1; 4]);
    assert_eq!(server.keys(), ["tollgate:{bob}:fixed"]);
    server.kill();
    until_degraded(&fleet).await;
    assert_eq!(admitted(&fleet, &policy, Key::new("ada"), 10).await, [3; 4]);
    let error = builder(&server).instances(0).build().map(drop);
    assert!(
        error
            .expect_err("a mistake")
            .to_string()
            .contains("0 instances")
    );
}

#[tokio::test]
async fn instance_that_never_reached_redis_grants_the_whole_limit() {
    let mut server = Server::start();
    server.kill();
    let fleet = fleet(&server, 2);
    until_degraded(&fleet).await;
    assert_eq!(fleet[0].health().instances(), None);
    let policy = Policy::new("alone", Quota::per_day(5));
    assert_eq!(admitted(&fleet, &policy, Key::new("ada"), 9).await, [5, 5]);
}

#[tokio::test]
async fn instances_that_end_stop_counting() {
    let server = Server::start();
    let mut fleet = fleet(&server, 3);
    until_acquainted(&fleet).await;
    fleet.pop();
    // 10 s in Redis, and 10 s here.
    until_acquainted(&fleet).await;
}

#[tokio::test]
async fn local_windows_follow_the_time_of_redis_and_not_the_own_clock() {
    let mut server = Server::start();
    let now = Clock::system().now();
    let [ahead, behind] = [now + Duration::from_secs(10), now - Duration::from_secs(10)]
        .map(|time| builder(&server).clock(Clock::manual(time)).build())
        .map(|built| built.expect("a usable limiter"));
    let fleet = [ahead, behind];
    until_acquainted(&fleet).await;
    let learned_by = Clock::system().now();
    server.kill();
    // Their clocks do not move, so the breakers open by permanent errors or never: each decision fails on its own.
    let policy = Policy::new("minute", Quota::per_minute(4))
        .algorithm(Algorithm::FixedWindow(WindowStart::Clock));
    for one in &fleet {
        let decision = one
            .check(&[policy.charge(Key::new("ada"))])
            .await
            .expect("a decision");
        assert_eq!(decision.counted_by(), CountedBy::Fallback);
        let at = decision.decided_at();
        let offset = at.since(learned_by).max(learned_by.since(at));
        assert!(offset < Duration::from_secs(4), "{offset:?}");
    }
}

// === After the outage ===

/// Uses 27 of 40 units before an outage and the rest of the shares in it. Returns the units admitted in all, by policy,
/// once `mend` has brought Redis back and every instance has merged.
async fn admitted_over(
    policies: &[Policy],
    strike: impl FnOnce(&mut Server),
    mend: impl FnOnce(&mut Server),
) -> Vec<u64> {
    let mut server = Server::start();
    let fleet = fleet(&server, INSTANCES);
    until_acquainted(&fleet).await;
    let key = Key::new("ada");
    let mut total = vec![0; policies.len()];
    for (policy, total) in policies.iter().zip(&mut total) {
        for one in fleet.iter().cycle().take(27) {
            let decision = one.check(&[policy.charge(key)]).await.expect("a decision");
            *total += u64::from(decision.is_allowed());
        }
        for one in &fleet {
            one.peek(&[policy.charge(key)]).await.expect("a decision");
        }
    }
    strike(&mut server);
    until_degraded(&fleet).await;
    let mut load = async || {
        for (policy, total) in policies.iter().zip(&mut total) {
            *total += admitted(&fleet, policy, key, 1).await.iter().sum::<u64>();
        }
    };
    for _ in 0..20 {
        load().await;
    }
    mend(&mut server);
    let started = Instant::now();
    while !fleet.iter().all(has_merged) {
        load().await;
        assert!(started.elapsed() < HUNG, "{:?}", fleet[0].health());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(fleet.iter().all(|one| one.health().merges() > 0));
    for _ in 0..20 {
        load().await;
    }
    total
}

#[tokio::test]
async fn outage_and_recovery_admit_nothing_beyond_the_limit() {
    let policies = rate_policies(40);
    let total = admitted_over(&policies, |server| server.pause(), |server| server.resume()).await;
    assert!(
        total.iter().all(|total| (34..=40).contains(total)),
        "{total:?}"
    );
}

#[tokio::test]
async fn restart_without_data_admits_nothing_beyond_the_limit_on_keys_that_were_decided_in_the_outage()
 {
    let policies = rate_policies(40);
    let total = admitted_over(&policies, Server::kill, Server::restart).await;
    assert!(
        total.iter().all(|total| (34..=40).contains(total)),
        "{total:?}"
    );
}

// Regression: a key that nobody asked for during the restart got its whole quota again.
#[tokio::test]
async fn usage_that_redis_lost_in_a_restart_is_restored_by_the_first_decision_on_a_key() {
    let mut server = Server::start();
    let fleet = fleet(&server, 2);
    until_acquainted(&fleet).await;
    let policies = rate_policies(40);
    let (key, used) = (Key::new("ada"), 27);
    for policy in &policies {
        for one in fleet.iter().cycle().take(used) {
            let decision = one.check(&[policy.charge(key)]).await.expect("a decision");
            assert_eq!(decision.counted_by(), CountedBy::Shared);
        }
    }
    server.restart();
    for one in &fleet {
        until_shared(one).await;
    }
    for policy in &policies {
        // The instance that decided last knows the usage exactly.
        let last = [fleet[(used + 1) % 2].clone()];
        let admitted: u64 = admitted(&last, policy, key, 20).await.iter().sum();
        assert_eq!(admitted, 40 - used as u64, "{}", policy.name());
    }
}

// Regression: a decision in the outage, even a denied one, took the state that the server had lost out of the mirror.
#[tokio::test]
async fn used_up_key_stays_so_after_a_restart_without_data_although_it_was_asked_for_meanwhile() {
    let mut server = Server::start();
    let fleet = fleet(&server, 2);
    until_acquainted(&fleet).await;
    let policies = rate_policies(40);
    let key = Key::new("ada");
    for policy in &policies {
        let before = admitted(&fleet, policy, key, 21).await;
        assert_eq!(before.iter().sum::<u64>(), 40, "{}", policy.name());
    }
    server.kill();
    until_degraded(&fleet).await;
    for policy in &policies {
        assert_eq!(admitted(&fleet, policy, key, 3).await, [0, 0]);
    }
    server.restart();
    until_merged(&fleet).await;
    for policy in &policies {
        let after = admitted(&fleet, policy, key, 3).await;
        assert_eq!(after, [0, 0], "{}", policy.name());
    }
}

// Regression: the first merge after an outage raised the usage to the one before the reset.
#[tokio::test]
async fn reset_on_another_instance_is_not_undone_by_an_outage() {
    let server = Server::start();
    let fleet = fleet(&server, 2);
    until_acquainted(&fleet).await;
    let policies = rate_policies(40);
    let key = Key::new("ada");
    for policy in &policies {
        assert_eq!(admitted(&fleet[..1], policy, key, 30).await, [30]);
        fleet[1].reset(policy, &key).await.expect("it is reset");
    }
    server.pause();
    until_degraded(&fleet).await;
    let mut used = Vec::new();
    for policy in &policies {
        used.push(admitted(&fleet[..1], policy, key, 3).await[0]);
        assert!(used.last() > Some(&0), "{}", policy.name());
    }
    server.resume();
    until_merged(&fleet).await;
    for (policy, used) in policies.iter().zip(used) {
        let after: u64 = admitted(&fleet, policy, key, 40).await.iter().sum();
        assert_eq!(after, 40 - used, "{}", policy.name());
    }
}

// Regressions: replies on the second connection replaced the known states before they were found doubtful, and calls that
// were begun for the old server were sent to the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_under_load_grants_no_quota_again() {
    let limit = 2_000;
    for _ in 0..3 {
        let mut server = Server::start();
        let one = builder(&server).build().expect("a usable limiter");
        until_acquainted(std::slice::from_ref(&one)).await;
        let policy = Policy::new("day", Quota::per_day(limit));
        let (admitted, denied) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let mut callers = JoinSet::new();
        for _ in 0..100 {
            let (one, policy) = (one.clone(), policy.clone());
            let (admitted, denied) = (Arc::clone(&admitted), Arc::clone(&denied));
            callers.spawn(async move {
                loop {
                    let decision = one.check(&[policy.charge(Key::new("ada"))]).await;
                    let is_allowed = decision.expect("a decision").is_allowed();
                    admitted.fetch_add(u64::from(is_allowed), Ordering::Relaxed);
                    denied.fetch_add(u64::from(!is_allowed), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        let started = Instant::now();
        let until_denied = async |more: u64| {
            let before = denied.load(Ordering::Relaxed);
            while denied.load(Ordering::Relaxed) < before + more {
                assert!(started.elapsed() < HUNG, "{:?}", one.health());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        until_denied(200).await;
        tokio::task::block_in_place(|| server.restart());
        until_shared(&one).await;
        until_denied(2_000).await;
        callers.shutdown().await;
        let admitted = admitted.load(Ordering::Relaxed);
        assert_eq!(admitted, limit);
    }
}

// Regression: decisions that were begun before the restart was noticed were sent after it, and made before the usage was restored.
#[tokio::test]
async fn decision_that_was_begun_before_a_restart_is_not_made_without_the_usage_before_it() {
    let mut server = Server::start();
    let one = fleet(&server, 1);
    until_acquainted(&one).await;
    let policies = rate_policies(10);
    let key = Key::new("ada");
    for policy in &policies {
        assert_eq!(admitted(&one, policy, key, 6).await, [6]);
    }
    let charges = policies.iter().map(|policy| [policy.charge(key)]);
    let begun: Vec<_> = charges.map(|charges| one[0].check(&charges)).collect();
    server.restart();
    until_shared(&one[0]).await;
    for (policy, begun) in policies.iter().zip(begun) {
        let decision = begun.await.expect("a decision");
        assert!(decision.is_allowed());
        assert_eq!(decision.counted_by(), CountedBy::Fallback);
        let after = admitted(&one, policy, key, 10).await;
        assert_eq!(after, [3], "{}", policy.name());
    }
}

// Regression: a price that was settled before the restart came back as it was before.
#[tokio::test]
async fn usage_that_is_restored_is_the_settled_one() {
    let mut server = Server::start();
    let one = fleet(&server, 1);
    until_acquainted(&one).await;
    let mut policies = rate_policies(100);
    // A refund in a queue needs the exact time of the charge.
    policies.retain(|policy| policy.name().as_str() != "leaky-queue");
    let prices = [("lower", 5), ("higher", 55)];
    for policy in &policies {
        for (key, price) in prices {
            let charges = [policy.charge(Key::new(key)).cost(40)];
            let decision = one[0].check(&charges).await.expect("a decision");
            let receipt = tollgate::charge::Receipt::of(&charges, &decision).expect("a charge");
            let settled = one[0].settle(receipt.actual_cost(|_, _| price)).await;
            settled.expect("it is settled");
        }
    }
    server.restart();
    until_shared(&one[0]).await;
    for policy in &policies {
        for (key, price) in prices {
            let admitted = admitted(&one, policy, Key::new(key), 100).await;
            assert_eq!(admitted, [100 - price], "{} {key}", policy.name());
        }
    }
}

// Regression: a policy that denies in an outage made it 503, although Redis was back.
#[tokio::test]
async fn used_up_share_denies_after_an_outage_and_is_no_outage() {
    let server = Server::start();
    let one = fleet(&server, 1);
    until_acquainted(&one).await;
    let counted = Policy::new("counted", Quota::per_day(5));
    let strict = Policy::new("strict", Quota::per_day(100)).on_outage(OnOutage::Deny);
    let key = Key::new("ada");
    server.pause();
    until_degraded(&one).await;
    assert_eq!(admitted(&one, &counted, key, 9).await, [5]);
    server.resume();
    until(&one, |one| !one.health().is_degraded()).await;
    let charges = [counted.charge(key), strict.charge(key)];
    let decision = one[0].check(&charges).await.expect("a decision");
    let outcomes = decision.states().iter().map(PolicyState::outcome);
    let outcomes: Vec<_> = outcomes.collect();
    assert_eq!(outcomes, [Outcome::Limited, Outcome::Allowed]);
}

#[tokio::test]
async fn what_redis_charges_in_the_first_seconds_after_an_outage_is_not_merged() {
    let server = Server::start();
    let one = fleet(&server, 1);
    until_acquainted(&one).await;
    let policies = rate_policies(100);
    let key = Key::new("ada");
    server.pause();
    until_degraded(&one).await;
    for policy in &policies {
        assert_eq!(admitted(&one, policy, key, 10).await, [10]);
    }
    server.resume();
    until(&one, |one| !one.health().is_degraded()).await;
    for policy in &policies {
        let after = admitted(&one, policy, key, 10).await;
        assert_eq!(after, [10], "{}", policy.name());
    }
    until_merged(&one).await;
    let store = RedisStore::builder(server.url()).deadline(HUNG).build();
    let store = store.expect("a usable store");
    for policy in &policies {
        let decision = store.decide(&[policy.charge(key).cost(0)]).await;
        let usage = decision.expect("a decision").states()[0].usage();
        let remaining = usage.expect("it is counted").remaining;
        assert_eq!(remaining, 80, "{}", policy.name());
    }
}

#[tokio::test]
async fn first_instance_to_find_redis_again_stays_within_its_share_until_others_have_merged() {
    first_instance_back_stays_within_its_share(|fleet, policy, key| async move {
        admitted(&fleet, &policy, key, 40).await[0]
    })
    .await;
}

// Regression: all callers that came within one round trip saw the share before any of them was counted.
#[tokio::test]
async fn first_instance_to_find_redis_again_stays_within_its_share_under_many_callers_at_once() {
    first_instance_back_stays_within_its_share(|fleet, policy, key| async move {
        let mut checks = JoinSet::new();
        for _ in 0..40 {
            let (limiter, policy) = (fleet[0].clone(), policy.clone());
            checks.spawn(async move { limiter.check(&[policy.charge(key)]).await });
        }
        let decisions = checks.join_all().await.into_iter();
        let allowed = decisions.filter(|decision| {
            let decision = decision.as_ref().expect("a decision");
            decision.is_allowed()
        });
        allowed.count() as u64
    })
    .await;
}

/// Checks what the first of two instances admits after an outage before the other one has merged: the rest of its share.
async fn first_instance_back_stays_within_its_share<F: Future<Output = u64>>(
    admitted_by_first: impl Fn(Vec<RateLimiter>, Policy, Key) -> F,
) {
    let server = Server::start();
    let proxies = [
        Proxy::start(server.address()).await,
        Proxy::start(server.address()).await,
    ];
    let fleet: Vec<RateLimiter> = proxies
        .iter()
        .map(|proxy| RateLimiter::builder().redis(proxy.url()).deadline(DEADLINE))
        .map(|builder| builder.build().expect("a usable limiter"))
        .collect();
    until_acquainted(&fleet).await;
    let policy = Policy::new("daily", Quota::per_day(40));
    let started = Instant::now();
    for round in 0.. {
        let key = Key::new(format!("ada{round}"));
        for proxy in &proxies {
            proxy.set(Mode::BlackHole);
        }
        until_degraded(&fleet).await;
        assert_eq!(admitted(&fleet[..1], &policy, key, 5).await, [5]);
        assert_eq!(admitted(&fleet[1..], &policy, key, 30).await, [20]);
        let back = Instant::now();
        proxies[0].set(Mode::Pass);
        until(&fleet[..1], |one| !one.health().is_degraded()).await;
        let after = admitted_by_first(fleet[..1].to_vec(), policy.clone(), key).await;
        // Again if the machine was too busy: 2.5 s after the recovery, the other instance is not waited for any more.
        if back.elapsed() < Duration::from_millis(2_500) {
            assert_eq!(after, 15);
            return;
        }
        assert!(started.elapsed() < HUNG, "never in time");
        proxies[1].set(Mode::Pass);
        until_merged(&fleet).await;
    }
}

// Regression: in the first seconds after an outage, each request that one policy denied took a unit of the share of the
// policies before it.
#[tokio::test]
async fn request_that_the_share_of_one_policy_denies_takes_nothing_from_the_share_of_another() {
    let server = Server::start();
    let (proxy, one) = acquainted_by_proxy(&server).await;
    let all = Policy::new("all", Quota::per_day(40)).algorithm(Algorithm::SlidingLog);
    let user = Policy::new("user", Quota::per_day(2)).algorithm(Algorithm::SlidingLog);
    let started = Instant::now();
    for round in 0.. {
        let key = Key::new(format!("service{round}"));
        let [ada, bob] = ["ada", "bob"].map(|user| Key::new(format!("{user}{round}")));
        let allowed = |who: Key, requests| {
            admitted_together(&one[0], [all.charge(key), user.charge(who)], requests)
        };
        proxy.set(Mode::BlackHole);
        until_degraded(&one).await;
        assert_eq!(allowed(ada, 50).await, 2);
        let back = Instant::now();
        proxy.set(Mode::Pass);
        until(&one, |one| !one.health().is_degraded()).await;
        let again = (allowed(ada, 50).await, allowed(bob, 2).await);
        // Again if the machine was too busy: 2.5 s after the recovery, nothing is denied by a share.
        if back.elapsed() < Duration::from_millis(2_500) {
            assert_eq!(again, (0, 2), "38 of 40 are left");
            return;
        }
        assert!(started.elapsed() < HUNG, "never in time");
        until_merged(&one).await;
    }
}

// Regression: in the first seconds after an outage, a decision that failed was charged to the share twice: when it was
// sent, and when it was made here instead. So of 10 units only 5 were granted while Redis came and went.
#[tokio::test]
async fn share_is_granted_once_while_redis_comes_and_goes() {
    let server = Server::start();
    let (proxy, one) = acquainted_by_proxy(&server).await;
    let started = Instant::now();
    let mut policies = rate_policies(10).into_iter();
    let mut next = policies.next();
    for round in 0.. {
        let Some(policy) = &next else { return };
        let key = Key::new(format!("ada{round}"));
        proxy.set(Mode::BlackHole);
        until_degraded(&one).await;
        assert_eq!(admitted(&one, policy, key, 1).await, [1]);
        proxy.set(Mode::Pass);
        until(&one, |one| !one.health().is_degraded()).await;
        let back = Instant::now();
        proxy.set(Mode::BlackHole);
        let mut again = admitted(&one, policy, key, 3).await[0];
        let is_in_time = back.elapsed() < Duration::from_secs(2);
        until_degraded(&one).await;
        again += admitted(&one, policy, key, 20).await[0];
        // Again if the machine was too busy: 2.5 s after the recovery, the share is not charged before Redis is.
        if is_in_time {
            assert_eq!(again, 9, "{}", policy.name());
            next = policies.next();
        }
        assert!(started.elapsed() < HUNG * 2, "never in time");
        proxy.set(Mode::Pass);
        until_merged(&one).await;
    }
}

// Regression: in the first seconds after an outage, each request that Redis denied for one policy took a unit of the share
// of the other one.
#[tokio::test]
async fn request_that_redis_denies_takes_nothing_from_a_share() {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let limiter = RateLimiter::builder()
        .redis(proxy.url())
        .instances(1)
        .deadline(DEADLINE);
    let one = [limiter.build().expect("a usable limiter")];
    let elsewhere = fleet(&server, 1);
    let all = Policy::new("all", Quota::per_day(40)).algorithm(Algorithm::SlidingLog);
    let user = Policy::new("user", Quota::per_day(60)).algorithm(Algorithm::SlidingLog);
    let started = Instant::now();
    for round in 0.. {
        let key = Key::new(format!("service{round}"));
        let [ada, bob] = ["ada", "bob"].map(|user| Key::new(format!("{user}{round}")));
        let allowed = |who: Key, requests| {
            admitted_together(&one[0], [all.charge(key), user.charge(who)], requests)
        };
        proxy.set(Mode::BlackHole);
        until_degraded(&one).await;
        assert_eq!(allowed(ada, 1).await, 1);
        assert_eq!(admitted(&elsewhere, &user, ada, 60).await, [60]);
        let back = Instant::now();
        proxy.set(Mode::Pass);
        until(&one, |one| !one.health().is_degraded()).await;
        let again = (allowed(ada, 50).await, allowed(bob, 4).await);
        // Again if the machine was too busy: 2.5 s after the recovery, nothing is denied by a share.
        if back.elapsed() < Duration::from_millis(2_500) {
            assert_eq!(again, (0, 4), "39 of 40 are left");
            return;
        }
        assert!(started.elapsed() < HUNG, "never in time");
        until_merged(&one).await;
    }
}

// Regression: a reply that arrived before Redis had reset the key brought the forgotten state back.
#[tokio::test]
async fn key_that_is_reset_while_it_is_decided_starts_an_outage_with_a_full_share() {
    let mut server = Server::start();
    let one = fleet(&server, 1);
    until_acquainted(&one).await;
    let policy = Policy::new("daily", Quota::per_day(40)).algorithm(Algorithm::SlidingLog);
    let key = Key::new("ada");
    assert_eq!(admitted(&one, &policy, key, 30).await, [30]);
    let charges = [policy.charge(key)];
    let deciding = one[0].check(&charges);
    let (decision, reset) = futures_util::future::join(deciding, one[0].reset(&policy, &key)).await;
    assert!(decision.expect("a decision").is_allowed());
    reset.expect("it is reset");
    server.kill();
    until_degraded(&one).await;
    // One less if Redis decided after the reset.
    let left = admitted(&one, &policy, key, 50).await[0];
    assert!((39..=40).contains(&left), "{left} are left");
}

#[tokio::test]
async fn charge_of_a_decision_that_failed_is_merged_before_the_next_one() {
    let server = Server::start();
    let (proxy, one) = acquainted_by_proxy(&server).await;
    let policy = Policy::new("once", Quota::per_day(1));
    for round in 0..4 {
        let key = Key::new(format!("ada{round}"));
        proxy.set(Mode::BlackHole);
        assert_eq!(admitted(&one, &policy, key, 1).await, [1]);
        proxy.set(Mode::Pass);
        let started = Instant::now();
        loop {
            let decision = one[0].check(&[policy.charge(key)]).await;
            let decision = decision.expect("a decision");
            assert!(!decision.is_allowed());
            if decision.counted_by() == CountedBy::Shared {
                break;
            }
            assert!(started.elapsed() < HUNG, "{:?}", one[0].health());
        }
    }
}

#[tokio::test]
async fn merge_is_made_once_however_often_it_is_sent() {
    let server = Server::start();
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_secs(10))
        .build();
    let store = store.expect("a usable store");
    for policy in rate_policies(40) {
        let charge = policy.charge(Key::new("ada"));
        let now = Clock::system().now();
        let until = now + Duration::from_secs(3_600);
        let (unit, from) = if policy.name().as_str().starts_with(['t', 'l']) {
            // Whichever clock is ahead.
            (2_160_000_000, (now - Duration::from_secs(1)).as_micros())
        } else {
            (1, 0)
        };
        for id in [7, 7, 8, 7] {
            let merged = store.merge(&charge, (5 * unit, from, until), id).await;
            merged.expect("it is made, or was made before");
        }
        let decision = store.decide(&[charge.cost(0)]).await.expect("a decision");
        let usage = decision.states()[0].usage().expect("it is counted");
        assert_eq!(usage.remaining, 30, "{}", policy.name());
    }
}

/// Uses 5 units in an outage, and lets the server make the merge of them but not reply. Returns the units used.
async fn merge_without_reply(
    server: &Server,
    proxy: &Proxy,
    one: &[RateLimiter; 1],
    charge: (&Policy, Key),
) -> u64 {
    let (policy, key) = charge;
    let mark = format!("{}#m", policy.name());
    let marks = || {
        let keys = server.keys().into_iter();
        keys.filter(|key| key.contains(&mark)).count()
    };
    let (started, mut used) = (Instant::now(), 0);
    // Again if the reply to the merge was faster than the network could be changed.
    loop {
        proxy.set(Mode::BlackHole);
        until_degraded(one).await;
        used += admitted(one, policy, key, 5).await[0];
        let (before, made) = (marks(), one[0].health().merges());
        while marks() == before {
            assert!(started.elapsed() < HUNG, "{:?}", one[0].health());
            proxy.set(if one[0].health().is_degraded() {
                Mode::Pass
            } else {
                Mode::SwallowReplies
            });
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if one[0].health().merges() == made {
            return used;
        }
    }
}

async fn until_nothing_is_pending(one: &RateLimiter) {
    let started = Instant::now();
    while !has_merged(one) {
        assert!(started.elapsed() < HUNG, "{:?}", one.health());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn merge_whose_reply_is_lost_is_sent_again_and_made_once() {
    let server = Server::start();
    let (proxy, one) = acquainted_by_proxy(&server).await;
    let policy = Policy::new("daily", Quota::per_day(100))
        .algorithm(Algorithm::FixedWindow(WindowStart::FirstHit));
    let key = Key::new("ada");
    assert_eq!(admitted(&one, &policy, key, 10).await, [10]);
    let used = 10 + merge_without_reply(&server, &proxy, &one, (&policy, key)).await;
    proxy.set(Mode::Pass);
    until_nothing_is_pending(&one[0]).await;
    let store = RedisStore::builder(server.url()).deadline(HUNG).build();
    let store = store.expect("a usable store");
    let decision = store.decide(&[policy.charge(key).cost(0)]).await;
    let usage = decision.expect("a decision").states()[0].usage();
    assert_eq!(usage.expect("it is counted").remaining, 100 - used);
}

// Regression: such a merge did not restore the usage that the server had lost since. What was merged was admitted again.
#[tokio::test]
async fn merge_that_the_server_has_lost_is_sent_again_with_the_usage_before_it() {
    let lose = async |policy: Policy| {
        let (mut server, key) = (Server::start(), Key::new("ada"));
        let (proxy, one) = acquainted_by_proxy(&server).await;
        assert_eq!(admitted(&one, &policy, key, 60).await, [60]);
        let used = 60 + merge_without_reply(&server, &proxy, &one, (&policy, key)).await;
        server.restart();
        proxy.set(Mode::Pass);
        until_nothing_is_pending(&one[0]).await;
        let left = admitted(&one, &policy, key, 100).await;
        assert_eq!(left, [100 - used], "{}", policy.name());
    };
    let policies = rate_policies(100).into_iter();
    let all: JoinSet<()> = policies.map(lose).collect();
    all.join_all().await;
}

// === The script ===

/// Runs the script at +`seconds`. Returns the version relative to the same start, in seconds, and the ids.
fn register(server: &Server, id: &str, known: i64, seconds: i64) -> (i64, Vec<String>) {
    const START: i64 = 1_700_000_000_000_000;
    let absolute = |seconds: i64| {
        if seconds < 0 {
            0
        } else {
            START + seconds * 1_000_000
        }
    };
    let mut command = redis::cmd("EVAL");
    command.arg(Script::MEMBERS.source()).arg(1).arg("members");
    command
        .arg(id)
        .arg(10_000)
        .arg(absolute(known))
        .arg(absolute(seconds));
    let reply: Vec<Value> = command.query(&mut server.connection()).expect("a reply");
    let Some((Value::Int(version), ids)) = reply.split_first() else {
        panic!("no version: {reply:?}");
    };
    let ids = ids
        .iter()
        .map(|id| redis::from_redis_value_ref(id).expect("text"));
    ((version - START) / 1_000_000, ids.collect())
}

#[test]
fn script_returns_the_instances_if_they_have_changed() {
    let server = Server::start();
    let both = || vec!["instance".to_owned(), "another1".to_owned()];
    // The example in the file.
    assert_eq!(
        register(&server, "instance", -1, 0),
        (0, vec!["instance".to_owned()])
    );
    assert_eq!(register(&server, "another1", -1, 2), (2, both()));
    assert_eq!(register(&server, "another1", 2, 3), (2, vec![]));
    assert_eq!(
        register(&server, "another1", 2, 12),
        (12, vec!["another1".to_owned()])
    );
    let ttl: i64 = redis::cmd("PTTL")
        .arg("members")
        .query(&mut server.connection())
        .expect("a ttl");
    assert!((9_000..=10_000).contains(&ttl), "{ttl}");
    // The key was lost: the version is a later one, so everybody learns the instances again.
    server.command(&["DEL", "members"]);
    assert_eq!(
        register(&server, "another1", 12, 13),
        (13, vec!["another1".to_owned()])
    );
}

#[test]
fn script_returns_a_fleet_of_ten_thousand() {
    let server = Server::start();
    let mut add = redis::cmd("ZADD");
    add.arg("members");
    for instance in 0..10_000 {
        add.arg(1_700_000_000_000_i64).arg(format!("{instance:08}"));
    }
    let _: i64 = add.query(&mut server.connection()).expect("they are added");
    let (_, ids) = register(&server, "instance", -1, 1);
    assert_eq!(ids.len(), 10_001);
}
