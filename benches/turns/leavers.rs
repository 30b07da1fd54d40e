//! Rows in which callers leave.

use std::{
    convert::Infallible,
    future,
    time::{Duration, Instant},
};

use http::{Request, Response};
use tokio::{task::JoinSet, time::timeout};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter,
    algorithm::{Algorithm, QueueLimits},
    extract::Global,
    middleware::RateLimit,
};
use tower::{Layer, ServiceExt, service_fn};

use super::{
    fleet::{Fleet, least_gap},
    support::{Arguments, Random, cpu},
};

/// Ten callers a second want five turns a second, and give up after 0.7 s.
pub(crate) async fn patience(delay: Duration) {
    let api = Policy::new("api", Quota::per_second(5).burst(1));
    let queue = Algorithm::LeakyQueue(QueueLimits::new(20, HOUR));
    let queue = api.clone().algorithm(queue);
    for (name, policy) in [
        ("acquire, dropped after 0.7 s", &api),
        ("acquire, max_wait of 0.7 s", &api),
        ("layer, dropped after 0.7 s", &queue),
    ] {
        let fleet = Fleet::start(3, &[policy], delay).await;
        let apps: Vec<_> = fleet
            .limiters
            .iter()
            .map(|limiter| app(policy, limiter))
            .collect();
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        let mut random = Random(7);
        for number in 0..168_u32 {
            let came = begun + Duration::from_millis(100) * number;
            tokio::time::sleep_until(came.into()).await;
            let instance = random.below(3) as usize;
            if name.starts_with("layer") {
                let response = apps[instance].clone().oneshot(Request::new(()));
                tasks.spawn(async move {
                    let response = timeout(PATIENCE, response).await;
                    response.is_ok_and(|response| {
                        response.is_ok_and(|response| response.status().is_success())
                    })
                });
                continue;
            }
            let acquire = fleet.limiters[instance].acquire(policy.charge(Key::GLOBAL));
            // A caller with a longest wait gets an error at once if its turn is later.
            let (max_wait, patience) = match name.ends_with("max_wait of 0.7 s") {
                true => (PATIENCE, HOUR),
                false => (HOUR, PATIENCE),
            };
            tasks.spawn(async move {
                let turn = timeout(patience, acquire.max_wait(max_wait)).await;
                turn.is_ok_and(|turn| turn.is_ok())
            });
        }
        let took = begun.elapsed();
        let mut served = 0;
        while let Some(done) = tasks.join_next().await {
            served += u32::from(done.expect("a task does not panic"));
        }
        println!(
            "patience, {name}, {} ms: {served} of {} served, {:.2} calls a turn",
            delay.as_millis(),
            (took.as_secs_f64() * 5.0) as u32 + 1,
            fleet.calls() as f64 / f64::from(served),
        );
    }
}

/// A service behind a layer with this policy.
fn app(policy: &Policy, limiter: &RateLimiter) -> RateLimit<App> {
    let layer = RateLimitLayer::builder().limiter(limiter);
    let layer = layer.policy(policy.clone().key(Global)).build();
    let layer = layer.expect("a usable layer");
    layer.layer(service_fn(|_| future::ready(Ok(Response::new(())))))
}

type App =
    tower::util::ServiceFn<fn(Request<()>) -> future::Ready<Result<Response<()>, Infallible>>>;

/// Very many callers of one key, of whom half leave at random times.
pub(crate) async fn leave(arguments: &Arguments, delay: Duration) {
    let waiters: u64 = arguments.value("--waiters", 10_000);
    let rate: u64 = arguments.value("--rate", 1_000);
    let policy = Policy::new("api", Quota::per_second(rate).burst(1));
    let fleet = Fleet::start(4, &[&policy], delay).await;
    let before = cpu::resident_bytes();
    let mut random = Random(11);
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for number in 0..waiters {
        let limiter = &fleet.limiters[number as usize % 4];
        let acquire = limiter.acquire(policy.charge(Key::GLOBAL)).max_wait(HOUR);
        let leaves = random.below(2) == 0;
        let after = Duration::from_micros(random.below(5_000_000));
        tasks.spawn(async move {
            let limit = if leaves { after } else { HOUR };
            let permit = timeout(limit, acquire).await.ok()?.expect("a turn");
            let (start, got) = (permit.decision().decided_at(), now_micros());
            Some((start.as_micros(), got))
        });
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let most = cpu::resident_bytes().saturating_sub(before);
    let (mut starts, mut early) = (Vec::new(), 0);
    while let Some(done) = tasks.join_next().await {
        if let Some((start, got)) = done.expect("a task does not panic") {
            starts.push(start);
            early += u32::from(got < start);
        }
    }
    let took = begun.elapsed();
    let served = starts.len() as u64;
    let last =
        (starts.iter().max().expect("some are served") - starts.iter().min().expect("some")) as f64;
    println!(
        "leave, {waiters} of whom {} left, {rate}/s, {} ms: {served} served in {:.2} s, {:.2} % of the units until the last start, {:.3} calls a turn, {early} early, least gap {} us, {:.0} bytes a waiter",
        waiters - served,
        delay.as_millis(),
        took.as_secs_f64(),
        100.0 * (served - 1) as f64 / (last / 1e6 * rate as f64),
        fleet.calls() as f64 / served as f64,
        least_gap(&mut starts),
        most as f64 / waiters as f64,
    );
    let places = fleet
        .server
        .keys()
        .into_iter()
        .filter(|key| key.ends_with("#q"));
    let places = places.count();
    println!("    lines left at the server: {places}");
}

fn now_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("the clock is right").as_micros() as u64
}

const PATIENCE: Duration = Duration::from_millis(700);
const HOUR: Duration = Duration::from_secs(3_600);
