//! What does each algorithm admit, and how far is the sliding window counter from the truth?
//!
//! Run with `cargo bench --bench accuracy`. No server, and no clock: times are made up, from fixed seeds, so every run
//! prints the same.
//!
//! Method: requests are put to the counters that the stores use, at times in microseconds, from a moment at which
//! windows of a minute open. The quota is 100 a minute unless a row says otherwise.
//!
//! The last table knows the truth from a log that is exact. *Counted* is Cloudflare's question: every request is
//! counted, also above the limit, and the estimate is compared with the true number in the last minute. *Decided* is
//! what a limiter does with it: only what was admitted counts, and an answer is wrong when the true number of admitted
//! requests in the last minute says otherwise. *Beside the log* is another limiter that keeps a log and decides alone.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod gate;
mod traffic;

use std::collections::VecDeque;

use gate::{Gate, Mean, Truth};
use tollgate::{
    Quota,
    algorithm::{Algorithm, WindowStart},
};
use traffic::{MINUTE, SECOND, START};

fn main() {
    bursts();
    edges();
    sliding();
}

// === A burst ===

fn bursts() {
    let token = |burst| {
        (
            Quota::per_minute(LIMIT).burst(burst),
            Algorithm::TokenBucket,
        )
    };
    let leaky = |burst| {
        (
            Quota::per_minute(LIMIT).burst(burst),
            Algorithm::LeakyBucket,
        )
    };
    let plain = |algorithm| (Quota::per_minute(LIMIT), algorithm);
    let rows = [
        ("token bucket, burst 120", token(120), "120"),
        ("token bucket, burst 100", token(100), ""),
        ("leaky bucket, burst 1", leaky(1), ""),
        ("leaky bucket, burst 100", leaky(100), ""),
        (
            "fixed window, by the clock",
            plain(Algorithm::FixedWindow(WindowStart::Clock)),
            "",
        ),
        (
            "fixed window, first hit",
            plain(Algorithm::FixedWindow(WindowStart::FirstHit)),
            "",
        ),
        ("sliding window", plain(Algorithm::SlidingWindow), "100"),
        ("sliding log", plain(Algorithm::SlidingLog), "100"),
    ];
    println!("\n### 150 requests against 100 a minute, by a caller that was idle\n");
    println!("| algorithm | all at once | spread over a second | over an edge | literature |");
    println!("|---|---|---|---|---|");
    for (name, (quota, algorithm), literature) in rows {
        let admitted = |start: u64, step: u64| {
            let mut gate = Gate::new(quota, algorithm);
            (0..150)
                .filter(|i| gate.admits(0, start + i * step))
                .count()
        };
        println!(
            "| {name} | {} | {} | {} | {literature} |",
            admitted(START, 0),
            admitted(START, SECOND / 150),
            // The window ends in the middle of the second.
            admitted(START - SECOND / 2, SECOND / 150),
        );
    }
}

// === Edges ===

/// Callers that ask every 10 ms for three minutes, beginning at each second of a minute and just before its end.
fn edges() {
    let rows = [
        ("token bucket, burst 100", Algorithm::TokenBucket),
        ("leaky bucket, burst 1", Algorithm::LeakyBucket),
        (
            "fixed window, by the clock",
            Algorithm::FixedWindow(WindowStart::Clock),
        ),
        (
            "fixed window, first hit",
            Algorithm::FixedWindow(WindowStart::FirstHit),
        ),
        ("sliding window", Algorithm::SlidingWindow),
        ("sliding log", Algorithm::SlidingLog),
    ];
    println!("\n### The most admitted in any span, of the worst caller found\n");
    println!("| algorithm | in a second | in half a minute | in a minute |");
    println!("|---|---|---|---|");
    for (name, algorithm) in rows {
        let most = |span: u64| {
            let starts = (0..60)
                .map(|second| second * SECOND)
                .chain([MINUTE - 600_000]);
            let attacks = starts.flat_map(|offset| {
                // At once for who empties what there is; or silent after a first request, which opens a window.
                [0, 59 * SECOND + SECOND / 2]
                    .map(|pause| attack(algorithm, START + offset, pause, span))
            });
            attacks.max().unwrap_or(0)
        };
        println!(
            "| {name} | {} | {} | {} |",
            most(SECOND),
            most(MINUTE / 2),
            most(MINUTE)
        );
    }
}

