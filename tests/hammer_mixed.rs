//! Many processes, every way of counting at once on shared keys, and one process that is killed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tollgate::{
    Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, Counter, Counting, Opening},
    clock::Timestamp,
    remote::RedisStore,
    store::{Charge, Receipt},
};

use crate::support::Server;

const PROCESSES: usize = 8;
const TASKS: u64 = 64;
const KEYS: u64 = 4;
const SLOTS: u64 = 5;
const LEASE: Duration = Duration::from_secs(1);
const WORKER: &str = "TOLLGATE_MIXED_WORKER";
const SECONDS: &str = "TOLLGATE_HAMMER_SECONDS";

/// On each key all of these, decided together.
fn policies() -> [Policy; 5] {
    let fixed = Algorithm::FixedWindow(Opening::FirstHit);
    [
        Policy::new("bucket", Quota::per_second(120).burst(60)),
        Policy::new("fixed", Quota::new(110, Duration::from_millis(900))).algorithm(fixed),
        Policy::new("log", Quota::new(100, Duration::from_millis(800)))
            .algorithm(Algorithm::SlidingLog),
        Policy::new("sliding", Quota::per_second(115)).algorithm(Algorithm::SlidingWindow),
        Policy::new("slots", Quota::in_flight(SLOTS))
            .algorithm(Algorithm::Concurrency { lease: LEASE }),
    ]
}

#[test]
fn mixed_policies_never_admit_too_many_and_a_killed_process_loses_its_slots() {
    if let Ok(work) = env::var(WORKER) {
        work_for(&work);
        return;
    }
    let server = Server::start();
    let seconds: u64 =
        env::var(SECONDS).map_or(2, |seconds| seconds.parse().expect("a number of seconds"));
    let mut workers: Vec<(Child, PathBuf)> = (0..PROCESSES)
        .map(|number| {
            let log = server.folder().join(format!("mixed-{number}"));
            (start_worker(&server.url(), &log, seconds), log)
        })
        .collect();
    let (mut victim, _) = workers.pop().expect("eight of them");
    // In the middle of its work, when it holds slots as all do.
    while server.command_calls().get("evalsha").copied().unwrap_or(0) < 1_000 {
        std::thread::yield_now();
    }
    victim.kill().expect("it runs");
    victim.wait().expect("it is dead");
    for (worker, _) in &mut workers {
        assert!(worker.wait().expect("a worker").success());
    }
    let ended = Instant::now();
    let mut records: Vec<Record> = workers.iter().flat_map(|(_, log)| read_log(log)).collect();
    let admitted = records.iter().filter(|record| record.released > 0).count();
    println!(
        "{} decisions in {seconds} s, {admitted} admitted",
        records.len()
    );
    assert!(admitted > 100);
    records.sort_unstable_by_key(|record| record.at);
    for key in 0..KEYS {
        let admitted: Vec<&Record> = records
            .iter()
            .filter(|record| record.key == key && record.released > 0)
            .collect();
        for policy in &policies()[..4] {
            replay(policy, &admitted);
        }
        let most = most_at_once(&admitted);
        println!(
            "key {key}: {} admitted, at most {most} in flight",
            admitted.len()
        );
        assert!(most <= SLOTS, "{most} in flight");
    }
    all_slots_come_back(&server, ended);
}

/// Each admitted charge fits, replayed in the order of the server's time.
fn replay(policy: &Policy, admitted: &[&Record]) {
    match policy.counter() {
        Counter::Bucket(counter) => replay_by(counter, admitted),
        Counter::FixedWindow(counter) => replay_by(counter, admitted),
        Counter::SlidingLog(counter) => replay_by(counter, admitted),
        Counter::SlidingWindow(counter) => replay_by(counter, admitted),
        other => panic!("a counter that has no replay: {other:?}"),
    }
}

fn replay_by<C: Counting>(counter: &C, admitted: &[&Record]) {
    let mut state = C::State::default();
    for record in admitted {
        let at = Timestamp::from_micros(record.at);
        assert!(counter.take(&mut state, at, 1), "over the limit at {at:?}");
    }
}

