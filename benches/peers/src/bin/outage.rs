//! What requests get while Redis is down, with tollgate and with limiters that have no breaker.
//!
//! `cargo run --release --ignore-rust-version --bin outage -- [--seconds 3]`
//!
//! The load is that of tollgate's own fault table: eight instances, eight keys of 20 requests a second each, of which each
//! instance asks for 20 a second. A request without a response within 5 s counts as lost.

#[path = "../../../support/histogram.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod histogram;
#[path = "../../../../tests/faults/load.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod load;

use std::{
    future::Future,
    net::TcpListener,
    pin::Pin,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use deadpool_redis::{Config, Pool, Runtime as PoolRuntime};
use redis::{Client, aio::MultiplexedConnection};
use tokio::runtime::Runtime;
use tollgate::{Key, Policy, Quota, RateLimiter, decision::CountedBy};
use tollgate_peers::{arguments::Arguments, child::KillOnDrop, gcra};
use tower_rate_limiter::Store as _;

use self::{
    histogram::Histogram,
    load::{KEYS, Load, Response, Sample, Subject},
};

fn main() {
    let seconds = Arguments::of_process().value("--seconds", 3);
    let lasts = Duration::from_secs(seconds);
    println!(
        "| fault | limiter | requests | lost | errors | p50 / p99 / max, ms | admitted during, of the limit | decided by Redis again after, s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for fault in [Fault::Kill, Fault::Stop] {
        for (name, make) in SUBJECTS {
            run(fault, name, make, lasts);
        }
    }
}

fn run(fault: Fault, name: &str, make: MakeSubject, lasts: Duration) {
    let mut server = Server::start();
    // Connections end with their runtime.
    let runtime = Runtime::new().expect("a runtime can be made");
    let fleet: Vec<Arc<dyn Subject>> = (0..INSTANCES)
        .map(|_| runtime.block_on(make(&server.url())))
        .collect();
    let load = Load::start(fleet, 1, DEADLINE);
    thread::sleep(BEFORE);
    let struck = Instant::now();
    fault.strike(&mut server);
    thread::sleep(lasts);
    fault.mend(&mut server);
    let mended = Instant::now();
    thread::sleep(AFTER);
    let samples = load.stop().requests;
    let (mut took, mut admitted) = (Histogram::default(), 0_u32);
    let during = |sample: &&Sample| (struck..mended).contains(&sample.asked);
    for sample in samples.iter().filter(during) {
        took.record(sample.took);
        admitted += u32::from(sample.response.is_allowed());
    }
    let count = |response| {
        let with_response = samples.iter().filter(|sample| sample.response == response);
        with_response.count()
    };
    let again = (0..INSTANCES).map(|instance| {
        let first = samples.iter().find(|sample| {
            sample.instance == instance && sample.asked >= mended && sample.response.is_shared()
        });
        first.map(|sample| sample.asked + sample.took - mended)
    });
    let again: Option<Vec<Duration>> = again.collect();
    let again = again.and_then(|all| all.into_iter().max());
    let millis = |share| took.quantile(share).as_secs_f64() * 1e3;
    println!(
        "| {fault:?} | {name} | {} | {} | {} | {:.1} / {:.1} / {:.1} | {:.2} | {} |",
        samples.len(),
        count(Response::Lost),
        count(Response::Error),
        millis(0.5),
        millis(0.99),
        millis(1.0),
        f64::from(admitted) / (KEYS as f64 * RATE as f64 * lasts.as_secs_f64()),
        again.map_or("never".to_owned(), |last| format!(
            "{:.2}",
            last.as_secs_f64()
        )),
    );
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
}

impl Fault {
    fn strike(self, server: &mut Server) {
        match self {
            Self::Kill => server.process = None,
            Self::Stop => server.signal("-STOP"),
        }
    }

    fn mend(self, server: &mut Server) {
        match self {
            Self::Kill => server.run(),
            Self::Stop => server.signal("-CONT"),
        }
    }
}

// === The limiters ===

type MakeSubject = fn(&str) -> Pin<Box<dyn Future<Output = Arc<dyn Subject>> + '_>>;

const SUBJECTS: [(&str, MakeSubject); 3] = [
    ("tollgate", |url| {
        Box::pin(async move {
            let policy = Policy::new("outage", Quota::per_second(RATE).burst(RATE));
            let limiter = RateLimiter::builder().redis(url).deadline(DEADLINE).build();
            let limiter = limiter.expect("a usable limiter");
            Arc::new(Tollgate { limiter, policy }) as _
        })
    }),
    ("plain EVALSHA over deadpool-redis, no deadline", |url| {
        Box::pin(async move {
            let hash = gcra::load(&mut connect(url).await).await;
            let pool = Config::from_url(url).create_pool(Some(PoolRuntime::Tokio1));
            let pool = pool.expect("the url is well formed");
            Arc::new(Pooled { pool, hash }) as _
        })
    }),
    ("tower-rate-limiter on Redis, fixed window", |url| {
        Box::pin(async move {
            let store = tower_rate_limiter::RedisStore::new(connect(url).await);
            Arc::new(TowerRateLimiter { store }) as _
        })
    }),
];

struct Tollgate {
    limiter: RateLimiter,
    policy: Policy,
}

impl Subject for Tollgate {
    fn check(&self, key: usize) -> Pin<Box<dyn Future<Output = Response> + Send + '_>> {
        Box::pin(async move {
            let charge = self.policy.charge(Key::from(key as u64));
            match self.limiter.check(&[charge]).await {
                Err(_) => Response::Error,
                Ok(decision) => {
                    let allowed = decision.is_allowed();
                    if decision.counted_by() == CountedBy::Shared {
                        Response::Shared { allowed }
                    } else {
                        Response::Local { allowed }
                    }
                }
            }
        })
    }
}