/// The most that one caller was admitted in any span: one request, a pause, then one each 5 ms.
fn attack(algorithm: Algorithm, start: u64, pause: u64, span: u64) -> usize {
    let mut gate = Gate::new(Quota::per_minute(LIMIT), algorithm);
    let (mut within, mut most) = (VecDeque::new(), 0);
    let rest = (0..3 * MINUTE / 5_000).map(|step| start + pause + step * 5_000);
    for now in [start].into_iter().chain(rest) {
        if gate.admits(0, now) {
            within.push_back(now);
        }
        while within.front().is_some_and(|first| first + span <= now) {
            within.pop_front();
        }
        most = most.max(within.len());
    }
    most
}

// === The sliding window ===

fn sliding() {
    let skewed = traffic::skewed();
    let shapes = [
        ("steady", LIMIT, &traffic::steady()),
        ("bursty", LIMIT, &traffic::bursty()),
        ("skewed", LIMIT, &skewed),
        ("skewed, few above the limit", 2_000, &skewed),
        ("at the edges", LIMIT, &traffic::adversarial()),
    ];
    println!("\n### The sliding window counter beside the truth and beside a log\n");
    println!(
        "| traffic | limit | requests | above the limit | counted: wrongly over / under the limit | counted: mean error, of all / near the limit | decided: wrongly allowed | decided: wrongly denied | most in a minute | beside the log: judged otherwise | beside the log: admitted in all |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, limit, requests) in shapes {
        println!("| {name} | {limit} | {} |", compare(limit, requests));
    }
}

/// What happens to requests that come at these times from these callers, as cells of a row.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^32")]
fn compare(limit: u64, requests: &[(u64, u32)]) -> String {
    // Counts everything: a limit that nobody reaches.
    let mut estimates = Gate::new(Quota::per_minute(1_000_000), Algorithm::SlidingWindow);
    let mut counter = Gate::new(Quota::per_minute(limit), Algorithm::SlidingWindow);
    let mut log = Gate::new(Quota::per_minute(limit), Algorithm::SlidingLog);
    let (mut seen, mut admitted) = (Truth::default(), Truth::default());
    let (mut above, mut over, mut under) = (0, 0, 0);
    let (mut allowed, mut denied, mut otherwise, mut most) = (0, 0, 0, 0);
    let (mut by_counter, mut by_log) = (0_u32, 0_u32);
    let (mut errors, mut errors_of_many) = (Mean::default(), Mean::default());
    for &(now, caller) in requests {
        estimates.admits(caller, now);
        let (estimate, truth) = (estimates.used(caller, now), seen.with(caller, now));
        above += u32::from(truth > limit);
        over += u32::from(estimate > limit && truth <= limit);
        under += u32::from(estimate <= limit && truth > limit);
        let error = estimate.abs_diff(truth) as f64 / truth as f64;
        errors.add(error);
        if truth >= limit / 2 {
            errors_of_many.add(error);
        }

        let has_room = admitted.count(caller, now) < limit;
        let is_admitted = counter.admits(caller, now);
        allowed += u32::from(is_admitted && !has_room);
        denied += u32::from(!is_admitted && has_room);
        if is_admitted {
            most = most.max(admitted.with(caller, now));
        }
        let is_logged = log.admits(caller, now);
        otherwise += u32::from(is_admitted != is_logged);
        by_counter += u32::from(is_admitted);
        by_log += u32::from(is_logged);
    }
    let share = |count: u32| format!("{:.3} %", 100.0 * f64::from(count) / requests.len() as f64);
    format!(
        "{} | {} | {} / {} | {:.1} % / {:.1} % | {} | {} | {most} | {} | {:+.2} %",
        requests.len(),
        share(above),
        share(over),
        share(under),
        100.0 * errors.mean(),
        100.0 * errors_of_many.mean(),
        share(allowed),
        share(denied),
        share(otherwise),
        100.0 * (f64::from(by_counter) / f64::from(by_log) - 1.0),
    )
}

const LIMIT: u64 = 100;
