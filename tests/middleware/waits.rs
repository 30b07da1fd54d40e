//! The wait of a denied request: a client that returns after it, and alone, is admitted.

use std::{convert::Infallible, env, future, time::Duration};

use axum::body::{Body, to_bytes};
use http::{Request, Response};
use tollgate::{
    Charge, Decision, Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    algorithm::{Algorithm, QueueLimits, WindowStart},
    block::Block,
    charge::Receipt,
    clock::{Clock, Timestamp},
    decision::{Outcome, PolicyState, Retry},
    extract::Global,
    headers::Headers,
    memory::MemoryStore,
    policy::Penalty,
    remote::RedisStore,
    rules::Rule,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    middleware::witness::{World, everywhere},
    support::{Cluster, Random, Server},
};

everywhere! {
    denial_that_uses_up_another_policy_has_the_wait_of_that_policy
    wait_is_exact_for_each_algorithm
    wait_after_lookups_includes_a_policy_that_was_decided_before
}

/// 20 seconds after a full minute; 2023-11-14, 22:13:20 UTC.
const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const MICRO: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

// === Single waits ===

// Regression: Retry-After was a second, and the client that waited for it was denied for an hour.
async fn denial_that_uses_up_another_policy_has_the_wait_of_that_policy(world: World) {
    let headers = Headers::draft11()
        .with(Headers::legacy())
        .with(Headers::reason_with_policy());
    let app = RateLimitLayer::builder()
        .store(world.store.clone())
        .policy(Policy::new("second", Quota::per_second(1)).key(Global))
        .policy(hourly(2).count_denied(true).key(Global))
        .headers(headers)
        .build()
        .expect("a layer")
        .layer(service_fn(fine));
    let ask = || async {
        let response = app
            .clone()
            .oneshot(Request::new(()))
            .await
            .expect("infallible");
        let (head, body) = response.into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await.expect("a body");
        let header = |name: &str| {
            let value = head.headers.get(name);
            value.map(|value| value.to_str().expect("text").to_owned())
        };
        let headers = [
            "retry-after",
            "ratelimit",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "x-ratelimit-reason",
        ];
        let headers = headers.map(|name| header(name).unwrap_or_default());
        let body = String::from_utf8(body.to_vec()).expect("text");
        (head.status.as_u16(), headers, body)
    };
    assert_eq!(ask().await.0, 200);
    let (status, headers, body) = ask().await;
    assert_eq!(status, 429);
    let expected = [
        "3600",
        "\"hour\";r=0;t=3600, \"second\";r=0;t=1",
        "2",
        "0",
        &(world.clock.now() + HOUR).as_secs_ceil().to_string(),
        "rate_limited;policy=\"second\"",
    ];
    assert_eq!(headers, expected);
    assert!(
        body.contains("rate limit second exceeded, retry in 3600 seconds"),
        "{body}"
    );
    world.clock.advance(HOUR - MICRO);
    let (status, [retry_after, ..], _) = ask().await;
    assert_eq!((status, retry_after.as_str()), (429, "1"));
    world.clock.advance(MICRO);
    assert_eq!(ask().await.0, 200);
}

async fn wait_is_exact_for_each_algorithm(world: World) {
    let limiter = RateLimiter::new(world.store.clone(), []).expect("a limiter");
    let algorithms = [
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue(QueueLimits::new(2, Duration::from_secs(60))),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
    ];
    for (number, algorithm) in algorithms.into_iter().enumerate() {
        let quota = Quota::new(7, Duration::from_secs(60));
        let policy = Policy::new(format!("exact-{number}"), quota).algorithm(algorithm);
        let charges = [policy.charge(Key::GLOBAL)];
        let wait = loop {
            world.clock.advance(Duration::from_micros(123_456));
            if let Some(wait) = check(&limiter, &charges).await.retry_after() {
                break wait;
            }
        };
        let denied_at = world.clock.now();
        let seconds = rounded_up(wait);
        for (after, is_allowed) in [
            (seconds - SECOND, false),
            (wait - MICRO, false),
            (wait, true),
        ] {
            if after >= wait && !is_allowed {
                continue;
            }
            world.clock.set(denied_at + after);
            let decision = check(&limiter, &charges).await;
            assert_eq!(
                decision.is_allowed(),
                is_allowed,
                "{algorithm:?}, {after:?} of {wait:?}"
            );
        }
    }
}

