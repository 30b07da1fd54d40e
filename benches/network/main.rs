//! How many decisions per second does the Redis store make, and how fast, over real round trips and under overload?
//!
//! ```text
//! cargo bench --bench network                closed loop: rate and latency by round trip and number of callers
//! cargo bench --bench network -- open        open loop: single arrivals at random, below saturation
//! cargo bench --bench network -- overload    goodput past saturation of a slowed server, closed and open loop
//! ```
//!
//! | flag | in | meaning |
//! |---|---|---|
//! | `--subjects mux,store,tollgate` | all | the limiters to compare; ratios are to the first |
//! | `--round-trips direct,0,0.5,1,2,5,10` | all | milliseconds that the proxy adds; `direct` is without the proxy |
//! | `--rounds 3`, `--seconds 1`, `--warm-up 0.3` | all | rounds per point, and their length |
//! | `--workers 0` | all | worker threads of the client's runtime; 0 is a current-thread runtime |
//! | `--no-pin` | all | leaves the placement on cores to the system |
//! | `--callers 1,64,512,1000,4000` | closed loop | numbers of callers |
//! | `--pause 0` | closed loops | milliseconds a caller waits after a decision that Redis did not make; 0 yields instead |
//! | `--rates 5000,50000` | `open` | arrivals per second |
//! | `--factors 1.5,10` | `overload` | arrivals per second, as multiples of the peak |
//! | `--service 40` | `overload` | microseconds that the slowed server needs for a plain script; 0 does not slow it |
//!
//! # Subjects
//!
//! `mux` is one redis-rs `MultiplexedConnection` with `TCP_NODELAY` and one plain GCRA `EVALSHA` per decision; `store` is a
//! bare `RedisStore`; `tollgate` is a `RateLimiter` over Redis with its breaker and its local limiter. Each uses 10,000
//! keys whose burst is never exhausted, so every decision writes.
//!
//! # Method
//!
//! The subjects take turns within each point, and every round has its own connections and runtime. Other load on the
//! machine affects all subjects, so compare ratios; each is the median of the ratios of the rounds. The load average is
//! printed before and after: above 0.5 before the run, absolute figures are of little use.
//!
//! The proxy delays each direction by half of the round trip, in order, without a limit on throughput. Its own cost is the
//! difference between `direct` and `0 ms`. On two cores the client runs on one, Redis and the proxy on the other.
//!
//! p50 and p99 cover the decisions that Redis made, the maximum covers all. Client CPU is that of this process without the
//! proxy and the arrivals thread, and includes the bench's own work. Redis CPU is that of the server's main thread, sockets
//! included.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

mod closed;
mod harness;
mod load;
mod open;
mod overload;
mod recorder;
mod report;
mod slow_server;
mod subject;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;

use self::{
    harness::Harness,
    support::{Arguments, cpu},
};

fn main() {
    let mut known = Harness::ARGUMENTS.to_vec();
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
