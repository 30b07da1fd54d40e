//! Overload, closed and open loop: goodput, shed decisions, latency and memory when callers ask for more than the server
//! can do.
//!
//! The server is slowed down, so that the client and the proxy are not the bottleneck: see [`SlowServer`].

use std::time::Duration;

use crate::{
    harness::{Harness, Link, Load},
    recorder::Measurement,
    report::{lateness, millis, over, reasons},
    slow_server::SlowServer,
    subject::Subject,
    support::{Arguments, Summary},
};

pub(crate) fn run(arguments: &Arguments) {
    let harness = Harness::start(arguments, 3.0);
    let subjects = arguments.list("--subjects", &[Subject::Store, Subject::Tollgate]);
    let links = [1.0, 5.0].map(Link::millis);
    let links = arguments.list("--round-trips", &links);
    let factors = arguments.list("--factors", &[1.5, 10.0]);
    let pause = Duration::from_secs_f64(arguments.value("--pause", 1.0) / 1e3);
    let slowed = SlowServer::to(&harness.server, arguments.value("--service", 40.0));
    println!(
        "a plain script takes the server {:.0} us; {} rounds of {:?} a point; deadline {DEADLINE:?}; waits in ms",
        slowed.service_micros, harness.rounds, harness.span
    );
    println!(
        "in time is by Redis within half the deadline, as a share of the peak (min..max); shed is all that was not by Redis; a \
         caller who was shed asks again after {pause:?}\n"
    );
    println!(
        "| round trip | subject | load | in time a second | of the peak | within the deadline | by Redis later | shed a second | \
         who decided | by Redis p50/p99/max | shed p50/p99/max | \
         asked late by p50, p99 | Redis us | memory MB: first, most, last |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for link in links {
        for &subject in &subjects {
            let (peak, callers) = saturate(&harness, link, subject, pause);
            let mut loads = vec![
                (
                    format!("peak: {callers} callers"),
                    Load::Callers(callers, pause),
                ),
                (
                    format!("{} callers", 10 * callers),
                    Load::Callers(10 * callers, pause),
                ),
            ];
            loads.extend(factors.iter().map(|factor| {
                let rate = factor * peak;
                (
                    format!("{rate:.0} arrivals a second, {factor} x"),
                    Load::Arrivals(rate),
                )
            }));
            for (name, load) in loads {
                let rounds: Vec<Measurement> = (0..harness.rounds)
                    .map(|_| harness.round(subject, link, load))
                    .collect();
                println!("| {link} | {subject} | {name} | {} |", row(&rounds, peak));
            }
        }
    }
}

/// Returns the peak goodput in a closed loop, and the smallest number of callers that comes within 5 % of it.
fn saturate(harness: &Harness, link: Link, subject: Subject, pause: Duration) -> (f64, usize) {
    let rates: Vec<(usize, f64)> = (4..=12)
        .map(|power| {
            let callers = 1 << power;
            let load = Load::Callers(callers, pause);
            let rates = (0..harness.rounds).map(|_| {
                let round = harness.round(subject, link, load);
                round.rate_within(DEADLINE / 2)
            });
            (callers, Summary::of(rates).median)
        })
        .collect();
    let peak = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let near = rates.iter().find(|(_, rate)| *rate >= 0.95 * peak);
    (peak, near.map_or(1, |(callers, _)| *callers))
}

fn row(rounds: &[Measurement], peak: f64) -> String {
    let of_peak = |value: &dyn Fn(&Measurement) -> f64| over(rounds, |round| value(round) / peak);
    let waits = |by_redis: bool| {
        let quantile = |share: f64| {
            let wait = over(rounds, |round| {
                let waits = match by_redis {
                    true => &round.counts.by_redis,
                    false => &round.counts.without,
                };
                millis(waits.quantile(share))
            });
            wait.show(2)
        };
        format!("{}/{}/{}", quantile(0.5), quantile(0.99), quantile(1.0))
    };
    let late = |round: &Measurement| {
        let share = round.rate_within(DEADLINE) / round.rate();
        100.0 * (1.0 - share)
    };
    let megabytes = |pick: fn(&[u64]) -> Option<u64>| {
        let of = |round: &Measurement| pick(&round.memory).unwrap_or(0) as f64 / 1e6;
        over(rounds, of).show(0)
    };
    [
        over(rounds, |round| round.rate_within(DEADLINE / 2)).show(0),
        of_peak(&|round| round.rate_within(DEADLINE / 2)).show_range(2),
        of_peak(&|round| round.rate_within(DEADLINE)).show(2),
        format!("{} %", over(rounds, late).show(1)),
        over(rounds, Measurement::rate_without).show(0),
        reasons(rounds),
        waits(true),
        waits(false),
        lateness(rounds),
        over(rounds, Measurement::server_micros).show(1),
        format!(
            "{}, {}, {}",
            megabytes(|memory| memory.first().copied()),
            megabytes(|memory| memory.iter().copied().max()),
            megabytes(|memory| memory.last().copied()),
        ),
    ]
    .join(" | ")
}

const DEADLINE: Duration = Duration::from_millis(50);
