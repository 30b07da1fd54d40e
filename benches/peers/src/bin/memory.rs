//! Nanoseconds and bytes that a decision takes in process.
//!
//! `cargo run --release --ignore-rust-version --bin memory -- [--rounds 7] [--seconds 0.3] [--only uniform] [--keys 1000000,10000000] [--before PATH]`
//!
//! Every contender gets the same `String` for each decision and makes its key from it.

use std::{
    collections::HashMap,
    future::Future,
    hint::black_box,
    num::NonZeroU32,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use governor::{
    clock::DefaultClock,
    middleware::NoOpMiddleware,
    state::keyed::{DashMapStateStore, HashMapStateStore, KeyedStateStore},
};
use tollgate_peers::{
    allocations::{self, Counting},
    arguments::Arguments,
    builds::{Entrant, add_ratio_to_before, entrants},
    keys::{Walk, name, names},
    rounds::{Contender, interleave, nanos_per_call},
    table::{self, Summary, Table},
};
use tower_rate_limiter::Store as _;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let arguments = Arguments::of_process();
    if let Some(words) = arguments.subcommand("run") {
        run(words, &arguments);
        return;
    }
    for scenario in SCENARIOS {
        if arguments.picks(scenario.name) {
            compare_decisions(scenario, &arguments);
        }
    }
    if arguments.picks(INSERTS) {
        compare_inserts(&arguments);
    }
    if arguments.picks(BYTES) {
        compare_bytes(&arguments);
    }
}

/// Prints one sample of `TABLE LIMITER`.
fn run(words: &[String], arguments: &Arguments) {
    let [table, name, ..] = words else {
        panic!("run takes a table and a limiter");
    };
    let limiter = LIMITERS.iter().find(|limiter| limiter.name == name);
    let limiter = limiter.unwrap_or_else(|| panic!("there is no limiter {name:?}"));
    let keys = arguments.value("--keys", 1_000_000);
    match table.as_str() {
        INSERTS => println!("{}", (limiter.inserts)(keys)),
        BYTES => {
            let [now, peak] = (limiter.bytes)(keys);
            println!("{now} {peak}");
        }
        _ => {
            let scenario = SCENARIOS.iter().find(|scenario| scenario.name == table);
            let scenario = scenario.unwrap_or_else(|| panic!("there is no table {table:?}"));
            let span = arguments.seconds("--seconds", 0.3);
            println!("{}", (limiter.decisions)(scenario, span));
        }
    }
}

// === The limiters ===

/// A limiter that decides by one `String` per call.
#[expect(clippy::ptr_arg, reason = "governor's keyed limiter takes no `&str`")]
trait Limiter: Sync {
    fn new(rate: Rate, keys: usize) -> Self;

    fn is_allowed(&self, name: &String) -> bool;
}

/// Quota of each key.
#[derive(Clone, Copy)]
enum Rate {
    /// More than a bench can use, and refilled as fast as it is used.
    Plenty,
    /// More than a bench can use, refilled so slowly that every key stays in debt.
    Steady,
    /// One a day.
    Once,
}

struct Tollgate {
    limiter: tollgate::RateLimiter,
    policy: tollgate::Policy,
}

impl Limiter for Tollgate {
    fn new(rate: Rate, keys: usize) -> Self {
        use tollgate::{Policy, Quota, RateLimiter, memory::MemoryStore};
        let quota = match rate {
            Rate::Plenty => Quota::per_second(1_000_000).burst(1_000_000_000_000),
            Rate::Steady => Quota::per_hour(1_000).burst(100_000_000),
            Rate::Once => Quota::per_day(1),
        };
        let policy = Policy::new("bench", quota);
        let store = MemoryStore::builder().max_keys(keys.max(1_000_000)).build();
        let limiter = RateLimiter::new(store.expect("not zero"), [policy.clone()]);
        Self {
            limiter: limiter.expect("the policy is usable"),
            policy,
        }
    }