async fn wait_after_lookups_includes_a_policy_that_was_decided_before(mut world: World) {
    let user = |_: &RequestHead| future::ready(Ok::<_, Infallible>(Some(Key::new("ada"))));
    let rules: [Rule; 2] = [
        hourly(2).count_denied(true).key(Global),
        Policy::new("second", Quota::per_second(1)).key_async(user),
    ];
    let app = world.layer(rules).layer(service_fn(fine));
    let ask = || app.clone().oneshot(Request::new(()));
    assert_eq!(ask().await.expect("infallible").status(), 200);
    let denied = ask().await.expect("infallible");
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "3600");
    world.settled().await;
    world.clock.advance(HOUR);
    assert_eq!(ask().await.expect("infallible").status(), 200);
}

#[tokio::test]
async fn wait_of_a_block_includes_a_quota_that_is_not_back_when_the_block_ends() {
    for place in [Place::memory(), Place::redis()] {
        let (policy, limiter) = (hourly(1), &place.limiter);
        let charges = [policy.charge(Key::new("ada"))];
        assert!(check(limiter, &charges).await.is_allowed());
        let block = |time| limiter.block(Block::new(Key::new("ada"), time));
        block(SECOND).await.expect("blocked");
        let denied = check(limiter, &charges).await;
        assert_eq!(denied.retry_after(), Some(HOUR));
        let state = denied.state("hour").expect("a state");
        assert_eq!(
            state.denied_by().map(tollgate::decision::DeniedBy::name),
            Some("block")
        );
        block(2 * HOUR).await.expect("blocked");
        let denied = check(limiter, &charges).await;
        assert_eq!(denied.retry_after(), Some(2 * HOUR));
    }
}

// Regression: the state of a policy that admits had no wait, although the denial took its last unit.
#[tokio::test]
async fn policy_that_counts_a_denial_has_a_wait_although_it_admits() {
    let place = Place::memory();
    let (second, hour) = (
        Policy::new("second", Quota::per_second(1)),
        hourly(2).count_denied(true),
    );
    let charges = [second.charge(Key::GLOBAL), hour.charge(Key::GLOBAL)];
    assert!(check(&place.limiter, &charges).await.is_allowed());
    let denied = check(&place.limiter, &charges).await;
    let state = denied.state("hour").expect("a state");
    assert_eq!(state.outcome(), Outcome::Allowed);
    assert_eq!(state.retry(), Retry::At(START + HOUR));
    let names = [denied.narrowest(), denied.denying()];
    let names = names.map(|state| state.map(|state| state.policy().as_str().to_owned()));
    assert_eq!(names, ["hour", "second"].map(|name| Some(name.to_owned())));
}

/// An hour from the first request on.
fn hourly(count: u64) -> Policy {
    Policy::new("hour", Quota::per_hour(count))
        .algorithm(Algorithm::FixedWindow(WindowStart::FirstHit))
}

