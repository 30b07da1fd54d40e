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
            let callers = saturate(&harness, link, subject, pause);
            let peak = || harness.round(subject, link, Load::Callers(callers, pause));
            let rounds: Vec<_> = (0..harness.rounds).map(|_| peak()).collect();
            let own: Vec<f64> = rounds.iter().map(in_time).collect();
            let cells = row(&rounds, &own);
            println!("| {link} | {subject} | peak: {callers} callers | {cells} |");
            let crowd = std::iter::once(None);
            for factor in crowd.chain(factors.iter().copied().map(Some)) {
                let name = match factor {
                    None => format!("{} callers", 10 * callers),
                    Some(factor) => format!("arrivals, {factor} x the peak"),
                };
                let (mut rounds, mut peaks) = (Vec::new(), Vec::new());
                // The machine's speed changes within minutes, so each round has a peak of its own.
                for _ in 0..harness.rounds {
                    let peak = in_time(&peak());
                    let load = match factor {
                        None => Load::Callers(10 * callers, pause),
                        Some(factor) => Load::Arrivals(factor * peak),
                    };
                    rounds.push(harness.round(subject, link, load));
                    peaks.push(peak);
                }
                let cells = row(&rounds, &peaks);
                println!("| {link} | {subject} | {name} | {cells} |");
            }
        }
    }
}

/// Returns the smallest number of callers whose goodput in a closed loop comes within 5 % of the highest.
fn saturate(harness: &Harness, link: Link, subject: Subject, pause: Duration) -> usize {
    let rates: Vec<(usize, f64)> = (4..=12)
        .map(|power| {
            let callers = 1 << power;
            let load = Load::Callers(callers, pause);
            let rates = (0..harness.rounds).map(|_| in_time(&harness.round(subject, link, load)));
            (callers, Summary::of(rates).median)
        })
        .collect();
    let peak = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let near = rates.iter().find(|(_, rate)| *rate >= 0.95 * peak);
    near.map_or(1, |(callers, _)| *callers)
}

/// Decisions by Redis within half of the deadline, per second.
fn in_time(round: &Measurement) -> f64 {
    round.rate_within(DEADLINE / 2)
}

/// Shows rounds, each beside the goodput at the peak just before it.
fn row(rounds: &[Measurement], peaks: &[f64]) -> String {
    let of_peak = |within: Duration| {
        let pairs = rounds.iter().zip(peaks);
        Summary::of(pairs.map(|(round, peak)| round.rate_within(within) / peak))
    };
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
        over(rounds, in_time).show(0),
        of_peak(DEADLINE / 2).show_range(2),
        of_peak(DEADLINE).show(2),
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
