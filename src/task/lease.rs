//! Leases by which background tasks take over from each other.

use crate::clock::Timestamp;

/// The right to run, given to one numbered task at a time, until a deadline.
///
/// ```text
/// task 1   take_over ── renew ── renew ──┤ its runtime has ended, or nobody drives it
/// deadline      ├────────┼─────────┼──────────▶│ expires
/// task 2                                       take_over ── renew ── ..
/// ```
///
/// A task renews its lease before each wait, by the length of the wait and a tolerance. A task that wakes late finds that
/// another one has taken over, and ends.
#[derive(Debug, Default)]
pub(crate) struct TaskLease {
    /// Number of the latest task, from 1.
    task: u64,
    until: Timestamp,
}

impl TaskLease {
    /// Returns whether a task is running on time.
    pub(crate) fn is_held(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Returns whether no other task has taken over from this one.
    pub(crate) fn belongs_to(&self, task: u64) -> bool {
        self.task == task
    }

    /// Gives the lease to a new task. Returns the task's number.
    pub(crate) fn take_over(&mut self, until: Timestamp) -> u64 {
        self.task += 1;
        self.until = until;
        self.task
    }

    /// Moves the deadline. Returns `false`, and changes nothing, if another task has taken over.
    pub(crate) fn renew(&mut self, task: u64, until: Timestamp) -> bool {
        let is_ours = self.belongs_to(task);
        if is_ours {
            self.until = until;
        }
        is_ours
    }

    /// Ends the lease, unless another task has taken over.
    #[cfg(feature = "redis")]
    pub(crate) fn release(&mut self, task: u64) {
        self.renew(task, Timestamp::default());
    }
}
