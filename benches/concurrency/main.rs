//! What does a concurrency policy cost with many requests in flight under one key, and do slots leak in a fault?
//!
//! ```text
//! cargo bench --bench concurrency              both tables
//! cargo bench --bench concurrency -- costs     Redis time per operation, by the number of slots
//! cargo bench --bench concurrency -- faults    stalls and a killed holder: slots that leak or are granted twice
//! ```
//!
//! Flags: `--limits 100,10000,100000`, `--lease 30` (seconds, first table), `--no-pin`.
//!
//! # Method
//!
//! Each row first takes and holds nine tenths of the limit, or all but 1,000 slots if that is more. Then it takes the rest,
//! asks for as many in vain, and releases them, over and over: with one operation at a time, and with 64 at once, which
//! share script calls. Each cost is a pair: script time (`INFO commandstats`) and CPU time of the server's main thread,
//! sockets included, in microseconds per operation. The cost of a renewal is that of a third of the lease in which the
//! slots are only held, since each is renewed once in that time.
//!
//! *Granted twice* counts slots granted while all were held; *lost* counts held slots that Redis no longer counts at the
//! end. Limits that the crate rejects are shown with the error.
//!
//! The bystander makes a decision on another policy every millisecond, from its own thread and limiter, with the default
//! deadline of 50 ms. It pauses while costs are measured.

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
    // a process inherits the core of the thread that starts it
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
