//! The background task that finds out when the store is back.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use crate::{
    clock::{Clock, Timestamp},
    sync::Mutex,
};

use super::{backoff::Backoff, store::Shared};

/// Sees to it that one probing task runs, and that a store that comes and goes is probed ever more seldom.
#[derive(Debug, Default)]
pub(super) struct Prober {
    backoff: Mutex<Backoff>,
    lease: Mutex<Option<Lease>>,
    leases: AtomicU64,
}

/// A task's leave to probe. Not renewed in time (its runtime is gone, or nobody drives it), another task may have it.
#[derive(Clone, Copy, Debug)]
struct Lease {
    number: u64,
    until: Timestamp,
}

impl Prober {
    /// Whether a task probes, and is on time.
    pub(super) fn is_running(&self) -> bool {
        let now = Clock::system().now();
        self.lease.lock().is_some_and(|lease| now < lease.until)
    }

    /// Says when the store came back: failures long after begin with short waits again.
    pub(super) fn recovered(&self, now: Timestamp) {
        self.backoff.lock().recovered(now);
    }

    /// A lease for a new task, unless one has it.
    fn take(&self) -> Option<u64> {
        let now = Clock::system().now();
        let mut lease = self.lease.lock();
        if lease.is_some_and(|lease| now < lease.until) {
            return None;
        }
        let number = self.leases.fetch_add(1, Ordering::Relaxed);
        let until = now + LEASE;
        *lease = Some(Lease { number, until });
        Some(number)
    }

    /// Extends the lease by what the task is about to do. `false` when another has taken over.
    fn renew(&self, number: u64, span: Duration) -> bool {
        let mut lease = self.lease.lock();
        let is_ours = lease.is_some_and(|lease| lease.number == number);
        if is_ours {
            let until = Clock::system().now() + span + LEASE;
            *lease = Some(Lease { number, until });
        }
        is_ours
    }

    fn give_back(&self, number: u64) {
        let mut lease = self.lease.lock();
        if lease.is_some_and(|lease| lease.number == number) {
            *lease = None;
        }
    }
}

/// Starts probing unless a task does already. Without a Tokio runtime there is nobody to do it.
pub(super) fn start(shared: &Arc<Shared>) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    if let Some(lease) = shared.prober.take() {
        shared.prober.backoff.lock().failed(shared.clock.now());
        let probing = Probing {
            shared: Arc::downgrade(shared),
            lease,
        };
        runtime.spawn(probing.run());
    }
}

/// A task that probes; dropped, also with its runtime, it gives its lease back.
#[derive(Debug)]
struct Probing {
    shared: Weak<Shared>,
    lease: u64,
}

impl Probing {
    async fn run(self) {
        let mut good_probes = 0;
        loop {
            // Gone when every clone of the store was dropped; not held while nothing happens.
            let wait = match self.shared.upgrade() {
                None => return,
                Some(_) if good_probes > 0 => BETWEEN_GOOD_PROBES,
                Some(shared) => shared.prober.backoff.lock().wait(),
            };
            if !self.renew(wait) {
                return;
            }
            sleep(wait).await;
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            good_probes = if shared.probes_well().await {
                good_probes + 1
            } else {
                0
            };
            if good_probes == GOOD_PROBES {
                shared.recover();
                return;
            }
        }
    }

    fn renew(&self, wait: Duration) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| shared.prober.renew(self.lease, wait + shared.deadline))
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.prober.give_back(self.lease);
        }
    }
}

const GOOD_PROBES: u32 = 2;
const BETWEEN_GOOD_PROBES: Duration = Duration::from_millis(20);
/// How late a task may be before another takes its place.
const LEASE: Duration = Duration::from_secs(1);
