//! Adaptive rates in Redis and their twin in process are equal, in random histories, and charges at several rates add up.

use std::time::Duration;

use http::{Request, Response};
use tollgate::{
    Key, Policy, Quota, RateLimiter,
    algorithm::{MicroRate, RateReport},
    charge::{Priority, TurnRequest, Turns},
    client::{Adaptive, OutgoingInfo, OutgoingLayer},
    clock::{Clock, Timestamp},
    extract::Global,
    memory::MemoryStore,
    remote::RedisStore,
    store::Store,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{Random, Server};

const START: u64 = 1_700_000_000_000_000;

/// Returns both stores on one clock.
fn twins(server: &Server, clock: &Clock, prefix: &str) -> (MemoryStore, RedisStore) {
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let redis = RedisStore::builder(server.url())
        .prefix(prefix)
        .client_time(clock.clone())
        .deadline(Duration::from_secs(10))
        .build();
    let memory = memory.expect("a usable store");
    (memory, redis.expect("a usable store"))
}

fn per_second(count: u64) -> MicroRate {
    MicroRate::of(Quota::per_second(count))
}

#[tokio::test]
async fn adaptive_rates_in_redis_are_those_in_process() {
    let server = Server::start();
    let (mut grown, mut lowered, mut at_floor, mut at_ceiling) = (0, 0, 0, 0);
    for seed in 0..200 {
        let mut random = Random(seed);
        let clock = Clock::manual(Timestamp::from_micros(START + seed * 777));
        let (memory, redis) = twins(&server, &clock, &format!("adapt{seed}"));
        let policy = Policy::new("api", Quota::per_second(1_000));
        let key = Key::new("ada");
        let ceiling = MicroRate::from_micros(1_000_000 + random.below(300_000_000));
        let floor = MicroRate::from_micros(100_000 + random.below(3_000_000));
        let mut rate = floor.min(ceiling);
        for step in 0..80 {
            let length = match random.below(12) {
                0 => random.below(100),
                1 => random.below(100_000_000),
                2 if step % 16 == 0 => random.below(200_000_000_000),
                _ => random.below(3_000_000),
            };
            clock.advance(Duration::from_micros(length));
            let usable = rate.as_micros() / 1_000 * length / 1_000_000_000;
            let used = match random.below(6) {
                0 => random.below(usable + 1),
                _ => usable,
            };
            let mut report = RateReport::new(floor, ceiling).used(used);
            if random.below(8) == 0 {
                let age = Duration::from_micros(random.below(2_000_000));
                report = report.refused_at(clock.now() - age);
            }
            if random.below(20) == 0 {
                let shown = 1_000_000 + random.below(300_000_000);
                report = report.shown(MicroRate::from_micros(shown));
            }
            let charge = policy.charge(key);
            let mine = memory.adapt(&charge, report).await.expect("a rate");
            let theirs = redis.adapt(&charge, report).await.expect("a rate");
            assert_eq!(mine, theirs, "history {seed}, step {step}: {report:?}");
            grown += usize::from(mine > rate);
            lowered += usize::from(mine < rate);
            at_floor += usize::from(mine == floor);
            at_ceiling += usize::from(mine == ceiling);
            rate = mine;
        }
    }
    assert!(
        grown > 1_000 && lowered > 500 && at_floor > 100 && at_ceiling > 100,
        "{grown} grown, {lowered} lowered, {at_floor} at the floor, {at_ceiling} at the ceiling"
    );
}

#[tokio::test]
async fn turns_at_several_rates_are_equal_and_add_up() {
    let server = Server::start();
    for seed in 0..60 {
        let mut random = Random(seed);
        let clock = Clock::manual(Timestamp::from_micros(START + seed * 777));
        let (memory, redis) = twins(&server, &clock, &format!("rates{seed}"));
        let policy = Policy::new("api", Quota::per_second(1_000));
        let key = Key::new("ada");
        // The first free time after all turns so far.
        let mut free = clock.now();
        let (mut given, mut ahead_of_now) = (0, 0);
        while given < 100 {
            clock.advance(Duration::from_micros(random.below(15_000)));
            // Two instances ask, each at a rate of its own.
            let interval = 1_000 + random.below(20) * 500;
            let rate = MicroRate::from_micros(1_000_000_000_000_u64.div_ceil(interval));
            let rated = policy.at_rate_for_test(rate);
            let callers = vec![Duration::ZERO; 1 + random.below(3) as usize];
            let request = TurnRequest::for_test(
                (random.below(2), Priority::Normal),
                &[rated.charge(key)],
                &callers,
                Duration::from_millis(10),
            );
            let mine = memory.take_turns(request.clone()).await.expect("turns");
            let theirs = redis.take_turns(request).await.expect("turns");
            let shown = |turns: &Turns| (turns.starts(), turns.due());
            assert_eq!(shown(&mine), shown(&theirs), "history {seed}");
            let now = clock.now();
            for start in mine.starts() {
                // Each unit is free once the one before has taken its time at its own rate: none is gained, and none lost.
                assert_eq!(start, free.max(now), "history {seed}");
                free = start + Duration::from_micros(interval);
                given += 1;
                ahead_of_now += usize::from(start > now);
            }
        }
        assert!(ahead_of_now > 10, "{ahead_of_now}");
    }
}

#[test]
fn worked_example_of_an_adaptive_rate_is_true() {
    let server = Server::start();
    let source = include_str!("../../lua/adapt.lua");
    let steps = source.lines().filter_map(|line| {
        let line = line.strip_prefix("--   at +")?;
        let (time, rest) = line.split_once(' ').expect("a time");
        let (arguments, reply) = rest.split_once(" -> ").expect("a reply");
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let [_, key, _, _, numbers @ ..] = words.as_slice() else {
            panic!("a key and arguments: {arguments}");
        };
        let reply = reply.split(',').next().expect("a rate").trim();
        Some((time, *key, numbers.to_vec(), reply))
    });
    let steps: Vec<_> = steps.collect();
    assert_eq!(steps.len(), 3);
    for (time, key, numbers, reply) in steps {
        let absolute = |micros: &str| (START + micros.parse::<u64>().expect("us")).to_string();
        let mut command = redis::cmd("EVAL");
        command.arg(source).arg(1).arg(key).arg(absolute(time));
        for number in numbers {
            let number = number.trim_matches('\'');
            let number = number.strip_prefix('+').map_or(number.to_owned(), absolute);
            command.arg(number);
        }
        let rate: u64 = command.query(&mut server.connection()).expect("a rate");
        assert_eq!(rate.to_string(), reply, "at +{time}");
    }
}

// === Two instances ===

#[tokio::test]
async fn refusal_at_one_instance_lowers_the_rate_of_another() {
    let server = Server::start();
    let policy = Policy::new("api", Quota::per_second(1_000));
    let instance = || {
        let store = RedisStore::builder(server.url()).build();
        store.expect("a usable store")
    };
    let layer = |store: RedisStore| {
        let limiter = RateLimiter::builder().store(store).build();
        let floor = Adaptive::default().floor(Quota::per_second(1));
        OutgoingLayer::builder(&limiter.expect("it is well set up"))
            .policy(policy.clone().outgoing_key(Global).adaptive(floor))
            .max_retries(0)
            .build()
            .expect("it is well set up")
    };
    let api = |status: u16| {
        service_fn(move |_: Request<()>| async move {
            let response = Response::builder()
                .status(status)
                .header("retry-after", "0");
            Ok::<_, std::convert::Infallible>(response.body(()).expect("a response"))
        })
    };
    let peek = instance();
    let charge = policy.charge(Key::GLOBAL);
    let hundred = RateReport::new(per_second(100), per_second(1_000));
    assert_eq!(
        peek.adapt(&charge, hundred).await.expect("a rate"),
        per_second(100)
    );
    let refused = layer(instance())
        .layer(api(429))
        .oneshot(Request::new(()))
        .await;
    assert_eq!(refused.expect("a response").status(), 429);
    let lower = RateReport::new(per_second(1), per_second(1_000));
    while peek.adapt(&charge, lower).await.expect("a rate") != per_second(85) {
        tokio::task::yield_now().await;
    }
    // It waits for the end of the pause, and takes 1/85 s from then on.
    let response = layer(instance())
        .layer(api(200))
        .oneshot(Request::new(()))
        .await;
    let response = response.expect("a response");
    let info = response
        .extensions()
        .get::<OutgoingInfo>()
        .expect("it was counted");
    let decision = info.decision().expect("it was counted");
    let state = decision.states()[0];
    let usage = state.usage().expect("it is counted");
    assert_eq!((usage.limit, usage.remaining), (1, 0));
    let taken = usage.reset_at.since(decision.decided_at());
    assert!(taken >= Duration::from_micros(11_765), "{taken:?}");
    assert!(taken <= Duration::from_micros(11_765 + 50_000), "{taken:?}");
}