    #[inline]
    fn is_allowed(&self, name: &String) -> bool {
        self.limiter
            .check(&[self.policy.charge(tollgate::Key::new(name))])
            .take_ready()
            .expect("memory decides at once")
            .expect("memory always decides")
            .is_allowed()
    }
}

/// As [`Tollgate`], for callers who need no more than yes or no.
struct TollgateAdmits(Tollgate);

impl Limiter for TollgateAdmits {
    fn new(rate: Rate, keys: usize) -> Self {
        Self(Tollgate::new(rate, keys))
    }

    #[inline]
    fn is_allowed(&self, name: &String) -> bool {
        let admitted = self.0.limiter.admits(&self.0.policy, name).take_ready();
        admitted
            .expect("memory decides at once")
            .expect("memory always decides")
    }
}

struct Governor<S: KeyedStateStore<String>> {
    limiter: governor::RateLimiter<String, S, DefaultClock, NoOpMiddleware>,
}

fn governor_quota(rate: Rate) -> governor::Quota {
    let quota = |count: u32| NonZeroU32::new(count).expect("not zero");
    match rate {
        Rate::Plenty => governor::Quota::per_second(quota(1_000_000)).allow_burst(NonZeroU32::MAX),
        Rate::Steady => governor::Quota::per_hour(quota(1_000)).allow_burst(quota(100_000_000)),
        Rate::Once => governor::Quota::with_period(Duration::from_secs(86_400)).expect("not zero"),
    }
}

impl Limiter for Governor<DashMapStateStore<String>> {
    fn new(rate: Rate, _: usize) -> Self {
        Self {
            limiter: governor::RateLimiter::dashmap(governor_quota(rate)),
        }
    }

    #[inline]
    fn is_allowed(&self, name: &String) -> bool {
        self.limiter.check_key(name).is_ok()
    }
}

impl Limiter for Governor<HashMapStateStore<String>> {
    fn new(rate: Rate, _: usize) -> Self {
        Self {
            limiter: governor::RateLimiter::hashmap(governor_quota(rate)),
        }
    }

    #[inline]
    fn is_allowed(&self, name: &String) -> bool {
        self.limiter.check_key(name).is_ok()
    }
}

struct TowerRateLimiter {
    store: tower_rate_limiter::MemoryStore,
    limit: u64,
    window: Duration,
}

impl Limiter for TowerRateLimiter {
    fn new(rate: Rate, _: usize) -> Self {
        let (limit, seconds) = match rate {
            Rate::Plenty | Rate::Steady => (u64::MAX, 3_600),
            Rate::Once => (1, 86_400),
        };
        Self {
            store: tower_rate_limiter::MemoryStore::new(),
            limit,
            window: Duration::from_secs(seconds),
        }
    }

    #[inline]
    fn is_allowed(&self, name: &String) -> bool {
        let future = pin!(self.store.increment(name, self.window));
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(usage) => usage.expect("memory always decides").used <= self.limit,
            Poll::Pending => unreachable!("memory decides at once"),
        }
    }
}

struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: limitador::limit::Namespace,
}

impl Limiter for Limitador {
    fn new(rate: Rate, keys: usize) -> Self {
        let (most, seconds) = match rate {
            Rate::Plenty | Rate::Steady => (u64::MAX / 2, 3_600),
            Rate::Once => (1, 86_400),
        };
        let limiter = limitador::RateLimiter::new(keys.max(1_000_000) as u64);
        let user = limitador::limit::Expression::parse("user").expect("a name");
        limiter.add_limit(limitador::limit::Limit::new(
            "bench",
            most,
            seconds,
            [],
            [user],
        ));
        Self {
            limiter,
            namespace: "bench".into(),
        }
    }

    #[inline]
    fn is_allowed(&self, name: &String) -> bool {
        let values = HashMap::from([("user".to_owned(), name.clone())]);
        let answer = self
            .limiter
            .check_rate_limited_and_update(&self.namespace, &values.into(), 1);
        !answer.expect("memory always decides").limited
    }
}

