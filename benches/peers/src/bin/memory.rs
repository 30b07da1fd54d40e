//! What does one decision cost in process, beside other limiters?
//!
//! `cargo run --release --ignore-rust-version --bin memory -- [--rounds 7] [--seconds 0.3] [--only uniform] [--keys 1000000,10000000]`
//!
//! Every contender gets the same `String` and finds its key in it by itself, each time.

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
    keys::{Walk, name, names},
    rounds::{Contender, interleave, nanos_per_call},
    table::{self, Summary},
};
use tower_rate_limiter::Store as _;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let arguments = Arguments::of_process();
    for scenario in SCENARIOS {
        if arguments.picks(scenario.name) {
            decisions(scenario, &arguments);
        }
    }
    if arguments.picks("inserts") {
        inserts(&arguments);
    }
    if arguments.picks("bytes") {
        bytes(&arguments);
    }
}

// === The limiters ===

/// A limiter under test, by one `String` per decision.
#[expect(clippy::ptr_arg, reason = "governor's keyed limiter takes no `&str`")]
trait Limiter: Sync {
    fn new(rate: Rate, keys: usize) -> Self;

    fn is_allowed(&self, name: &String) -> bool;
}

/// How much the keys may.
#[derive(Clone, Copy)]
enum Rate {
    /// More than a bench can use; the bucket is soon full again.
    Plenty,
    /// More than a bench can use, at a rate that leaves every key in debt.
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
            .now_or_later()
            .expect("memory answers at once")
            .expect("memory always decides")
            .is_allowed()
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
            Poll::Pending => unreachable!("memory answers at once"),
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

fn decisions(scenario: &Scenario, arguments: &Arguments) {
    let span = arguments.seconds("--seconds", 0.3);
    let names = &names(scenario.keys)[..];
    let mut contenders = vec![
        contender::<Tollgate>("tollgate", scenario, names, span),
        contender::<Governor<DashMapStateStore<String>>>("governor DashMap", scenario, names, span),
        contender::<Governor<HashMapStateStore<String>>>("governor HashMap", scenario, names, span),
        contender::<TowerRateLimiter>("tower-rate-limiter, fixed window", scenario, names, span),
        contender::<Limitador>("limitador, fixed window", scenario, names, span),
        Contender::new("the loop alone", move || {
            nanos_per_call(scenario.threads, span, |thread| {
                let mut walk = Walk::new(thread + 1);
                move || {
                    black_box(walk.pick(names));
                }
            })
        }),
    ];
    let samples = interleave(&mut contenders, arguments.value("--rounds", 7));
    print_nanos(scenario.name, &contenders, &samples);
}

fn contender<'a, L: Limiter + 'a>(
    name: &str,
    scenario: &'a Scenario,
    names: &'a [String],
    span: Duration,
) -> Contender<'a, f64> {
    let limiter = L::new(scenario.rate, names.len());
    let expected = !matches!(scenario.rate, Rate::Once);
    names.iter().for_each(|name| {
        limiter.is_allowed(name);
    });
    Contender::new(name, move || {
        nanos_per_call(scenario.threads, span, |thread| {
            let mut walk = Walk::new(thread + 1);
            let limiter = &limiter;
            move || {
                let allowed = limiter.is_allowed(black_box(walk.pick(names)));
                assert_eq!(allowed, expected, "the scenario is what it says");
            }
        })
    })
}

// === Inserts ===

fn inserts(arguments: &Arguments) {
    let names = &names(1_000_000)[..];
    let few = &names[..100_000];
    let mut contenders = vec![
        inserter::<Tollgate>("tollgate", names),
        inserter::<Governor<DashMapStateStore<String>>>("governor DashMap", names),
        inserter::<Governor<HashMapStateStore<String>>>("governor HashMap", names),
        inserter::<TowerRateLimiter>("tower-rate-limiter (100,000 keys)", few),
        inserter::<Limitador>("limitador (100,000 keys)", few),
    ];
    let rounds = arguments.value("--rounds", 7);
    let samples = interleave(&mut contenders, rounds.min(5));
    print_nanos(
        "inserts: 1,000,000 new keys into an empty store, 1 thread",
        &contenders,
        &samples,
    );
}

fn inserter<'a, L: Limiter + 'a>(name: &str, names: &'a [String]) -> Contender<'a, f64> {
    Contender::new(name, move || {
        let limiter = L::new(Rate::Steady, names.len());
        let start = Instant::now();
        for name in names {
            assert!(limiter.is_allowed(black_box(name)), "the quota is plenty");
        }
        start.elapsed().as_nanos() as f64 / names.len() as f64
    })
}

fn print_nanos(heading: &str, contenders: &[Contender<'_, f64>], samples: &[Vec<f64>]) {
    let summaries: Vec<Summary> = samples
        .iter()
        .map(|samples| Summary::of(samples.iter().copied()))
        .collect();
    let governor = summaries[1].median;
    let rows: Vec<Vec<String>> = contenders
        .iter()
        .zip(&summaries)
        .map(|(contender, summary)| {
            vec![
                contender.name.clone(),
                summary.show(1),
                format!("{:.2}", summary.median / governor),
            ]
        })
        .collect();
    let columns = [
        "limiter",
        "ns a decision and thread, median (min..max)",
        "ratio to governor DashMap",
    ];
    table::print(heading, &columns, &rows);
}

// === Bytes ===

fn bytes(arguments: &Arguments) {
    let counts: String = arguments.value("--keys", "1000000,10000000".to_owned());
    let mut rows = Vec::new();
    for count in counts.split(',') {
        let count = count.parse().expect("--keys takes whole numbers");
        rows.push(bytes_of::<Tollgate>("tollgate", count));
        rows.push(bytes_of::<Governor<DashMapStateStore<String>>>(
            "governor DashMap",
            count,
        ));
        rows.push(bytes_of::<Governor<HashMapStateStore<String>>>(
            "governor HashMap",
            count,
        ));
    }
    let columns = [
        "limiter",
        "keys",
        "bytes a key",
        "at its peak, while it grew",
    ];
    table::print(
        "bytes a key, as asked of the allocator (its own overhead comes on top)",
        &columns,
        &rows,
    );
}

fn bytes_of<L: Limiter>(limiter_name: &str, count: usize) -> Vec<String> {
    let before = allocations::live_bytes();
    allocations::reset_peak();
    let limiter = L::new(Rate::Steady, count);
    for number in 0..count {
        assert!(limiter.is_allowed(&name(number)), "the quota is plenty");
    }
    let per_key = |bytes: i64| format!("{:.1}", (bytes - before) as f64 / count as f64);
    vec![
        limiter_name.to_owned(),
        count.to_string(),
        per_key(allocations::live_bytes()),
        per_key(allocations::peak_bytes()),
    ]
}
