//! CPU time of a process, and pinning to a core.

use std::{fs, time::Duration};

use rustix::thread::{CpuSet, sched_setaffinity};

/// CPU time that the running threads of a process have used, in nanoseconds: `/proc/PID/stat` has ticks of 10 ms.
///
/// # Panics
///
/// Panics if the process has ended, or the kernel was built without scheduler statistics.
pub fn time_of(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the process is alive");
    let nanos = threads.map(|thread| {
        let path = thread.expect("the folder is readable").path();
        // A thread may end between the two reads.
        let statistics = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        let running = statistics.split(' ').next().unwrap_or_default();
        running.parse().unwrap_or(0)
    });
    let nanos: u64 = nanos.sum();
    assert!(nanos > 0, "/proc/PID/task/*/schedstat has no times");
    Duration::from_nanos(nanos)
}

/// Pins this thread, and the threads and processes that it starts later, to one core.
///
/// # Panics
///
/// Panics if the machine has no such core.
pub fn pin_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
        .unwrap_or_else(|error| panic!("cannot pin to core {core}: {error}"));
}
