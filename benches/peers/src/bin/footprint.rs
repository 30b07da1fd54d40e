//! Bytes that a key takes in Redis.
//!
//! `cargo run --release --ignore-rust-version --bin footprint -- [--keys 100000] [--only log]`
//!
//! Each row fills a new Redis server and reports the growth of `used_memory` per key, measured with the connections
//! closed.

use std::{future::Future, ops::Range, sync::Arc, time::Duration};

use redis::aio::MultiplexedConnection;
use tokio::{runtime::Runtime, task::JoinSet};
use tollgate::{
    Key, Policy, Quota,
    algorithm::{Algorithm, WindowStart},
    remote::RedisStore,
    store::Store,
};
use tollgate_peers::{arguments::Arguments, server::Server, table};
use tower_rate_limiter::Store as _;
use trypema::RateLimiterBuilder as _;

fn main() {
    let arguments = Arguments::of_process();
    let runtime = Runtime::new().expect("a runtime can be made");
    let keys = arguments.value("--keys", 100_000);
    let mut rows = Vec::new();
    let window = Quota::per_hour(10_000);
    let bucket = Quota::per_hour(10_000).burst(10_000);
    let slots = Quota::in_flight(10_000);
    let lease = Duration::from_secs(3_600);
    let concurrency = Algorithm::Concurrency { lease };
    let ours = [
        (
            "token bucket, leaky bucket",
            bucket,
            Algorithm::TokenBucket,
            1,
            keys,
        ),
        (
            "fixed window",
            window,
            Algorithm::FixedWindow(WindowStart::Clock),
            1,
            keys,
        ),
        ("sliding window", window, Algorithm::SlidingWindow, 1, keys),
        ("sliding log of 1", window, Algorithm::SlidingLog, 1, keys),
        ("sliding log of 10", window, Algorithm::SlidingLog, 10, keys),
        (
            "sliding log of 100",
            window,
            Algorithm::SlidingLog,
            100,
            keys / 10,
        ),
        (
            "sliding log of 1,000",
            window,
            Algorithm::SlidingLog,
            1_000,
            keys / 100,
        ),
        ("concurrency, 1 in flight", slots, concurrency, 1, keys),
        ("concurrency, 10 in flight", slots, concurrency, 10, keys),
    ];
    for (name, quota, algorithm, requests, keys) in ours {
        if !arguments.picks(name) {
            continue;
        }
        let short = Tollgate::new(quota, algorithm, true);
        let long = Tollgate::new(quota, algorithm, false);
        let short = runtime.block_on(bytes(keys, requests, |url| short.connect(url)));
        let long = runtime.block_on(bytes(keys, requests, |url| long.connect(url)));
        rows.push(row(&format!("tollgate, {name}"), keys, &[short, long]));
    }
    if arguments.picks("peers") {
        for (name, measured) in runtime.block_on(peers(keys)) {
            rows.push(row(name, keys, &[measured]));
        }
    }
    let columns = [
        "way",
        "keys",
        "bytes a key, the whole key 16 characters",
        "bytes a key, the identity 16 characters",
    ];
    table::print("Redis memory", &columns, &rows);
}

fn row(name: &str, keys: usize, bytes: &[f64]) -> Vec<String> {
    let mut row = vec![name.to_owned(), keys.to_string()];
    row.extend(bytes.iter().map(|bytes| format!("{bytes:.1}")));
    row.resize(4, "-".to_owned());
    row
}

// === Ways to count ===

/// A way to count a request.
trait Count: Send + Sync + 'static {
    fn count(&self, number: usize) -> impl Future<Output = ()> + Send;
}

#[derive(Clone)]
struct Tollgate {
    store: Option<RedisStore>,
    policy: Policy,
    /// Whether 16 characters is the length of the whole Redis key, or of the client's identity in it.
    is_short: bool,
    digits: usize,
}

impl Tollgate {
    fn new(quota: Quota, algorithm: Algorithm, is_short: bool) -> Self {
        // A bucket's key is `r:{identity}:p`; other algorithms append two characters.
        let digits = match (is_short, algorithm) {
            (true, Algorithm::TokenBucket) => 10,
            (true, _) => 8,
            (false, _) => 16,
        };
        Self {
            store: None,
            policy: Policy::new(if is_short { "p" } else { "api" }, quota).algorithm(algorithm),
            is_short,
            digits,
        }
    }

    async fn connect(&self, url: String) -> Self {
        let prefix = if self.is_short { "r" } else { "tollgate" };
        let store = RedisStore::builder(url)
            .prefix(prefix)
            .deadline(Duration::from_secs(5));
        Self {
            store: Some(store.build().expect("a usable store")),
            ..self.clone()
        }
    }
}

impl Count for Tollgate {
    async fn count(&self, number: usize) {
        let digits = self.digits;
        let key = Key::new(format!("{number:0digits$}"));
        let store = self.store.as_ref().expect("it is connected");
        let decision = store
            .decide(&[self.policy.charge(key)])
            .await
            .expect("redis decides");
        assert!(decision.is_allowed());
    }
}

