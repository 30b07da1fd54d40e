//! Measures the cost of a decision to the Redis server, by algorithm.
//!
//! Run with `cargo bench --bench script`; `-- log` leaves the rows whose names hold it. `TOLLGATE_REDIS_SERVER` names
//! another server than the one on `PATH`.
//!
//! Method: the server's own count of the microseconds in `EVALSHA` (`INFO commandstats`), which leaves the socket out.
//! Calls are pipelined over one connection. A row has 1,000 keys of 11 characters, or 100 keys for logs of 1,000 entries
//! and more. The outcome of every reply is checked. Each round runs every row once and begins with another row; a row
//! shows the median of its rounds, the least and the largest. *Alone* is one decision per call; *of 32* is a 32nd of a call
//! with 32 decisions, because calls carry several when decisions wait.
//!
//! Keys of allowed rows never run out of quota; keys of denied rows have none left. A log of `n` entries has a limit of
//! `n`, and the caller's clock advances so that each allowed decision drops the oldest entry and adds one. Other rows use
//! the server's clock. The plain script is GCRA as one writes it by hand, a string of 16 digits.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;

use std::{env, time::Duration};

use redis::{Cmd, Connection, Pipeline, Value};
use support::{PLAIN_GCRA, Server, unpack};
use tollgate::{
    Quota,
    algorithm::{Algorithm, Counter, WindowStart},
    remote::Script,
};

fn main() {
    let server = Server::start();
    let mut connection = server.connection();
    let wanted: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let mut rows = rows();
    rows.retain(|row| wanted.iter().all(|word| row.name.contains(word.as_str())));
    for row in &mut rows {
        row.prepare(&server, &mut connection);
    }
    let mut samples = vec![(Vec::new(), Vec::new()); rows.len()];
    for round in 0..ROUNDS {
        for turn in 0..rows.len() {
            let index = (round + turn) % rows.len();
            samples[index]
                .0
                .push(rows[index].measure(&server, &mut connection, 1));
            if !rows[index].is_plain() {
                samples[index]
                    .1
                    .push(rows[index].measure(&server, &mut connection, 32));
            }
        }
    }
    println!("us of EVALSHA per decision, median (least..largest) of {ROUNDS} rounds\n");
    println!("| decision | alone | of 32 |\n|---|---|---|");
    for (row, (alone, many)) in rows.iter().zip(&mut samples) {
        println!("| {} | {} | {} |", row.name, summary(alone), summary(many));
    }
}

fn rows() -> Vec<Row> {
    let ample = Quota::per_second(1).burst(1_000_000_000);
    let uneven = Quota::per_second(3).burst(1_000_000_000);
    let hourly = Quota::per_hour(1_000_000);
    let daily = Quota::per_day(1);
    let window = |opening| Algorithm::FixedWindow(opening);
    let plain = |span, is_allowed| Row::of("plain GCRA", Way::Plain(span), is_allowed);
    let mut rows = vec![plain(1_000_000_000_000_000, true), plain(1, false)];
    let allowed = [
        ("token bucket", ample, Algorithm::TokenBucket),
        ("leaky bucket", ample, Algorithm::LeakyBucket),
        ("token bucket, uneven rate", uneven, Algorithm::TokenBucket),
        (
            "fixed window, by the clock",
            hourly,
            window(WindowStart::Clock),
        ),
        (
            "fixed window, first hit",
            hourly,
            window(WindowStart::FirstHit),
        ),
        (
            "fixed window, month",
            Quota::per_month(1_000_000_000),
            window(WindowStart::Month),
        ),
        ("sliding window", hourly, Algorithm::SlidingWindow),
    ];
    rows.extend(allowed.map(|(name, quota, algorithm)| Row::new(name, quota, algorithm, true)));
    let denied = [
        ("token bucket", daily, Algorithm::TokenBucket),
        (
            "fixed window, by the clock",
            daily,
            window(WindowStart::Clock),
        ),
        ("sliding window", daily, Algorithm::SlidingWindow),
    ];
    rows.extend(denied.map(|(name, quota, algorithm)| Row::new(name, quota, algorithm, false)));
    let mut counted = Row::new(
        "token bucket that counts denied requests",
        daily,
        Algorithm::TokenBucket,
        false,
    );
    counted.counts_denied = true;
    rows.push(counted);
    for entries in [1, 10, 100, 1_000, 10_000] {
        rows.extend([true, false].map(|is_allowed| Row::log(entries, is_allowed)));
    }
    rows
}

// === Row ===

struct Row {
    name: String,
    way: Way,
    hash: String,
    is_allowed: bool,
    counts_denied: bool,
    keys: Vec<String>,
    /// Entries that a log is to have.
    entries: u64,
    /// The caller's clock, and the step that it takes when all keys were asked.
    clock: Option<(u64, u64)>,
    next: usize,
}

/// Our counter, or the plain script's span.
enum Way {
    Counter(Counter),
    Plain(u64),
}

impl Way {
    fn script(&self) -> &'static str {
        match self {
            Self::Counter(_) => Script::DECIDE.source(),
            Self::Plain(_) => PLAIN_GCRA,
        }
    }
}

impl Row {
    fn new(name: &str, quota: Quota, algorithm: Algorithm, is_allowed: bool) -> Self {
        let counter = Counter::new(quota, algorithm).expect("a usable quota");
        Self::of(name, Way::Counter(counter), is_allowed)
    }

    fn of(name: &str, way: Way, is_allowed: bool) -> Self {
        let outcome = if is_allowed { "allowed" } else { "denied" };
        Self {
            name: format!("{name}, {outcome}"),
            hash: redis::Script::new(way.script()).get_hash().to_owned(),
            way,
            is_allowed,
            counts_denied: false,
            keys: Vec::new(),
            entries: 1,
            clock: None,
            next: 0,
        }
    }

