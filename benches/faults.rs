//! What does a decision cost while Redis breaks, and what is admitted meanwhile?
//!
//! Run with `cargo bench --bench faults`.
//!
//! Method: callers decide on one key every few milliseconds, for two seconds with Redis well, three with the fault, and
//! until Redis has decided again for a second. Each decision's latency is taken as the caller sees it, from asking to
//! having the answer, scheduling included. A last row without any fault tells how much of the maximum is the machine.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests use the rest of it")]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use support::{Mode, Proxy, Server};
use tollgate::{
    Key, Policy, Quota, RateLimiter, remote::RedisStore, state::CountedBy, store::Health,
};

const RATE: u64 = 1_000;
const DEADLINE: Duration = Duration::from_millis(50);

struct Fault {
    name: &'static str,
    callers: usize,
    connections: usize,
    strike: fn(&mut Server, &Proxy),
    mend: fn(&mut Server, &Proxy),
}

#[derive(Clone, Copy)]
struct Sample {
    phase: u8,
    waited: Duration,
    counted_by: CountedBy,
    admitted: bool,
}

fn main() {
    let nothing = |_: &mut Server, _: &Proxy| {};
    let faults = [
        Fault {
            name: "no fault",
            callers: 64,
            connections: 2,
            strike: nothing,
            mend: nothing,
        },
        Fault {
            name: "kill -9, restart",
            callers: 64,
            connections: 2,
            strike: |s, _| s.kill(),
            mend: |s, _| s.restart(),
        },
        Fault {
            name: "SIGSTOP, SIGCONT",
            callers: 64,
            connections: 2,
            strike: |s, _| s.pause(),
            mend: |s, _| s.resume(),
        },
        Fault {
            name: "restart at once",
            callers: 64,
            connections: 2,
            strike: |s, _| s.restart(),
            mend: nothing,
        },
        Fault {
            name: "SCRIPT FLUSH",
            callers: 64,
            connections: 2,
            strike: |s, _| drop(s.command(&["SCRIPT", "FLUSH"])),
            mend: nothing,
        },
        Fault {
            name: "REPLICAOF (READONLY)",
            callers: 64,
            connections: 2,
            strike: |s, _| drop(s.command(&["REPLICAOF", "127.0.0.1", "1"])),
            mend: |s, _| drop(s.command(&["REPLICAOF", "NO", "ONE"])),
        },
        Fault {
            name: "black-hole proxy",
            callers: 64,
            connections: 2,
            strike: |_, proxy| proxy.set(Mode::BlackHole),
            mend: |_, proxy| proxy.set(Mode::Pass),
        },
        Fault {
            name: "pool of 1, 512 callers",
            callers: 512,
            connections: 1,
            strike: nothing,
            mend: nothing,
        },
        Fault {
            name: "pool of 1, 512 callers, SIGSTOP",
            callers: 512,
            connections: 1,
            strike: |s, _| s.pause(),
            mend: |s, _| s.resume(),
        },
    ];
    println!("limit {RATE}/s with a burst of {RATE}, deadline {DEADLINE:?}; waits in ms");
    println!(
        "| fault | decisions | well p50/p99/max | fault p50/p99/max | after p50/p99/max | failed | by Redis | allowed by Redis / limit | by this process | allowed here / limit | Redis decides again after |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for fault in &faults {
        println!("{}", runtime.block_on(run(fault)));
    }
}

async fn run(fault: &Fault) -> String {
    let mut server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy = Arc::new(Policy::new("faults", Quota::per_second(RATE)));
    let store = RedisStore::builder(proxy.url()).connections(fault.connections);
    let limiter = RateLimiter::builder()
        .redis(store)
        .deadline(DEADLINE)
        .policy((*policy).clone())
        .build();
    let limiter = limiter.expect("a usable limiter");
    let _ = limiter.peek(&[policy.charge(Key::GLOBAL)]).await;

    let phase = Arc::new(AtomicU8::new(0));
    let started = Instant::now();
    let pause = Duration::from_millis(fault.callers as u64 / 32);
    let callers: Vec<_> = (0..fault.callers)
        .map(|_| {
            tokio::spawn(call(
                limiter.clone(),
                Arc::clone(&policy),
                Arc::clone(&phase),
                pause,
            ))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    phase.store(1, Ordering::Relaxed);
    (fault.strike)(&mut server, &proxy);
    let struck = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    (fault.mend)(&mut server, &proxy);
    let mended = Instant::now();
    while matches!(limiter.health(), Health::Degraded { .. }) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (again, fault_lasted) = (mended.elapsed(), struck.elapsed());
    phase.store(2, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    phase.store(3, Ordering::Relaxed);
    let lasted = started.elapsed();

    let (mut samples, mut failed) = (Vec::new(), 0);
    for caller in callers {
        let (of_caller, failures) = caller.await.expect("no panic");
        samples.extend(of_caller);
        failed += failures;
    }
    let count = |counted_by: CountedBy, admitted_only: bool| {
        let of = |sample: &&Sample| {
            sample.counted_by == counted_by && (sample.admitted || !admitted_only)
        };
        samples.iter().filter(of).count()
    };
    let limit = |span: Duration| {
        RATE + RATE * u64::try_from(span.as_millis()).unwrap_or(u64::MAX / RATE) / 1_000
    };
    format!(
        "| {} | {} | {} | {} | {} | {failed} | {} | {} / {} | {} | {} / {} | {:.2} s |",
        fault.name,
        samples.len(),
        waits(&samples, 0),
        waits(&samples, 1),
        waits(&samples, 2),
        count(CountedBy::Shared, false),
        count(CountedBy::Shared, true),
        limit(lasted),
        count(CountedBy::Local, false),
        count(CountedBy::Local, true),
        limit(fault_lasted),
        again.as_secs_f64(),
    )
}

async fn call(
    limiter: RateLimiter,
    policy: Arc<Policy>,
    phase: Arc<AtomicU8>,
    pause: Duration,
) -> (Vec<Sample>, usize) {
    let (mut samples, mut failed) = (Vec::new(), 0);
    loop {
        let now = phase.load(Ordering::Relaxed);
        if now == 3 {
            return (samples, failed);
        }
        let asked = Instant::now();
        match limiter.check(&[policy.charge(Key::GLOBAL)]).await {
            Ok(decision) => samples.push(Sample {
                phase: now,
                waited: asked.elapsed(),
                counted_by: decision.counted_by(),
                admitted: decision.is_allowed(),
            }),
            Err(_) => failed += 1,
        }
        tokio::time::sleep(pause).await;
    }
}

fn waits(samples: &[Sample], phase: u8) -> String {
    let mut waits: Vec<Duration> = samples
        .iter()
        .filter(|sample| sample.phase == phase)
        .map(|sample| sample.waited)
        .collect();
    waits.sort_unstable();
    let at = |permille: usize| {
        let index = (waits.len() * permille / 1_000).min(waits.len().saturating_sub(1));
        waits
            .get(index)
            .map_or(0.0, |wait| wait.as_secs_f64() * 1_000.0)
    };
    format!("{:.2}/{:.2}/{:.2}", at(500), at(990), at(1_000))
}
