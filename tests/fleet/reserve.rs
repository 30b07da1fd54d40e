//! Many processes whose requests of low classes ask for ten times what they may have, beside a class with a reserve.

use std::{
    env,
    path::PathBuf,
    process::Child,
    time::{Duration, Instant},
};

use tollgate::{
    Key, Percent, Policy, RateLimiter, charge::Receipt, overload::Priority, remote::RedisStore,
};

use crate::support::{Mode, Proxy, Server};

use super::workers::{self, machine_time, most_at_once, read_log, write_log};

const PROCESSES: usize = 8;
const SLOTS: u64 = 100;
/// Slots that low classes may use, and those that they may if the reserve is lent.
const REST: u64 = 80;
const LENT: u64 = 95;
/// In each process. All together fit the reserve.
const CRITICAL_TASKS: usize = 2;
/// In each process. All together ask for ten times the rest.
const LOW_TASKS: usize = 100;
const HELD: Duration = Duration::from_millis(20);
/// Longer than anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
const WORKER: &str = "TOLLGATE_RESERVE_WORKER";
const SECONDS: &str = "TOLLGATE_HAMMER_SECONDS";

fn fleet(lends: bool) -> Policy {
    let fleet = Policy::concurrency("fleet", SLOTS);
    let fleet = fleet.reserve(Priority::Critical, Percent::new(20.0));
    if lends { fleet.lend(HELD) } else { fleet }
}

#[test]
fn class_has_its_reserve_in_eight_processes_whatever_the_others_ask_for() {
    if let Ok(work) = env::var(WORKER) {
        work_for(&work);
        return;
    }
    assert_all_critical_served(compete(0, false));
}

#[test]
fn class_has_its_reserve_five_milliseconds_away() {
    assert_all_critical_served(compete(5, false));
}

// A class gets a slot that is lent when the request in it ends, so it may be denied until then.
#[test]
fn class_that_lends_its_reserve_is_served_far_more_often() {
    for millis in [0, 5] {
        let [critical, low] = compete(millis, true);
        let denied = |(asked, served): (usize, usize)| (asked - served) as f64 / asked as f64;
        let (denied_critical, denied_low) = (denied(critical), denied(low));
        assert!(
            denied_critical < denied_low / 2.0,
            "{denied_critical:.3} and {denied_low:.3} denied"
        );
    }
}

fn assert_all_critical_served([(asked, served), _]: [(usize, usize); 2]) {
    assert!(asked > 0);
    assert_eq!(served, asked, "critical requests were denied");
}

/// Returns how many requests came and were served, critical ones and others.
fn compete(round_trip: u64, lends: bool) -> [(usize, usize); 2] {
    let server = Server::start();
    let proxy = workers::runtime().block_on(Proxy::start(server.address()));
    proxy.set(Mode::RoundTrip(Duration::from_millis(round_trip)));
    let url = match round_trip {
        0 => server.url(),
        _ => proxy.url(),
    };
    let seconds: u64 =
        env::var(SECONDS).map_or(2, |seconds| seconds.parse().expect("a number of seconds"));
    let mut workers: Vec<(Child, PathBuf)> = (0..PROCESSES)
        .map(|number| {
            let log = server.folder().join(format!("reserve-{number}"));
            let work = format!("{url} {} {seconds} {lends}", log.display());
            let test = "fleet::reserve::class_has_its_reserve_in_eight_processes_whatever_the_others_ask_for";
            (workers::start(test, (WORKER, work)), log)
        })
        .collect();
    for (worker, _) in &mut workers {
        assert!(worker.wait().expect("a worker").success());
    }
    let records: Vec<[u64; 3]> = workers.iter().flat_map(|(_, log)| read_log(log)).collect();
    let of = |is_critical: bool| {
        let class = move |[class, ..]: &&[u64; 3]| (*class == 1) == is_critical;
        records.iter().filter(class)
    };
    let held = |[_, taken, released]: &[u64; 3]| (*released > 0).then_some((*taken, *released));
    let [critical, low] = [true, false].map(|class| {
        let served: Vec<_> = of(class).filter_map(held).collect();
        (of(class).count(), served)
    });
    let all = critical.1.iter().chain(&low.1).copied();
    let (most, most_low) = (most_at_once(all), most_at_once(low.1.iter().copied()));
    println!(
        "critical: {} of {} served; others: {} of {}; at most {most} in flight, {most_low} of them of others",
        critical.1.len(),
        critical.0,
        low.1.len(),
        low.0
    );
    assert!(low.1.len() < low.0, "the others ask for more than they get");
    assert!(most <= SLOTS, "{most} in flight");
    let most_of_low = if lends { LENT } else { REST };
    assert!(
        most_low <= most_of_low,
        "{most_low} of low classes in flight"
    );
    workers::runtime().block_on(all_slots_are_back(&server.url(), lends));
    [critical, low].map(|(asked, served)| (asked, served.len()))
}

async fn all_slots_are_back(url: &str, lends: bool) {
    let (limiter, fleet) = (limiter(url, lends), fleet(lends));
    let peek = limiter.peek(&fleet.charges(Key::GLOBAL, Priority::Normal));
    let decision = peek.await.expect("a decision");
    let left = decision.states().iter().map(|state| {
        let usage = state.usage().expect("counted");
        usage.remaining
    });
    let free = if lends { [LENT, LENT] } else { [SLOTS, REST] };
    assert_eq!(left.collect::<Vec<_>>(), free);
}

fn limiter(url: &str, lends: bool) -> RateLimiter {
    let store = RedisStore::builder(url)
        .deadline(PATIENCE)
        .connect_timeout(PATIENCE)
        .build();
    RateLimiter::new(store.expect("a usable store"), [fleet(lends)]).expect("usable policies")
}

fn work_for(work: &str) {
    let parts: Vec<&str> = work.split(' ').collect();
    let [url, log, seconds, lends] = parts[..] else {
        panic!("a worker is told the url, its log, the seconds and whether the reserve is lent");
    };
    let lends = lends == "true";
    let span = Duration::from_secs(seconds.parse().expect("a number of seconds"));
    let records = workers::runtime().block_on(async {
        let limiter = limiter(url, lends);
        let critical = [Priority::Critical; CRITICAL_TASKS];
        let others = [Priority::Normal, Priority::Sheddable].into_iter().cycle();
        let tasks: Vec<_> = critical
            .into_iter()
            .chain(others.take(LOW_TASKS))
            .map(|class| tokio::spawn(ask(limiter.clone(), fleet(lends), class, span)))
            .collect();
        let mut records = Vec::new();
        for task in tasks {
            records.extend(task.await.expect("no panic"));
        }
        records
    });
    write_log(log, records);
}

/// One request after the other: whether it is critical, and from when to when it held a slot; 0 if it was denied.
async fn ask(
    limiter: RateLimiter,
    fleet: Policy,
    class: Priority,
    span: Duration,
) -> Vec<[u64; 3]> {
    let is_critical = u64::from(class == Priority::Critical);
    let (started, mut records) = (Instant::now(), Vec::new());
    while started.elapsed() < span {
        let charges = fleet.charges(Key::GLOBAL, class);
        let decision = limiter.check(&charges).await.expect("a decision");
        let (taken, mut released) = (machine_time(), 0);
        if let Some(receipt) = Receipt::of(&charges, &decision) {
            tokio::time::sleep(HELD).await;
            released = machine_time();
            limiter.settle(receipt).await.expect("released");
        }
        records.push([is_critical, taken, released]);
    }
    records
}
