//! Faults of Redis and of the network, on a fleet under steady load above its limit.
//!
//! ```text
//! cargo test --release --all-features --test faults -- --table             every fault, with local counting
//! cargo test --release --all-features --test faults -- --table kill        those whose names contain the words
//! cargo test --release --all-features --test faults -- --table --mode all  also with OnOutage::Allow and Deny
//! cargo test --release --all-features --test faults -- --table --consistency leased  or delayed, by 5 %
//! cargo test --release --all-features --test faults -- --table --instances 3
//! cargo test --release --all-features --test faults -- --soak 60           for 60 minutes, a random fault every 20 s
//! cargo test --all-features --test faults                                  four faults, which fail if a target is missed
//! ```
//!
//! `RELIABILITY.md` describes the method.

#![expect(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "its output is its purpose, and its numbers are small"
)]

mod fleet;
#[path = "../../benches/support/histogram.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod histogram;
mod load;
mod place;
mod report;
mod rows;
mod run;
mod soak;
#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "others use the rest of it")]
mod support;

use std::{env, process::ExitCode};

use tollgate::{Consistency, OnOutage, Percent};

use self::{
    fleet::CONSISTENCY,
    report::{COLUMNS, line},
    rows::Row,
    run::run,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let value_of = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1).map(String::as_str)
    };
    let instances =
        value_of("--instances").map_or(INSTANCES, |count| count.parse().expect("a number"));
    if let Some(minutes) = value_of("--soak") {
        return soak::run(minutes.parse().expect("a number of minutes"), instances);
    }
    let values = [
        "--mode",
        "--consistency",
        "--instances",
        "--test-threads",
        "--color",
        "--format",
        "--skip",
    ];
    let values = values.map(value_of);
    let words: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| !argument.starts_with("--") && !values.contains(&Some(argument)))
        .collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if has("--list") {
        return ExitCode::SUCCESS;
    }
    let mut rows = rows::all();
    if !has("--table") {
        rows.retain(|row| SHORT.contains(&row.name));
        for row in &mut rows {
            row.lasts = row.lasts.min(std::time::Duration::from_secs(2));
        }
    }
    rows.retain(|row| words.iter().all(|word| row.name.contains(word)));
    let modes: &[OnOutage] = match value_of("--mode") {
        Some("allow") => &[OnOutage::Allow],
        Some("deny") => &[OnOutage::Deny],
        Some("all") => &[OnOutage::Local, OnOutage::Allow, OnOutage::Deny],
        None | Some("local") => &[OnOutage::Local],
        Some(other) => panic!("no mode {other:?}: use local, allow, deny or all"),
    };
    CONSISTENCY.get_or_init(|| match value_of("--consistency") {
        Some("leased") => Consistency::Leased,
        Some("delayed") => Consistency::Delayed {
            overshoot: Percent::new(5.0),
        },
        None | Some("strict") => Consistency::Strict,
        Some(other) => panic!("no consistency {other:?}: use strict, leased or delayed"),
    });
    let mut has_missed = false;
    for mode in modes {
        has_missed |= print_table(&rows, *mode, instances);
    }
    // The table is for people, who read what was missed and on what a machine.
    ExitCode::from(u8::from(has_missed && !has("--table")))
}

/// Runs the rows, and prints each when it has ended. Returns whether a target was missed.
fn print_table(rows: &[Row], mode: OnOutage, instances: usize) -> bool {
    println!(
        "\n{instances} instances, {mode:?}; load average {}\n",
        load_average()
    );
    println!("{}", line(COLUMNS.map(str::to_owned)));
    println!("{}", line(COLUMNS.map(|_| "---".to_owned())));
    let mut has_missed = false;
    for row in rows {
        let figures = run(row, mode, instances);
        has_missed |= !figures.missed().is_empty();
        let name = [row.name.to_owned()];
        println!("{}", line(name.into_iter().chain(figures.cells())));
    }
    println!("\nload average {}", load_average());
    has_missed
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

const INSTANCES: usize = 8;
/// The rows that run with all other tests.
const SHORT: [&str; 4] = [
    "kill -9",
    "SIGSTOP",
    "reset in mid-reply",
    "reply lost after the script ran",
];
