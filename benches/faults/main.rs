//! What does a decision cost while Redis breaks, what does the breaker do, and what is admitted meanwhile?
//!
//! Run with `cargo bench --bench faults`; `-- stall` leaves the rows whose names hold the word.
//!
//! # Method
//!
//! Callers decide every few milliseconds: for two seconds with Redis well, for as long as the fault lasts (three seconds
//! for most), and until Redis has decided for two seconds again. Some faults are there from the first decision on. Each decision's latency is taken as the
//! caller sees it, from asking to having the answer, scheduling included; a first row without any fault shows how much of
//! the maximum is the machine. A thread of its own looks at the limiter's health every millisecond: *opened after* counts
//! from the fault, and *degraded for* is all the time that the breaker was open. Dials are the connections that arrived
//! at the proxy between the fault and its end.
//!
//! *By Redis* and *by this process* are decisions, and how many of them were allowed; the limit beside them is the burst
//! and the rate over the whole run, for this process over the time from the fault until Redis decided again.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

mod callers;
mod fault;
mod scene;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;
mod watch;

use std::{
    env, thread,
    time::{Duration, Instant},
};

use tollgate::state::CountedBy;

use self::{
    callers::{Callers, Phase, Samples},
    fault::Fault,
    scene::Scene,
    support::cpu,
    watch::Watch,
};

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let words = words.iter().filter(|word| !word.starts_with('-'));
    let mut faults = fault::all();
    faults.retain(|fault| words.clone().all(|word| fault.name.contains(word.as_str())));
    println!("load average before: {}", cpu::load_average());
    println!(
        "deadline {:?}; waits are p50/p99/max in ms\n",
        fault::DEADLINE
    );
    println!(
        "| fault | decisions | well | fault | after | failed | opened after | times | degraded for | by Redis: allowed / limit | \
         by this process: allowed / limit | allowed in all / limit | Redis decides again after | dials, a second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for fault in &faults {
        println!("{}", run(fault));
    }
    println!("\nload average after: {}", cpu::load_average());
}

fn run(fault: &Fault) -> String {
    let mut scene = Scene::set(fault);
    let limiter = scene.limiter(fault);
    let started = Instant::now();
    let callers = Callers::start(fault, &limiter, scene.busy());
    let watch = Watch::start(&limiter);
    if !fault.well.is_zero() {
        callers.enter(Phase::Well);
        thread::sleep(fault.well);
    }

    let dialled = scene.dials();
    let struck = Instant::now();
    (fault.strike)(&mut scene);
    callers.enter(Phase::Fault);
    thread::sleep(fault.lasts);
    (fault.mend)(&mut scene);
    let mended = Instant::now();
    let (dialled, fault_lasted) = (scene.dials() - dialled, mended - struck);
    watch.until_steady();
    callers.enter(Phase::After);
    thread::sleep(AFTER);
    let (samples, breaker) = (callers.stop(), watch.stop());
    let lasted = started.elapsed();

    let opened = breaker.opened_at().map_or("never".to_owned(), |at| {
        seconds(at.saturating_duration_since(struck))
    });
    let again = breaker
        .closed_at()
        .map_or(Duration::ZERO, |at| at.saturating_duration_since(mended));
    let limit = |span| match fault.limit(span) {
        Some(limit) => limit.to_string(),
        None => "-".to_owned(),
    };
    let by = |counted_by: CountedBy, span: Duration| {
        let (all, allowed) = samples.by(counted_by);
        format!("{all}: {allowed} / {}", limit(span))
    };
    [
        fault.name.to_owned(),
        samples.count().to_string(),
        waits(&samples, Phase::Well),
        waits(&samples, Phase::Fault),
        waits(&samples, Phase::After),
        samples.failed.to_string(),
        opened,
        breaker.times().to_string(),
        seconds(breaker.degraded_for()),
        by(CountedBy::Shared, lasted),
        by(CountedBy::Local, fault_lasted + again),
        format!("{} / {}", samples.allowed(), limit(lasted)),
        seconds(again),
        match fault.is_direct {
            true => "-".to_owned(),
            false => format!(
                "{dialled}, {:.1}",
                dialled as f64 / fault_lasted.as_secs_f64()
            ),
        },
    ]
    .iter()
    .fold("|".to_owned(), |row, cell| format!("{row} {cell} |"))
}

fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}

fn waits(samples: &Samples, phase: Phase) -> String {
    let waits = samples.waits(phase);
    let millis = |share| waits.quantile(share).as_secs_f64() * 1e3;
    match waits.count() {
        0 => "-".to_owned(),
        _ => format!("{:.2}/{:.2}/{:.2}", millis(0.5), millis(0.99), millis(1.0)),
    }
}

/// How long Redis decides again before the row ends.
const AFTER: Duration = Duration::from_secs(1);
