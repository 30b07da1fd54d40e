//! Responses in time of a service to which more requests come than it can serve: without a limit, with tower's fixed one, with the
//! adaptive ones of tower-resilience, and with tollgate's.
//!
//! ```text
//! overload [--only SERVICE]     a table of loads and limits for each service
//!   --loads 0.5,1,2,5,10          multiples of what the service can serve
//!   --seconds 8 --rounds 1        of each row
//! overload events [NAME..]      the limit before, during and after an event, and a picture of it
//!   --pace 1                      0.5 takes half of the time
//!   --patience SECONDS            after which clients hang up, 1 at least (1; 2 for timeout)
//!   --seed 1
//!
//!   --limits nothing,fixed:16,aimd,vegas,gradient2,tollgate    for both
//! ```
//!
//! A server with one worker on core 0, and clients in this process on core 1: open loop, Poisson arrivals, over HTTP/1.1. A client that
//! waits longer than its patience hangs up. Three classes by thirds, and 20 tenants, of whom one sends nine requests in ten.
//!
//! Events are known to mislead adaptive limits. Most disturb a pool of ten connections: see [`scenario::EVENTS`]. The service should
//! serve as many as before within 5 s after the end of an event. Only tollgate's limit can be read, so the other rows have none.

mod clients;
mod events;
mod picture;
mod responses;
mod scenario;
mod server;
mod timeline;

use tokio::runtime::Runtime;
use tollgate_peers::{
    arguments::Arguments,
    cpu,
    table::{self, Summary},
};

use self::{responses::Outcome, scenario::Scenario, server::Served};

fn main() {
    let arguments = Arguments::of_process();
    if let Some([limit, service, name, ..]) = arguments.subcommand("serve") {
        cpu::pin_to(0);
        let steady = || {
            let service = SERVICES.into_iter().find(|known| known == service);
            Scenario::steady(service.expect("a service"), 1.0, 0.0)
        };
        let scenario = Scenario::named(name).unwrap_or_else(steady);
        return server::serve(limit, &scenario.at_pace(arguments.value("--pace", 1.0)));
    }
    cpu::pin_to(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    match arguments.subcommand("events") {
        Some(words) => events::run(words, &arguments, &runtime),
        None => compare(&arguments, &runtime),
    }
}

/// Prints a table of limits and loads for each service.
fn compare(arguments: &Arguments, runtime: &Runtime) {
    let seconds = arguments.value("--seconds", 8.0);
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
                    // The first quarter is not measured.
                    let warm_up = seconds / 3.0;
                    let scenario = Scenario::steady(service, load, warm_up + seconds);
                    let server = Served::start(&scenario, limit, 1.0);
                    let seen = clients::run(&scenario, round as u64 + 1, server.address);
                    Outcome::of(&runtime.block_on(seen), warm_up, seconds)
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
const SERVICES: [&str; 5] = ["cpu", "await", "pool", "shared", "mix"];
