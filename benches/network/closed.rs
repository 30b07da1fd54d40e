//! Closed loop: a fixed number of callers, each of which waits for its decision before it asks again.

use std::time::Duration;

use crate::{
    harness::{Harness, Link, Load},
    recorder::Measurement,
    report::{max_wait, over, paired, wait, without},
    subject::Subject,
    support::Arguments,
};

pub(crate) fn run(arguments: &Arguments) {
    let harness = Harness::start(arguments, 1.0);
    let subjects = arguments.list(
        "--subjects",
        &[Subject::Mux, Subject::Store, Subject::Tollgate],
    );
    let mut links = vec![Link::Direct];
    links.extend([0.0, 0.5, 1.0, 2.0, 5.0, 10.0].map(Link::millis));
    let links = arguments.list("--round-trips", &links);
    let crowds = arguments.list("--callers", &[1, 64, 512, 1_000, 4_000]);
    let pause = Duration::from_secs_f64(arguments.value("--pause", 0.0) / 1e3);
    println!(
        "{} rounds of {:?} a point; waits in ms\n",
        harness.rounds, harness.span
    );
    println!(
        "| round trip | callers | subject | by Redis a second (min..max) | x {first} (min..max) | p50 | p50 x {first} | p99 | max | \
         not by Redis | client us | Redis us | proxy us |",
        first = subjects[0]
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for link in links {
        for &crowd in &crowds {
            let measured = harness.interleave(&subjects, link, Load::Callers(crowd, pause));
            for (subject, rounds) in subjects.iter().zip(&measured) {
                let row = row(rounds, &measured[0]);
                println!("| {link} | {crowd} | {subject} | {row} |");
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
