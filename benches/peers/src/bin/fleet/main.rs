//! Several processes on one Redis: strict, leased and delayed policies, and peers that count in process, on one hot key or on many.
//!
//! `cargo run --release --ignore-rust-version --bin fleet -- [--processes 8] [--seconds 3] [--keys 1] [--limit 100000]
//! [--burst 100000] [--load 0] [--skew 0] [--sticky 0] [--round-trip 0] [--fault none]
//! [--only strict,leased]`
//!
//! The limit is in units a second for each key. `--load` is the part of the limit of all keys that is asked
//! for, 0 for as much as the processes can; `--skew` the part of it that the first process asks for, 0 for all alike. Keys are picked by Zipf's law; with `--sticky 1`, each by one process
//! only. `--round-trip` adds milliseconds. `--fault` is `none`, `kill` (a process in the middle), `stop` (a process for 5 s) or `clock` (that
//! of a process is an hour ahead; needs the program `faketime`).
//!
//! The worst span is how many units the hottest key was admitted beyond its burst and rate, in any span of whole milliseconds.

#[path = "../../../../support/histogram.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod histogram;
#[path = "../../../../../tests/support/proxy.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod proxy;
mod subject;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use redis::Client;
use tokio::runtime::{Builder, Runtime};
use tollgate_peers::{arguments::Arguments, cpu, server::Server};

use self::{
    histogram::Histogram,
    proxy::{Mode, Proxy},
    subject::{ALL, Subject},
};

