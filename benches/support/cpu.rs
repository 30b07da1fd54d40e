//! CPU time, cores and memory, as Linux reports them.

use std::{fs, time::Duration};

use rustix::{
    thread::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
};

/// Keeps this thread on one core, and with it the threads and processes that it starts from now on.
pub(crate) fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("the core exists");
}

/// CPU time that this process used so far, without its threads of these names.
pub(crate) fn of_this_process_without(names: &[&str]) -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let time = Duration::try_from(time).expect("CPU time is not negative");
    let others = names.iter().map(|name| of_threads_named(name));
    time.saturating_sub(others.sum())
}

/// CPU time that the living threads of this name used so far.
pub(crate) fn of_threads_named(name: &str) -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("this is Linux");
    tasks
        .filter_map(|task| {
            // a thread may end while the list is read
            let path = task.ok()?.path();
            let found = fs::read_to_string(path.join("comm")).ok()?;
            (found.trim_end() == name).then(|| scheduled(path.join("schedstat").to_str()?))?
        })
        .sum()
}

/// CPU time that the main thread of another process used so far; a Redis server executes all commands there.
pub(crate) fn of_main_thread(pid: u32) -> Duration {
    scheduled(&format!("/proc/{pid}/schedstat")).expect("the process runs")
}

/// Bytes of memory that this process has in use.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    1_024 * kibibytes.expect("it has the line")
}

/// How many threads of the machine wanted to run, over the last minute: with others than ours, no figure is worth much.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").expect("this is Linux");
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// The first number in the file is nanoseconds on a core; it may be a tick old.
fn scheduled(path: &str) -> Option<Duration> {
    let text = fs::read_to_string(path).ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}
