//! What does one decision cost in each store?
//!
//! `cargo bench --bench decision`, or `-- memory` for one group. The Redis group starts a server of its own: the one
//! that `TOLLGATE_REDIS_SERVER` names, else the one on `PATH`.
//!
//! What do metrics cost? The group `recorded` repeats rows of `memory` with a Prometheus recorder installed. So for a hot
//! key, compare three rows, best in turns:
//!
//! ```sh
//! cargo bench --bench decision -- "memory/hot key, allowed$"                        # without the feature
//! cargo bench --bench decision --features metrics -- "memory/hot key, allowed$"     # with it, without a recorder
//! cargo bench --bench decision --features metrics -- "recorded/hot key, allowed$"   # with a recorder
//! ```
//!
//! The cost of recording denied requests in the top keys: `--features top-keys -- "top keys"`. Compare the allowed
//! hot key with that of `memory`, without the feature and with it.
//!
//! Keys are made from text for each decision, as a request would; the allowed quotas never run out.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tokio::{runtime::Runtime, task::JoinSet};
#[cfg(feature = "top-keys")]
use tollgate::top_keys::TopKeys;
use tollgate::{
    Decision, Key, Policy, Quota, RateLimiter, memory::MemoryStore, resilience::ResilientStore,
    store::StoreFuture,
};

#[expect(
    dead_code,
    unused_imports,
    reason = "the suites use all of it, a bench only the server"
)]
#[path = "../tests/support/mod.rs"]
mod support;

criterion_group!(benches, memory, mirror, redis, recorded, top_keys);
criterion_main!(benches);

