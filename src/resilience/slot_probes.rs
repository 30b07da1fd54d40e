//! The task that probes stuck slots, and reports when the last one is free.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;

use crate::task::{Running, timer::sleep};

use super::all_servers::AllServers;

/// Starts a task that probes the stuck slots, unless one is running.
pub(super) fn ensure(all: &Arc<AllServers>) {
    let this = Arc::downgrade(all);
    all.stuck_slots.task.start(|running| probe(this, running));
}

/// Probes the stuck slots until none is left, or every clone of the store is dropped.
async fn probe(all: Weak<AllServers>, running: Running) {
    let mut has_freed = false;
    loop {
        let wait = match all.upgrade() {
            None => return,
            Some(_) if has_freed => NEXT_PROBES,
            Some(all) => all.stuck_slots.wait(),
        };
        sleep(wait).await;
        let Some(all) = all.upgrade() else {
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
                // Before the end is reported: the next task must start at once if a slot is stuck again.
                drop(running);
                all.slots_are_free(&outage);
                return;
            }
        }
    }
}

/// The wait for the next probes after a success.
const NEXT_PROBES: Duration = Duration::from_millis(20);
