//! Many processes with all algorithms on shared keys, and one process that is killed.

use std::{
    env,
    path::{Path, PathBuf},
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::Value;
use tollgate::{
    Charge, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, Counter, Counting, WindowStart},
    charge::Receipt,
    clock::Timestamp,
    decision::{Outcome, PolicyState},
    remote::RedisStore,
};

use crate::support::Server;

use super::workers::{self, machine_time, most_at_once, read_log, write_log};

const PROCESSES: usize = 8;
const TASKS: u64 = 64;
const KEYS: u64 = 4;
/// Few, so that they are used up at times: the rates limit the number of requests that begin.
const SLOTS: u64 = 3;
const LEASE: Duration = Duration::from_secs(1);
/// A process ends after this many admitted decisions, however slow the machine is.
const LEAST: u64 = 20;
/// Longer than anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The key of the process that is killed. It holds and renews all slots of this key until then.
const VICTIM: &str = "victim";
const WORKER: &str = "TOLLGATE_MIXED_WORKER";
const SECONDS: &str = "TOLLGATE_HAMMER_SECONDS";

/// Returns the policies, which each decision charges together.
fn policies() -> [Policy; 5] {
    let fixed = Algorithm::FixedWindow(WindowStart::FirstHit);
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
    let mut workers: Vec<(Child, PathBuf)> = (1..PROCESSES)
        .map(|number| {
            let log = server.folder().join(format!("mixed-{number}"));
            (start_worker(&server.url(), &log, seconds, false), log)
        })
        .collect();
    let victim = start_worker(&server.url(), &server.folder().join(VICTIM), seconds, true);
    slots_come_back_from_a_killed_process(&server, victim);
    for (worker, _) in &mut workers {
        assert!(worker.wait().expect("a worker").success());
    }
    let ended = Instant::now();
    let mut records: Vec<Record> = workers
        .iter()
        .flat_map(|(_, log)| read_log(log))
        .map(|[key, at, taken, released]| Record {
            key,
            at,
            taken,
            released,
        })
        .collect();
    let admitted = records.iter().filter(|record| record.released > 0).count();
    println!(
        "{} decisions in {seconds} s, {admitted} admitted",
        records.len()
    );
    assert!(admitted as u64 >= LEAST * (PROCESSES as u64 - 1));
    records.sort_unstable_by_key(|record| record.at);
    for key in 0..KEYS {
        let admitted: Vec<&Record> = records
            .iter()
            .filter(|record| record.key == key && record.released > 0)
            .collect();
        for policy in &policies()[..4] {
            replay(policy, &admitted);
        }
        let held = |record: &&Record| (record.taken, record.released);
        let most = most_at_once(admitted.iter().map(held));
        println!(
            "key {key}: {} admitted, at most {most} in flight",
            admitted.len()
        );
        assert!(most <= SLOTS, "{most} in flight");
    }
    all_slots_come_back(&server, ended);
    denial_by_one_charges_none_of_the_others(&server);
}

/// Kills the process in the middle of its work, and measures by the server's time when its slots are free again.
fn slots_come_back_from_a_killed_process(server: &Server, mut victim: Child) {
    let renewed = || server.command(&["DUMP", &format!("tollgate:{{{VICTIM}}}:slots#c")]);
    let patience = Instant::now() + Duration::from_secs(30);
    let wait_while = |is_waiting: &dyn Fn() -> bool| {
        while is_waiting() {
            assert!(Instant::now() < patience, "the process does not get to it");
            std::thread::yield_now();
        }
    };
    wait_while(&|| renewed() == Value::Nil);
    let taken = renewed();
    wait_while(&|| renewed() == taken);
    wait_while(&|| server.command_calls().get("evalsha").copied().unwrap_or(0) < 100);

    let [.., slots] = policies();
    let (killed, dead, held, back) = runtime().block_on(async {
        let limiter = limiter(&server.url());
        let free = async || {
            let peek = limiter.peek(&[slots.charge(Key::new(VICTIM))]).await;
            let decision = peek.expect("a decision");
            let usage = decision.states()[0].usage().expect("counted");
            (usage.remaining, decision.decided_at())
        };
        let (remaining, killed) = free().await;
        assert_eq!(remaining, 0, "held and renewed");
        victim.kill().expect("it runs");
        victim.wait().expect("it is dead");
        // Its earlier commands have run once the server replies on a new connection.
        let dead = server_time(server);
        let mut held = killed;
        loop {
            match free().await {
                (SLOTS, back) => break (killed, dead, held, back),
                (_, at) => held = at,
            }
            assert!(held.since(dead) <= LEASE, "slots of the dead stay taken");
        }
    });
    println!(
        "a killed process' slots were taken {:?} after the kill and free after {:?}; lease {LEASE:?}, dead after {:?}",
        held.since(killed),
        back.since(killed),
        dead.since(killed),
    );
    // The slack: until it was dead, and from one look to the next.
    let slack = dead.since(killed) + back.since(held);
    assert!(back.since(killed) <= LEASE + slack, "not within the lease");
}

fn server_time(server: &Server) -> Timestamp {
    let time: (u64, u64) =
        redis::from_redis_value(server.command(&["TIME"])).expect("seconds and microseconds");
    Timestamp::from_micros(time.0 * 1_000_000 + time.1)
}

