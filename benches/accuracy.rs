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

use std::collections::{HashMap, VecDeque};

use tollgate::{
    Quota,
    algorithm::{
        Algorithm, BucketState, Counter, Counting, LogState, Opening, SlidingState, WindowState,
    },
    clock::Timestamp,
};

fn main() {
    bursts();
    edges();
    traffic();
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
            plain(Algorithm::FixedWindow(Opening::Clock)),
            "",
        ),
        (
            "fixed window, first hit",
            plain(Algorithm::FixedWindow(Opening::FirstHit)),
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
            Algorithm::FixedWindow(Opening::Clock),
        ),
        (
            "fixed window, first hit",
            Algorithm::FixedWindow(Opening::FirstHit),
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

// === Traffic ===

fn traffic() {
    let skewed = skewed();
    let shapes = [
        ("steady", LIMIT, &steady()),
        ("bursty", LIMIT, &bursty()),
        ("skewed", LIMIT, &skewed),
        ("skewed, few above the limit", 2_000, &skewed),
        ("at the edges", LIMIT, &adversarial()),
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

/// 1,000 callers for 20 minutes, each at a rate of its own with independent gaps (a Poisson process). The rates lie
/// between 1 and 200 a minute, as many between 1 and 2 as between 100 and 200.
fn steady() -> Vec<(u64, u32)> {
    let mut random = Random(1);
    let callers = (0..1_000).flat_map(|caller| {
        let gap = MINUTE as f64 / 200_f64.powf(random.portion());
        let mut at = START as f64;
        let mut times = Vec::new();
        loop {
            at += gap * random.gap();
            if at >= (START + 20 * MINUTE) as f64 {
                break times;
            }
            times.push((at as u64, caller));
        }
    });
    in_order(callers.collect())
}

/// The same callers, who come in bursts of 1 to 40 within two seconds, with independent gaps between the bursts.
fn bursty() -> Vec<(u64, u32)> {
    let mut random = Random(2);
    let callers = (0..1_000).flat_map(|caller| {
        let gap = 20.5 * MINUTE as f64 / 200_f64.powf(random.portion());
        let mut at = START as f64;
        let mut times = Vec::new();
        loop {
            at += gap * random.gap();
            if at >= (START + 20 * MINUTE) as f64 {
                break times;
            }
            let size = 1 + random.below(40);
            times.extend((0..size).map(|_| (at as u64 + random.below(2 * SECOND), caller)));
        }
    });
    in_order(callers.collect())
}

/// 2,000,000 requests in 20 minutes at independent moments, from 100,000 callers: the n-th comes 1/n as often as the
/// first (Zipf).
fn skewed() -> Vec<(u64, u32)> {
    let mut random = Random(3);
    let mut sums = Vec::with_capacity(100_000);
    let mut sum = 0.0;
    for rank in 1..=100_000_u32 {
        sum += 1.0 / f64::from(rank);
        sums.push(sum);
    }
    let requests = (0..2_000_000).map(|_| {
        let at = START + random.below(20 * MINUTE);
        let wanted = random.portion() * sum;
        let caller = sums.partition_point(|sum| *sum < wanted);
        (at, u32::try_from(caller).expect("below 100,000"))
    });
    in_order(requests.collect())
}

/// 1,000 callers who know when windows open: in each second minute 100 requests in the last half second, and in the
/// minute after it one each 300 ms.
fn adversarial() -> Vec<(u64, u32)> {
    let mut random = Random(4);
    let callers = (0..1_000).flat_map(|caller| {
        let mut times = Vec::new();
        for pair in 0..10 {
            let edge = START + (2 * pair + 1) * MINUTE;
            times.extend((0..100).map(|_| (edge - 1 - random.below(SECOND / 2), caller)));
            times.extend(
                (0..200).map(|step| (edge + step * 300_000 + random.below(300_000), caller)),
            );
        }
        times
    });
    in_order(callers.collect())
}

fn in_order(mut requests: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
    requests.sort_unstable();
    requests
}

// === Gate ===

/// A counter with the state of every caller.
struct Gate {
    counter: Counter,
    states: HashMap<u32, State>,
}

enum State {
    Bucket(BucketState),
    FixedWindow(WindowState),
    SlidingLog(LogState),
    SlidingWindow(SlidingState),
}

macro_rules! counted {
    ($gate:expr, $caller:expr, ($counter:ident, $state:ident) => $body:expr) => {{
        let counter = &$gate.counter;
        let state = $gate
            .states
            .entry($caller)
            .or_insert_with(|| State::fresh(counter));
        match (counter, state) {
            (Counter::Bucket($counter), State::Bucket($state)) => $body,
            (Counter::FixedWindow($counter), State::FixedWindow($state)) => $body,
            (Counter::SlidingLog($counter), State::SlidingLog($state)) => $body,
            (Counter::SlidingWindow($counter), State::SlidingWindow($state)) => $body,
            _ => unreachable!("states are made for their counter"),
        }
    }};
}

impl Gate {
    fn new(quota: Quota, algorithm: Algorithm) -> Self {
        Self {
            counter: Counter::new(quota, algorithm).expect("a usable quota"),
            states: HashMap::new(),
        }
    }

    fn admits(&mut self, caller: u32, now: u64) -> bool {
        let now = Timestamp::from_micros(now);
        counted!(self, caller, (counter, state) => counter.take(state, now, 1))
    }

    fn used(&mut self, caller: u32, now: u64) -> u64 {
        let now = Timestamp::from_micros(now);
        let usage = counted!(self, caller, (counter, state) => counter.usage(state, now));
        usage.limit - usage.remaining
    }
}

impl State {
    fn fresh(counter: &Counter) -> Self {
        match counter {
            Counter::Bucket(_) => Self::Bucket(BucketState::default()),
            Counter::FixedWindow(_) => Self::FixedWindow(WindowState::default()),
            Counter::SlidingLog(_) => Self::SlidingLog(LogState::default()),
            Counter::SlidingWindow(_) => Self::SlidingWindow(SlidingState::default()),
            other => unreachable!("no row counts by {other:?}"),
        }
    }
}

// === Truth ===

/// The times of each caller within the last minute.
#[derive(Default)]
struct Truth {
    times: HashMap<u32, VecDeque<u64>>,
}

impl Truth {
    fn count(&mut self, caller: u32, now: u64) -> u64 {
        let times = self.times.entry(caller).or_default();
        while times.front().is_some_and(|first| first + MINUTE <= now) {
            times.pop_front();
        }
        times.len() as u64
    }

    /// Counts one more: how many there are with it.
    fn with(&mut self, caller: u32, now: u64) -> u64 {
        let count = self.count(caller, now);
        self.times.entry(caller).or_default().push_back(now);
        count + 1
    }
}

// === Mean ===

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

// === Random ===

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to 1.
    fn portion(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A gap between independent events, 1 in the mean.
    fn gap(&mut self) -> f64 {
        -(1.0 - self.portion()).ln()
    }
}

const LIMIT: u64 = 100;
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
/// A moment at which a minute begins.
const START: u64 = 28_333_334 * MINUTE;
