//! Many processes on shared keys: together they admit exactly as many requests as one bucket.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Child,
    sync::Arc,
    time::{Duration, Instant},
};

use tollgate::{
    Key, Policy, Quota, RateLimiter,
    algorithm::{BucketState, Counting, TokenBucket},
    clock::Timestamp,
    remote::{RedisStore, TlsConfig},
};

use crate::support::{Authority, Cluster, Sentinels, Server};

use super::workers::{self, read_log, write_log};

const PROCESSES: usize = 8;
const TASKS: usize = 64;
const KEYS: u64 = 1_000;
const WORKER: &str = "TOLLGATE_HAMMER_WORKER";
const SECONDS: &str = "TOLLGATE_HAMMER_SECONDS";

/// The interval of 7 a second is not a whole number of microseconds.
fn hot() -> Policy {
    Policy::new("hot", Quota::per_second(700).burst(1_000))
}

fn wide() -> Policy {
    Policy::new("wide", Quota::per_minute(70).burst(3))
}

#[test]
fn eight_processes_admit_exactly_what_one_bucket_would() {
    if let Ok(work) = env::var(WORKER) {
        work_for(&work);
        return;
    }
    let server = Server::start();
    let calls = hammer_by(&[&server], &server.url());
    let pings = calls.get("ping").copied().unwrap_or(0);
    assert!(
        pings <= 16,
        "the harness pings while it starts the server, decisions never do: {pings}"
    );
}

/// The way to the server is another one, and what it decides is the same.
#[test]
fn eight_processes_on_a_unix_socket_in_resp3_admit_the_same() {
    let server = Server::start_with(&["--unixsocket", "redis.sock"]);
    let url = format!(
        "unix://{}/redis.sock?protocol=resp3",
        server.folder().display()
    );
    hammer_by(&[&server], &url);
}

#[test]
fn eight_processes_by_tls_admit_the_same() {
    let authority = Authority::new();
    let arguments = ["--tls-auth-clients", "no"];
    let server = Server::start_tls(&authority, &authority.sign("localhost"), &arguments);
    let authority = server.folder().join("ca.pem");
    hammer_by(
        &[&server],
        &format!("{}#{}", server.tls_url(), authority.display()),
    );
}

#[test]
fn eight_processes_on_a_cluster_admit_the_same() {
    let cluster = Cluster::start(3, 0);
    let nodes: Vec<&Server> = cluster.nodes.iter().collect();
    hammer_by(&nodes, &cluster.nodes[0].url());
}

#[test]
fn eight_processes_behind_sentinel_admit_the_same() {
    let watched = Sentinels::start();
    hammer_by(&[&watched.servers[0]], &watched.url());
}

/// Lets processes decide by this URL on these servers, and compares what they admitted with one bucket. Returns the number
/// of calls of each command.
fn hammer_by(servers: &[&Server], url: &str) -> BTreeMap<String, u64> {
    servers.iter().for_each(|server| server.flush_stats());
    let folder = servers[0].folder();
    let seconds: u64 =
        env::var(SECONDS).map_or(2, |seconds| seconds.parse().expect("a number of seconds"));
    let mut workers: Vec<(Child, PathBuf)> = (0..PROCESSES)
        .map(|number| {
            let log = folder.join(format!("hammer-{number}"));
            (start_worker(url, &log, seconds), log)
        })
        .collect();
    for (worker, _) in &mut workers {
        assert!(worker.wait().expect("a worker").success());
    }
    let mut calls = BTreeMap::new();
    for (name, count) in servers.iter().flat_map(|server| server.command_calls()) {
        *calls.entry(name).or_default() += count;
    }
    let mut decisions: Vec<Record> = workers
        .iter()
        .flat_map(|(_, log)| read_log(log))
        .map(|[key, at, admitted]| Record {
            key,
            at,
            admitted: admitted == 1,
        })
        .collect();
    let total = decisions.len();
    decisions.sort_unstable_by_key(|record| record.at);
    let keys =
        (0..=KEYS).map(|key| judge(key, decisions.iter().filter(|record| record.key == key)));
    let (admitted, hot_admitted) = keys
        .enumerate()
        .fold((0, 0), |(sum, hot), (key, admitted)| {
            (sum + admitted, if key == 0 { admitted } else { hot })
        });
    println!(
        "{total} decisions in {seconds} s by {PROCESSES} processes of {TASKS} tasks: {admitted} admitted"
    );
    println!("hot key: {hot_admitted} admitted; commands: {calls:?}");
    let of = |name: &str| calls.get(name).copied().unwrap_or(0);
    println!(
        "{:.1} decisions a call",
        total as f64 / of("evalsha") as f64
    );
    assert!(
        of("evalsha") <= total as u64,
        "at most one script call per decision"
    );
    assert_eq!(
        of("get"),
        total as u64,
        "each decision looked at its key once"
    );
    calls
}