/// Decides nothing: the cost of the loop around the decisions.
struct LoopAlone {
    is_allowed: bool,
}

impl Limiter for LoopAlone {
    fn new(rate: Rate, _: usize) -> Self {
        Self {
            is_allowed: !matches!(rate, Rate::Once),
        }
    }

    #[inline]
    fn is_allowed(&self, name: &String) -> bool {
        black_box(name);
        self.is_allowed
    }
}

/// A limiter with its name in the tables, and its measurements.
struct NamedLimiter {
    name: &'static str,
    /// Nanoseconds per decision and thread.
    decisions: fn(&Scenario, Duration) -> f64,
    /// Nanoseconds per new key.
    inserts: fn(usize) -> f64,
    /// Bytes per key, now and at the peak.
    bytes: fn(usize) -> [f64; 2],
}

const fn named<L: Limiter>(name: &'static str) -> NamedLimiter {
    NamedLimiter {
        name,
        decisions: decisions::<L>,
        inserts: inserts::<L>,
        bytes: bytes::<L>,
    }
}

const LIMITERS: &[NamedLimiter] = &[
    named::<Tollgate>("tollgate"),
    named::<TollgateAdmits>("tollgate, admits"),
    named::<Governor<DashMapStateStore<String>>>(BASELINE),
    named::<Governor<HashMapStateStore<String>>>("governor HashMap"),
    named::<TowerRateLimiter>("tower-rate-limiter, fixed window"),
    named::<Limitador>("limitador, fixed window"),
    named::<LoopAlone>(LOOP_ALONE),
];

/// The limiter that ratios refer to.
const BASELINE: &str = "governor DashMap";
const LOOP_ALONE: &str = "the loop alone";

// === Decisions ===

struct Scenario {
    name: &'static str,
    rate: Rate,
    keys: usize,
    threads: u64,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "hot key, allowed, 1 thread",
        rate: Rate::Plenty,
        keys: 1,
        threads: 1,
    },
    Scenario {
        name: "hot key, denied, 1 thread",
        rate: Rate::Once,
        keys: 1,
        threads: 1,
    },
    Scenario {
        name: "hot key, allowed, 2 threads",
        rate: Rate::Plenty,
        keys: 1,
        threads: 2,
    },
    Scenario {
        name: "hot key, denied, 2 threads",
        rate: Rate::Once,
        keys: 1,
        threads: 2,
    },
    Scenario {
        name: "uniform over 100,000 keys, allowed, 1 thread",
        rate: Rate::Steady,
        keys: 100_000,
        threads: 1,
    },
    Scenario {
        name: "uniform over 100,000 keys, allowed, 2 threads",
        rate: Rate::Steady,
        keys: 100_000,
        threads: 2,
    },
];

fn decisions<L: Limiter>(scenario: &Scenario, span: Duration) -> f64 {
    let names = &names(scenario.keys)[..];
    let limiter = L::new(scenario.rate, names.len());
    let expected = !matches!(scenario.rate, Rate::Once);
    names.iter().for_each(|name| {
        limiter.is_allowed(name);
    });
    nanos_per_call(scenario.threads, span, |thread| {
        let mut walk = Walk::new(thread + 1);
        let limiter = &limiter;
        move || {
            let allowed = limiter.is_allowed(black_box(walk.pick(names)));
            assert_eq!(allowed, expected, "the quota fits the scenario");
        }
    })
}

fn compare_decisions(scenario: &Scenario, arguments: &Arguments) {
    let seconds = arguments.value("--seconds", 0.3).to_string();
    let entrants = entrants(LIMITERS.iter().map(|limiter| limiter.name), arguments);
    let sample = |entrant: &Entrant| {
        let words = ["run", scenario.name, &entrant.name, "--seconds", &seconds];
        let [nanos] = entrant.sample(&words);
        nanos
    };
    let rounds = arguments.value("--rounds", 7);
    compare(scenario.name, &entrants, rounds, sample);
}

