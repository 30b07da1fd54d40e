//! Processes that decide for a test, and what they write down.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::runtime::Runtime;

/// Starts this program again with one test, which finds its work in the variable.
pub(super) fn start(test: &str, (variable, work): (&str, String)) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args([test, "--exact"])
        .env(variable, work)
        // its own test report does not belong to this run
        .stdout(Stdio::null())
        .spawn()
        .expect("a worker process")
}

pub(super) fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all();
    runtime.build().expect("a runtime")
}

/// Writes records of so many numbers each.
pub(super) fn write_log<const N: usize>(log: &str, records: impl IntoIterator<Item = [u64; N]>) {
    let numbers = records.into_iter().flatten();
    let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    fs::write(log, bytes).expect("a log");
}

pub(super) fn read_log<const N: usize>(log: &Path) -> Vec<[u64; N]> {
    let bytes = fs::read(log).expect("a log");
    let (numbers, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    let (records, rest) = numbers.as_chunks::<N>();
    assert!(rest.is_empty());
    records.to_vec()
}

/// All processes share one machine, so they share its clock.
pub(super) fn machine_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_nanos()).expect("before 2554")
}

/// Returns the most slots that were held at once, as their holders measured it: from when to when each.
pub(super) fn most_at_once(held: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let ends = |(taken, released)| [(taken, 1_i64), (released, -1)];
    let mut events: Vec<(u64, i64)> = held.into_iter().flat_map(ends).collect();
    events.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in events {
        now += change;
        most = most.max(now);
    }
    u64::try_from(most).expect("not below none")
}
