//! Denials that hold without a round trip: whom they cover, and what ends them.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, future::join_all};
use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::{
    Charge, Decision, Key, OnOutage, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, QueueLimits, WindowStart},
    charge::{Enforcement, Receipt},
    clock::{Clock, Timestamp},
    decision::{CountedBy, PolicyState},
    policy::Penalty,
    remote::{RedisStore, RedisStoreBuilder},
};

use crate::{
    fleet::shares::{rate_policies, until_acquainted, until_degraded, until_shared},
    support::Server,
};

const ADA: &str = "ada";

fn limiter(store: RedisStoreBuilder) -> RateLimiter {
    let builder = RateLimiter::builder().redis(store);
    let limiter = builder.deadline(Duration::from_secs(1)).build();
    limiter.expect("a usable limiter")
}

/// Returns instances that keep denials and know each other, and their clock, which stands still.
async fn instances<const N: usize>(server: &Server) -> (Clock, [RateLimiter; N]) {
    let clock = Clock::manual(START);
    let store = || RedisStore::builder(server.url()).client_time(clock.clone());
    let instances = [(); N].map(|()| limiter(store()));
    until_acquainted(&instances).await;
    (clock, instances)
}

/// Returns an instance that keeps denials, on a server of its own.
async fn instance() -> (Server, Clock, RateLimiter) {
    let server = Server::start();
    let (clock, [one]) = instances(&server).await;
    (server, clock, one)
}

/// Resets a key on the first instance, and returns how the other one, which keeps its denial, then decides at once and 2 s later.
async fn after_a_reset(server: &Server) -> [bool; 3] {
    let (clock, [one, other]) = instances(server).await;
    let policy = daily("reset");
    let charge = policy.charge(Key::new(ADA));
    use_up(&one, charge).await;
    assert_eq!(denied_by(&other, charge).await, CountedBy::Shared);
    for limiter in [&one, &other] {
        assert_eq!(denied_by(limiter, charge).await, CountedBy::DenialCache);
    }
    let reset = one.reset(&policy, &Key::new(ADA)).await;
    reset.expect("it is reset");
    let here = check(&one, &[charge]).await.is_allowed();
    clock.advance(Duration::from_micros(1_999_999));
    let before = check(&other, &[charge]).await.is_allowed();
    clock.advance(Duration::from_micros(1));
    [here, before, check(&other, &[charge]).await.is_allowed()]
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    limiter.check(charges).await.expect("a decision")
}

/// Returns where a request with this charge was denied.
async fn denied_by(limiter: &RateLimiter, charge: Charge<'_>) -> CountedBy {
    let decision = check(limiter, &[charge]).await;
    assert!(!decision.is_allowed(), "{decision:?}");
    decision.counted_by()
}

/// Has Redis deny the key, with its whole quota used.
async fn use_up(limiter: &RateLimiter, charge: Charge<'_>) {
    let limit = charge.policy().quota().count();
    assert!(check(limiter, &[charge.cost(limit)]).await.is_allowed());
    assert_eq!(denied_by(limiter, charge).await, CountedBy::Shared);
}

/// Has the instance keep a denial by Redis.
async fn keep_denial(limiter: &RateLimiter, charge: Charge<'_>) {
    use_up(limiter, charge).await;
    assert_eq!(denied_by(limiter, charge).await, CountedBy::DenialCache);
}

fn daily(name: &str) -> Policy {
    Policy::new(name, Quota::per_day(10))
}

#[tokio::test]
async fn flood_on_a_denied_key_asks_redis_once() {
    let (server, _clock, one) = instance().await;
    for policy in rate_policies(10) {
        if policy.name().as_str() == "leaky-queue" {
            continue;
        }
        let charge = policy.charge(Key::new(ADA));
        use_up(&one, charge).await;
        server.flush_stats();
        let flood = (0..2_000).map(|_| one.check(&[charge]));
        for decision in join_all(flood).await {
            let decision = decision.expect("a decision");
            assert_eq!(decision.counted_by(), CountedBy::DenialCache, "{policy:?}");
        }
        // At most the registration of the instance.
        let calls = server.command_calls().get("evalsha").copied();
        assert!(calls.unwrap_or(0) <= 1, "{}: {calls:?}", policy.name());
    }
}