/// One decision: the key's number (0 is the hot one), the server's time, and whether it was admitted.
struct Record {
    key: u64,
    at: u64,
    admitted: bool,
}

/// Replays a key's decisions in the order of the server's time. The model must make the same ones.
///
/// Returns the number of admitted ones.
fn judge<'a>(key: u64, records: impl Iterator<Item = &'a Record>) -> u64 {
    let policy = if key == 0 { hot() } else { wide() };
    let bucket = TokenBucket::new(policy.quota()).expect("a usable quota");
    let (mut state, mut admitted, mut modelled) = (BucketState::default(), 0, 0);
    let (mut first, mut last) = (None, 0);
    for record in records {
        modelled += u64::from(bucket.take(&mut state, Timestamp::from_micros(record.at), 1));
        admitted += u64::from(record.admitted);
        first.get_or_insert(record.at);
        last = record.at;
    }
    assert_eq!(admitted, modelled, "key {key}");
    let refill = |span: u64| {
        span as u128 * u128::from(policy.quota().count()) * 1_000
            / policy.quota().period().as_nanos()
    };
    if let Some(first) = first {
        let most = u128::from(policy.quota().capacity()) + refill(last - first + 3);
        assert!(
            u128::from(admitted) <= most,
            "key {key}: {admitted} of at most {most}"
        );
    }
    admitted
}

fn start_worker(url: &str, log: &Path, seconds: u64) -> Child {
    let work = format!("{url} {} {seconds}", log.display());
    let test = "fleet::hammer::eight_processes_admit_exactly_what_one_bucket_would";
    workers::start(test, (WORKER, work))
}

fn work_for(work: &str) {
    let parts: Vec<&str> = work.split(' ').collect();
    let [url, log, seconds] = parts[..] else {
        panic!("a worker is told the url, its log and the seconds");
    };
    let seconds = seconds.parse().expect("a number of seconds");
    let records = workers::runtime().block_on(hammer(url, Duration::from_secs(seconds)));
    let numbers = records.into_iter();
    write_log(
        log,
        numbers.map(|record| [record.key, record.at, u64::from(record.admitted)]),
    );
}

async fn hammer(url: &str, span: Duration) -> Vec<Record> {
    // The path of a certificate may follow.
    let (url, authority) = url.split_once('#').unwrap_or((url, ""));
    let mut store = RedisStore::builder(url).deadline(Duration::from_secs(30));
    if !authority.is_empty() {
        let authority = fs::read(authority).expect("a certificate");
        store = store.tls(TlsConfig::new().ca_certificates(authority));
    }
    let store = store.build();
    let limiter =
        RateLimiter::new(store.expect("a usable store"), [hot(), wide()]).expect("usable policies");
    let policies = Arc::new((hot(), wide()));
    let tasks: Vec<_> = (0..TASKS as u64)
        .map(|task| {
            let (limiter, policies) = (limiter.clone(), Arc::clone(&policies));
            tokio::spawn(async move {
                let (started, mut turn, mut records) = (Instant::now(), task * 7_919, Vec::new());
                while started.elapsed() < span {
                    turn += 1;
                    // Half of the decisions on the hot key, the other half spread.
                    let key = if turn % 2 == 0 {
                        0
                    } else {
                        1 + turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) % KEYS
                    };
                    let policy = if key == 0 { &policies.0 } else { &policies.1 };
                    let decision = limiter
                        .check(&[policy.charge(Key::from(key))])
                        .await
                        .expect("a decision");
                    records.push(Record {
                        key,
                        at: decision.decided_at().as_micros(),
                        admitted: decision.is_allowed(),
                    });
                }
                records
            })
        })
        .collect();
    let mut records = Vec::new();
    for task in tasks {
        records.extend(task.await.expect("no panic"));
    }
    records
}
