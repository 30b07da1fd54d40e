//! The background task that finds out when the store is back.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::{backoff::Backoff, store::Shared};

/// Sees to it that at most one probing task runs.
#[derive(Debug, Default)]
pub(super) struct Prober {
    is_running: AtomicBool,
}

impl Prober {
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }
}

/// Starts probing unless a task does already. Without a Tokio runtime there is nobody to do it.
pub(super) fn start(shared: &Arc<Shared>) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    if !shared.prober.is_running.swap(true, Ordering::AcqRel) {
        let running = Running {
            shared: Arc::downgrade(shared),
        };
        runtime.spawn(probe_until_back(running));
    }
}

async fn probe_until_back(running: Running) {
    let mut backoff = Backoff::new();
    let mut good_probes = 0;
    loop {
        let wait = if good_probes == 0 {
            backoff.wait()
        } else {
            BETWEEN_GOOD_PROBES
        };
        sleep(wait).await;
        // Gone when every clone of the store was dropped.
        let Some(shared) = running.shared.upgrade() else {
            return;
        };
        let answer = timeout(shared.deadline, shared.primary.probe()).await;
        good_probes = if matches!(answer, Ok(Ok(()))) {
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