fn memory(criterion: &mut Criterion) {
    let names = names(KEYS);
    let mut group = criterion.benchmark_group("memory");
    group.throughput(Throughput::Elements(1));

    let plenty = Limit::new(PLENTY);
    group.bench_function("hot key, allowed", |bencher| {
        bencher.iter(|| plenty.decide(black_box("user:000042")));
    });

    // A unit comes back in a whole number of microseconds at 25 a second, and in a fraction at 30.
    for (name, quota) in [("25", Quota::per_second(25)), ("30", Quota::per_second(30))] {
        let limit = Limit::new(quota.burst(1_000_000_000));
        group.bench_function(format!("hot key, allowed, {name} a second"), |bencher| {
            bencher.iter(|| limit.decide(black_box("user:000042")));
        });
    }

    group.bench_function("hot key, allowed, yes or no", |bencher| {
        let limit = Limit::new(PLENTY);
        bencher.iter(|| {
            at_once(
                limit
                    .limiter
                    .admits(&limit.policy, black_box("user:000042")),
            )
        });
    });

    let exhausted = Limit::new(Quota::per_day(1));
    exhausted.decide("user:000042");
    group.bench_function("hot key, denied", |bencher| {
        bencher.iter(|| exhausted.decide(black_box("user:000042")));
    });

    let uniform = Limit::new(STEADY);
    names.iter().for_each(|name| drop(uniform.decide(name)));
    let mut walk = Walk::new(1);
    group.bench_function("100,000 keys, allowed", |bencher| {
        bencher.iter(|| uniform.decide(walk.pick(&names)));
    });

    group.bench_function("hot key, allowed, two threads", |bencher| {
        bencher.iter_custom(|count| {
            together(2, |_| {
                for _ in 0..count {
                    plenty.decide(black_box("user:000042"));
                }
            })
        });
    });

    group.bench_function("100,000 keys, allowed, two threads", |bencher| {
        bencher.iter_custom(|count| {
            together(2, |thread| {
                let mut walk = Walk::new(thread + 2);
                for _ in 0..count {
                    uniform.decide(walk.pick(&names));
                }
            })
        });
    });

    let three = [
        Policy::new("second", PLENTY),
        Policy::new("day", PLENTY),
        Policy::new("everybody", PLENTY),
    ];
    group.bench_function("three charges together, allowed", |bencher| {
        bencher.iter(|| {
            let key = Key::new(black_box("user:000042"));
            at_once(plenty.limiter.check(&[
                three[0].charge(key),
                three[1].charge(key),
                three[2].charge(Key::GLOBAL),
            ]))
        });
    });

    group.throughput(Throughput::Elements(names.len() as u64));
    group.bench_function("100,000 new keys into an empty store", |bencher| {
        bencher.iter_batched(
            || Limit::new(STEADY),
            |limit| {
                names.iter().for_each(|name| drop(limit.decide(name)));
                limit
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// What it costs to keep the last state of each key for an outage: the primary is a store in process, which replies at once.
fn mirror(criterion: &mut Criterion) {
    let names = names(KEYS);
    let mut group = criterion.benchmark_group("mirror");
    group.throughput(Throughput::Elements(1));
    for (name, keys) in [("off", 0), ("on", KEYS)] {
        let [primary, local] = [(); 2].map(|()| MemoryStore::builder().build());
        let local = local.expect("a usable store");
        let store = ResilientStore::builder(primary.expect("a usable store"), local);
        let policy = Policy::new("bench", STEADY);
        let store = store.warm_keys(keys).build().expect("a usable store");
        let limiter = RateLimiter::new(store, [policy.clone()]).expect("a usable policy");
        let limit = Limit { limiter, policy };
        names.iter().for_each(|name| drop(limit.decide(name)));
        group.bench_function(format!("{name}, hot key"), |bencher| {
            bencher.iter(|| limit.decide(black_box("user:000042")));
        });
        let mut walk = Walk::new(1);
        group.bench_function(format!("{name}, 100,000 keys"), |bencher| {
            bencher.iter(|| limit.decide(walk.pick(&names)));
        });
    }
    group.finish();
}

fn redis(criterion: &mut Criterion) {
    let server = support::Server::start();
    let runtime = Runtime::new().expect("a runtime can be made");
    let policy = Policy::new("bench", STEADY);
    let limiter = RateLimiter::builder()
        .policy(policy.clone())
        .redis(server.url())
        // With the default of 50 ms a stall of this machine would open the breaker and void the run.
        .deadline(Duration::from_secs(1))
        .build()
        .expect("the url and the policy are usable");
    let names = names(1_000);
    let mut walk = Walk::new(1);
    let mut group = criterion.benchmark_group("redis");

    group.throughput(Throughput::Elements(1));
    group.bench_function("one in flight", |bencher| {
        bencher.to_async(&runtime).iter(|| {
            let answer = limiter.check(&[policy.charge(Key::new(walk.pick(&names)))]);
            async { answer.await.expect("the breaker always decides") }
        });
    });

    group.throughput(Throughput::Elements(64));
    group.bench_function("64 in flight", |bencher| {
        bencher.to_async(&runtime).iter(|| {
            // The answers are started inside the runtime, one task each, as a server would.
            let answers: Vec<StoreFuture<Decision>> = (0..64)
                .map(|_| limiter.check(&[policy.charge(Key::new(walk.pick(&names)))]))
                .collect();
            async { answers.into_iter().collect::<JoinSet<_>>().join_all().await }
        });
    });
    group.finish();
    assert!(!limiter.health().is_degraded(), "the server decided");
}

/// Measures the cost of counting decisions in a recorder, which stays installed: so this group is the last one.
#[cfg(feature = "metrics")]
fn recorded(criterion: &mut Criterion) {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder();
    recorder.expect("the first recorder");
    let mut group = criterion.benchmark_group("recorded");
    group.throughput(Throughput::Elements(1));
    let plenty = Limit::new(PLENTY);
    group.bench_function("hot key, allowed", |bencher| {
        bencher.iter(|| plenty.decide(black_box("user:000042")));
    });
    group.bench_function("hot key, allowed, two threads", |bencher| {
        bencher.iter_custom(|count| {
            together(2, |_| {
                for _ in 0..count {
                    plenty.decide(black_box("user:000042"));
                }
            })
        });
    });
    group.finish();
}

#[cfg(not(feature = "metrics"))]
fn recorded(_: &mut Criterion) {}

#[cfg(not(feature = "top-keys"))]
fn top_keys(_: &mut Criterion) {}

#[cfg(feature = "top-keys")]
fn top_keys(criterion: &mut Criterion) {
    let names = names(KEYS);
    let mut group = criterion.benchmark_group("top keys");
    group.throughput(Throughput::Elements(1));
    let denies = Limit::new(Quota::per_day(1));
    let recorded = Limit::recorded(Quota::per_day(1));
    let plenty = Limit::recorded(PLENTY);
    for (name, limit) in [
        ("off, hot key, denied", &denies),
        ("on, hot key, denied", &recorded),
        ("on, hot key, allowed", &plenty),
    ] {
        limit.decide("user:000042");
        group.bench_function(name, |bencher| {
            bencher.iter(|| limit.decide(black_box("user:000042")));
        });
    }

    for threads in [1, 2] {
        let top_keys = TopKeys::new();
        let record = |name: &str| top_keys.record(&denies.policy, &Key::new(name), 1);
        group.bench_function(format!("record, hot key, {threads} threads"), |bencher| {
            bencher.iter_custom(|count| {
                together(threads, |_| {
                    (0..count).for_each(|_| record(black_box("user:000042")));
                })
            });
        });
        // A key has lost its counter when it comes again, so each record takes over the smallest one.
        group.bench_function(
            format!("record, rotating keys, {threads} threads"),
            |bencher| {
                bencher.iter_custom(|count| {
                    together(threads, |_| {
                        let count = usize::try_from(count).expect("a count of runs");
                        names
                            .iter()
                            .cycle()
                            .take(count)
                            .for_each(|name| record(name));
                    })
                });
            },
        );
        group.bench_function(format!("snapshot, {threads} shards"), |bencher| {
            bencher.iter(|| top_keys.snapshot());
        });
    }
    group.finish();
}

/// One policy over a store of its own.
struct Limit {
    limiter: RateLimiter,
    policy: Policy,
}

impl Limit {
    fn new(quota: Quota) -> Self {
        let policy = Policy::new("bench", quota);
        let limiter = RateLimiter::new(MemoryStore::new(), [policy.clone()]);
        Self {
            limiter: limiter.expect("the policy is usable"),
            policy,
        }
    }

    /// The same, recorded in top keys.
    #[cfg(feature = "top-keys")]
    fn recorded(quota: Quota) -> Self {
        let policy = Policy::new("bench", quota);
        let limiter = RateLimiter::builder().policy(policy.clone());
        let limiter = limiter.top_keys(TopKeys::new()).build();
        Self {
            limiter: limiter.expect("the policy is usable"),
            policy,
        }
    }

    #[inline]
    fn decide(&self, name: &str) -> Decision {
        at_once(self.limiter.check(&[self.policy.charge(Key::new(name))]))
    }
}

#[inline]
fn at_once<T>(mut answer: StoreFuture<T>) -> T {
    answer
        .take_ready()
        .expect("memory answers at once")
        .expect("memory always decides")
}

/// A pseudo-random walk over names (PCG's multiplier), cheaper than what is measured.
struct Walk {
    state: u64,
}

impl Walk {
    fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    #[inline]
    fn pick<'a>(&mut self, names: &'a [String]) -> &'a str {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let place = (u128::from(self.state) * names.len() as u128) >> 64;
        &names[usize::try_from(place).expect("below the length")]
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("user:{number:06}"))
        .collect()
}

/// Runs the work on so many threads at once: the time until the last one is done.
fn together(threads: u64, work: impl Fn(u64) + Sync) -> Duration {
    let barrier = Barrier::new(usize::try_from(threads).expect("few") + 1);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(thread);
                barrier.wait();
            });
        }
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        start.elapsed()
    })
}

const KEYS: usize = 100_000;
/// More than any bench can use up.
const PLENTY: Quota = Quota::per_second(1_000_000).burst(1_000_000_000_000);
/// A key stays in debt for the whole bench, as busy clients do.
const STEADY: Quota = Quota::per_hour(1_000).burst(100_000_000);
