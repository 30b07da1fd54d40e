//! A random fault every 20 s for a long time: nothing may grow, and no decision may be wrong.

use std::{
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tollgate::OnOutage;

use crate::{
    fleet::{self, DEADLINE, Fleet, RATE},
    load::{KEYS, Load, Tally},
    place::{Kind, Place},
    rows,
};

/// What the process holds after a minute.
#[derive(Clone, Copy, Debug)]
struct Usage {
    resident_kib: usize,
    threads: usize,
    files: usize,
    /// Connections of the instances to the server.
    connections: usize,
    tasks: usize,
}

/// Runs for this many minutes. Fails if anything grows, or a decision is wrong.
pub(crate) fn run(minutes: usize, instances: usize) -> ExitCode {
    let mut faults = rows::all();
    faults.retain(rows::Row::is_for_soak);
    let mut place = Place::start(Kind::One(&[]), instances);
    let fleet = Fleet::start(&place, &faults[0], OnOutage::Local, instances);
    println!(
        "| minute | faults | requests | lost / errors / late | admitted / limit | resident, KiB | threads | files | connections | tasks |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut usages = Vec::new();
    let mut wrong = 0;
    let tally = Arc::<Tally>::default();
    let load = Load::start_counting(fleet.subjects(OnOutage::Local), DEADLINE, &tally);
    for minute in 1..=minutes {
        let (started, mut names) = (Instant::now(), Vec::new());
        for turn in 0..3_u32 {
            let row = &faults[pick(faults.len())];
            names.push(row.name);
            let struck = Instant::now();
            (row.strike)(&mut place);
            while struck.elapsed() < row.lasts.min(LONGEST) {
                (row.repeat)(&mut place);
                thread::sleep(Duration::from_millis(100));
            }
            (row.mend)(&mut place);
            thread::sleep(
                (started + INTERVAL * (turn + 1)).saturating_duration_since(Instant::now()),
            );
        }
        let span = started.elapsed();
        let take = |number: &AtomicUsize| number.swap(0, Ordering::Relaxed);
        let (lost, errors, late) = (take(&tally.lost), take(&tally.errors), take(&tally.late));
        let (requests, admitted) = (take(&tally.requests), take(&tally.allowed) as f64);
        // The bursts may be full at the start of a minute.
        let limit = fleet::limit(span) + (KEYS as u64 * RATE) as f64;
        let is_exceeded = admitted > limit * 1.05;
        wrong += lost + errors + usize::from(is_exceeded);
        let usage = Usage::now(&mut place, tally.tasks.load(Ordering::Relaxed));
        println!(
            "| {minute} | {} | {} | {lost} / {errors} / {late} | {:.2}{} | {} | {} | {} | {} | {} |",
            names.join(", "),
            requests,
            admitted / limit,
            if is_exceeded { " **exceeded**" } else { "" },
            usage.resident_kib,
            usage.threads,
            usage.files,
            usage.connections,
            usage.tasks,
        );
        usages.push(usage);
    }
    load.stop();
    let grows = what_grows(&usages);
    println!("\nwrong: {wrong}; grows: {grows:?}");
    ExitCode::from(u8::from(wrong > 0 || !grows.is_empty()))
}

/// Returns what is larger in the last third than in the first one, without the first minutes.
fn what_grows(usages: &[Usage]) -> Vec<&'static str> {
    let warm = &usages[usages.len().min(2)..];
    let third = warm.len() / 3;
    if third == 0 {
        return Vec::new();
    }
    let least = |part: &[Usage], of: fn(&Usage) -> usize| part.iter().map(of).min().unwrap_or(0);
    let grows = |of: fn(&Usage) -> usize, tolerance: usize| {
        least(&warm[warm.len() - third..], of) > least(&warm[..third], of) + tolerance
    };
    let checks = [
        ("resident memory", grows(|usage| usage.resident_kib, 2_048)),
        ("threads", grows(|usage| usage.threads, 0)),
        ("files", grows(|usage| usage.files, 0)),
        ("connections", grows(|usage| usage.connections, 0)),
        ("tasks", grows(|usage| usage.tasks, 0)),
    ];
    let growing = checks.into_iter().filter(|(_, grows)| *grows);
    growing.map(|(name, _)| name).collect()
}

impl Usage {
    fn now(place: &mut Place, tasks: usize) -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number
                .and_then(|number| number.parse().ok())
                .expect("it has the field")
        };
        // Without those of the faults, which a restart of the server closes.
        let clients: String = place.server().query(&["CLIENT", "LIST"]);
        let ours = clients
            .lines()
            .filter(|client| client.contains("lib-name=tollgate"));
        Self {
            resident_kib: field("VmRSS:"),
            threads: field("Threads:"),
            files: fs::read_dir("/proc/self/fd")
                .expect("this is Linux")
                .count(),
            connections: ours.count(),
            tasks,
        }
    }
}

fn pick(count: usize) -> usize {
    let random = RandomState::new().build_hasher().finish();
    usize::try_from(random % count as u64).expect("below the count")
}

const INTERVAL: Duration = Duration::from_secs(20);
/// The longest fault.
const LONGEST: Duration = Duration::from_secs(8);
