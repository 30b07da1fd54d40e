//! Limiters of outgoing calls, against an API that enforces its limit with another implementation.
//!
//! `cargo run --release --ignore-rust-version --bin outgoing -- [--client NAME] [--api nginx|fixed-window] [--rates 10,100,1000]
//! [--processes 1,3] [--delays 0,5] [--tasks 64] [--seconds 10] [--share 1.0] [--bottleneck DIR]`
//!
//! Each of the tasks of a process asks its limiter for a turn, calls the API, and asks again. So there is always more to send than
//! the API allows. `--share` is the part of the API's rate that clients are set to, `--delays` the milliseconds that are added
//! to the round trip to the API. nginx must be on `PATH`. `DIR` holds `node_modules` with `bottleneck` and `ioredis`.

#[path = "../../../../../tests/support/proxy.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod proxy;

mod api;
mod client;
mod limiter;
mod report;
mod task;

use std::{
    process::Child,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::runtime::Runtime;
use tollgate_peers::{arguments::Arguments, server::Server};

use self::{
    api::{Api, RunningApi},
    client::{Calls, Client},
    proxy::{Mode, Proxy},
    report::Report,
};

fn main() {
    let arguments = Arguments::of_process();
    if arguments.subcommand("api").is_some() {
        return api::serve(arguments.value("--rate", 1));
    }
    if arguments.subcommand("call").is_some() {
        return task::call(&arguments);
    }
    println!(
        "| API | added round trip, ms | calls/s allowed | processes x tasks | client | calls | 429 | other failures | used of the allowed rate, % | wait p50 / p99, ms | starts of a task, least / most |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let clients = clients(&arguments);
    let apis: String = arguments.value("--api", String::new());
    for api in Api::ALL
        .into_iter()
        .filter(|api| api.name().contains(&apis))
    {
        for delay in list(&arguments, "--delays", "0,5") {
            for rate in list(&arguments, "--rates", "10,100,1000") {
                for processes in list(&arguments, "--processes", "1,3") {
                    for client in &clients {
                        let run = Run {
                            api,
                            delay: Duration::from_millis(delay),
                            rate,
                            processes,
                            client: *client,
                        };
                        run.measure(&arguments);
                    }
                }
            }
        }
    }
}

/// Returns the client of the command line, or all that can run.
fn clients(arguments: &Arguments) -> Vec<Client> {
    let packages: Option<String> = arguments.optional("--bottleneck");
    match arguments.optional("--client") {
        Some(client) => vec![client],
        None => {
            let can_run = |client: &Client| !client.needs_node() || packages.is_some();
            Client::ALL.into_iter().filter(can_run).collect()
        }
    }
}

fn list(arguments: &Arguments, name: &str, default: &str) -> Vec<u64> {
    let text: String = arguments.value(name, default.to_owned());
    let numbers = text.split(',').map(str::parse);
    let numbers: Result<_, _> = numbers.collect();
    numbers.unwrap_or_else(|error| panic!("{name} {text:?}: {error}"))
}

// === Run ===

/// One row of the table.
struct Run {
    api: Api,
    delay: Duration,
    rate: u64,
    processes: u64,
    client: Client,
}

impl Run {
    fn measure(&self, arguments: &Arguments) {
        let tasks: u64 = arguments.value("--tasks", 64);
        let api = RunningApi::start(self.api, self.rate);
        let runtime = Runtime::new().expect("a runtime can be made");
        let proxy = (!self.delay.is_zero()).then(|| {
            let proxy = runtime.block_on(Proxy::start(api.address()));
            proxy.set(Mode::RoundTrip(self.delay));
            proxy
        });
        let address = proxy.as_ref().map_or(api.address(), Proxy::address);
        let redis = (self.client.shares_by_redis() && self.processes > 1).then(Server::start);
        // By then each task has had its first turn: those waits are shorter, because the line fills only then.
        let turn = (tasks * self.processes).div_ceil(self.rate);
        let begins_at = wall_seconds() + 2 + turn;
        let seconds = arguments.value("--seconds", 10).max(TURNS * turn);
        let share: f64 = arguments.value("--share", 1.0);
        let calls = Calls {
            address,
            rate: self.rate as f64 * share,
            processes: self.processes,
            tasks,
            begins_at,
            seconds,
            redis: redis.as_ref().map(|server| server.url.clone()),
        };
        let children: Vec<Child> = (0..self.processes)
            .map(|number| self.client.start((&calls, number), arguments))
            .collect();
        let readers = children
            .into_iter()
            .map(|child| thread::spawn(move || Report::read(child)));
        let readers: Vec<_> = readers.collect();
        let mut all = Report::default();
        for reader in readers {
            all.add(reader.join().expect("a reader does not panic"));
        }
        self.print(&all, (tasks, seconds));
    }

    fn print(&self, report: &Report, (tasks, seconds): (u64, u64)) {
        let millis = |share| report.wait(share).as_secs_f64() * 1e3;
        let (least, most) = report.starts();
        println!(
            "| {} | {} | {} | {} x {tasks} | {} | {} | {} | {} | {:.1} | {:.1} / {:.1} | {least} / {most} |",
            self.api.name(),
            self.delay.as_millis(),
            self.rate,
            self.processes,
            self.client.name(),
            report.calls(),
            report.refused,
            report.failed,
            100.0 * report.admitted as f64 / (self.rate * seconds) as f64,
            millis(0.5),
            millis(0.99),
        );
    }
}

/// Whole seconds, so that a run covers whole windows of the API.
fn wall_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is right").as_secs()
}

/// Every task gets about this many turns in a run, or more.
const TURNS: u64 = 3;