#[tokio::test]
async fn one_of_a_flood_asks_when_a_denial_is_over() {
    let server = Server::start();
    let (clock, [one, other]) = instances(&server).await;
    let policy = Policy::new("slow", Quota::per_second(10));
    let charge = policy.charge(Key::new(ADA));
    use_up(&one, charge).await;
    for (is_taken_elsewhere, by_redis) in [(false, 2), (true, 1)] {
        // Once its denial is over, another instance is faster or not.
        clock.advance(Duration::from_millis(100));
        if is_taken_elsewhere {
            assert!(check(&other, &[charge]).await.is_allowed());
        }
        let flood = join_all((0..64).map(|_| one.check(&[charge]))).await;
        let decisions: Vec<Decision> = flood.into_iter().flatten().collect();
        let count = |matches: fn(&Decision) -> bool| {
            decisions
                .iter()
                .filter(|decision| matches(decision))
                .count()
        };
        assert_eq!(
            count(Decision::is_allowed),
            usize::from(!is_taken_elsewhere)
        );
        // Once the first one was admitted, the next one asks.
        assert_eq!(
            count(|decision| decision.counted_by() == CountedBy::Shared),
            by_redis
        );
    }
}

#[tokio::test]
async fn request_that_asks_and_is_not_polled_again_holds_others_for_a_quarter_of_the_deadline() {
    let (_server, clock, one) = instance().await;
    let policy = Policy::new("slow", Quota::per_second(10));
    let charges = [policy.charge(Key::new(ADA))];
    use_up(&one, charges[0]).await;
    clock.advance(Duration::from_millis(100));
    let never_polled = one.check(&charges);
    let mut left = Box::pin(one.check(&charges));
    assert!((&mut left).now_or_never().is_none());
    let began_at = Instant::now();
    // The deadline is 1 s. Two that wait are held together.
    let others = join_all([one.check(&charges), one.check(&charges)]).await;
    assert!(began_at.elapsed() < Duration::from_millis(900));
    assert!(others.into_iter().all(|decision| decision.is_ok()));
    drop((left, never_polled));
}

#[tokio::test]
async fn denial_here_has_the_numbers_of_the_one_by_redis() {
    let (server, clock, one) = instance().await;
    let strict = RedisStore::builder(server.url()).client_time(clock);
    let strict = limiter(strict.denial_cache(false));
    for policy in rate_policies(10) {
        let charge = policy.charge(Key::new(ADA));
        if policy.name().as_str() == "leaky-queue" {
            continue;
        }
        use_up(&one, charge).await;
        let [here, there] = [&one, &strict].map(|limiter| async {
            let decision = check(limiter, &[charge]).await;
            (decision.counted_by(), decision)
        });
        let ((here, by_cache), (there, by_redis)) = (here.await, there.await);
        assert_eq!((here, there), (CountedBy::DenialCache, CountedBy::Shared));
        let numbers = |decision: &Decision| {
            let usage = decision.states()[0].usage().expect("it is counted");
            let after = |at: Timestamp| at.since(decision.decided_at());
            let waits = [
                after(usage.reset_at),
                decision.retry_after().expect("a wait"),
            ];
            (usage.limit, usage.remaining, waits)
        };
        let (here, there) = (numbers(&by_cache), numbers(&by_redis));
        assert_eq!(here, there, "{}", policy.name());
    }
}

#[tokio::test]
async fn reset_ends_denials_at_once_here_and_after_two_seconds_on_other_instances() {
    let server = Server::start();
    assert_eq!(after_a_reset(&server).await, [true, false, true]);
    let server = Server::start_cluster();
    assert_eq!(after_a_reset(&server).await, [true, false, true]);
}

#[tokio::test]
async fn refund_ends_the_denials_of_its_key_at_once() {
    let (_server, _clock, one) = instance().await;
    let policy = daily("settled");
    let charge = policy.charge(Key::new(ADA)).cost(10);
    for _ in 0..3 {
        let decision = check(&one, &[charge]).await;
        let receipt = Receipt::of(&[charge], &decision).expect("it was charged");
        assert_eq!(denied_by(&one, charge).await, CountedBy::Shared);
        let refund = receipt.actual_cost(|_, _| 0);
        one.settle(refund).await.expect("it is settled");
    }
}

