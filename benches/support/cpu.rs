//! CPU times, cores and memory on Linux.

use std::{fs, time::Duration};

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use rustix::time::{ClockId, clock_gettime};

/// Pins this thread to one core, and with it the threads and processes that it starts later.
#[cfg(target_os = "linux")]
pub(crate) fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("the core exists");
}

/// Lets this thread sleep to the microsecond; by default Linux adds up to 50 us.
#[cfg(target_os = "linux")]
pub(crate) fn sleep_precisely() {
    let set = set_current_timer_slack(std::num::NonZero::new(1));
    set.expect("a thread may set its own slack");
}

/// Does nothing: threads are pinned on Linux only.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_core: usize) {}

/// Does nothing: other systems have no timer slack to set.
#[cfg(not(target_os = "linux"))]
pub(crate) fn sleep_precisely() {}

/// Returns the CPU time of this process, without its threads of these names.
pub(crate) fn of_this_process_without(names: &[&str]) -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let time = Duration::try_from(time).expect("CPU time is not negative");
    let others = names.iter().map(|name| of_threads_named(name));
    time.saturating_sub(others.sum())
}

/// Returns the CPU time of the running threads of this name.
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

/// Returns the CPU time of another process's main thread, which in Redis executes all commands.
pub(crate) fn of_main_thread(pid: u32) -> Duration {
    scheduled(&format!("/proc/{pid}/schedstat")).expect("the process runs")
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    1_024 * kibibytes.expect("it has the line")
}

/// Returns the machine's load average over the last minute.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").expect("this is Linux");
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Reads the first number of a `schedstat` file: nanoseconds on a core, up to one scheduler tick old.
fn scheduled(path: &str) -> Option<Duration> {
    let text = fs::read_to_string(path).ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}