    /// An entry every ten minutes. The period ends a second before the oldest entry would be one too many.
    fn log(entries: u64, is_allowed: bool) -> Self {
        let period = Duration::from_secs(600 * entries - 1);
        let quota = Quota::new(entries, period);
        let name = format!("sliding log of {entries}");
        Self {
            entries,
            clock: Some((START, TEN_MINUTES)),
            ..Self::new(&name, quota, Algorithm::SlidingLog, is_allowed)
        }
    }

    fn is_plain(&self) -> bool {
        matches!(self.way, Way::Plain(_))
    }

    /// Loads the script, and brings every key to where the row's decisions begin.
    fn prepare(&mut self, server: &Server, connection: &mut Connection) {
        server.command(&["SCRIPT", "LOAD", self.way.script()]);
        let first = format!("{}:first", self.name);
        for _ in 0..self.entries {
            let command = self.command(std::slice::from_ref(&first));
            let _: Value = command.query(connection).expect("the script answers");
            self.advance();
        }
        if !self.is_allowed
            && let Some((now, step)) = &mut self.clock
        {
            (*now, *step) = (*now - *step, 0);
        }
        let count = if self.entries < 1_000 { 1_000 } else { 100 };
        self.keys = (0..count)
            .map(|number| format!("{}:user:{number:06}", self.name))
            .collect();
        for key in &self.keys {
            server.command(&["COPY", &first, key]);
        }
    }

    /// Microseconds per decision, with so many decisions in a call.
    fn measure(&mut self, server: &Server, connection: &mut Connection, of: usize) -> f64 {
        server.flush_stats();
        let mut decisions = 0;
        while decisions < DECISIONS {
            let mut pipeline = Pipeline::new();
            for _ in 0..(100 / of).max(1) {
                if self.next + of > self.keys.len() {
                    self.next = 0;
                    self.advance();
                }
                let keys = &self.keys[self.next..self.next + of];
                pipeline.add_command(self.command(keys));
                self.next += of;
                decisions += of;
            }
            let replies: Vec<Value> = pipeline.query(connection).expect("the script answers");
            replies.iter().for_each(|reply| self.check(reply));
        }
        // calls=1,usec=2,..
        let statistics = &server.info("commandstats")["cmdstat_evalsha"];
        let micros = statistics.split_once("usec=").expect("it has them").1;
        let micros: f64 = micros
            .split(',')
            .next()
            .and_then(|text| text.parse().ok())
            .expect("a number");
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let decisions = decisions as f64;
        micros / decisions
    }

    fn advance(&mut self) {
        if let Some((now, step)) = &mut self.clock {
            *now += *step;
        }
    }

    /// A decision about each key, in one call.
    fn command(&self, keys: &[String]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(keys.len()).arg(keys);
        if let Some((now, _)) = self.clock {
            command.arg("@").arg(now);
        }
        for _ in keys {
            if self.counts_denied {
                command.arg("!");
            }
            match &self.way {
                Way::Counter(counter) => arguments(&mut command, counter),
                Way::Plain(span) => drop(command.arg(1_000_000).arg(span)),
            }
        }
        command
    }

    /// The second number of a reply is the verdict on the first decision.
    fn check(&self, reply: &Value) {
        let verdict = match reply {
            Value::Array(items) => items[1].clone(),
            packed => Value::Int(unpack(packed)[1]),
        };
        let wanted = Value::Int(i64::from(self.is_allowed));
        assert_eq!(verdict, wanted, "{}", self.name);
    }
}

fn arguments(command: &mut Cmd, counter: &Counter) {
    let tag = |letter: u8, shape: &[u8]| [&[letter], shape].concat();
    match counter {
        Counter::Bucket(bucket) => {
            let shape = bucket.quota_tag().to_be_bytes();
            let (units, micros) = bucket.refill();
            if units == 1 {
                command
                    .arg(tag(b'w', &shape))
                    .arg(micros)
                    .arg(bucket.span())
            } else {
                command
                    .arg(tag(b'l', &shape))
                    .arg(1)
                    .arg(bucket.span())
                    .arg(units)
                    .arg(micros)
            }
        }
        Counter::FixedWindow(window) => {
            let letter = match window.window_start() {
                WindowStart::FirstHit => b'o',
                WindowStart::Month => b'm',
                _ => b'f',
            };
            let shape = window.quota_tag().to_be_bytes();
            command
                .arg(tag(letter, &shape))
                .arg(1)
                .arg(window.limit())
                .arg(window.millis())
        }
        Counter::SlidingLog(log) => command.arg("g").arg(1).arg(log.limit()).arg(log.millis()),
        Counter::SlidingWindow(window) => command
            .arg("s")
            .arg(1)
            .arg(window.limit())
            .arg(window.millis())
            .arg(window.tick()),
        other => panic!("no row counts by {other:?}"),
    };
}

fn summary(samples: &mut [f64]) -> String {
    samples.sort_by(f64::total_cmp);
    match (samples.first(), samples.last()) {
        (Some(least), Some(largest)) => {
            format!(
                "{:.2} ({least:.2}..{largest:.2})",
                samples[samples.len() / 2]
            )
        }
        _ => "-".to_owned(),
    }
}

const ROUNDS: usize = 15;
const DECISIONS: usize = 4_000;
/// The caller's clock, in 2023.
const START: u64 = 1_700_000_000_000_000;
const TEN_MINUTES: u64 = 600_000_000;