#[tokio::test]
async fn group_is_denied_by_one_of_its_charges_and_the_others_keep_their_quota() {
    let (_server, _clock, one) = instance().await;
    let (hourly, day) = (Policy::new("hourly", Quota::per_hour(2)), daily("day"));
    let [hourly_charge, day_charge] = [&hourly, &day].map(|policy| policy.charge(Key::new(ADA)));
    use_up(&one, hourly_charge).await;
    let group = [day_charge, hourly_charge];
    for _ in 0..20 {
        let decision = check(&one, &group).await;
        assert_eq!(decision.counted_by(), CountedBy::DenialCache);
        assert!(decision.retry_after() > Some(Duration::from_secs(60)));
        let usages = decision.states().iter().map(PolicyState::usage);
        let remaining: Vec<_> = usages.map(|usage| usage.map(|one| one.remaining)).collect();
        assert_eq!(remaining, [None, Some(0)]);
    }
    let left = check(&one, &[day_charge.cost(10)]).await;
    assert!(left.is_allowed(), "{left:?}");
}

#[tokio::test]
async fn denials_that_change_something_and_requests_that_want_a_state_ask_redis() {
    let (_server, _clock, one) = instance().await;
    let key = Key::new(ADA);
    let queue = Algorithm::LeakyQueue(QueueLimits::new(9, Duration::MAX));
    let penalty = Penalty::after(5, Duration::from_secs(60));
    let changing = [
        daily("counted").count_denied(true),
        daily("penalty").penalty(penalty),
        daily("queue").algorithm(queue),
        Policy::concurrency("slots", 10),
    ];
    for policy in &changing {
        use_up(&one, policy.charge(key)).await;
        for _ in 0..3 {
            let asked = denied_by(&one, policy.charge(key)).await;
            assert_eq!(asked, CountedBy::Shared, "{}", policy.name());
        }
    }
    let plain = daily("plain");
    let charge = plain.charge(key);
    use_up(&one, charge).await;
    let other = daily("other");
    let shadow = other.charge(key).enforcement(Enforcement::Shadow);
    for beside in [shadow, other.charge(key).cost(0), changing[0].charge(key)] {
        let decision = check(&one, &[charge, beside]).await;
        assert_eq!(decision.counted_by(), CountedBy::Shared, "{beside:?}");
    }
    let peek = check(&one, &[charge.cost(0)]).await;
    assert!(peek.is_allowed() && peek.counted_by() == CountedBy::Shared);
    assert_eq!(denied_by(&one, charge).await, CountedBy::DenialCache);
}

#[tokio::test]
async fn store_without_the_cache_asks_redis_each_time() {
    let server = Server::start();
    let one = limiter(RedisStore::builder(server.url()).denial_cache(false));
    until_acquainted(std::slice::from_ref(&one)).await;
    let policy = daily("strict");
    let charge = policy.charge(Key::new(ADA));
    use_up(&one, charge).await;
    assert_eq!(denied_by(&one, charge).await, CountedBy::Shared);
}

#[tokio::test]
async fn outage_goes_before_the_denials_that_are_kept() {
    let (mut server, _clock, one) = instance().await;
    let policy = daily("open").on_outage(OnOutage::Allow);
    let charge = policy.charge(Key::new(ADA));
    keep_denial(&one, charge).await;
    server.kill();
    until_degraded(std::slice::from_ref(&one)).await;
    assert!(check(&one, &[charge]).await.is_allowed());
}

#[tokio::test]
async fn restart_of_the_server_ends_the_denials_that_it_made() {
    let (mut server, _clock, one) = instance().await;
    // Its states are not restored.
    let policy = daily("lost").on_outage(OnOutage::Deny);
    let charge = policy.charge(Key::new(ADA));
    keep_denial(&one, charge).await;
    server.restart();
    until_shared(&one).await;
    assert!(check(&one, &[charge]).await.is_allowed());
}

// === As without the cache ===

