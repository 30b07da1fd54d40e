//! Rows with a fault: a process that is killed, and a server that ends.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tollgate::{Key, Policy, Quota};

use super::{
    fleet::{Fleet, limiter},
    support::Arguments,
};

fn slots() -> Policy {
    Policy::concurrency("slots", 20)
}

/// The process that is killed: takes all permits, prints a line, and waits.
pub(crate) async fn hold(url: &str) {
    let policy = slots();
    let limiter = limiter(&[&policy], url);
    let mut permits = Vec::new();
    for _ in 0..20 {
        let acquire = limiter.acquire(policy.charge(Key::GLOBAL));
        permits.push(acquire.await.expect("a slot"));
    }
    println!("holds {}", permits.len());
    std::future::pending::<()>().await;
}

/// A process with 20 permits is killed: when others have them.
pub(crate) async fn kill() {
    let policy = slots();
    let fleet = Fleet::start(1, &[&policy], Duration::ZERO).await;
    let program = env::current_exe().expect("the bench has a path");
    let mut child = Command::new(program)
        .args(["--holder", "--url", &fleet.server.url()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the bench runs");
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("it prints a line");
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let acquire = fleet.limiters[0].acquire(policy.charge(Key::GLOBAL));
        tasks.spawn(async move {
            let permit = acquire.max_wait(Duration::from_secs(600)).await;
            (permit.expect("a slot"), Instant::now())
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    child.kill().expect("it runs");
    let killed = Instant::now();
    child.wait().expect("it is ours to wait for");
    let (mut permits, mut times) = (Vec::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (permit, at) = done.expect("a task does not panic");
        permits.push(permit);
        times.push(at.duration_since(killed).as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    println!(
        "kill: the first slot is back after {:.2} s, all {} after {:.2} s, {} calls meanwhile",
        times[0],
        permits.len(),
        times[times.len() - 1],
        fleet.calls(),
    );
}

/// The server ends for a while: how many calls start before, meanwhile and after.
pub(crate) async fn outage(arguments: &Arguments) {
    let rate: u64 = arguments.value("--rate", 100);
    for burst in [1, rate] {
        let policy = Policy::new("api", Quota::per_second(rate).burst(burst));
        let mut fleet = Fleet::start(3, &[&policy], Duration::ZERO).await;
        let begun = Instant::now();
        let starts = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for number in 0..192 {
            let (limiter, policy) = (fleet.limiters[number % 3].clone(), policy.clone());
            let starts = Arc::clone(&starts);
            tasks.spawn(async move {
                loop {
                    let acquire = limiter.acquire(policy.charge(Key::GLOBAL));
                    if acquire.max_wait(Duration::from_secs(600)).await.is_ok() {
                        let mut starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
                        starts.push(begun.elapsed().as_secs_f64());
                    }
                }
            });
        }
        // Long enough for the instances to know of each other.
        let (down, up, end) = (12.0, 22.0, 32.0);
        tokio::time::sleep(Duration::from_secs_f64(down)).await;
        fleet.server.kill();
        tokio::time::sleep_until((begun + Duration::from_secs_f64(up)).into()).await;
        fleet.server.restart();
        tokio::time::sleep_until((begun + Duration::from_secs_f64(end)).into()).await;
        tasks.shutdown().await;
        let starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
        let share = |from: f64, to: f64| {
            let count = starts.iter().filter(|at| (from..to).contains(*at)).count();
            count as f64 / ((to - from) * rate as f64)
        };
        let seconds: Vec<String> = (down as u32 - 1..end as u32)
            .map(|second| format!("{:.2}", share(f64::from(second), f64::from(second) + 1.0)))
            .collect();
        println!(
            "outage, {rate}/s, burst {burst}: before {:.3}, meanwhile {:.3}, after {:.3} of the rate; each second from the one before: {}",
            share(4.0, down),
            share(down, up),
            share(up, end),
            seconds.join(" "),
        );
    }
}
