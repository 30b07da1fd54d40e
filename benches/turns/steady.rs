//! Rows in which there is always somebody who waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tollgate::{Key, Policy, Quota, RateLimiter};

use super::{
    fleet::Fleet,
    support::{Arguments, Random},
};

const TASKS: [usize; 4] = [64, 64, 64, 10];

/// Four instances of 64, 64, 64 and 10 tasks, each of which takes turns one after the other.
pub(crate) async fn fair(arguments: &Arguments, delay: Duration) {
    let rate: u64 = arguments.value("--rate", 100);
    let length = arguments.seconds("--seconds", 20.0);
    let policy = Policy::new("api", Quota::per_second(rate).burst(1));
    let mut fleet = Fleet::start(TASKS.len(), &[&policy], delay).await;
    let is_counted = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (instance, count) in TASKS.into_iter().enumerate() {
        for _ in 0..count {
            let (limiter, policy) = (fleet.limiters[instance].clone(), policy.clone());
            let is_counted = Arc::clone(&is_counted);
            tasks
                .spawn(async move { (instance, take_turns(&limiter, &policy, &is_counted).await) });
        }
    }
    // Until each task has had a turn.
    let all: usize = TASKS.iter().sum();
    tokio::time::sleep(Duration::from_secs_f64(all as f64 / rate as f64 + 0.5)).await;
    fleet.count_calls();
    is_counted.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    tokio::time::sleep(length).await;
    is_counted.store(false, Ordering::Relaxed);
    let (calls, took) = (fleet.calls(), begun.elapsed());
    fleet.limiters.clear();
    let ideal = all as f64 / rate as f64 * 1e3;
    let (mut turns, mut waits, mut by_instance) = (0, Vec::new(), [const { Vec::new() }; 4]);
    while let Some(done) = tasks.join_next().await {
        let (instance, taken) = done.expect("a task does not panic");
        turns += taken.len();
        by_instance[instance].push(taken.len());
        waits.extend(taken);
    }
    waits.sort_unstable();
    let wait = |share: f64| waits[(waits.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    let spread: Vec<String> = by_instance
        .iter()
        .map(|turns| format!("{:?}..{:?}", turns.iter().min(), turns.iter().max()))
        .map(|spread| spread.replace("Some(", "").replace(')', ""))
        .collect();
    println!(
        "fair, {rate}/s, {} ms: used {:.1} %, {:.3} calls a turn, wait p50/p99 {:.0}/{:.0} ms (ideal {ideal:.0}), turns of a task of each instance {}",
        delay.as_millis(),
        100.0 * turns as f64 / (took.as_secs_f64() * rate as f64),
        calls as f64 / turns as f64,
        wait(0.5),
        wait(0.99),
        spread.join(", "),
    );
}

/// Takes turns while they count, and returns the waits.
async fn take_turns(
    limiter: &RateLimiter,
    policy: &Policy,
    is_counted: &AtomicBool,
) -> Vec<Duration> {
    let mut waits = Vec::new();
    let mut has_counted = false;
    loop {
        let acquire = limiter.acquire(policy.charge(Key::GLOBAL));
        let permit = acquire.max_wait(HOUR).await.expect("a turn");
        if is_counted.load(Ordering::Relaxed) {
            has_counted = true;
            waits.push(permit.waited());
        } else if has_counted {
            return waits;
        }
    }
}

/// Many sets of charges that share one key.
pub(crate) async fn sets(arguments: &Arguments, delay: Duration) {
    let rate: u64 = arguments.value("--rate", 1_000);
    let all = Policy::new("all", Quota::per_second(rate).burst(1));
    let user = Policy::new("user", Quota::per_second(10));
    for sets in arguments.list("--sets", &[100_u64, 1_000, 10_000]) {
        let fleet = Fleet::start(2, &[&all, &user], delay).await;
        let cpu = fleet.server_cpu();
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for number in 0..sets {
            let limiter = &fleet.limiters[number as usize % 2];
            let charges = [all.charge(Key::GLOBAL), user.charge(Key::from(number))];
            let acquire = limiter.acquire(&charges).max_wait(HOUR);
            tasks.spawn(async move { drop(acquire.await.expect("a turn")) });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("a task does not panic");
        }
        let took = begun.elapsed();
        println!(
            "sets, {sets} of one caller, {rate}/s, {} ms: took {:.2} s (ideal {:.2}), {:.2} calls a turn, server {:.0} us a turn",
            delay.as_millis(),
            took.as_secs_f64(),
            (sets - 1) as f64 / rate as f64,
            fleet.calls() as f64 / sets as f64,
            (fleet.server_cpu() - cpu).as_secs_f64() * 1e6 / sets as f64,
        );
    }
}

/// Twenty slots, and three instances of 64 tasks that hold them for exponential times.
pub(crate) async fn slots(arguments: &Arguments, delay: Duration) {
    let length = arguments.seconds("--seconds", 20.0);
    for hold in arguments.list("--holds", &[5.0, 50.0, 1_000.0]) {
        let policy = Policy::concurrency("slots", SLOTS);
        let mut fleet = Fleet::start(3, &[&policy], delay).await;
        let (held, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for number in 0..192 {
            let (limiter, policy) = (fleet.limiters[number % 3].clone(), policy.clone());
            let (held, turns) = (Arc::clone(&held), Arc::clone(&turns));
            let mut random = Random(number as u64 + 1);
            tasks.spawn(async move {
                loop {
                    let acquire = limiter.acquire(policy.charge(Key::GLOBAL));
                    let permit = acquire.max_wait(HOUR).await.expect("a turn");
                    let share = (random.below(1_000_000) + 1) as f64 / 1e6;
                    let time = Duration::from_secs_f64(-share.ln() * hold / 1e3);
                    let begun = Instant::now();
                    tokio::time::sleep(time).await;
                    held.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
                    turns.fetch_add(1, Ordering::Relaxed);
                    drop(permit);
                }
            });
        }
        tokio::time::sleep(Duration::from_secs_f64(hold * 3.0 / 1e3 + 0.5)).await;
        fleet.count_calls();
        let before = (held.load(Ordering::Relaxed), turns.load(Ordering::Relaxed));
        let begun = Instant::now();
        tokio::time::sleep(length).await;
        let took = begun.elapsed().as_micros() as f64;
        let turns = turns.load(Ordering::Relaxed) - before.1;
        println!(
            "slots, {SLOTS} held for {hold} ms, {} ms: used {:.1} %, {turns} turns, {:.2} calls a turn with its release",
            delay.as_millis(),
            100.0 * (held.load(Ordering::Relaxed) - before.0) as f64 / (took * SLOTS as f64),
            fleet.calls() as f64 / turns as f64,
        );
        tasks.shutdown().await;
    }
}

const HOUR: Duration = Duration::from_secs(3_600);
const SLOTS: u64 = 20;