/// Uses up one policy after the other, and asserts that a denial by it changes no stored value.
fn denial_by_one_charges_none_of_the_others(server: &Server) {
    runtime().block_on(async {
        let (limiter, policies) = (limiter(&server.url()), policies());
        for denier in &policies {
            let mut tries = 0;
            let dump = loop {
                tries += 1;
                let key = format!("{}-{tries}", denier.name());
                if let Some(dump) = denied_by(server, &limiter, &policies, denier, &key).await {
                    break dump;
                }
                assert!(tries < 100, "the machine is too slow");
            };
            println!("denied by {}, before and after:\n{dump}", denier.name());
        }
    });
}

/// Asserts that a denial by this policy changes no stored value, and returns the values. `None` if it took so long that
/// a unit may be back.
async fn denied_by(
    server: &Server,
    limiter: &RateLimiter,
    policies: &[Policy],
    denier: &Policy,
    key: &str,
) -> Option<String> {
    let began = Instant::now();
    let charges: Vec<Charge<'_>> = policies
        .iter()
        .map(|policy| policy.charge(Key::new(key)))
        .collect();
    for charge in &charges {
        let is_denier = charge.policy().name() == denier.name();
        let cost = if is_denier {
            charge.policy().counter().limit()
        } else {
            1
        };
        let decision = limiter.check(&[charge.cost(cost)]).await;
        assert!(decision.expect("a decision").is_allowed());
    }
    let before = dump(server, key);
    assert_eq!(before.lines().count(), policies.len());
    // As much again, which takes half a second to come back under each policy.
    let charges = charges
        .iter()
        .map(|charge| match charge.policy().name() == denier.name() {
            true => charge.cost(charge.policy().counter().limit()),
            false => *charge,
        });
    let decision = limiter.check(&charges.collect::<Vec<_>>()).await;
    let decision = decision.expect("a decision");
    let after = dump(server, key);
    if began.elapsed() > Duration::from_millis(400) {
        return None;
    }
    let denies = |state: &&PolicyState| state.outcome() == Outcome::Limited;
    let denying: Vec<_> = decision.states().iter().filter(denies).collect();
    assert_eq!(denying.len(), 1);
    assert_eq!(denying[0].policy(), denier.name());
    assert_eq!(before, after);
    Some(before)
}

/// Returns every key of an identity with its bytes.
fn dump(server: &Server, key: &str) -> String {
    let keys = server.keys().into_iter();
    let keys = keys.filter(|stored| stored.contains(&format!("{{{key}}}")));
    let lines = keys.map(|stored| match server.command(&["DUMP", &stored]) {
        Value::BulkString(bytes) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("  {stored} = {digits}\n")
        }
        other => panic!("{stored} holds {other:?}"),
    });
    lines.collect()
}

/// Asserts that each admitted charge fits, replayed in the order of the server's time.
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

fn all_slots_come_back(server: &Server, ended: Instant) {
    let [.., slots] = policies();
    runtime().block_on(async {
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

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

fn limiter(url: &str) -> RateLimiter {
    let store = RedisStore::builder(url)
        .deadline(PATIENCE)
        .connect_timeout(PATIENCE)
        .build();
    RateLimiter::new(store.expect("a usable store"), policies()).expect("usable policies")
}

/// One decision: the server's time, and when the slot was taken and released by the machine's clock; 0 if denied.
struct Record {
    key: u64,
    at: u64,
    taken: u64,
    released: u64,
}

/// Starts a process that decides for this long, or until it is killed.
fn start_worker(url: &str, log: &Path, seconds: u64, is_victim: bool) -> Child {
    let work = format!("{url} {} {seconds} {is_victim}", log.display());
    let test = "fleet::hammer_mixed::mixed_policies_never_admit_too_many_and_a_killed_process_loses_its_slots";
    workers::start(test, (WORKER, work))
}

fn work_for(work: &str) {
    let parts: Vec<&str> = work.split(' ').collect();
    let [url, log, seconds, is_victim] = parts[..] else {
        panic!("a worker is told the url, its log, the seconds, and whether it is the victim");
    };
    let span = match is_victim {
        // Its parent kills it, or has failed by then.
        "true" => Duration::from_secs(60),
        _ => Duration::from_secs(seconds.parse().expect("a number of seconds")),
    };
    let records = workers::runtime().block_on(async {
        let held = match is_victim {
            "true" => Some(hold_all(url).await),
            _ => None,
        };
        let records = hammer(url, span).await;
        drop(held);
        records
    });
    let numbers = records.into_iter();
    write_log(
        log,
        numbers.map(|record| [record.key, record.at, record.taken, record.released]),
    );
}

/// Takes all slots of a key that only the victim has.
async fn hold_all(url: &str) -> impl Sized + use<> {
    let (limiter, [.., slots]) = (limiter(url), policies());
    let charges = [slots.charge(Key::new(VICTIM)).cost(SLOTS)];
    let decision = limiter.check(&charges).await.expect("a decision");
    limiter.hold(Receipt::of(&charges, &decision).expect("free"))
}

async fn hammer(url: &str, span: Duration) -> Vec<Record> {
    let (limiter, policies) = (limiter(url), Arc::new(policies()));
    let admitted = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (limiter, policies) = (limiter.clone(), Arc::clone(&policies));
            let admitted = Arc::clone(&admitted);
            tokio::spawn(async move {
                let (started, mut records) = (Instant::now(), Vec::new());
                while started.elapsed() < span || admitted.load(Ordering::Relaxed) < LEAST {
                    assert!(started.elapsed() < span + PATIENCE, "never admitted");
                    let record = one(&limiter, &*policies, task % KEYS).await;
                    admitted.fetch_add(u64::from(record.released > 0), Ordering::Relaxed);
                    records.push(record);
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