/// One step of all instances.
#[derive(Clone, Debug)]
enum Step {
    Check { key: u8, cost: u64 },
    Group { key: u8 },
    Pass(Duration),
    Reset { key: u8 },
    Refund { to: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..2_u8;
    let step = prop_oneof![
        10 => (key.clone(), 1..6_u64).prop_map(|(key, cost)| Step::Check { key, cost }),
        3 => key.clone().prop_map(|key| Step::Group { key }),
        4 => (1..4_000_u64).prop_map(|millis| Step::Pass(Duration::from_millis(millis))),
        1 => key.prop_map(|key| Step::Reset { key }),
        1 => (0..5_u64).prop_map(|to| Step::Refund { to }),
    ];
    prop::collection::vec(step, 1..60)
}

/// An instance that keeps denials beside one that does not, each with its own keys in Redis.
struct Twins {
    clock: Clock,
    limiters: [RateLimiter; 2],
    policies: Vec<Policy>,
    runtime: Runtime,
    _server: Server,
}

impl Twins {
    fn new() -> Self {
        let (server, clock) = (Server::start(), Clock::manual(START));
        let runtime = Runtime::new().expect("a runtime");
        let limiters = [true, false].map(|is_on| {
            let store = RedisStore::builder(server.url()).client_time(clock.clone());
            let prefix = if is_on { "cached" } else { "strict" };
            limiter(store.denial_cache(is_on).prefix(prefix))
        });
        for limiter in &limiters {
            runtime.block_on(until_acquainted(std::slice::from_ref(limiter)));
        }
        let quota = Quota::per_second(1).burst(5);
        let window = Quota::new(5, Duration::from_secs(5));
        let policies = vec![
            Policy::new("bucket", quota),
            Policy::new("uneven", Quota::new(7, Duration::from_secs(6))),
            Policy::new("leaky", quota).algorithm(Algorithm::LeakyBucket),
            Policy::new("fixed", window).algorithm(Algorithm::FixedWindow(WindowStart::FirstHit)),
            Policy::new("sliding", window).algorithm(Algorithm::SlidingWindow),
            Policy::new("log", window).algorithm(Algorithm::SlidingLog),
        ];
        Self {
            clock,
            limiters,
            policies,
            runtime,
            _server: server,
        }
    }

    /// Runs the steps on both, under keys of their own.
    fn run(&self, steps: &[Step], trial: u64) -> Result<(), TestCaseError> {
        for (number, policy) in self.policies.iter().enumerate() {
            let other = &self.policies[(number + 1) % self.policies.len()];
            let key_of = |key: u8| Key::new(format!("{trial}-{number}-{key}"));
            let mut charged: Option<[(Charge<'_>, Decision); 2]> = None;
            for (at, step) in steps.iter().enumerate() {
                let both = |charges: &[Charge<'_>]| {
                    self.limiters
                        .each_ref()
                        .map(|limiter| self.runtime.block_on(check(limiter, charges)))
                };
                let decisions = match *step {
                    Step::Check { key, cost } => {
                        let charge = policy.charge(key_of(key)).cost(cost);
                        let decisions = both(&[charge]);
                        if decisions[0].is_allowed() {
                            charged = Some(decisions.clone().map(|decision| (charge, decision)));
                        }
                        decisions
                    }
                    Step::Group { key } => {
                        both(&[policy, other].map(|policy| policy.charge(key_of(key))))
                    }
                    Step::Pass(time) => {
                        self.clock.advance(time);
                        continue;
                    }
                    Step::Reset { key } => {
                        for limiter in &self.limiters {
                            let reset = limiter.reset(policy, &key_of(key));
                            self.runtime.block_on(reset).expect("it is reset");
                        }
                        charged = None;
                        continue;
                    }
                    Step::Refund { to } => {
                        let charges = charged.take().into_iter().flatten();
                        for (limiter, (charge, decision)) in self.limiters.iter().zip(charges) {
                            let receipt = Receipt::of(&[charge], &decision).expect("a receipt");
                            let settled = limiter.settle(receipt.actual_cost(|_, _| to));
                            self.runtime.block_on(settled).expect("it is settled");
                        }
                        continue;
                    }
                };
                let [cached, strict] = decisions
                    .each_ref()
                    .map(|one| (one.is_allowed(), one.outcome()));
                prop_assert_eq!(
                    cached,
                    strict,
                    "{} at {}: {:?}",
                    policy.name(),
                    at,
                    decisions
                );
            }
        }
        Ok(())
    }
}

#[test]
fn requests_are_admitted_as_without_the_cache() {
    let twins = Twins::new();
    let trial = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let tried = runner.run(&steps(), |steps| {
        trial.set(trial.get() + 1);
        twins.run(&steps, trial.get())
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
    let kept = twins.limiters[0].clone();
    let policy = daily("last");
    let charge = policy.charge(Key::new(ADA));
    twins.runtime.block_on(async {
        keep_denial(&kept, charge).await;
    });
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