/// The most that were in flight at once, as those who held them saw it.
fn most_at_once(admitted: &[&Record]) -> u64 {
    let taken = admitted.iter().map(|record| (record.taken, 1_i64));
    let released = admitted.iter().map(|record| (record.released, -1));
    let mut events: Vec<(u64, i64)> = taken.chain(released).collect();
    events.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in events {
        now += change;
        most = most.max(now);
    }
    u64::try_from(most).expect("not below none")
}

fn all_slots_come_back(server: &Server, ended: Instant) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let [.., slots] = policies();
    runtime.expect("a runtime").block_on(async {
        let limiter = limiter(&server.url());
        for key in 0..KEYS {
            loop {
                let peek = limiter.peek(&[slots.charge(Key::from(key))]).await;
                let usage = peek.expect("a decision").states()[0].usage();
                if usage.expect("counted").remaining == SLOTS {
                    break;
                }
                assert!(ended.elapsed() < LEASE * 2, "slots of the dead stay taken");
            }
        }
    });
    println!("all slots are back {:?} after the end", ended.elapsed());
}

fn limiter(url: &str) -> RateLimiter {
    let store = RedisStore::builder(url)
        .deadline(Duration::from_secs(30))
        .build();
    RateLimiter::new(store.expect("a usable store"), policies()).expect("usable policies")
}

/// One decision: the server's time, and when the slot was taken and given back by the machine's clock; 0 when denied.
struct Record {
    key: u64,
    at: u64,
    taken: u64,
    released: u64,
}

fn start_worker(url: &str, log: &Path, seconds: u64) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args([
            "hammer_mixed::mixed_policies_never_admit_too_many_and_a_killed_process_loses_its_slots",
            "--exact",
        ])
        .env(WORKER, format!("{url} {} {seconds}", log.display()))
        // its own test report is none of this run's
        .stdout(Stdio::null())
        .spawn()
        .expect("a worker process")
}

fn work_for(work: &str) {
    let parts: Vec<&str> = work.split(' ').collect();
    let [url, log, seconds] = parts[..] else {
        panic!("a worker is told the url, its log and the seconds");
    };
    let span = Duration::from_secs(seconds.parse().expect("a number of seconds"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let records = runtime.expect("a runtime").block_on(hammer(url, span));
    let lines: Vec<u8> = records
        .iter()
        .flat_map(|record| [record.key, record.at, record.taken, record.released])
        .flat_map(u64::to_le_bytes)
        .collect();
    fs::write(log, lines).expect("a log");
}

async fn hammer(url: &str, span: Duration) -> Vec<Record> {
    let (limiter, policies) = (limiter(url), std::sync::Arc::new(policies()));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (limiter, policies) = (limiter.clone(), std::sync::Arc::clone(&policies));
            tokio::spawn(async move {
                let (started, mut records) = (Instant::now(), Vec::new());
                while started.elapsed() < span {
                    records.push(one(&limiter, &*policies, task % KEYS).await);
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

async fn one(limiter: &RateLimiter, policies: &[Policy], key: u64) -> Record {
    let charges: Vec<Charge<'_>> = policies
        .iter()
        .map(|policy| policy.charge(Key::from(key)))
        .collect();
    let decision = limiter.check(&charges).await.expect("a decision");
    let taken = machine_time();
    let receipt = Receipt::of(&charges, &decision);
    let mut released = 0;
    if let Some(receipt) = receipt {
        let hold = limiter.hold(receipt);
        tokio::task::yield_now().await;
        released = machine_time().max(taken + 1);
        drop(hold);
    }
    Record {
        key,
        at: decision.decided_at().as_micros(),
        taken,
        released,
    }
}

/// All processes share one machine, so they share its clock.
fn machine_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_nanos()).expect("before 2554")
}

fn read_log(log: &Path) -> Vec<Record> {
    let bytes = fs::read(log).expect("a log");
    let (numbers, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    numbers
        .chunks_exact(4)
        .map(|record| Record {
            key: u64::from_le_bytes(record[0]),
            at: u64::from_le_bytes(record[1]),
            taken: u64::from_le_bytes(record[2]),
            released: u64::from_le_bytes(record[3]),
        })
        .collect()
}
