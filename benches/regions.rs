//! Three regions under one limit: the units that they admit together, the latency of a decision, and the calls between them.
//!
//! ```text
//! cargo bench --bench regions                    every row
//! cargo bench --bench regions -- cut moves       those whose names contain one of the words
//! ```
//!
//! Words: `even`, `all`, `moves`, `keys`, `cut`, `dies`, `skewed`. Flags: `--seconds 12`, `--limit 10000` (units a second for each
//! key, and the burst), `--warm 2` (seconds before latencies count: 7.5 for `moves`, so that each region has had the key once), `--cut 60` (seconds that a region is cut off), `--no-naive`.
//!
//! # Method
//!
//! Three regions, each with a Redis server, and two instances on a thread that begins requests at a rate: `a` is 80 ms from `b` and 150 ms from `c`, and
//! `b` 150 ms from `c`, by the delaying proxy of the tests. One key, whose home is `a`, unless the row is of many keys, whose homes
//! are all three. The load is a part of the limit, divided among the regions as in the name of the row.
//!
//! *Worst span* is by how much a span of whole milliseconds exceeds `burst + rate * t` over all regions, in percent of the burst; the
//! clock of the process is good for about 0.5 %. *Unused* is what was asked for and not admitted, although one bucket over all
//! regions would have admitted it, in percent of the limit. The latency is that of decisions away from the home, and at it,
//! after `--warm`.
//! *Calls* are those over the long way, of all regions.
//!
//! The naive way beside it: each region counts alone, and learns every 10 s how many the others have admitted. Its limit is what they
//! left in the 10 s before, or its even part if that is more.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

#[path = "support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Builder, task::LocalSet};
use tollgate::{
    Key, Policy, Quota, RateLimiter,
    remote::{RedisStore, Regions},
};

use self::support::{Arguments, Histogram, Mode, Proxy, Server};

/// The part of the load that a region asks for, by the time since the start.
type Part = fn(usize, Duration) -> f64;

/// A row of the table.
struct Row {
    name: &'static str,
    /// The load, as a part of the limit.
    load: f64,
    keys: usize,
    part: Part,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Region `c` cannot reach the others, nor they it.
    CutOff,
    /// The server of the home ends.
    HomeDies,
}

const EVEN: Part = |_, _| 1.0 / 3.0;
const AWAY: Part = |region, _| f64::from(u8::from(region == 2));
const MOVES: Part =
    |region, since| f64::from(u8::from(since.as_millis() as usize / 2_500 % 3 == region));
const SKEWED: Part = |region, _| if region == 2 { 0.9 } else { 0.05 };

const ROWS: [Row; 11] = [
    Row::new("even, 10 %", 0.1, 1, EVEN),
    Row::new("even, 50 %", 0.5, 1, EVEN),
    Row::new("even, 95 %", 0.95, 1, EVEN),
    Row::new("even, 150 %", 1.5, 1, EVEN),
    Row::new("all at c, 90 %", 0.9, 1, AWAY),
    Row::new("skewed, 90 % of it at c, 150 %", 1.5, 1, SKEWED),
    Row::new("moves every 2.5 s, 50 %", 0.5, 1, MOVES),
    Row::new("moves every 2.5 s, 90 %", 0.9, 1, MOVES),
    Row::new("1,000 keys, 50 %", 0.5, 1_000, EVEN),
    Row::new("c is cut off, 150 %", 1.5, 1, EVEN).with(Fault::CutOff),
    Row::new("the home dies, 150 %", 1.5, 1, EVEN).with(Fault::HomeDies),
];

impl Row {
    const fn new(name: &'static str, load: f64, keys: usize, part: Part) -> Self {
        Self {
            name,
            load,
            keys,
            part,
            fault: None,
        }
    }

