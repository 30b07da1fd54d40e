//! Responses in time of a service to which more requests come than it can serve: without a limit, with tower's fixed one, with the
//! adaptive ones of tower-resilience, and with tollgate's.
//!
//! A server with one worker on core 0, and clients in this process on core 1: open loop, Poisson arrivals, over HTTP/1.1. A client that
//! waits longer than its patience hangs up. Three classes by thirds, and 20 tenants, of whom one sends nine requests in ten.

mod clients;
mod responses;
mod server;

use tokio::runtime::Runtime;
use tollgate_peers::{
    arguments::Arguments,
    cpu,
    table::{self, Summary},
};

use self::{clients::Setup, responses::Outcome, server::Served};

const SERVICES: [&str; 5] = ["cpu", "await", "pool", "shared", "mix"];

fn main() {
    let arguments = Arguments::of_process();
    if let Some([service, limit]) = arguments.subcommand("serve") {
        cpu::pin_to(0);
        return server::serve(service, limit);
    }
    cpu::pin_to(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    compare(&arguments, &runtime.expect("a runtime"));
}

/// Prints a table of limits and loads for each service.
fn compare(arguments: &Arguments, runtime: &Runtime) {
    let seconds = arguments.seconds("--seconds", 8.0);
    let rounds = arguments.value("--rounds", 1_usize);
    let loads: String = arguments.value("--loads", "0.5,1,2,5,10".to_owned());
    let limits: String = arguments.value("--limits", LIMITS.to_owned());
    for service in SERVICES
        .into_iter()
        .filter(|service| arguments.picks(service))
    {
        let mut rows = Vec::new();
        for load in loads.split(',') {
            let load: f64 = load.parse().expect("a number");
            for limit in limits.split(',') {
                let runs = (0..rounds).map(|round| {
                    let setup = Setup {
                        service,
                        load,
                        // The first quarter is not measured.
                        warm_up: seconds / 3,
                        seconds,
                        seed: round as u64 + 1,
                    };
                    let server = Served::start(service, limit);
                    runtime.block_on(clients::run(setup, server.address))
                });
                rows.push(row(load, limit, &runs.collect::<Vec<_>>()));
            }
        }
        let columns = [
            "load",
            "limit",
            "in time a second",
            "p50 ms",
            "p99 ms",
            "critical",
            "normal",
            "sheddable",
            "Jain",
            "quiet p99 ms",
        ];
        let heading = format!("{service}: {} a second are possible", server::CAPACITY);
        table::print(&heading, &columns, &rows);
    }
}

fn row(load: f64, limit: &str, runs: &[Outcome]) -> Vec<String> {
    let show = |digits, field: fn(&Outcome) -> f64| {
        let summary = Summary::of(runs.iter().map(field));
        match runs.len() {
            1 => format!("{:.digits$}", summary.median),
            _ => summary.show(digits),
        }
    };
    vec![
        load.to_string(),
        limit.to_owned(),
        show(0, |run| run.in_time),
        show(1, |run| run.p50),
        show(1, |run| run.p99),
        show(3, |run| run.classes[0]),
        show(3, |run| run.classes[1]),
        show(3, |run| run.classes[2]),
        show(2, |run| run.jain),
        show(1, |run| run.quiet_p99),
    ]
}

const LIMITS: &str = "nothing,fixed:16,aimd,vegas,gradient2,tollgate";
