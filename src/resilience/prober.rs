//! When to probe the primary, and on which runtime.

use std::{future::Future, sync::OnceLock, time::Duration};

use tokio::runtime::Handle;

use crate::{
    backoff::Backoff,
    clock::{Clock, Timestamp},
    sync::Mutex,
    task_lease::TaskLease,
};

/// Starts the task that probes, one at a time, and spaces its probes.
///
/// The task holds a [lease](TaskLease). If its runtime ends or is not driven, the next decision starts another task.
#[derive(Debug, Default)]
pub(super) struct Prober {
    pub(super) backoff: Mutex<ProbeBackoff>,
    lease: Mutex<TaskLease>,
    /// Runtime of the first decision. The call that opens the breaker may end on a thread without a runtime.
    runtime: OnceLock<Handle>,
}

impl Prober {
    /// Remembers the runtime of the caller, for a task that must be started outside of any runtime.
    #[inline]
    pub(super) fn remember_runtime(&self) {
        if self.runtime.get().is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            let _ = self.runtime.set(runtime);
        }
    }

    /// Spawns a task, unless one is running on time. `task` receives the number of its lease.
    ///
    /// Without a Tokio runtime, here or at an earlier decision, nothing is spawned.
    pub(super) fn start<T>(&self, task: impl FnOnce(u64) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let now = Clock::system().now();
        let mut lease = self.lease.lock();
        if lease.is_held(now) {
            return;
        }
        let current = Handle::try_current().ok();
        let Some(runtime) = current.or_else(|| self.runtime.get().cloned()) else {
            return;
        };
        let number = lease.take_over(now + TOLERANCE);
        // A runtime that has ended drops the task at once, and the task then releases its lease.
        drop(lease);
        runtime.spawn(task(number));
    }

    /// Extends the lease over the next step of its task. Returns `false` if another task has taken over.
    pub(super) fn renew(&self, lease: u64, span: Duration) -> bool {
        let until = Clock::system().now() + span + TOLERANCE;
        self.lease.lock().renew(lease, until)
    }

    /// Ends the lease, so that the next outage starts a new task at once.
    pub(super) fn release(&self, lease: u64) {
        self.lease.lock().release(lease);
    }
}

// === ProbeBackoff ===

/// Waits between probes: a few short ones, since most outages are short, then waits that double.
///
/// ```text
/// up to 100, 100, 100, 100, 200, 400, 800 ms, 1.6, 3.2, 6.4, 10, 10, .. s
/// ```
///
/// Each is [jittered](crate::backoff::jittered). If the store fails again within 10 s of its recovery, the waits go on
/// where they were, so that a store that comes and goes is probed less and less often.
#[derive(Debug)]
pub(super) struct ProbeBackoff {
    backoff: Backoff,
    /// Number of short waits that remain before they begin to double.
    short_waits: u32,
    recovered_at: Timestamp,
}

impl ProbeBackoff {
    /// Returns the next wait.
    pub(super) fn wait(&mut self) -> Duration {
        match self.short_waits.checked_sub(1) {
            Some(left) => {
                self.short_waits = left;
                self.backoff.wait_again()
            }
            None => self.backoff.wait(),
        }
    }

    /// Records the time at which the breaker closed.
    pub(super) fn closed(&mut self, now: Timestamp) {
        self.recovered_at = now;
    }

    /// Starts with short waits again, unless the breaker closed only just before it opened.
    pub(super) fn opened(&mut self, now: Timestamp) {
        if now.since(self.recovered_at) > STABLE {
            self.backoff.reset();
            self.short_waits = SHORT_WAITS;
        }
    }

    /// Makes all waits long, after a permanent error.
    pub(super) fn prolong(&mut self) {
        self.backoff.prolong();
    }
}

impl Default for ProbeBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(FIRST, LONGEST),
            short_waits: SHORT_WAITS,
            recovered_at: Timestamp::default(),
        }
    }
}

/// How late a task may be before another one takes over.
const TOLERANCE: Duration = Duration::from_secs(1);
const FIRST: Duration = Duration::from_millis(100);
const SHORT_WAITS: u32 = 3;
const LONGEST: Duration = Duration::from_secs(10);
/// A store that decides for this long after an outage has recovered.
const STABLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    #[test]
    fn waits_are_short_then_double_up_to_the_longest_and_are_shortened_by_up_to_half() {
        let mut backoff = ProbeBackoff::default();
        for longest in [
            100, 100, 100, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000,
        ] {
            let wait = backoff.wait().as_millis();
            assert!(
                (longest / 2..=longest).contains(&wait),
                "{wait} for {longest}"
            );
        }
    }

    #[test]
    fn waits_go_on_where_they_were_when_the_store_fails_again_soon() {
        let mut backoff = ProbeBackoff::default();
        backoff.opened(at(0));
        for _ in 0..7 {
            backoff.wait();
        }
        backoff.closed(at(10));
        backoff.opened(at(12));
        assert!(backoff.wait() >= Duration::from_millis(800));
        backoff.closed(at(20));
        backoff.opened(at(31));
        assert!(backoff.wait() <= Duration::from_millis(100));
    }

    #[test]
    fn waits_after_a_permanent_error_are_long() {
        let mut backoff = ProbeBackoff::default();
        backoff.opened(at(0));
        backoff.prolong();
        for _ in 0..3 {
            assert!(backoff.wait() >= Duration::from_secs(5));
        }
    }
}
