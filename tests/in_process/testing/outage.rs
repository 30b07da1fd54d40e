//! A scripted store behind the breaker of Redis: outage choices without a server.

use std::time::{Duration, Instant};

use tollgate::{
    Decision, ErrorKind, Key, OnOutage, Policy, Quota, RateLimiter,
    decision::{CountedBy, Outcome},
    error::Phase,
    testing::ScriptedStore,
};

/// A service with a limit of five a minute, its stand-in for Redis, and one client.
struct World {
    redis: ScriptedStore,
    limiter: RateLimiter,
    policy: Policy,
}

impl World {
    fn new(choice: OnOutage) -> Self {
        let redis = ScriptedStore::counting();
        let limiter = RateLimiter::new(redis.behind_breaker(), []);
        Self {
            redis,
            limiter: limiter.expect("a usable limiter"),
            policy: Policy::new("api", Quota::per_minute(5)).on_outage(choice),
        }
    }

    async fn ask(&self) -> Decision {
        let charge = self.policy.charge(Key::new("ada"));
        let decision = self.limiter.check(&[charge]).await;
        decision.expect("every request gets a decision")
    }

    async fn outcomes(&self, count: usize) -> Vec<(Outcome, CountedBy)> {
        let mut outcomes = Vec::new();
        for _ in 0..count {
            let decision = self.ask().await;
            outcomes.push((decision.outcome(), decision.counted_by()));
        }
        outcomes
    }
}

const ALLOWED: (Outcome, CountedBy) = (Outcome::Allowed, CountedBy::Shared);

/// The ways in which a server is away.
fn faults() -> [fn(&ScriptedStore); 4] {
    [
        |redis| redis.fail(ErrorKind::Connect),
        |redis| redis.hang(),
        |redis| redis.refuse_writes(),
        |redis| redis.slow_down(Duration::from_secs(5)),
    ]
}

#[tokio::test(start_paused = true)]
async fn policies_apply_their_outage_choices_at_once_in_each_fault() {
    for fault in faults() {
        let allowing = World::new(OnOutage::Allow);
        fault(&allowing.redis);
        let free = (Outcome::Allowed, CountedBy::Uncounted);
        assert_eq!(allowing.outcomes(8).await, [free; 8]);

        let denying = World::new(OnOutage::Deny);
        fault(&denying.redis);
        let denied = (Outcome::Unavailable, CountedBy::Uncounted);
        assert_eq!(denying.outcomes(8).await, [denied; 8]);

        let local = World::new(OnOutage::Local);
        assert_eq!(local.outcomes(2).await, [ALLOWED; 2]);
        fault(&local.redis);
        let counted = |outcome| (outcome, CountedBy::Fallback);
        let admitted = [counted(Outcome::Allowed); 3];
        assert_eq!(local.outcomes(3).await, admitted, "it continues the count");
        assert_eq!(local.outcomes(1).await, [counted(Outcome::Limited)]);
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_recovers_decides_the_next_request_and_counts_the_outage() {
    for fault in faults() {
        let world = World::new(OnOutage::Local);
        fault(&world.redis);
        for _ in 0..20 {
            world.ask().await;
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        let health = world.limiter.health();
        assert!(health.is_degraded(), "the breaker is open: {health:?}");
        world.redis.recover();
        assert!(world.limiter.health().is_well());
        // 13 s of 60 at most have passed, in which a unit came back.
        let decision = world.ask().await;
        assert_eq!(decision.outcome(), Outcome::Limited, "{decision:?}");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(world.outcomes(5).await, [ALLOWED; 5]);
        assert_eq!(
            world.outcomes(1).await,
            [(Outcome::Limited, CountedBy::Shared)]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn breaker_stays_open_and_does_not_ask_until_the_store_recovers() {
    let world = World::new(OnOutage::Allow);
    world.redis.fail(ErrorKind::Script);
    world.outcomes(3).await;
    assert!(
        world.limiter.health().is_degraded(),
        "after three permanent errors"
    );
    let asked = world.redis.calls();
    world.outcomes(5).await;
    assert_eq!(world.redis.calls(), asked);
    world.redis.deny(Duration::from_secs(9));
    let decision = world.ask().await;
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(9)));
}

#[tokio::test(start_paused = true)]
async fn decision_of_a_store_that_hangs_ends_at_the_deadline() {
    let world = World::new(OnOutage::Allow);
    world.redis.hang();
    let (started, real) = (tokio::time::Instant::now(), Instant::now());
    world.ask().await;
    let waited = started.elapsed().as_millis();
    assert!((50..=51).contains(&waited), "{waited} ms");
    assert!(real.elapsed() < Duration::from_secs(20), "paused time");
    let health = world.limiter.health();
    let cause = health.cause().expect("it failed").kind();
    assert_eq!(cause, ErrorKind::Timeout(Phase::Reply));
}

#[tokio::test(start_paused = true)]
async fn store_with_a_script_is_behind_the_breaker_too() {
    let redis = ScriptedStore::pending();
    let limiter = RateLimiter::new(redis.behind_breaker(), []).expect("a limiter");
    let policy = Policy::new("api", Quota::per_minute(5)).on_outage(OnOutage::Deny);
    let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await;
    let decision = decision.expect("a decision");
    assert_eq!(
        decision.outcome(),
        Outcome::Unavailable,
        "nobody completed it"
    );
}
