//! Rates that adapt to an API which shows no limit. All times are moved.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use tollgate::{
    Consistency, ErrorKind, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, QueueLimits},
    client::{Adaptive, OutgoingError, OutgoingLayer, OutgoingRule},
    clock::{Clock, Timestamp},
    extract::Global,
    memory::MemoryStore,
};

use super::api::{Api, built, request, response, send};

/// An API with a limit that it does not show: a bucket of one unit, or a window.
struct Hidden {
    clock: Clock,
    limit: Mutex<Limit>,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Units a second, and when the bucket is full again.
    Bucket(u64, Timestamp),
    /// Units in a window of a second, which window it is, and how many units it has counted.
    Window(u64, u64, u64),
}

impl Hidden {
    fn admits(&self) -> bool {
        let now = self.clock.now();
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *limit {
            Limit::Bucket(rate, full_at) => {
                let interval = Duration::from_micros(1_000_000 / *rate);
                // One unit of burst, for calls that come in the same millisecond.
                let fits = *full_at <= now + interval;
                if fits {
                    *full_at = (*full_at).max(now) + interval;
                }
                fits
            }
            Limit::Window(most, window, used) => {
                let present = now.as_micros() / 1_000_000;
                if present != *window {
                    (*window, *used) = (present, 0);
                }
                *used += 1;
                *used <= *most
            }
        }
    }
}

/// A layer whose calls go out as soon as they have their turn.
struct World {
    clock: Clock,
    hidden: Arc<Hidden>,
    layers: Vec<OutgoingLayer>,
    api: Api,
}

/// How many calls were sent, and refused.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    calls: usize,
    refused: usize,
}

impl World {
    fn new(limit: Limit, rule: &OutgoingRule, layers: usize) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let store = store.expect("a usable store");
        let hidden = Arc::new(Hidden {
            clock: clock.clone(),
            limit: Mutex::new(limit),
        });
        let layer = |_| {
            let limiter = RateLimiter::builder().store(store.clone()).build();
            let layer = OutgoingLayer::builder(&limiter.expect("it is well set up"))
                .policy(rule.clone())
                .max_wait(Duration::ZERO)
                .max_retries(0);
            built(layer)
        };
        let other_side = Arc::clone(&hidden);
        let respond = move |_: &Request<Full<Bytes>>, _: usize| match other_side.admits() {
            true => response(200, &[]),
            false => response(429, &[]),
        };
        Self {
            layers: (0..layers).map(layer).collect(),
            api: Api::new(respond),
            clock,
            hidden,
        }
    }

    /// Lets time pass, in which there are always enough calls.
    async fn pass(&self, time: Duration) -> Sent {
        let (mut sent, mut millis) = (Sent::default(), 0);
        let whole = u64::try_from(time.as_millis()).expect("a short time");
        while millis < whole {
            let mut longest = whole - millis;
            for layer in &self.layers {
                // A rate may grow meanwhile.
                let wait = self.send(layer, &mut sent).await;
                longest = longest.min(wait).min(50);
            }
            millis += longest;
            self.advance(longest).await;
        }
        sent
    }

    async fn advance(&self, millis: u64) {
        let time = Duration::from_millis(millis);
        self.clock.advance(time);
        tokio::time::advance(time).await;
    }

    /// Sends calls until one has no turn. Returns the milliseconds until it has one.
    async fn send(&self, layer: &OutgoingLayer, sent: &mut Sent) -> u64 {
        loop {
            match self.call(layer).await {
                Ok(status) => {
                    sent.calls += 1;
                    sent.refused += usize::from(status == 429);
                }
                Err(wait) => {
                    let millis = wait.as_micros().div_ceil(1_000);
                    return u64::try_from(millis).expect("a short wait").max(1);
                }
            }
        }
    }

    /// Sends a call. Returns its status, or how long its turn is away.
    async fn call(&self, layer: &OutgoingLayer) -> Result<u16, Duration> {
        match send(layer, &self.api, request(Method::GET)).await {
            Ok(response) => Ok(response.status().as_u16()),
            Err(OutgoingError::Limited(limited)) => Err(limited.retry_after().unwrap_or_default()),
            Err(error) => panic!("the API always responds: {error}"),
        }
    }

    fn change(&self, limit: Limit) {
        let mut present = self
            .hidden
            .limit
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *present = limit;
    }
}