fn main() {
    let arguments = Arguments::of_process();
    if arguments.subcommand("child").is_some() {
        return ask(&arguments);
    }
    println!(
        "| policy | decisions/s | admitted, of the limit | of the requests of the first process, and of the others | here | Redis calls a second | a decision | Redis, % of a core | p50 / p99 / p99.9 us | worst span, units |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let only: String = arguments.value("--only", String::new());
    let only: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    for subject in ALL {
        if only.is_empty() || only.contains(&subject) {
            measure(&arguments, subject);
        }
    }
}

// === Parent ===

fn measure(arguments: &Arguments, subject: &str) {
    let server = Server::start();
    let runtime = Runtime::new().expect("a runtime can be made");
    let round_trip: u64 = arguments.value("--round-trip", 0);
    let address = server.url["redis://".len()..].trim_end_matches('/');
    let proxy = (round_trip > 0).then(|| {
        let proxy = runtime.block_on(Proxy::start(address.parse().expect("an address")));
        proxy.set(Mode::Delay(Duration::from_millis(round_trip)));
        proxy
    });
    let url = proxy
        .as_ref()
        .map_or_else(|| server.url.clone(), Proxy::url);
    let seconds = arguments.seconds("--seconds", 3.0);
    let begins_at = wall_millis() + 500;
    let processes: u64 = arguments.value("--processes", 8);
    let children: Vec<Child> = (0..processes)
        .map(|number| child(arguments, (&url, subject, begins_at, number)))
        .collect();
    let fault: String = arguments.value("--fault", "none".to_owned());
    let victim = children[0].id().to_string();
    let readers: Vec<_> = children
        .into_iter()
        .map(|child| thread::spawn(move || Counts::read(child)))
        .collect();
    thread::sleep(Duration::from_millis(600));
    let (calls, busy, started) = (calls(&server), cpu::time_of(server.id()), Instant::now());
    if fault == "kill" || fault == "stop" {
        thread::sleep(seconds / 2);
        let signals: &[&str] = if fault == "kill" {
            &["-KILL"]
        } else {
            &["-STOP", "-CONT"]
        };
        for (place, signal) in signals.iter().enumerate() {
            thread::sleep(Duration::from_secs(5 * place as u64));
            let sent = Command::new("kill")
                .args([signal, victim.as_str()])
                .status();
            assert!(sent.is_ok_and(|status| status.success()));
        }
    }
    let mut counts = readers
        .into_iter()
        .map(|reader| reader.join().expect("a reader does not panic"));
    let mut all = counts.next().expect("a process");
    let first = all.part_admitted();
    let mut others = Counts::default();
    counts.for_each(|counts| others.add(&counts));
    all.add(&others);
    let took = started.elapsed().as_secs_f64();
    let busy = (cpu::time_of(server.id()) - busy).as_secs_f64();
    let calls = self::calls(&server) - calls;
    let limit: f64 = arguments.value("--limit", 100_000.0);
    let burst: f64 = arguments.value("--burst", limit);
    let keys: f64 = arguments.value("--keys", 1.0);
    let seconds = seconds.as_secs_f64();
    let decisions = all.latencies.count() as f64;
    let micros = |share| all.latencies.quantile(share).as_secs_f64() * 1e6;
    println!(
        "| {subject} | {:.0} | {:.3} | {first:.2}, {:.2} | {:.3} | {:.0} | {:.4} | {:.0} | {:.1} / {:.0} / {:.0} | {:+.0} |",
        decisions / seconds,
        all.admitted as f64 / (keys * (burst + limit * seconds)),
        others.part_admitted(),
        all.here as f64 / decisions,
        calls as f64 / took,
        calls as f64 / decisions,
        100.0 * busy / took,
        micros(0.5),
        micros(0.99),
        micros(0.999),
        all.worst_span(limit, burst),
    );
}

fn child(
    arguments: &Arguments,
    (url, subject, begins_at, number): (&str, &str, u64, u64),
) -> Child {
    let program = std::env::current_exe().expect("this program");
    let fault: String = arguments.value("--fault", String::new());
    let mut command = if fault == "clock" && number == 0 {
        let mut command = Command::new("faketime");
        command.env("DONT_FAKE_MONOTONIC", "1");
        let ahead = format!("+{}s", AHEAD_MILLIS / 1_000);
        command.args(["-f", &ahead]).arg(program);
        command.args(["child", "--ahead", &AHEAD_MILLIS.to_string()]);
        command
    } else {
        let mut command = Command::new(program);
        command.arg("child");
        command
    };
    command.args(["--url", url, "--subject", subject]);
    for (name, default) in [
        ("--seconds", 3.0),
        ("--keys", 1.0),
        ("--limit", 100_000.0),
        ("--burst", arguments.value("--limit", 100_000.0)),
        ("--load", 0.0),
        ("--skew", 0.0),
        ("--sticky", 0.0),
        ("--processes", 8.0),
    ] {
        let value: f64 = arguments.value(name, default);
        command.args([name, &value.to_string()]);
    }
    command.args([
        "--begins-at",
        &begins_at.to_string(),
        "--number",
        &number.to_string(),
    ]);
    command
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child starts")
}

fn calls(server: &Server) -> u64 {
    let client = Client::open(server.url.as_str()).expect("the url is well formed");
    let mut connection = client.get_connection().expect("Redis is up");
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .expect("statistics");
    let is_script = |line: &&str| line.starts_with("cmdstat_eval");
    let calls = |line: &str| line.split(['=', ',']).nth(1)?.parse::<u64>().ok();
    info.lines().filter(is_script).filter_map(calls).sum()
}

/// The counts that a process wrote.
#[derive(Default)]
struct Counts {
    admitted: u64,
    here: u64,
    latencies: Histogram,
    /// Units that the hottest key was admitted in each millisecond.
    hottest: BTreeMap<u64, u64>,
}

impl Counts {
    /// Reads the lines of a child until it ends. Those of a child that was killed are what it had written.
    fn read(mut child: Child) -> Self {
        let mut counts = Self::default();
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        for line in lines.map_while(Result::ok) {
            let numbers: Vec<u64> = line
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            match (line.chars().next(), numbers.as_slice()) {
                (Some('n'), [admitted, here]) => {
                    counts.admitted += admitted;
                    counts.here += here;
                }
                (Some('h'), [millis, units]) => {
                    *counts.hottest.entry(*millis).or_default() += units
                }
                (Some('l'), [nanos, times]) => {
                    for _ in 0..*times {
                        counts.latencies.record(Duration::from_nanos(*nanos));
                    }
                }
                _ => panic!("an unknown line: {line}"),
            }
        }
        let _ = child.wait();
        counts
    }

    fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.here += other.here;
        self.latencies.merge(&other.latencies);
        for (millis, units) in &other.hottest {
            *self.hottest.entry(*millis).or_default() += units;
        }
    }

    /// Returns the part of the requests that was admitted.
    fn part_admitted(&self) -> f64 {
        self.admitted as f64 / self.latencies.count().max(1) as f64
    }

    fn worst_span(&self, limit: f64, burst: f64) -> f64 {
        let per_milli = limit / 1_000.0;
        let (mut level, mut last, mut worst) = (0.0_f64, 0, f64::MIN);
        for (millis, units) in &self.hottest {
            level = (level - (millis - last) as f64 * per_milli).max(0.0) + *units as f64;
            last = *millis;
            worst = worst.max(level - per_milli - burst);
        }
        worst
    }
}

// === Child ===

/// Asks for units until the time is over, and writes what came of it ten times a second.
fn ask(arguments: &Arguments) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    runtime.block_on(ask_in_turns(arguments));
}

