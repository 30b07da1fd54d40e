//! Throughput and CPU of a decision on one server, and on clusters of 1, 2 and 3 primaries.
//!
//! `cargo run --release --ignore-rust-version --bin cluster -- [--rounds 5] [--seconds 2] [--flight 64,512] [--keys 10000]`
//!
//! The loop is closed: `--flight` tasks make one decision after another over the same keys. `redis-rs` is its cluster
//! client with one `EVALSHA` of a hand-written GCRA per decision, without retries. CPU times are those of the processes.

use std::{
    future::Future,
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{cluster::ClusterClientBuilder, cluster_async::ClusterConnection};
use tokio::{runtime::Runtime, task::JoinSet};
use tollgate::{Key, Policy, Quota, RateLimiter, decision::CountedBy};
use tollgate_peers::{
    arguments::Arguments,
    cluster::Cluster,
    cpu, gcra,
    keys::{Walk, names},
    rounds::{Contender, interleave},
    table::{self, Summary},
};

fn main() {
    let arguments = Arguments::of_process();
    let runtime = Runtime::new().expect("a runtime can be made");
    let names: Arc<[String]> = names(arguments.value("--keys", 10_000)).into();
    let servers: Vec<Servers> = [0, 1, 2, 3].map(Servers::start).into();
    let flights: String = arguments.value("--flight", "64,512".to_owned());
    for flight in flights.split(',') {
        let flight: usize = flight.parse().expect("--flight takes whole numbers");
        compare(&runtime, &servers, &names, flight, &arguments);
    }
}

/// One server, or a cluster.
enum Servers {
    Cluster(Cluster),
    One(tollgate_peers::server::Server),
}

impl Servers {
    fn start(primaries: usize) -> Self {
        if primaries == 0 {
            Self::One(tollgate_peers::server::Server::start())
        } else {
            Self::Cluster(Cluster::start(primaries))
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Cluster(cluster) => format!("cluster of {}", cluster.urls.len()),
            Self::One(_) => "one server".to_owned(),
        }
    }

    fn url(&self) -> &str {
        match self {
            Self::Cluster(cluster) => &cluster.urls[0],
            Self::One(server) => &server.url,
        }
    }

    /// CPU time that the servers have used.
    fn cpu(&self) -> Duration {
        match self {
            Self::Cluster(cluster) => cluster.ids().map(cpu::time_of).sum(),
            Self::One(server) => cpu::time_of(server.id()),
        }
    }
}

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
        let charge = self.policy.charge(Key::new(name));
        let decision = self.limiter.check(&[charge]).await;
        let decision = decision.expect("the breaker always decides");
        decision.is_allowed() && decision.counted_by() == CountedBy::Shared
    }
}

struct RedisRs {
    connection: ClusterConnection,
    hash: String,
}

impl RedisRs {
    async fn new(urls: &[String]) -> Self {
        let client = ClusterClientBuilder::new(urls.to_vec()).retries(0).build();
        let client = client.expect("the urls are well formed");
        let connection = client
            .get_async_connection()
            .await
            .expect("the cluster is up");
        let mut hash = String::new();
        for url in urls {
            let client = redis::Client::open(url.as_str()).expect("the url is well formed");
            let node = client.get_multiplexed_async_connection();
            hash = gcra::load(&mut node.await.expect("the node is up")).await;
        }
        Self { connection, hash }
    }
}

impl Decide for RedisRs {
    async fn decide(&self, name: &str) -> bool {
        let mut connection = self.connection.clone();
        let (allowed, _): (i64, i64) = gcra::decide(&self.hash, &format!("rs:{{{name}}}"))
            .query_async(&mut connection)
            .await
            .expect("the cluster responds");
        allowed == 1
    }
}

struct Sample {
    per_second: f64,
    server_micros: f64,
    client_micros: f64,
    uncounted: u64,
}