// === Inserts ===

/// Nanoseconds per insert of `keys` new keys.
fn inserts<L: Limiter>(keys: usize) -> f64 {
    let names = names(keys);
    let limiter = L::new(Rate::Steady, keys);
    let start = Instant::now();
    for name in &names {
        assert!(limiter.is_allowed(black_box(name)), "the quota is plenty");
    }
    start.elapsed().as_nanos() as f64 / keys as f64
}

fn compare_inserts(arguments: &Arguments) {
    let names = LIMITERS.iter().map(|limiter| limiter.name);
    let entrants = entrants(names.filter(|name| *name != LOOP_ALONE), arguments);
    let sample = |entrant: &Entrant| {
        let is_slow = entrant.name.ends_with("fixed window");
        let keys = if is_slow { "100000" } else { "1000000" };
        let [nanos] = entrant.sample(&["run", INSERTS, &entrant.name, "--keys", keys]);
        nanos
    };
    let rounds: usize = arguments.value("--rounds", 7);
    let heading =
        "inserts: 1,000,000 new keys into an empty store (fixed windows: 100,000), 1 thread";
    compare(heading, &entrants, rounds.min(5), sample);
}

/// Measures the entrants of one table in nanoseconds, and prints it.
fn compare(heading: &str, entrants: &[Entrant], rounds: usize, sample: impl Fn(&Entrant) -> f64) {
    let mut contenders: Vec<_> = entrants
        .iter()
        .map(|entrant| Contender::new(&entrant.label, || sample(entrant)))
        .collect();
    let samples = interleave(&mut contenders, rounds);
    let baseline = entrants.iter().position(|entrant| entrant.name == BASELINE);
    let baseline = &samples[baseline.expect("the baseline is in every table")];
    let labels = entrants.iter().map(|entrant| entrant.label.clone());
    let mut table = Table::new("limiter", labels);
    table.add_column(
        "ns a decision and thread, median (min..max)",
        samples
            .iter()
            .map(|samples| Summary::of(samples.iter().copied()).show(1)),
    );
    table.add_column(
        &format!("ratio to {BASELINE}"),
        samples
            .iter()
            .map(|samples| Summary::of_ratios(samples, baseline, |nanos| *nanos).show(2)),
    );
    add_ratio_to_before(&mut table, entrants, &samples, |nanos| *nanos);
    table.print(heading);
}

const INSERTS: &str = "inserts";

// === Bytes ===

/// Bytes per key that the allocator was asked for: now, and at the peak while the store grew.
fn bytes<L: Limiter>(keys: usize) -> [f64; 2] {
    let before = allocations::live_bytes();
    allocations::reset_peak();
    let limiter = L::new(Rate::Steady, keys);
    for number in 0..keys {
        assert!(limiter.is_allowed(&name(number)), "the quota is plenty");
    }
    let per_key = |bytes: i64| (bytes - before) as f64 / keys as f64;
    [allocations::live_bytes(), allocations::peak_bytes()].map(per_key)
}

fn compare_bytes(arguments: &Arguments) {
    let counts: String = arguments.value("--keys", "1000000,10000000".to_owned());
    let names = ["tollgate", "governor DashMap", "governor HashMap"];
    let entrants = entrants(names, arguments);
    let mut rows = Vec::new();
    for keys in counts.split(',') {
        for entrant in &entrants {
            let words = ["run", BYTES, &entrant.name, "--keys", keys];
            let [now, peak] = entrant.sample(&words);
            let keys = keys.to_owned();
            rows.push(vec![
                entrant.label.clone(),
                keys,
                format!("{now:.1}"),
                format!("{peak:.1}"),
            ]);
        }
    }
    let columns = ["limiter", "keys", "bytes a key", "peak while it grew"];
    let heading = "bytes a key, as requested from the allocator (without its own overhead)";
    table::print(heading, &columns, &rows);
}

const BYTES: &str = "bytes";
