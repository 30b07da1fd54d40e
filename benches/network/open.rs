//! Single arrivals at random, which part what callers who wait for each other do not.

use crate::{
    millis, over,
    stage::{Distance, Load, Stage},
    support::{Arguments, Summary},
    tally::Measurement,
    way::Kind,
    without,
};

pub(crate) fn run(arguments: &Arguments) {
    let stage = Stage::set(arguments, 2.0);
    let ways = arguments.list("--ways", &[Kind::Mux, Kind::Store, Kind::Tollgate]);
    let distances = [1.0, 5.0].map(Distance::millis);
    let distances = arguments.list("--round-trips", &distances);
    let rates = arguments.list("--rates", &[5_000.0, 50_000.0]);
    println!(
        "{} rounds of {:?} a point; waits in ms, from the call\n",
        stage.rounds, stage.span
    );
    println!(
        "| round trip | arrivals a second | way | by Redis a second (min..max) | p50 | p50 x {first} | p99 | max | \
         not by Redis | client us | Redis us | Redis us x {first} | asked late by p50, p99 |",
        first = ways[0]
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for distance in distances {
        for &rate in &rates {
            let measured = stage.interleave(&ways, distance, Load::Arrivals(rate));
            for (way, rounds) in ways.iter().zip(&measured) {
                println!(
                    "| {distance} | {rate} | {way} | {} |",
                    row(rounds, &measured[0])
                );
            }
        }
    }
}

fn row(rounds: &[Measurement], first: &[Measurement]) -> String {
    let quantile = |share| {
        move |round: &Measurement| match round.counts.by_redis.count() {
            0 => f64::NAN,
            _ => millis(round.counts.by_redis.quantile(share)),
        }
    };
    let late = |share| {
        over(rounds, move |round| {
            millis(round.counts.lateness.quantile(share))
        })
        .show(3)
    };
    let paired = |value: &dyn Fn(&Measurement) -> f64| {
        let ratios = rounds.iter().zip(first).map(|(a, b)| value(a) / value(b));
        Summary::of(ratios).show(2)
    };
    [
        over(rounds, Measurement::rate).show_range(0),
        over(rounds, quantile(0.5)).show(3),
        paired(&quantile(0.5)),
        over(rounds, quantile(0.99)).show(3),
        over(rounds, |round| millis(round.max_wait())).show(1),
        without(rounds),
        over(rounds, Measurement::client_micros).show(2),
        over(rounds, Measurement::server_micros).show(2),
        paired(&Measurement::server_micros),
        format!("{}, {}", late(0.5), late(0.99)),
    ]
    .join(" | ")
}
