//! More than the server can do: what is still decided in time, and what becomes of the rest.
//!
//! The server is slowed, not the network and not the client: see [`Slowed`].

use std::time::Duration;

use crate::{
    report::{lateness, millis, over, reasons},
    slow::Slowed,
    stage::{Distance, Load, Stage},
    support::{Arguments, Summary},
    tally::Measurement,
    way::Kind,
};

pub(crate) fn run(arguments: &Arguments) {
    let stage = Stage::set(arguments, 3.0);
    let ways = arguments.list("--ways", &[Kind::Store, Kind::Tollgate]);
    let distances = [1.0, 5.0].map(Distance::millis);
    let distances = arguments.list("--round-trips", &distances);
    let factors = arguments.list("--factors", &[1.5, 10.0]);
    let pause = Duration::from_secs_f64(arguments.value("--pause", 1.0) / 1e3);
    let slowed = Slowed::to(&stage.server, arguments.value("--service", 40.0));
    println!(
        "a plain script takes the server {:.0} us; {} rounds of {:?} a point; deadline {DEADLINE:?}; waits in ms",
        slowed.service_micros, stage.rounds, stage.span
    );
    println!(
        "in time is by Redis within half the deadline, as a share of the peak (min..max); shed is all that was not by Redis; a \
         caller who was shed asks again after {pause:?}\n"
    );
    println!(
        "| round trip | way | load | in time a second | of the peak | within the deadline | by Redis later | shed a second | \
         who decided | by Redis p50/p99/max | shed p50/p99/max | \
         asked late by p50, p99 | Redis us | memory MB: first, most, last |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for distance in distances {
        for &way in &ways {
            let (peak, callers) = saturate(&stage, distance, way, pause);
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
                let rounds: Vec<Measurement> = (0..stage.rounds)
                    .map(|_| stage.round(way, distance, load))
                    .collect();
                println!("| {distance} | {way} | {name} | {} |", row(&rounds, peak));
            }
        }
    }
}

/// The most that the way gets done in time in a closed loop, and the fewest callers who come within 5 % of it.
fn saturate(stage: &Stage, distance: Distance, way: Kind, pause: Duration) -> (f64, usize) {
    let rates: Vec<(usize, f64)> = (4..=12)
        .map(|power| {
            let callers = 1 << power;
            let load = Load::Callers(callers, pause);
            let rates = (0..stage.rounds).map(|_| {
                let round = stage.round(way, distance, load);
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