struct Pooled {
    pool: Pool,
    hash: String,
}

impl Subject for Pooled {
    fn check(&self, key: usize) -> Pin<Box<dyn Future<Output = Response> + Send + '_>> {
        Box::pin(async move {
            let Ok(mut connection) = self.pool.get().await else {
                return Response::Error;
            };
            let mut command = redis::cmd("EVALSHA");
            command.arg(&self.hash).arg(1).arg(format!("pool:{key}"));
            command.arg(1_000_000 / RATE).arg(1_000_000);
            let decided = command.query_async::<(i64, i64)>(&mut connection).await;
            match decided {
                Ok((allowed, _)) => Response::Shared {
                    allowed: allowed == 1,
                },
                Err(_) => Response::Error,
            }
        })
    }
}

struct TowerRateLimiter {
    store: tower_rate_limiter::RedisStore,
}

impl Subject for TowerRateLimiter {
    fn check(&self, key: usize) -> Pin<Box<dyn Future<Output = Response> + Send + '_>> {
        Box::pin(async move {
            let key = format!("tower:{key}");
            match self.store.increment(&key, Duration::from_secs(1)).await {
                Ok(usage) => Response::Shared {
                    allowed: usage.used <= RATE,
                },
                Err(_) => Response::Error,
            }
        })
    }
}

async fn connect(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("the url is well formed");
    let connection = client.get_multiplexed_async_connection();
    connection.await.expect("the server is up")
}

// === The server ===

struct Server {
    port: u16,
    process: Option<KillOnDrop>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let mut server = Self {
            port,
            process: None,
        };
        server.run();
        server
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn run(&mut self) {
        let binary = std::env::var("TOLLGATE_REDIS_SERVER").unwrap_or("redis-server".to_owned());
        let process = Command::new(&binary)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {binary}: {error}"));
        self.process = Some(KillOnDrop(process));
        let started = Instant::now();
        let client = Client::open(self.url()).expect("the url is well formed");
        while client.get_connection().is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "{binary} does not start"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("it runs");
        let sent = Command::new("kill")
            .args([signal, &process.0.id().to_string()])
            .status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "kill {signal} failed"
        );
    }
}

const INSTANCES: usize = 8;
const RATE: u64 = 20;
const DEADLINE: Duration = Duration::from_millis(50);
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(8);