async fn fine(_: Request<()>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

// === Random waits ===

/// A store whose time is moved by hand.
struct Place {
    limiter: RateLimiter,
    clock: Clock,
    /// Kept running.
    _server: Option<Server>,
}

impl Place {
    fn memory() -> Self {
        let clock = Clock::manual(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = RateLimiter::new(store.expect("a store"), []).expect("a limiter");
        Self {
            limiter,
            clock,
            _server: None,
        }
    }

    fn redis() -> Self {
        let (clock, server) = (Clock::manual(START), Server::start());
        Self {
            limiter: over_redis(&server.url(), &clock),
            clock,
            _server: Some(server),
        }
    }

    fn cluster() -> Self {
        let clock = Clock::manual(START);
        Self {
            limiter: over_redis(&Cluster::shared(3).nodes[0].url(), &clock),
            clock,
            _server: None,
        }
    }
}

fn over_redis(url: &str, clock: &Clock) -> RateLimiter {
    // A deadline that a loaded machine keeps.
    let store = RedisStore::builder(url)
        .prefix("waits")
        .client_time(clock.clone())
        .deadline(HOUR)
        .shared_blocks(true);
    RateLimiter::new(store.build().expect("a store"), []).expect("a limiter")
}

/// Numbers of a run.
#[derive(Debug, Default)]
struct Waits {
    waits: u32,
    denied_again: u32,
    /// Waits of which a request tried a microsecond less.
    exact: u32,
    /// Those whose earlier request was admitted.
    too_late: u32,
    /// Each kind occurs.
    with_counted_denials: u32,
    with_bans: u32,
    with_blocks: u32,
    with_tiers: u32,
    first: Option<String>,
    first_late: Option<String>,
}

/// The number of waits of a run: some thousands, or as many as the environment asks for.
fn wanted(default: u32) -> u32 {
    let number = env::var("TOLLGATE_WAITS").ok();
    number.map_or(default, |number| number.parse().expect("a number"))
}

/// What a run is about.
#[derive(Clone, Copy, Debug)]
struct Setting {
    seed: u64,
    /// Whether each policy has a key of its own, so that a cluster decides them apart.
    has_own_keys: bool,
    /// Whether a blocked caller changes its tier. A shared store is not asked for what the caller owes by the old one.
    changes_tiers_of_blocked: bool,
}

impl Waits {
    async fn of(place: &Place, waits: u32, setting: Setting) -> Self {
        let (mut random, mut run, mut case) = (Random(setting.seed), Self::default(), 0);
        while run.waits < waits {
            case += 1;
            run.add_case(place, &mut random, case, setting).await;
        }
        run
    }

    /// Sends requests to a few policies until some were denied, and after each denial one that waits for the stated time.
    async fn add_case(&mut self, place: &Place, random: &mut Random, case: u64, setting: Setting) {
        let Place { limiter, clock, .. } = place;
        let policies: Vec<Policy> = (0..=random.below(3))
            .map(|number| any_policy(random, case, number))
            .collect();
        // Another quota of the same policy, to which the caller changes.
        let tiers: Vec<Policy> = policies
            .iter()
            .map(|policy| in_tier(random, policy))
            .collect();
        let key_of = |number: usize| match setting.has_own_keys {
            true => Key::new(format!("{case}/{number}")),
            false => Key::from(case),
        };
        let (mut is_in_tier, mut is_converted, mut unblocked_at) = (false, true, START);
        let mut held: Vec<Receipt> = Vec::new();
        for _ in 0..STEPS {
            let may_change = setting.changes_tiers_of_blocked || clock.now() > unblocked_at;
            if random.below(20) == 0 && may_change {
                (is_in_tier, is_converted) = (!is_in_tier, false);
            }
            let may_block = setting.changes_tiers_of_blocked || is_converted;
            if random.below(25) == 0 && may_block {
                let length = Duration::from_micros(1_000 + below_up_to(random, 600_000_000));
                unblocked_at = clock.now() + length;
                let block = Block::new(key_of(0), length);
                limiter.block(block).await.expect("blocked");
            }
            if random.below(2) == 0 {
                clock.advance(Duration::from_micros(below_up_to(random, 20_000_000)));
            }
            let chosen = if is_in_tier { &tiers } else { &policies };
            let costs: Vec<u64> = chosen
                .iter()
                .map(|policy| any_cost(random, policy))
                .collect();
            let charges: Vec<Charge<'_>> = chosen
                .iter()
                .zip(&costs)
                .enumerate()
                .map(|(number, (policy, cost))| policy.charge(key_of(number)).cost(*cost))
                .collect();
            let decision = check(limiter, &charges).await;
            is_converted |= clock.now() > unblocked_at;
            held.extend(slots(&charges, &decision));
            let Some(wait) = decision.retry_after() else {
                assert!(decision.is_allowed(), "{charges:?}, {decision:?}");
                continue;
            };
            until_refunded(limiter, &charges, &decision).await;
            // It comes alone: all others have ended.
            for receipt in held.drain(..) {
                limiter.settle(receipt).await.expect("released");
            }
            let before = clock.now();
            if is_exact(&charges, &decision) && wait >= MICRO {
                self.exact += 1;
                clock.set(before + (wait - MICRO));
                let early = check(limiter, &charges).await;
                if early.is_allowed() {
                    self.too_late += 1;
                    self.first_late.get_or_insert_with(|| {
                        format!("{charges:?}\n{decision:?}\nthen {early:?}")
                    });
                }
                until_refunded(limiter, &charges, &early).await;
            }
            let waited = match random.below(3) {
                0 => wait,
                1 => rounded_up(wait),
                _ => wait + Duration::from_micros(below_up_to(random, 100_000_000)),
            };
            clock.set(before + waited);
            let again = check(limiter, &charges).await;
            self.note(&charges, (&decision, &again), is_in_tier, case);
            if let Some(receipt) = slots(&charges, &again) {
                limiter.settle(receipt).await.expect("released");
            }
        }
        for receipt in held {
            limiter.settle(receipt).await.expect("released");
        }
    }

    fn note(
        &mut self,
        charges: &[Charge<'_>],
        (decision, again): (&Decision, &Decision),
        is_in_tier: bool,
        case: u64,
    ) {
        let denied_by = |cause: &str| {
            let mut states = decision.states().iter();
            u32::from(states.any(|state| state.denied_by().is_some_and(|by| by.name() == cause)))
        };
        self.waits += 1;
        self.denied_again += u32::from(!again.is_allowed());
        let counts = charges.iter().any(|charge| charge.policy().counts_denied());
        self.with_counted_denials += u32::from(counts && charges.len() > 1);
        self.with_bans += denied_by("ban");
        self.with_blocks += denied_by("block");
        self.with_tiers += u32::from(is_in_tier);
        if !again.is_allowed() {
            self.first.get_or_insert_with(|| {
                format!("case {case}: {charges:?}\n{decision:?}\nthen {again:?}")
            });
        }
    }

    /// Checks that every request that waited was admitted, and that the run had waits of each kind.
    fn check(&self, place: &str) {
        println!(
            "{place}: {} of {} waits denied again, {} of {} too late",
            self.denied_again, self.waits, self.too_late, self.exact
        );
        assert_eq!(
            (self.denied_again, self.too_late),
            (0, 0),
            "of {} waits; the first: {}",
            self.waits,
            self.first
                .as_deref()
                .or(self.first_late.as_deref())
                .unwrap_or_default()
        );
        let kinds = [
            self.with_counted_denials,
            self.with_bans,
            self.with_blocks,
            self.with_tiers,
        ];
        assert!(
            kinds.iter().all(|kind| *kind > self.waits / 200),
            "{self:?}"
        );
    }
}

/// Requests of a case.
const STEPS: u64 = 40;

#[tokio::test]
async fn request_that_returns_after_its_wait_is_admitted_in_process() {
    let setting = Setting {
        seed: 1,
        has_own_keys: false,
        changes_tiers_of_blocked: true,
    };
    let waits = Waits::of(&Place::memory(), wanted(10_000), setting).await;
    waits.check("in process");
}

#[tokio::test]
async fn request_that_returns_after_its_wait_is_admitted_on_redis() {
    let setting = Setting {
        seed: 2,
        has_own_keys: false,
        changes_tiers_of_blocked: false,
    };
    let waits = Waits::of(&Place::redis(), wanted(2_000), setting).await;
    waits.check("redis");
}

#[tokio::test]
async fn request_that_returns_after_its_wait_is_admitted_by_policies_on_several_nodes() {
    let setting = Setting {
        seed: 3,
        has_own_keys: true,
        changes_tiers_of_blocked: false,
    };
    let waits = Waits::of(&Place::cluster(), wanted(1_000), setting).await;
    waits.check("cluster");
}

/// Whether nothing else moves: a microsecond earlier is then denied, and counts nothing.
fn is_exact(charges: &[Charge<'_>], decision: &Decision) -> bool {
    let is_plain = |charge: &Charge<'_>| {
        let policy = charge.policy();
        !policy.counts_denied() && policy.ban_penalty().is_none() && !is_concurrency(policy)
    };
    let mut states = decision.states().iter();
    let is_blocked = states.any(|state| state.denied_by().is_some_and(|by| by.name() == "block"));
    charges.iter().all(is_plain) && !is_blocked
}

fn is_concurrency(policy: &Policy) -> bool {
    policy.algorithm_name() == "concurrency"
}

/// A policy of any algorithm, which may count denied requests and ban.
fn any_policy(random: &mut Random, case: u64, number: u64) -> Policy {
    let name = format!("p{case}-{number}");
    let policy = match random.below(12) {
        0 => {
            let policy = Policy::concurrency(name, 1 + random.below(3));
            return with_penalty(random, policy);
        }
        // Rare, so that the run ends before the year 2255.
        1 if random.below(3) == 0 => Policy::new(name, Quota::per_month(1 + random.below(6)))
            .algorithm(Algorithm::FixedWindow(WindowStart::Month)),
        _ => Policy::new(name, any_quota(random)).algorithm(any_algorithm(random)),
    };
    let policy = policy.count_denied(random.below(3) == 0);
    if random.below(4) == 0 {
        with_penalty(random, policy)
    } else {
        policy
    }
}

/// The policy with another quota.
fn in_tier(random: &mut Random, policy: &Policy) -> Policy {
    let other = Policy::new(policy.name().as_str(), any_quota(random))
        .penalty(policy.ban_penalty().copied());
    let other = other.count_denied(policy.counts_denied());
    match is_concurrency(policy) {
        true => policy.clone(),
        false => other.algorithm(any_algorithm(random)),
    }
}

fn any_quota(random: &mut Random) -> Quota {
    let seconds = [1, 2, 7, 60, 3_600][random.below(5) as usize];
    Quota::new(1 + random.below(6), Duration::from_secs(seconds))
}

fn any_algorithm(random: &mut Random) -> Algorithm {
    match random.below(7) {
        0 => Algorithm::FixedWindow(WindowStart::Clock),
        1 => Algorithm::FixedWindow(WindowStart::FirstHit),
        2 => Algorithm::LeakyBucket,
        3 => Algorithm::LeakyQueue(QueueLimits::new(
            1 + random.below(4),
            Duration::from_millis(1 + random.below(5_000)),
        )),
        4 => Algorithm::SlidingLog,
        5 => Algorithm::SlidingWindow,
        _ => Algorithm::TokenBucket,
    }
}

fn with_penalty(random: &mut Random, policy: Policy) -> Policy {
    let within = Duration::from_secs(1 + random.below(600));
    let ban = Duration::from_secs(1 + random.below(5_000));
    policy.penalty(
        Penalty::after(1 + random.below(3) as u32, within)
            .ban(ban)
            .growing(2, 2 * ban),
    )
}

/// A cost that may fit.
fn any_cost(random: &mut Random, policy: &Policy) -> u64 {
    let limit = policy.counter().limit();
    match random.below(4) {
        0 => 1 + random.below(limit),
        _ => 1,
    }
}

/// A number below one that is random itself, so that small ones are as frequent as large ones.
fn below_up_to(random: &mut Random, most: u64) -> u64 {
    let bound = 1 + random.below(most) / (1 << random.below(20));
    random.below(bound)
}

/// The slots that a request holds.
fn slots(charges: &[Charge<'_>], decision: &Decision) -> Option<Receipt> {
    let has_slots = charges.iter().any(|charge| is_concurrency(charge.policy()));
    Receipt::of(charges, decision).filter(|_| has_slots)
}

/// The wait as `Retry-After` has it.
fn rounded_up(wait: Duration) -> Duration {
    Duration::from_secs(
        u64::try_from(wait.as_micros().div_ceil(1_000_000))
            .expect("a short wait")
            .max(1),
    )
}

/// Waits until the charges that were made on other nodes are refunded.
async fn until_refunded(limiter: &RateLimiter, charges: &[Charge<'_>], denial: &Decision) {
    for _ in 0..10_000 {
        let peeked = limiter.peek(charges).await.expect("peeked");
        let mut states = peeked.states().iter().zip(denial.states());
        let is_refunded = states.all(|(now, then)| {
            let left = |state: &PolicyState| state.usage().map(|usage| usage.remaining);
            then.outcome() != Outcome::Allowed || left(now) >= left(then)
        });
        if is_refunded {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("not refunded: {charges:?} {denial:?}");
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    limiter.check(charges).await.expect("decided")
}
