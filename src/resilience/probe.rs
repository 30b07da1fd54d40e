//! The background task that finds out when the store is back.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use crate::{clock::Timestamp, sync::Mutex};

use super::{backoff::Backoff, store::Shared};

/// Sees to it that at most one probing task runs, and that a store that comes and goes is probed ever more seldom.
#[derive(Debug, Default)]
pub(super) struct Prober {
    is_running: AtomicBool,
    backoff: Mutex<Backoff>,
}

impl Prober {
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    /// Says when the store came back: failures long after begin with short waits again.
    pub(super) fn recovered(&self, now: Timestamp) {
        self.backoff.lock().recovered(now);
    }
}

/// Starts probing unless a task does already. Without a Tokio runtime there is nobody to do it.
pub(super) fn start(shared: &Arc<Shared>) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    if !shared.prober.is_running.swap(true, Ordering::AcqRel) {
        shared.prober.backoff.lock().failed(shared.clock.now());
        let running = Running {
            shared: Arc::downgrade(shared),
        };
        runtime.spawn(probe_until_back(running));
    }
}

async fn probe_until_back(running: Running) {
    let mut good_probes = 0;
    loop {
        // Gone when every clone of the store was dropped; not held while nothing happens.
        let wait = match running.shared.upgrade() {
            None => return,
            Some(_) if good_probes > 0 => BETWEEN_GOOD_PROBES,
            Some(shared) => shared.prober.backoff.lock().wait(),
        };
        sleep(wait).await;
        let Some(shared) = running.shared.upgrade() else {
            return;
        };
        good_probes = if shared.probes_well().await {
            good_probes + 1
        } else {
            0
        };
        if good_probes == GOOD_PROBES {
            drop(running);
            shared.recover();
            return;
        }
    }
}

/// Says that no task runs any more, also when the task is dropped with its runtime.
#[derive(Debug)]
struct Running {
    shared: Weak<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.prober.is_running.store(false, Ordering::Release);
        }
    }
}

const GOOD_PROBES: u32 = 2;
const BETWEEN_GOOD_PROBES: Duration = Duration::from_millis(20);
