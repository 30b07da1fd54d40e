//! Throughput, latency, CPU and commands of a decision in Redis, for tollgate and other ways to make it.
//!
//! `cargo run --release --ignore-rust-version --bin redis -- [--rounds 5] [--seconds 2] [--flight 1,64,512] [--keys 1000] [--only tollgate]`
//!
//! All contenders share one Redis server on loopback. The loop is closed: `--flight` tasks on one multi-threaded runtime
//! make one decision after another over the same keys.

use std::{
    collections::BTreeMap,
    future::Future,
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use deadpool_redis::{Config, Pool, Runtime as PoolRuntime};
use redis::{Client, aio::MultiplexedConnection};
use tokio::{runtime::Runtime, task::JoinSet};
use tollgate::{Key, Policy, Quota, RateLimiter, decision::CountedBy};
use tollgate_peers::{
    arguments::Arguments,
    cpu, gcra,
    keys::{Walk, names},
    rounds::{Contender, interleave},
    server::Server,
    table::{self, Summary},
};
use tower_rate_limiter::Store as _;

fn main() {
    let arguments = Arguments::of_process();
    let runtime = Runtime::new().expect("a runtime can be made");
    let server = Server::start();
    let bench = Bench {
        admin: runtime.block_on(connect(&server.url)),
        names: names(arguments.value("--keys", 1_000)).into(),
        runtime,
    };
    let flights: String = arguments.value("--flight", "1,64,512".to_owned());
    let contestants = bench.contestants(&server.url, &arguments);
    for flight in flights.split(',') {
        let flight = flight.parse().expect("--flight takes whole numbers");
        bench.compare(&contestants, flight, &arguments);
    }
}

// === The contestants ===

/// A way to make a decision. Returns `false` if Redis did not count it.
trait Decide: Send + Sync + 'static {
    fn decide(&self, name: &str) -> impl Future<Output = bool> + Send;
}

struct Tollgate {
    limiter: RateLimiter,
    policy: Policy,
}

impl Tollgate {
    fn new(url: &str) -> Self {
        let policy = Policy::new("bench", Quota::per_second(1).burst(gcra::BURST_SECONDS));
        let limiter = RateLimiter::builder()
            .policy(policy.clone())
            .redis(url)
            // With the default of 50 ms, a stall of the machine could open the breaker and void the run.
            .deadline(Duration::from_secs(1));
        Self {
            limiter: limiter.build().expect("the url and the policy are usable"),
            policy,
        }
    }
}

impl Decide for Tollgate {
    async fn decide(&self, name: &str) -> bool {
        let answer = self
            .limiter
            .check(&[self.policy.charge(Key::new(name))])
            .await;
        let decision = answer.expect("the breaker always decides");
        // The fallback decides in nanoseconds: that must not pass for a decision in Redis.
        decision.is_allowed() && decision.counted_by() == CountedBy::Shared
    }
}

struct Multiplexed {
    connection: MultiplexedConnection,
    hash: String,
}

impl Decide for Multiplexed {
    async fn decide(&self, name: &str) -> bool {
        let mut connection = self.connection.clone();
        let (allowed, _): (i64, i64) = gcra::decide(&self.hash, &format!("mux:{name}"))
            .query_async(&mut connection)
            .await
            .expect("Redis responds");
        allowed == 1
    }
}

struct Pooled {
    pool: Pool,
    hash: String,
}

impl Decide for Pooled {
    async fn decide(&self, name: &str) -> bool {
        let mut connection = self.pool.get().await.expect("the pool is large enough");
        let (allowed, _): (i64, i64) = gcra::decide(&self.hash, &format!("pool:{name}"))
            .query_async(&mut connection)
            .await
            .expect("Redis responds");
        allowed == 1
    }
}

struct TowerRateLimiter {
    store: tower_rate_limiter::RedisStore,
}

impl Decide for TowerRateLimiter {
    async fn decide(&self, name: &str) -> bool {
        let usage = self.store.increment(name, Duration::from_secs(3_600)).await;
        usage.expect("Redis responds").used > 0
    }
}

