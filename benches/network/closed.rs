//! Callers who wait for their answers, by round trip and by how many they are.

use std::time::Duration;

use crate::{
    report::{max_wait, over, paired, wait, without},
    stage::{Distance, Load, Stage},
    support::Arguments,
    tally::Measurement,
    way::Kind,
};

pub(crate) fn run(arguments: &Arguments) {
    let stage = Stage::set(arguments, 1.0);
    let ways = arguments.list("--ways", &[Kind::Mux, Kind::Store, Kind::Tollgate]);
    let mut distances = vec![Distance::Direct];
    distances.extend([0.0, 0.5, 1.0, 2.0, 5.0, 10.0].map(Distance::millis));
    let distances = arguments.list("--round-trips", &distances);
    let crowds = arguments.list("--callers", &[1, 64, 512, 1_000, 4_000]);
    let pause = Duration::from_secs_f64(arguments.value("--pause", 0.0) / 1e3);
    println!(
        "{} rounds of {:?} a point; waits in ms\n",
        stage.rounds, stage.span
    );
    println!(
        "| round trip | callers | way | by Redis a second (min..max) | x {first} (min..max) | p50 | p50 x {first} | p99 | max | \
         not by Redis | client us | Redis us | proxy us |",
        first = ways[0]
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for distance in distances {
        for &crowd in &crowds {
            let measured = stage.interleave(&ways, distance, Load::Callers(crowd, pause));
            for (way, rounds) in ways.iter().zip(&measured) {
                let row = row(rounds, &measured[0]);
                println!("| {distance} | {crowd} | {way} | {row} |");
            }
        }
    }
}

fn row(rounds: &[Measurement], first: &[Measurement]) -> String {
    [
        over(rounds, Measurement::rate).show_range(0),
        paired(rounds, first, Measurement::rate).show_range(2),
        over(rounds, wait(0.5)).show(3),
        paired(rounds, first, wait(0.5)).show(2),
        over(rounds, wait(0.99)).show(3),
        max_wait(rounds),
        without(rounds),
        over(rounds, Measurement::client_micros).show(2),
        over(rounds, Measurement::server_micros).show(2),
        over(rounds, Measurement::proxy_micros).show(2),
    ]
    .join(" | ")
}
