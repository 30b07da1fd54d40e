//! Callers that wait: how much of the rate they use, in which order, at which cost, and after a fault.
//!
//! ```text
//! cargo bench --bench turns                    every row
//! cargo bench --bench turns -- fair slots      those with one of these names
//! ```
//!
//! Rows: `fair`, `patience`, `leave`, `sets`, `slots`, `kill`, `outage`, `answers`. Flags: `--delays 0,5` (milliseconds that are
//! added to each round trip to Redis), `--rate 100`, `--seconds 20`, `--waiters 10000`, `--sets 100,1000,10000`, `--holds 5,50,1000`
//! (milliseconds).
//!
//! # Method
//!
//! Each instance is a limiter with a store of its own, and so with a connection, a queue and slots of its own. All are in this
//! process, but for the instance that is killed. The limit is a bucket with a burst of one, so a unit that is not used at once is lost.
//!
//! *Used* is the part of the units that the limit has in the time. *Calls* are the scripts that the server ran, per turn. A
//! *gap* is the time between two starts, by the server's clock: none may be shorter than a unit takes.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;

mod answers;
mod faults;
mod fleet;
mod leavers;
mod steady;

use std::time::Duration;

use tokio::runtime::Builder;

use self::support::Arguments;

const KNOWN: [&str; 8] = [
    "--delays",
    "--holder",
    "--holds",
    "--rate",
    "--seconds",
    "--sets",
    "--url",
    "--waiters",
];

fn main() {
    let arguments = Arguments::of_process(&KNOWN);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    if arguments.has("--holder") {
        return runtime.block_on(faults::hold(&arguments.value("--url", String::new())));
    }
    runtime.block_on(run(&arguments));
}

async fn run(arguments: &Arguments) {
    let names = [
        "fair", "patience", "leave", "sets", "slots", "kill", "outage", "answers",
    ];
    let has_all = !names.iter().any(|name| arguments.has(name));
    let wants = |name: &str| has_all || arguments.has(name);
    for delay in arguments.list("--delays", &[0_u64]) {
        let delay = Duration::from_millis(delay);
        if wants("fair") {
            steady::fair(arguments, delay).await;
        }
        if wants("patience") {
            leavers::patience(delay).await;
        }
        if wants("leave") {
            leavers::leave(arguments, delay).await;
        }
        if wants("sets") {
            steady::sets(arguments, delay).await;
        }
        if wants("slots") {
            steady::slots(arguments, delay).await;
        }
    }
    if wants("kill") {
        faults::kill().await;
    }
    if wants("outage") {
        faults::outage(arguments).await;
    }
    if wants("answers") {
        answers::answers(arguments).await;
    }
}