async fn ask_in_turns(arguments: &Arguments) {
    let limit: f64 = arguments.value("--limit", 0.0);
    let keys: f64 = arguments.value("--keys", 1.0);
    let load: f64 = arguments.value("--load", 0.0);
    let processes: f64 = arguments.value("--processes", 1.0);
    let name: String = arguments.value("--subject", String::new());
    let quota = (limit, arguments.value("--burst", 0));
    let url = arguments.value("--url", String::new());
    let subject = Subject::new(&name, url, quota, keys as u64).await;
    let number: u64 = arguments.value("--number", 0);
    let sticky: u64 = arguments.value("--sticky", 0);
    let own = (sticky > 0).then_some((number as usize, processes as usize));
    let picks = picks(keys as usize, number, own);
    let skew: f64 = arguments.value("--skew", 0.0);
    let part = match number {
        _ if skew == 0.0 => 1.0 / processes,
        0 => skew,
        _ => (1.0 - skew) / (processes - 1.0),
    };
    let demand = load * limit * keys * part;
    let ahead: u64 = arguments.value("--ahead", 0);
    let wall_millis = || wall_millis() - ahead;
    let begins_at: u64 = arguments.value("--begins-at", 0);
    let ends = arguments.seconds("--seconds", 3.0);
    thread::sleep(Duration::from_millis(
        begins_at.saturating_sub(wall_millis()),
    ));
    let started = Instant::now();
    let written_at = Cell::new(started);
    let written = RefCell::new(Written::default());
    let asked = Cell::new(0_usize);
    let callers = (0..64).map(|_| async {
        let mut turn = 0_u32;
        loop {
            let asked_at = Instant::now();
            let elapsed = asked_at - started;
            if elapsed > ends {
                return;
            }
            if demand > 0.0 && asked.get() as f64 > elapsed.as_secs_f64() * demand {
                tokio::time::sleep(Duration::from_micros(200)).await;
                continue;
            }
            let place = picks[asked.get() % picks.len()];
            asked.set(asked.get() + 1);
            let (is_allowed, here) = subject.ask(place).await;
            let took = asked_at.elapsed();
            let mut written = written.borrow_mut();
            written.note(place, is_allowed, here, (took, wall_millis()));
            if written_at.get().elapsed() > Duration::from_millis(100) {
                written.flush();
                written_at.set(Instant::now());
            }
            drop(written);
            turn += 1;
            if turn.is_multiple_of(64) {
                // Decisions in process do not wait.
                tokio::task::yield_now().await;
            }
        }
    });
    join_all(callers).await;
    written.borrow_mut().flush();
}

/// Counts that are not written yet.
#[derive(Default)]
struct Written {
    admitted: u64,
    here: u64,
    latencies: BTreeMap<u64, u64>,
    hottest: BTreeMap<u64, u64>,
}

impl Written {
    fn note(&mut self, place: u32, is_allowed: bool, here: bool, (took, millis): (Duration, u64)) {
        self.admitted += u64::from(is_allowed);
        self.here += u64::from(here);
        // To about 6 %.
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let shift = (64 - nanos.leading_zeros()).saturating_sub(5);
        *self.latencies.entry((nanos >> shift) << shift).or_default() += 1;
        if is_allowed && place == 0 {
            *self.hottest.entry(millis).or_default() += 1;
        }
    }

    fn flush(&mut self) {
        let mut out = String::new();
        let Self {
            admitted,
            here,
            latencies,
            hottest,
        } = std::mem::take(self);
        out += &format!("n {admitted} {here}\n");
        out.extend(
            hottest
                .iter()
                .map(|(millis, units)| format!("h {millis} {units}\n")),
        );
        out.extend(
            latencies
                .iter()
                .map(|(nanos, times)| format!("l {nanos} {times}\n")),
        );
        std::io::stdout()
            .write_all(out.as_bytes())
            .expect("the parent reads");
    }
}

/// Returns 65,536 keys by Zipf's law, the most frequent first in the list of keys. A process with keys of its own gets those of its
/// number among so many processes.
fn picks(keys: usize, seed: u64, own: Option<(usize, usize)>) -> Vec<u32> {
    let is_own = |rank: usize| own.is_none_or(|(number, of)| rank % of == number);
    let weight = |rank: usize| {
        if is_own(rank) {
            1.0 / (rank + 1) as f64
        } else {
            0.0
        }
    };
    let weights: Vec<f64> = (0..keys).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    let mut cumulated = 0.0;
    let bounds: Vec<f64> = weights
        .iter()
        .map(|weight| {
            cumulated += weight / sum;
            cumulated
        })
        .collect();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..1 << 16)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let place = (state >> 11) as f64 / (1_u64 << 53) as f64;
            bounds.partition_point(|bound| *bound < place).min(keys - 1) as u32
        })
        .collect()
}

/// By how much the clock of one process may be ahead.
const AHEAD_MILLIS: u64 = 3_600_000;

fn wall_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
