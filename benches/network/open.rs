//! Open loop below saturation: single arrivals at random, which show the latency and the batching that a closed loop hides.

use crate::{
    harness::{Harness, Link, Load},
    recorder::Measurement,
    report::{lateness, max_wait, over, paired, wait, without},
    subject::Subject,
    support::Arguments,
};

pub(crate) fn run(arguments: &Arguments) {
    let harness = Harness::start(arguments, 2.0);
    let subjects = arguments.list(
        "--subjects",
        &[Subject::Mux, Subject::Store, Subject::Tollgate],
    );
    let links = [1.0, 5.0].map(Link::millis);
    let links = arguments.list("--round-trips", &links);
    let rates = arguments.list("--rates", &[5_000.0, 50_000.0]);
    println!(
        "{} rounds of {:?} a point; waits in ms, from the call\n",
        harness.rounds, harness.span
    );
    println!(
        "| round trip | arrivals a second | subject | by Redis a second (min..max) | p50 | p50 x {first} | p99 | max | \
         not by Redis | client us | Redis us | Redis us x {first} | asked late by p50, p99 |",
        first = subjects[0]
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for link in links {
        for &rate in &rates {
            let measured = harness.interleave(&subjects, link, Load::Arrivals(rate));
            for (subject, rounds) in subjects.iter().zip(&measured) {
                let row = row(rounds, &measured[0]);
                println!("| {link} | {rate} | {subject} | {row} |");
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
