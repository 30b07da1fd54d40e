//! What do requests in flight cost when there are many under one key, and do their slots survive a stall?
//!
//! ```text
//! cargo bench --bench concurrency             both tables
//! cargo bench --bench concurrency -- costs    what an operation costs, by the number of slots
//! cargo bench --bench concurrency -- faults   stalls and a killed holder: slots leaked, slots given twice
//! ```
//!
//! Flags: `--limits 100,10000,100000`, `--lease` (seconds, of the first table), `--no-pin`.
//!
//! # Method
//!
//! Of each limit nine tenths (at least all but 1,000) are taken first and held for as long as the row lasts. Then the rest
//! is taken, asked for in vain, and released, over and over: one operation at a time, and 64 at once, which travel
//! together. Script time is the server's own count of the microseconds in scripts (`INFO commandstats`); CPU is that of the
//! server's main thread, sockets included. Renewals have no caller: their cost is what the server uses while slots are only
//! held, over a third of a lease, in which each is renewed once. *Given twice* are slots that were given although all were held, and *lost* those that
//! Redis no longer counts at the end although they were held all the time. A limit that this version refuses has no row.
//!
//! Meanwhile an unrelated caller asks about another policy once a millisecond, over a limiter of its own with the default
//! deadline of 50 ms, from a thread of its own: what it waits is what everybody else waits.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

mod bystander;
mod costs;
mod faults;
mod slots;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;

use tokio::runtime::{Builder, Runtime};

use self::support::{Arguments, cpu};

fn main() {
    let arguments = Arguments::of_process(&["--limits", "--lease", "--no-pin", "--holder"]);
    let url: String = arguments.value("--holder", String::new());
    if !url.is_empty() {
        return faults::hold_until_killed(&url);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let is_pinned = cores > 1 && !arguments.has("--no-pin");
    let pin = |core| {
        if is_pinned {
            cpu::pin(core);
        }
    };
    // a process stays where the thread that starts it is
    pin(1);
    let server = support::Server::start();
    pin(0);
    println!("load average before: {}", cpu::load_average());
    if !arguments.has("faults") {
        costs::run(&server, &arguments);
    }
    if !arguments.has("costs") {
        faults::run(&server);
    }
    println!("\nload average after: {}", cpu::load_average());
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}
