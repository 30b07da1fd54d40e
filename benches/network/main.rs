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
//! the bench's own work. Redis CPU is that of the server's main thread, sockets included.
//! p50 and p99 are over the decisions that Redis made, the maximum over all. The load average before and after a run shows
//! whether the machine was quiet: above 0.5 before, the figures are of little use.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

mod closed;
mod load;
mod open;
mod overload;
mod report;
mod slow;
mod stage;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;
mod tally;
mod way;

use self::{
    stage::Stage,
    support::{Arguments, cpu},
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
        closed::run(&arguments);
    }
    println!("\nload average after: {}", cpu::load_average());
}