    const fn with(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Returns the round trip between two regions.
fn distance(one: usize, other: usize) -> Duration {
    let millis = if one + other == 1 { 80 } else { 150 };
    Duration::from_millis(millis)
}

fn main() {
    let arguments =
        Arguments::of_process(&["--seconds", "--warm", "--limit", "--cut", "--no-naive"]);
    println!(
        "| load | way | admitted, of the limit | at a, b, c | worst span, % | unused, % | away: p50 / p99 / p99.9 ms | at home | calls a second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let words = ["even", "all", "moves", "keys", "cut", "dies", "skewed"];
    let words: Vec<&str> = words
        .into_iter()
        .filter(|word| arguments.has(word))
        .collect();
    for row in &ROWS {
        if words.is_empty() || words.iter().any(|word| row.name.contains(word)) {
            measure(&arguments, row, false);
            if !arguments.has("--no-naive") && row.fault.is_none() && row.keys == 1 {
                measure(&arguments, row, true);
            }
        }
    }
}

/// Shared by the threads.
struct World {
    started: Instant,
    ends: Duration,
    /// Latencies count from then on.
    warm: Duration,
    limit: f64,
    /// Units that the watched key was asked for in each millisecond, and those that were admitted.
    asked: Vec<AtomicU32>,
    admitted: Vec<AtomicU32>,
    /// Away from the home, and at it.
    latencies: [Mutex<Histogram>; 2],
    by_region: [AtomicU64; 3],
    naive: Option<Naive>,
}

fn measure(arguments: &Arguments, row: &Row, is_naive: bool) {
    let mut servers: Vec<Server> = NAMES.iter().map(|_| Server::start()).collect();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let mut proxies: Vec<((usize, usize), Proxy)> = Vec::new();
    for from in 0..3 {
        for to in (0..3).filter(|to| *to != from) {
            let proxy = runtime.block_on(Proxy::start(servers[to].address()));
            proxy.set(Mode::RoundTrip(distance(from, to)));
            proxies.push(((from, to), proxy));
        }
    }
    let cut = arguments.seconds("--cut", 60.0);
    let ends = match row.fault {
        Some(_) => cut + Duration::from_secs(10),
        None => arguments.seconds("--seconds", 12.0),
    };
    let millis = ends.as_millis() as usize + 5_000;
    let counts = || (0..millis).map(|_| AtomicU32::new(0)).collect();
    let world = Arc::new(World {
        started: Instant::now() + Duration::from_millis(300),
        ends,
        warm: arguments.seconds("--warm", 2.0),
        limit: arguments.value("--limit", 10_000.0),
        asked: counts(),
        admitted: counts(),
        latencies: [(); 2].map(|()| Mutex::default()),
        by_region: [(); 3].map(|()| AtomicU64::new(0)),
        naive: is_naive.then(Naive::default),
    });
    let threads: Vec<_> = (0..3)
        .map(|region| {
            let regions = regions(region, &servers, &proxies);
            let world = Arc::clone(&world);
            let load = (row.part, row.load, row.keys);
            thread::spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime can be made");
                let tasks = LocalSet::new();
                tasks.block_on(&runtime, ask(&world, region, &regions, load));
            })
        })
        .collect();
    if let Some(fault) = row.fault {
        thread::sleep(Duration::from_secs(4));
        match fault {
            Fault::CutOff => {
                let away = |(from, to): (usize, usize)| from == 2 || to == 2;
                for (_, proxy) in proxies.iter().filter(|(ends, _)| away(*ends)) {
                    proxy.set(Mode::BlackHole);
                }
                thread::sleep(cut);
                for ((from, to), proxy) in &proxies {
                    proxy.set(Mode::RoundTrip(distance(*from, *to)));
                }
            }
            Fault::HomeDies => servers[0].kill(),
        }
    }
    for thread in threads {
        thread.join().expect("a region does not panic");
    }
    let calls = proxies.iter().map(|(_, proxy)| proxy.pieces()).sum();
    world.print(row, calls);
}

/// Returns the settings of a region.
fn regions(region: usize, servers: &[Server], proxies: &[((usize, usize), Proxy)]) -> Regions {
    let deadline = Duration::from_secs(1);
    let here = RedisStore::builder(servers[region].url()).deadline(deadline);
    let mut regions = Regions::here(NAMES[region], here);
    for ((from, to), proxy) in proxies {
        if *from == region {
            regions = regions.region(NAMES[*to], proxy.url());
        }
    }
    regions
}

/// Asks for units from a region until the time is over.
async fn ask(
    world: &Arc<World>,
    region: usize,
    regions: &Regions,
    (part, load, count): (Part, f64, usize),
) {
    let is_home = |key: &Key| regions.home_of(key) == NAMES[region];
    let mut keys = (0..).map(|number| Key::new(format!("key-{number}")));
    let keys: Vec<(Key, bool)> = if count == 1 {
        let hot = keys.find(|key| regions.home_of(key) == NAMES[0]);
        vec![(hot.expect("a key"), region == 0)]
    } else {
        keys.take(count).map(|key| (key, is_home(&key))).collect()
    };
    let limiters = [(); 2].map(|()| {
        let limiter = RateLimiter::builder().regions(regions.clone()).build();
        limiter.expect("a usable limiter")
    });
    let each = (world.limit / count as f64) as u64;
    let policy = Policy::new("all", Quota::per_second(each).burst(each));
    let histograms = Rc::new(RefCell::new([Histogram::default(), Histogram::default()]));
    tokio::time::sleep_until(world.started.into()).await;
    let (mut due, mut at, mut number) = (0.0_f64, world.started, 0_usize);
    let running = Rc::new(Cell::new(0_usize));
    while at.elapsed() + (at - world.started) < world.ends {
        let now = Instant::now();
        let rate = world.limit * load * part(region, now - world.started);
        due += rate * (now - at).as_secs_f64();
        at = now;
        while due >= 1.0 {
            due -= 1.0;
            number += 1;
            let (key, is_home) = keys[number * 7 % keys.len()];
            let asked_at = world.milli();
            if let Some(naive) = &world.naive {
                let is_allowed = naive.admits(region, world.limit, now - world.started);
                world.note(region, asked_at, is_allowed);
                continue;
            }
            let decided = limiters[number % 2].check(&[policy.charge(key)]);
            let (world, histograms) = (Arc::clone(world), Rc::clone(&histograms));
            let running = Rc::clone(&running);
            running.set(running.get() + 1);
            tokio::task::spawn_local(async move {
                let is_allowed = decided.await.expect("a decision").is_allowed();
                if now - world.started > world.warm {
                    histograms.borrow_mut()[usize::from(is_home)].record(now.elapsed());
                }
                world.note(region, asked_at, is_allowed);
                running.set(running.get() - 1);
            });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while running.get() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (all, own) in world.latencies.iter().zip(&*histograms.borrow()) {
        lock(all).merge(own);
    }
}

impl World {
    fn milli(&self) -> usize {
        self.started.elapsed().as_millis() as usize
    }

    fn note(&self, region: usize, asked_at: usize, is_allowed: bool) {
        self.asked[asked_at].fetch_add(1, Ordering::Relaxed);
        if is_allowed {
            self.by_region[region].fetch_add(1, Ordering::Relaxed);
            self.admitted[self.milli()].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn print(&self, row: &Row, calls: usize) {
        let seconds = self.ends.as_secs_f64();
        let per_milli = self.limit / 1_000.0;
        let units = |units: &AtomicU64| units.load(Ordering::Relaxed) as f64;
        let by_region: Vec<f64> = self.by_region.iter().map(units).collect();
        let admitted: f64 = by_region.iter().sum();
        // What one bucket over all regions would have admitted, and how full one gets that admits the same as they did.
        let (mut central, mut ideal) = (0.0_f64, 0.0);
        let (mut level, mut worst) = (0.0_f64, f64::MIN);
        for (asked, admitted) in self.asked.iter().zip(&self.admitted) {
            central = (central - per_milli).max(0.0);
            let taken = f64::from(asked.load(Ordering::Relaxed)).min(self.limit - central);
            central += taken;
            ideal += taken;
            level = (level - per_milli).max(0.0) + f64::from(admitted.load(Ordering::Relaxed));
            worst = worst.max(level - per_milli - self.limit);
        }
        let percent = |units: f64| 100.0 * units / self.limit;
        let latency = |place: usize| {
            let latencies = lock(&self.latencies[place]);
            let millis = |share| latencies.quantile(share).as_secs_f64() * 1e3;
            format!(
                "{:.2} / {:.2} / {:.1}",
                millis(0.5),
                millis(0.99),
                millis(0.999)
            )
        };
        let parts: Vec<String> = by_region
            .iter()
            .map(|units| format!("{:.3}", units / (self.limit * seconds)))
            .collect();
        println!(
            "| {} | {} | {:.3} | {} | {:+.1} | {:.2} | {} | {} | {:.1} |",
            row.name,
            if self.naive.is_some() {
                "naive"
            } else {
                "tollgate"
            },
            admitted / (self.limit * (seconds + 1.0)),
            parts.join(", "),
            percent(worst),
            percent((ideal - admitted).max(0.0)) / seconds,
            latency(0),
            latency(1),
            calls as f64 / seconds,
        );
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === The naive way ===

#[derive(Default)]
struct Naive(Mutex<[NaiveRegion; 3]>);

#[derive(Clone, Copy, Default)]
struct NaiveRegion {
    /// The level of its own bucket, and when it was that.
    level: f64,
    at: Duration,
    /// Units of this period, and of the one before.
    units: [f64; 2],
    period: u64,
}

impl Naive {
    fn admits(&self, region: usize, limit: f64, now: Duration) -> bool {
        let period = now.as_secs() / 10;
        let mut regions = lock(&self.0);
        for other in regions.iter_mut().filter(|other| other.period < period) {
            other.units = [0.0, other.units[0]];
            other.period = period;
        }
        let others = (0..3).filter(|other| *other != region);
        let others: f64 = others.map(|other| regions[other].units[1] / 10.0).sum();
        let rate = (limit - others).max(limit / 3.0);
        let own = &mut regions[region];
        own.level = (own.level - rate * now.saturating_sub(own.at).as_secs_f64()).max(0.0);
        own.at = now;
        let is_allowed = own.level + 1.0 <= rate;
        if is_allowed {
            own.level += 1.0;
            own.units[0] += 1.0;
        }
        is_allowed
    }
}