/// A floor of one call a second, and a ceiling far above the limit of the API.
fn wide_range() -> OutgoingRule {
    let policy = Policy::new("api", Quota::per_second(1_000)).outgoing_key(Global);
    policy.adaptive(Adaptive::default().floor(Quota::per_second(1)))
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

// === The rate ===

#[tokio::test(start_paused = true)]
async fn hidden_limit_of_a_hundred_times_the_floor_is_found_in_50_s() {
    for limit in [
        Limit::Bucket(100, Timestamp::default()),
        Limit::Window(100, 0, 0),
    ] {
        let world = World::new(limit, &wide_range(), 1);
        let slow = world.pass(seconds(45)).await;
        assert!(slow.calls < 900 && slow.refused == 0, "{slow:?}");
        let found = world.pass(seconds(15)).await;
        assert!(found.calls > 1_000 && found.refused <= 2, "{found:?}");
        let used = world.pass(seconds(120)).await;
        assert!(used.calls - used.refused > 120 * 93, "{used:?}");
        assert!(used.refused <= 3, "{used:?}: 0.025 % of 12,000");
    }
}

#[tokio::test(start_paused = true)]
async fn limit_that_falls_to_a_fifth_is_followed_with_a_refusal_per_cut() {
    let world = World::new(Limit::Bucket(100, Timestamp::default()), &wide_range(), 1);
    world.pass(seconds(60)).await;
    world.change(Limit::Bucket(20, Timestamp::default()));
    let used = world.pass(seconds(200)).await;
    assert!(used.calls > 200 * 17, "{used:?}");
    // Ten cuts lead from 100 to 20.
    assert!(used.refused * 200 < used.calls, "{used:?}: 0.5 %");
}

#[tokio::test(start_paused = true)]
async fn instances_share_one_rate() {
    let limit = Limit::Bucket(50, Timestamp::default());
    let mut sent = Vec::new();
    for instances in [1, 3] {
        let world = World::new(limit, &wide_range(), instances);
        let begun = world.pass(seconds(55)).await;
        let used = world.pass(seconds(30)).await;
        assert!(begun.refused + used.refused <= 4, "{begun:?} {used:?}");
        sent.push(used.calls);
    }
    let difference = sent[0].abs_diff(sent[1]);
    assert!(
        difference < sent[0] / 20,
        "{sent:?}: three do not send three times as much"
    );
}

#[tokio::test(start_paused = true)]
async fn rate_that_is_not_used_does_not_grow() {
    let world = World::new(Limit::Bucket(100, Timestamp::default()), &wide_range(), 1);
    world.pass(seconds(30)).await;
    let (before, mut few) = (world.pass(seconds(1)).await, Sent::default());
    for _ in 0..60 {
        for _ in 0..before.calls / 2 {
            few.calls += usize::from(world.call(&world.layers[0]).await.is_ok());
            world.advance(1_000 / (before.calls as u64 / 2)).await;
        }
    }
    let after = world.pass(seconds(1)).await;
    assert!(
        after.calls < before.calls + before.calls / 4,
        "{before:?} {few:?} {after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn rate_is_at_most_the_quota_and_at_least_the_floor() {
    let policy = Policy::new("api", Quota::per_second(20)).outgoing_key(Global);
    let rule = policy.adaptive(Adaptive::default().floor(Quota::per_second(10)));
    let world = World::new(Limit::Bucket(1_000, Timestamp::default()), &rule, 1);
    let first = world.pass(seconds(1)).await;
    assert!((10..=11).contains(&first.calls), "{first:?}");
    world.pass(seconds(10)).await;
    let most = world.pass(seconds(10)).await;
    assert!((199..=201).contains(&most.calls), "{most:?}");
    world.change(Limit::Window(0, 0, 0));
    let refused = world.pass(seconds(30)).await;
    assert!(refused.calls <= 6, "the pause doubles: {refused:?}");
    world.change(Limit::Bucket(1_000, Timestamp::default()));
    world.advance(60_000).await;
    let least = world.pass(seconds(1)).await;
    assert!((10..=12).contains(&least.calls), "{least:?}");
}

#[tokio::test(start_paused = true)]
async fn limit_that_a_response_shows_is_the_highest_rate() {
    let floor = Adaptive::default().floor(Quota::per_second(40));
    let rule = Policy::new("api", Quota::per_second(200)).outgoing_key(Global);
    let mut world = World::new(Limit::Window(1_000, 0, 0), &rule.adaptive(floor), 1);
    let per_minute = Arc::new(AtomicU64::new(600));
    let shown = Arc::clone(&per_minute);
    world.api = Api::new(move |_: &Request<Full<Bytes>>, _: usize| {
        let policy = format!("{};w=60", shown.load(Ordering::Relaxed));
        response(200, &[("ratelimit-policy", &policy)])
    });
    let lowered = world.pass(seconds(10)).await;
    assert!(
        (99..=101).contains(&lowered.calls),
        "10 a second: {lowered:?}"
    );
    per_minute.store(3_600, Ordering::Relaxed);
    world.pass(seconds(30)).await;
    let raised = world.pass(seconds(10)).await;
    assert!(
        (580..=601).contains(&raised.calls),
        "60 a second: {raised:?}"
    );
    per_minute.store(60_000, Ordering::Relaxed);
    world.pass(seconds(30)).await;
    let most = world.pass(seconds(10)).await;
    assert!((1_990..=2_001).contains(&most.calls), "the quota: {most:?}");
}

// Reproducer: one response with a tiny rate closed a key for days.
#[tokio::test(start_paused = true)]
async fn tiny_rate_in_one_response_costs_no_more_than_two_of_the_longest_pauses() {
    let floor = Adaptive::default().floor(Quota::per_second(40));
    let rule = Policy::new("api", Quota::per_second(200)).outgoing_key(Global);
    let mut world = World::new(Limit::Window(1_000, 0, 0), &rule.adaptive(floor), 1);
    world.api = Api::new(move |_: &Request<Full<Bytes>>, calls: usize| match calls {
        0 => response(200, &[("ratelimit-policy", "1;w=8000000")]),
        _ => response(200, &[("ratelimit-policy", "6000;w=60")]),
    });
    assert_eq!(world.call(&world.layers[0]).await, Ok(200));
    // The next call is charged at that rate, too: it has its turn, and then the key is open again.
    for _ in 0..2 {
        let away = world.call(&world.layers[0]).await.expect_err("it waits");
        assert!(away < seconds(601), "{away:?}");
        world.advance(601_000).await;
        assert_eq!(world.call(&world.layers[0]).await, Ok(200));
    }
    world.pass(seconds(30)).await;
    let again = world.pass(seconds(10)).await;
    assert!((990..=1_001).contains(&again.calls), "{again:?}");
}

// === Charges ===

#[tokio::test(start_paused = true)]
async fn calls_are_spread_unless_the_quota_has_a_burst() {
    for (quota, burst) in [
        (Quota::per_second(100), 1),
        (Quota::per_second(100).burst(4), 4),
    ] {
        let rule = Policy::new("api", quota).outgoing_key(Global);
        let rule = rule.adaptive(Adaptive::default());
        let world = World::new(Limit::Window(1_000, 0, 0), &rule, 1);
        let mut sent = Sent::default();
        world.send(&world.layers[0], &mut sent).await;
        assert_eq!(sent.calls, burst);
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_costs_more_than_the_burst_has_its_turn() {
    let rule = Policy::new("api", Quota::per_second(100)).outgoing_key(Global);
    let rule = rule
        .cost_by(|_| 20)
        .adaptive(Adaptive::default().floor(Quota::per_second(40)));
    let world = World::new(Limit::Bucket(100_000, Timestamp::default()), &rule, 1);
    let mut sent = Sent::default();
    let wait = world.send(&world.layers[0], &mut sent).await;
    assert_eq!((sent.calls, wait), (1, 500), "20 units at 40 a second");
}

#[tokio::test(start_paused = true)]
async fn pause_ends_with_one_call_and_not_with_a_wait_on_top() {
    let rule = Policy::new("api", Quota::per_second(100)).outgoing_key(Global);
    let rule = rule.adaptive(Adaptive::default().floor(Quota::per_second(1)));
    let world = World::new(Limit::Window(0, 0, 0), &rule, 1);
    let mut sent = Sent::default();
    let wait = world.send(&world.layers[0], &mut sent).await;
    assert_eq!((sent.calls, sent.refused, wait), (1, 1, 1_000));
    world.advance(1_000).await;
    world.send(&world.layers[0], &mut sent).await;
    assert_eq!(sent.calls, 2);
}

// === Settings ===

#[test]
fn only_buckets_with_a_floor_below_their_quota_can_be_adaptive() {
    let limiter = RateLimiter::builder().build().expect("it is well set up");
    let error = |policy: Policy, adaptive: Adaptive| {
        let rule = policy.outgoing_key(Global).adaptive(adaptive);
        let layer = OutgoingLayer::builder(&limiter).policy(rule).build();
        let error = layer.expect_err("not usable");
        assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
        error.to_string()
    };
    let ten = || Policy::new("api", Quota::per_second(10));
    let queue = QueueLimits::new(10, seconds(1));
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::LeakyQueue(queue),
    ] {
        assert_eq!(
            error(ten().algorithm(algorithm), Adaptive::default()),
            "policy \"api\": only a token bucket or a leaky bucket can be adaptive"
        );
    }
    assert!(
        error(Policy::concurrency("api", 3), Adaptive::default()).contains("only a token bucket")
    );
    let leased = Policy::new("api", Quota::per_second(100)).consistency(Consistency::Leased);
    assert!(error(leased, Adaptive::default()).contains("is Strict"));
    let above = Adaptive::default().floor(Quota::per_second(11));
    assert_eq!(
        error(ten(), above),
        "policy \"api\": the floor of its adaptive rate is above its quota: lower the floor"
    );
    for none in [Quota::per_second(0), Quota::in_flight(3)] {
        assert!(error(ten(), Adaptive::default().floor(none)).contains("at least one unit"));
    }
}