fn compare(
    runtime: &Runtime,
    servers: &[Servers],
    names: &Arc<[String]>,
    flight: usize,
    arguments: &Arguments,
) {
    let span = arguments.seconds("--seconds", 2.0);
    let mut contenders: Vec<Contender<'_, Sample>> = Vec::new();
    for servers in servers {
        let tollgate = Arc::new(Tollgate::new(servers.url()));
        add(
            &mut contenders,
            format!("tollgate, {}", servers.name()),
            servers,
            tollgate,
            (runtime, names, flight, span),
        );
        if let Servers::Cluster(cluster) = servers {
            let redis_rs = Arc::new(runtime.block_on(RedisRs::new(&cluster.urls)));
            add(
                &mut contenders,
                format!("redis-rs, {}", servers.name()),
                servers,
                redis_rs,
                (runtime, names, flight, span),
            );
        }
    }
    let samples = interleave(&mut contenders, arguments.value("--rounds", 5));
    print(flight, &contenders, &samples);
}

fn add<'a, D: Decide>(
    contenders: &mut Vec<Contender<'a, Sample>>,
    name: String,
    servers: &'a Servers,
    decide: Arc<D>,
    (runtime, names, flight, span): (&'a Runtime, &'a Arc<[String]>, usize, Duration),
) {
    runtime.block_on(load(
        &decide,
        names,
        flight,
        span.min(Duration::from_millis(300)),
    ));
    contenders.push(Contender::new(name, move || {
        let (server, client) = (servers.cpu(), cpu::time_of(process::id()));
        let start = Instant::now();
        let (decisions, uncounted) = runtime.block_on(load(&decide, names, flight, span));
        let elapsed = start.elapsed();
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / decisions as f64;
        Sample {
            per_second: decisions as f64 / elapsed.as_secs_f64(),
            server_micros: each(servers.cpu() - server),
            client_micros: each(cpu::time_of(process::id()) - client),
            uncounted,
        }
    }));
}

/// Returns the number of decisions, and of those that Redis did not count.
async fn load<D: Decide>(
    decide: &Arc<D>,
    names: &Arc<[String]>,
    flight: usize,
    span: Duration,
) -> (u64, u64) {
    let end = Instant::now() + span;
    let mut tasks = JoinSet::new();
    for seed in 0..flight {
        let (decide, names) = (Arc::clone(decide), Arc::clone(names));
        tasks.spawn(async move {
            let mut walk = Walk::new(seed as u64 + 1);
            let (mut decisions, mut uncounted) = (0, 0);
            while Instant::now() < end {
                if !decide.decide(walk.pick(&names)).await {
                    uncounted += 1;
                    tokio::task::yield_now().await;
                }
                decisions += 1;
            }
            (decisions, uncounted)
        });
    }
    let results = tasks.join_all().await.into_iter();
    results.fold((0, 0), |sum, result| (sum.0 + result.0, sum.1 + result.1))
}

fn print(flight: usize, contenders: &[Contender<'_, Sample>], samples: &[Vec<Sample>]) {
    let rows: Vec<Vec<String>> = contenders
        .iter()
        .zip(samples)
        .map(|(contender, of_row)| {
            let summary = |field: fn(&Sample) -> f64| Summary::of(of_row.iter().map(field));
            let ratio = Summary::of_ratios(of_row, &samples[0], |sample| sample.per_second);
            vec![
                contender.name.clone(),
                summary(|sample| sample.per_second).show(0),
                ratio.show(2),
                summary(|sample| sample.server_micros).show(2),
                summary(|sample| sample.client_micros).show(2),
                of_row
                    .iter()
                    .map(|sample| sample.uncounted)
                    .sum::<u64>()
                    .to_string(),
            ]
        })
        .collect();
    let columns = [
        "way",
        "decisions a second, median (min..max)",
        "ratio to the first row",
        "Redis CPU us a decision",
        "client CPU us a decision",
        "not counted by Redis",
    ];
    table::print(&format!("{flight} in flight"), &columns, &rows);
}
