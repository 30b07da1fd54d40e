//! Single arrivals at random, which part what callers who wait for each other do not.

use crate::{
    report::{lateness, max_wait, over, paired, wait, without},
    stage::{Distance, Load, Stage},
    support::Arguments,
    tally::Measurement,
    way::Kind,
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
                let row = row(rounds, &measured[0]);
                println!("| {distance} | {rate} | {way} | {row} |");
            }
        }
    }
}

fn row(rounds: &[Measurement], first: &[Measurement]) -> String {
    [
        over(rounds, Measurement::rate).show_range(0),
        over(rounds, wait(0.5)).show(3),
        paired(rounds, first, wait(0.5)).show(2),
        over(rounds, wait(0.99)).show(3),
        max_wait(rounds),
        without(rounds),
        over(rounds, Measurement::client_micros).show(2),
        over(rounds, Measurement::server_micros).show(2),
        paired(rounds, first, Measurement::server_micros).show(2),
        lateness(rounds),
    ]
    .join(" | ")
}
