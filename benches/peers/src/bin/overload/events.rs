//! Runs the events, and prints a table and pictures of each.

use tokio::runtime::Runtime;
use tollgate_peers::{arguments::Arguments, table};

use super::{
    LIMITS, clients,
    picture::{ruler, seconds_per_bar, sparkline},
    scenario::{EVENTS, Scenario},
    server::{CAPACITY, Served},
    timeline::Timeline,
};

/// Runs the events with these names, or all of them.
pub fn run(names: &[String], arguments: &Arguments, runtime: &Runtime) {
    let names = names.iter().take_while(|name| !name.starts_with("--"));
    let names: Vec<_> = names.collect();
    let pace = arguments.value("--pace", 1.0);
    let seed = arguments.value("--seed", 1);
    let limits: String = arguments.value("--limits", LIMITS.to_owned());
    for scenario in picked(&names) {
        let scenario = Scenario {
            patience: arguments.value("--patience", scenario.patience),
            ..scenario.at_pace(pace)
        };
        let timelines = limits.split(',').map(|limit| {
            let server = Served::start(&scenario, limit, pace);
            let seen = runtime.block_on(clients::run(&scenario, seed, server.address));
            (limit, Timeline::new(scenario, &seen, server.limits()))
        });
        show(&scenario, &timelines.collect::<Vec<_>>());
    }
}

fn picked(names: &[&String]) -> Vec<Scenario> {
    let known = |name: &&String| Scenario::named(name).unwrap_or_else(|| panic!("no event {name}"));
    match names.is_empty() {
        true => EVENTS.to_vec(),
        false => names.iter().map(known).collect(),
    }
}

fn show(scenario: &Scenario, timelines: &[(&str, Timeline)]) {
    let columns = [
        "limit",
        "in time, of the possible",
        "during the event",
        "p99 ms",
        "in time a second before",
        "back after s",
        "worst second after 5 s",
        "limit before",
        "limit during",
        "limit after",
    ];
    let Scenario {
        name,
        meaning,
        service,
        load,
        from,
        until,
        seconds,
        ..
    } = scenario;
    let heading = format!(
        "{name}: {meaning} (service {service}, load {load}, {from} s to {until} s of {seconds} s)"
    );
    let rows: Vec<_> = timelines
        .iter()
        .map(|(limit, timeline)| row(limit, timeline))
        .collect();
    table::print(&heading, &columns, &rows);
    println!("\n```text");
    for (limit, timeline) in timelines {
        draw(limit, timeline);
    }
    let seconds = *seconds as usize;
    let mark = ruler(seconds, |at| scenario.is_during(at));
    println!("{:31}{}", "", mark.trim_end());
    println!("{} s a bar\n```", seconds_per_bar(seconds));
}

fn row(limit: &str, timeline: &Timeline) -> Vec<String> {
    let optional = |digits, value: Option<f64>| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let (recovery, worst) = match timeline.can_recover() {
        true => {
            let seconds = timeline.recovery();
            let recovery = seconds.map_or("never".to_owned(), |seconds| format!("{seconds:.1}"));
            (recovery, optional(2, timeline.worst_after()))
        }
        false => ("-".to_owned(), "-".to_owned()),
    };
    let [before, during, after] = timeline.mean_limits().map(|limit| optional(1, limit));
    vec![
        limit.to_owned(),
        optional(3, timeline.share()),
        optional(3, timeline.share_during()),
        format!("{:.1}", timeline.p99),
        format!("{:.0}", timeline.usual()),
        recovery,
        worst,
        before,
        during,
        after,
    ]
}

fn draw(limit: &str, timeline: &Timeline) {
    let served = timeline.served();
    let bars = sparkline(&served, CAPACITY);
    println!("{limit:10} in time, to {CAPACITY:<7} {bars}");
    let limits = timeline.limits();
    if let Some(highest) = limits.iter().copied().reduce(f64::max) {
        let bars = sparkline(limits, highest);
        println!("{:10} limit, to {highest:<9} {bars}", "");
    }
    let (delay, at) = timeline.delay;
    if delay > DISTURBED {
        println!(
            "{:10} disturbed: clients were {delay:.1} s late at {at:.1} s",
            ""
        );
    }
}

/// Seconds by which clients are late if something else keeps the machine busy.
const DISTURBED: f64 = 0.1;