// === The bench ===

struct Bench {
    runtime: Runtime,
    admin: MultiplexedConnection,
    names: Arc<[String]>,
}

type Contestant<'a> = (&'static str, Box<dyn Fn(usize, Duration) -> Sample + 'a>);

impl Bench {
    fn contestants<'a>(&'a self, url: &str, arguments: &Arguments) -> Vec<Contestant<'a>> {
        let connection = |url: &str| self.runtime.block_on(connect(url));
        let hash = self.runtime.block_on(gcra::load(&mut self.admin.clone()));
        let mut config = Config::from_url(url);
        config.pool = Some(deadpool_redis::PoolConfig::new(32));
        let pool = config.create_pool(Some(PoolRuntime::Tokio1));
        let mut contestants = vec![
            self.contestant(
                "one MultiplexedConnection, plain GCRA",
                Multiplexed {
                    connection: connection(url),
                    hash: hash.clone(),
                },
            ),
            self.contestant("tollgate", Tollgate::new(url)),
            self.contestant(
                "deadpool-redis checkout of 32, plain GCRA",
                Pooled {
                    pool: pool.expect("the url is well formed"),
                    hash,
                },
            ),
            self.contestant(
                "tower-rate-limiter redis-lua, fixed window",
                TowerRateLimiter {
                    store: tower_rate_limiter::RedisStore::new(connection(url)),
                },
            ),
        ];
        contestants.retain(|(name, _)| arguments.picks(name));
        contestants
    }

    fn contestant<'a>(&'a self, name: &'static str, decide: impl Decide) -> Contestant<'a> {
        let decide = Arc::new(decide);
        (
            name,
            Box::new(move |flight, span| self.round(&decide, flight, span)),
        )
    }

    fn compare(&self, contestants: &[Contestant<'_>], flight: usize, arguments: &Arguments) {
        let span = arguments.seconds("--seconds", 2.0);
        let warm_up = span.min(Duration::from_millis(300));
        let mut contenders: Vec<Contender<'_, Sample>> = contestants
            .iter()
            .map(|(name, round)| {
                round(flight, warm_up);
                Contender::new(*name, move || round(flight, span))
            })
            .collect();
        let samples = interleave(&mut contenders, arguments.value("--rounds", 5));
        print(flight, &contenders, &samples);
    }

    /// Keeps `flight` decisions under way for `span`.
    fn round<D: Decide>(&self, decide: &Arc<D>, flight: usize, span: Duration) -> Sample {
        self.admin(&["CONFIG", "RESETSTAT"]);
        let server_before = self.server_cpu();
        let client_before = cpu::time_of(process::id());
        let start = Instant::now();
        let (nanos, uncounted) = self
            .runtime
            .block_on(load(decide, &self.names, flight, span));
        let elapsed = start.elapsed();
        let client = cpu::time_of(process::id()) - client_before;
        let server = self.server_cpu() - server_before;
        Sample::new(elapsed, nanos, uncounted, server, client, self.calls())
    }

    fn admin(&self, words: &[&str]) -> String {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        self.runtime
            .block_on(command.query_async(&mut self.admin.clone()))
            .expect("Redis responds")
    }

    /// CPU time that the Redis server has used.
    fn server_cpu(&self) -> Duration {
        let text = self.admin(&["INFO", "cpu"]);
        let seconds = |name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.expect("INFO cpu has it").trim_end();
            number.parse::<f64>().expect("it is seconds")
        };
        Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
    }

    /// Calls of each command since the statistics were reset, without those of this bench.
    fn calls(&self) -> BTreeMap<String, u64> {
        let text = self.admin(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            let (name, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = statistics.split(',').next()?.parse().ok()?;
            Some((name.to_owned(), calls))
        };
        let mut calls: BTreeMap<_, _> = text.lines().filter_map(calls).collect();
        calls.retain(|name, _| !name.starts_with("config") && name != "info");
        calls
    }
}