struct Plain(MultiplexedConnection);

impl Count for Plain {
    async fn count(&self, number: usize) {
        // The same write as in a plain GCRA script.
        let mut command = redis::cmd("SET");
        command
            .arg(format!("{number:016}"))
            .arg(1_700_000_000_000_001_u64)
            .arg("PX")
            .arg(3_600_000);
        let (): () = command
            .query_async(&mut self.0.clone())
            .await
            .expect("Redis responds");
    }
}

struct TowerRateLimiter(tower_rate_limiter::RedisStore);

impl Count for TowerRateLimiter {
    async fn count(&self, number: usize) {
        // The crate prepends `rl:`.
        let usage = self
            .0
            .increment(&format!("{number:013}"), Duration::from_secs(3_600))
            .await;
        assert_eq!(usage.expect("Redis responds").used, 1);
    }
}

struct Limitador(limitador_redis::AsyncRateLimiter);

impl Count for Limitador {
    async fn count(&self, number: usize) {
        let values = [("k".to_owned(), format!("{number:016}"))].into();
        let checked = self
            .0
            .check_rate_limited_and_update(&"n".into(), &values, 1, false)
            .await;
        assert!(!checked.expect("Redis responds").limited);
    }
}

struct Trypema(Arc<trypema::redis::RedisRateLimiterProvider>);

impl Count for Trypema {
    async fn count(&self, number: usize) {
        let key =
            trypema::redis::RedisKey::try_from(format!("{number:016}")).expect("a usable key");
        let rate = trypema::RateLimit::per_hour_or_panic(10_000.0);
        self.0
            .absolute()
            .inc(&key, &rate, 1)
            .await
            .expect("Redis responds");
    }
}

async fn peers(keys: usize) -> Vec<(&'static str, f64)> {
    let mut measured = Vec::new();
    let plain = |url| async { Plain(connect(url).await) };
    measured.push(("plain GCRA, 16 digits", bytes(keys, 1, plain).await));
    let tower =
        |url| async { TowerRateLimiter(tower_rate_limiter::RedisStore::new(connect(url).await)) };
    measured.push((
        "tower-rate-limiter, fixed window",
        bytes(keys, 1, tower).await,
    ));
    let limitador = |url: String| async move {
        let storage = limitador_redis::storage::redis::AsyncRedisStorage::new(&url).await;
        let storage = Box::new(storage.expect("the server is up"));
        let limiter = limitador_redis::AsyncRateLimiter::new_with_storage(storage);
        let none: [&str; 0] = [];
        limiter.add_limit(limitador_redis::limit::Limit::new(
            "n",
            10_000,
            3_600,
            none,
            ["k"],
        ));
        Limitador(limiter)
    };
    measured.push((
        "limitador, fixed window, identity of 16",
        bytes(keys, 1, limitador).await,
    ));
    let trypema = |url: String| async move {
        let client = redis::Client::open(url).expect("the url is well formed");
        let connection = client
            .get_connection_manager()
            .await
            .expect("the server is up");
        let provider = trypema::redis::RedisRateLimiterProvider::builder(connection)
            .window_size(trypema::WindowSize::hours_or_panic(1));
        Trypema(provider.build().expect("usable settings"))
    };
    measured.push((
        "trypema absolute, identity of 16",
        bytes(keys, 1, trypema).await,
    ));
    measured
}

async fn connect(url: String) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("the url is well formed");
    let connection = client.get_multiplexed_async_connection();
    connection.await.expect("the server is up")
}

// === Measuring ===

/// Bytes per key after each of `keys` keys was counted `requests` times.
async fn bytes<C: Count, F: Future<Output = C>>(
    keys: usize,
    requests: usize,
    make: impl FnOnce(String) -> F,
) -> f64 {
    let server = Server::start();
    let before = used_memory(&server.url).await;
    let count = Arc::new(make(server.url.clone()).await);
    for _ in 0..requests {
        fill(&count, 0..keys).await;
    }
    drop(count);
    tokio::time::sleep(Duration::from_millis(500)).await;
    (used_memory(&server.url).await - before) / keys as f64
}

/// Counts each key once, with up to `FLIGHT` keys at a time.
async fn fill<C: Count>(count: &Arc<C>, keys: Range<usize>) {
    let mut tasks = JoinSet::new();
    for first in keys.start..keys.start + FLIGHT.min(keys.len()) {
        let (count, end) = (Arc::clone(count), keys.end);
        tasks.spawn(async move {
            for number in (first..end).step_by(FLIGHT) {
                count.count(number).await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("a task does not panic");
    }
}

/// Reads `used_memory` on a new connection.
async fn used_memory(url: &str) -> f64 {
    let mut connection = connect(url.to_owned()).await;
    let text: String = redis::cmd("INFO")
        .arg("memory")
        .query_async(&mut connection)
        .await
        .expect("Redis responds");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.expect("INFO memory has it")
        .trim()
        .parse()
        .expect("a number")
}

const FLIGHT: usize = 256;
