//! What does the way to Redis carry when Redis is far away, when many ask, and when it is overloaded?
//!
//! ```text
//! cargo bench --bench network                      rates and waits by round trip and number of callers
//! cargo bench --bench network -- open              single arrivals at random, below saturation
//! cargo bench --bench network -- overload          more than a slowed server can do: closed and open loop
//! ```
//!
//! Flags for all: `--ways mux,store,tollgate`, `--round-trips direct,0,0.5,1,2,5,10` (ms), `--seconds`, `--rounds`,
//! `--warm-up` (seconds before each round), `--workers N` (threads of the client's runtime; 0 is a current-thread runtime),
//! `--no-pin`. For callers: `--callers 1,64,512,1000,4000`, `--pause` (ms that a caller waits after a decision that was not
//! made by Redis; 0 lets the others run). For `open`: `--rates` (arrivals a second). For `overload`: `--service`
//! (microseconds that the slowed server needs for a plain script; 0 leaves it as it is), `--factors`.
//!
//! # What is compared
//!
//! `mux` is one redis-rs `MultiplexedConnection` with `TCP_NODELAY` on and one plain GCRA `EVALSHA` a decision; `store` a
//! bare `RedisStore`; `tollgate` a `RateLimiter` over Redis with its breaker and its local limiter. All ask about 10,000
//! keys that never run out, so every decision writes.
//!
//! # Method
//!
//! The ways take turns, and each round has connections and a runtime of its own; what disturbs the machine disturbs all, so
//! read the ratios. A ratio is the median of the rounds' ratios. The proxy delays each direction by half of the round trip,
//! in order and without limiting the rate; "direct" against "0 ms" is its own cost. With two cores, the client has one, and
//! Redis and the proxy share the other. Client CPU is that of this process without the proxy and the arrivals; it includes
//! the bench's own work of about 0.2 us a decision. Redis CPU is that of the server's main thread, sockets included.
//! p50 and p99 are over the decisions that Redis made, the maximum over all. The load average before and after a run shows
//! whether the machine was quiet: above 0.5 before, the figures are of little use.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

mod load;
mod open;
mod overload;
mod slow;
mod stage;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;
mod tally;
mod way;

use std::time::Duration;

use self::{
    stage::{Distance, Load, Stage},
    support::{Arguments, Summary, cpu},
    tally::{Measurement, reasons},
    way::Kind,
};

fn main() {
    let mut known = Stage::ARGUMENTS.to_vec();
    known.extend(["--round-trips", "--callers", "--pause"]);
    known.extend(["--rates", "--service", "--factors"]);
    let arguments = Arguments::of_process(&known);
    println!("load average before: {}", cpu::load_average());
    if arguments.has("open") {
        open::run(&arguments);
    } else if arguments.has("overload") {
        overload::run(&arguments);
    } else {
        callers(&arguments);
    }
    println!("\nload average after: {}", cpu::load_average());
}

/// The table by round trip and number of callers.
fn callers(arguments: &Arguments) {
    let stage = Stage::set(arguments, 1.0);
    let ways = arguments.list("--ways", &[Kind::Mux, Kind::Store, Kind::Tollgate]);
    let mut distances = vec![Distance::Direct];
    distances.extend([0.0, 0.5, 1.0, 2.0, 5.0, 10.0].map(Distance::millis));
    let distances = arguments.list("--round-trips", &distances);
    let crowds = arguments.list("--callers", &[1, 64, 512, 1_000, 4_000]);
    let pause = Duration::from_secs_f64(arguments.value("--pause", 0.0) / 1e3);
    println!(
        "{} rounds of {:?} a point; waits in ms\n",
        stage.rounds, stage.span
    );
    println!(
        "| round trip | callers | way | by Redis a second (min..max) | x {first} (min..max) | p50 | p50 x {first} | p99 | max | \
         not by Redis | client us | Redis us | proxy us |",
        first = ways[0]
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for distance in distances {
        for &crowd in &crowds {
            let measured = stage.interleave(&ways, distance, Load::Callers(crowd, pause));
            for (way, rounds) in ways.iter().zip(&measured) {
                println!(
                    "| {distance} | {crowd} | {way} | {} |",
                    row(rounds, &measured[0])
                );
            }
        }
    }
}

fn row(rounds: &[Measurement], first: &[Measurement]) -> String {
    let quantile = |share| {
        move |round: &Measurement| match round.counts.by_redis.count() {
            0 => f64::NAN,
            _ => millis(round.counts.by_redis.quantile(share)),
        }
    };
    let paired = |value: &dyn Fn(&Measurement) -> f64| {
        Summary::of(rounds.iter().zip(first).map(|(a, b)| value(a) / value(b)))
    };
    [
        over(rounds, Measurement::rate).show_range(0),
        paired(&Measurement::rate).show_range(2),
        over(rounds, quantile(0.5)).show(3),
        paired(&quantile(0.5)).show(2),
        over(rounds, quantile(0.99)).show(3),
        over(rounds, |round| millis(round.max_wait())).show(1),
        without(rounds),
        over(rounds, Measurement::client_micros).show(2),
        over(rounds, Measurement::server_micros).show(2),
        over(rounds, Measurement::proxy_micros).show(2),
    ]
    .join(" | ")
}

fn over(rounds: &[Measurement], value: impl Fn(&Measurement) -> f64) -> Summary {
    Summary::of(rounds.iter().map(value))
}

/// The share of decisions that were not made by Redis, and who made them.
fn without(rounds: &[Measurement]) -> String {
    let share = 100.0 * over(rounds, Measurement::share_without).median;
    match reasons(rounds) {
        reasons if reasons.is_empty() => format!("{share:.1} %"),
        reasons => format!("{share:.1} % ({reasons})"),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