/// Returns the latency of each decision in nanoseconds, and the number of decisions that Redis did not count.
async fn load<D: Decide>(
    decide: &Arc<D>,
    names: &Arc<[String]>,
    flight: usize,
    span: Duration,
) -> (Vec<u32>, u64) {
    let end = Instant::now() + span;
    let mut tasks = JoinSet::new();
    for seed in 0..flight {
        let (decide, names) = (Arc::clone(decide), Arc::clone(names));
        tasks.spawn(async move {
            let mut walk = Walk::new(seed as u64 + 1);
            let (mut nanos, mut uncounted) = (Vec::new(), 0);
            let mut before = Instant::now();
            while before < end {
                if !decide.decide(walk.pick(&names)).await {
                    uncounted += 1;
                    tokio::task::yield_now().await;
                }
                let after = Instant::now();
                nanos.push(u32::try_from((after - before).as_nanos()).unwrap_or(u32::MAX));
                before = after;
            }
            (nanos, uncounted)
        });
    }
    let (mut nanos, mut uncounted) = (Vec::new(), 0);
    while let Some(task) = tasks.join_next().await {
        let (more, missed) = task.expect("a task does not panic");
        nanos.extend(more);
        uncounted += missed;
    }
    (nanos, uncounted)
}

async fn connect(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("the url is well formed");
    let connection = client.get_multiplexed_async_connection();
    connection.await.expect("the server is up")
}

// === Samples ===

struct Sample {
    per_second: f64,
    p50: f64,
    p99: f64,
    server_micros: f64,
    client_micros: f64,
    uncounted: u64,
    calls: BTreeMap<String, f64>,
}

impl Sample {
    fn new(
        elapsed: Duration,
        mut nanos: Vec<u32>,
        uncounted: u64,
        server: Duration,
        client: Duration,
        calls: BTreeMap<String, u64>,
    ) -> Self {
        nanos.sort_unstable();
        let decisions = nanos.len() as f64;
        let micros = |share: f64| f64::from(nanos[(decisions * share) as usize]) / 1_000.0;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / decisions;
        Self {
            per_second: decisions / elapsed.as_secs_f64(),
            p50: micros(0.50),
            p99: micros(0.99),
            server_micros: each(server),
            client_micros: each(client),
            uncounted,
            calls: calls
                .into_iter()
                .map(|(name, calls)| (name, calls as f64 / decisions))
                .collect(),
        }
    }

    fn show_calls(&self) -> String {
        let calls = self.calls.iter().filter(|(_, calls)| **calls >= 0.0005);
        let calls: Vec<String> = calls
            .map(|(name, calls)| format!("{name} {calls:.3}"))
            .collect();
        calls.join(", ")
    }
}

fn print(flight: usize, contenders: &[Contender<'_, Sample>], samples: &[Vec<Sample>]) {
    let summary =
        |samples: &[Sample], field: fn(&Sample) -> f64| Summary::of(samples.iter().map(field));
    let baseline = summary(&samples[0], |sample| sample.per_second).median;
    let rows: Vec<Vec<String>> = contenders
        .iter()
        .zip(samples)
        .map(|(contender, samples)| {
            let per_second = summary(samples, |sample| sample.per_second);
            let uncounted: u64 = samples.iter().map(|sample| sample.uncounted).sum();
            vec![
                contender.name.clone(),
                per_second.show(0),
                format!("{:.2}", per_second.median / baseline),
                summary(samples, |sample| sample.p50).show(0),
                summary(samples, |sample| sample.p99).show(0),
                summary(samples, |sample| sample.server_micros).show(2),
                summary(samples, |sample| sample.client_micros).show(2),
                samples[0].show_calls(),
                uncounted.to_string(),
            ]
        })
        .collect();
    let first = format!("ratio to {}", contenders[0].name);
    let columns = [
        "way",
        "decisions a second, median (min..max)",
        &first,
        "p50 us",
        "p99 us",
        "Redis CPU us a decision",
        "client CPU us a decision",
        "commands a decision",
        "not counted by Redis",
    ];
    table::print(&format!("{flight} in flight"), &columns, &rows);
}
