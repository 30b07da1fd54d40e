//! What do decisions cost while Redis fails, when does the breaker open, and what is admitted meanwhile?
//!
//! Run with `cargo bench --bench faults`; `-- stall` runs the rows whose names contain the word.
//!
//! # Method
//!
//! Callers make a decision every few milliseconds: for two seconds without a fault, while the fault lasts (three seconds in
//! most rows), and until the breaker has been closed for two seconds. Some faults begin with the first decision. Latency is
//! that of the caller, scheduling included; the row without a fault shows the share of the machine in the maximum.
//!
//! A separate thread reads the limiter's health every millisecond: *opened after* counts from the start of the fault,
//! *degraded for* is the total time that the breaker was open. *Dials* are connections accepted by the proxy during the
//! fault.
//!
//! Decisions *by Redis* and *by this process* are followed by the number of allowed ones and the limit for that time: burst
//! plus rate, over the whole run for Redis, from the fault until Redis decides again for this process.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

mod breaker_watch;
mod callers;
mod environment;
mod fault;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;

use std::{
    env, thread,
    time::{Duration, Instant},
};

use tollgate::state::CountedBy;

use self::{
    breaker_watch::BreakerWatch,
    callers::{Callers, Phase, Samples},
    environment::Environment,
    fault::Fault,
    support::cpu,
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
        "| fault | decisions | before | during | after | failed | opened after | times | degraded for | by Redis: allowed / limit | \
         by this process: allowed / limit | allowed in all / limit | Redis decides again after | dials, a second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for fault in &faults {
        println!("{}", run(fault));
    }
    println!("\nload average after: {}", cpu::load_average());
}

fn run(fault: &Fault) -> String {
    let mut env = Environment::start(fault);
    let limiter = env.limiter(fault);
    let started = Instant::now();
    let callers = Callers::start(fault, &limiter, env.busy());
    let watch = BreakerWatch::start(&limiter);
    if !fault.before.is_zero() {
        callers.enter(Phase::Before);
        thread::sleep(fault.before);
    }

    let dialled = env.dials();
    let struck = Instant::now();
    (fault.strike)(&mut env);
    callers.enter(Phase::During);
    thread::sleep(fault.lasts);
    (fault.mend)(&mut env);
    let mended = Instant::now();
    let (dialled, fault_lasted) = (env.dials() - dialled, mended - struck);
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
        waits(&samples, Phase::Before),
        waits(&samples, Phase::During),
        waits(&samples, Phase::After),
        samples.failed.to_string(),
        opened,
        breaker.times().to_string(),
        seconds(breaker.degraded_for()),
        by(CountedBy::Shared, lasted),
        by(CountedBy::Fallback, fault_lasted + again),
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

/// Length of the last phase, after the breaker has closed.
const AFTER: Duration = Duration::from_secs(1);
