//! The task that probes stuck slots, and reports when the last one is free.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;

use crate::task::timer::sleep;

use super::all_servers::AllServers;

/// Starts a task that probes the stuck slots, unless one is running.
pub(super) fn ensure(all: &Arc<AllServers>) {
    all.stuck_slots.task.start(|lease| {
        let all = Arc::downgrade(all);
        SlotProbes { all, lease }.run()
    });
}

/// A task that probes stuck slots. Dropped early, with its runtime, it releases its lease.
#[derive(Debug)]
struct SlotProbes {
    /// Weak: the task ends when every clone of the store is dropped.
    all: Weak<AllServers>,
    lease: u64,
}

impl SlotProbes {
    async fn run(self) {
        let mut has_freed = false;
        loop {
            let Some(wait) = self.next_wait(has_freed) else {
                return;
            };
            sleep(wait).await;
            let Some(all) = self.all.upgrade() else {
                return;
            };
            let due = all.stuck_slots.take_due(all.clock.now());
            if due.is_empty() {
                return;
            }
            let probes = due.into_iter().map(|(slot, stuck)| async move {
                let is_free = stuck.probe().await;
                is_free.then_some(slot)
            });
            let freed = join_all(probes).await;
            has_freed = false;
            for slot in freed.into_iter().flatten() {
                has_freed = true;
                if let Some(outage) = all.stuck_slots.free(slot, all.clock.now()) {
                    // Before the end is reported: a slot that is stuck again at once must find the lease free.
                    all.stuck_slots.task.release(self.lease);
                    all.slots_are_free(&outage);
                    return;
                }
            }
        }
    }

    /// Returns how long to wait for the next probes, and extends the lease over them. `None` ends the task.
    fn next_wait(&self, has_freed: bool) -> Option<Duration> {
        let all = self.all.upgrade()?;
        let wait = if has_freed {
            NEXT_PROBES
        } else {
            all.stuck_slots.wait()
        };
        let is_ours = all.stuck_slots.task.renew(self.lease, wait + LONGEST_PROBE);
        is_ours.then_some(wait)
    }
}

impl Drop for SlotProbes {
    fn drop(&mut self) {
        if let Some(all) = self.all.upgrade() {
            all.stuck_slots.task.release(self.lease);
        }
    }
}

/// The wait for the next probes after a success.
const NEXT_PROBES: Duration = Duration::from_millis(20);
/// A probe that takes longer lets another task take over.
const LONGEST_PROBE: Duration = Duration::from_secs(5);
