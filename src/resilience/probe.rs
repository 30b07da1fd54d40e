//! The background task that finds out when the store is back.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{
    clock::{Clock, Timestamp},
    sync::Mutex,
    timer::sleep,
};

use super::{probe_backoff::ProbeBackoff, shared::Shared};

/// Sees to it that one probing task runs, and that a store that comes and goes is probed ever more seldom.
#[derive(Debug, Default)]
pub(super) struct Prober {
    pub(super) backoff: Mutex<ProbeBackoff>,
    lease: Mutex<Option<Lease>>,
    leases: AtomicU64,
    /// The runtime of the first decision: calls may end, and open the breaker, outside of any.
    runtime: OnceLock<Handle>,
}

/// A task's permission to probe. Not renewed in time (its runtime is gone, or nobody drives it), another task gets it.
#[derive(Clone, Copy, Debug)]
struct Lease {
    number: u64,
    until: Timestamp,
}

impl Prober {
    /// Returns whether a task probes and is on time.
    pub(super) fn is_running(&self) -> bool {
        let now = Clock::system().now();
        self.lease.lock().is_some_and(|lease| now < lease.until)
    }

    /// Remembers the runtime that the caller is on.
    #[inline]
    pub(super) fn remember_runtime(&self) {
        if self.runtime.get().is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            let _ = self.runtime.set(runtime);
        }
    }

    fn runtime(&self) -> Option<Handle> {
        let current = Handle::try_current().ok();
        current.or_else(|| self.runtime.get().cloned())
    }

    /// Returns a lease for a new task, unless one has it.
    fn take(&self) -> Option<u64> {
        let now = Clock::system().now();
        let mut lease = self.lease.lock();
        if lease.is_some_and(|lease| now < lease.until) {
            return None;
        }
        let number = self.leases.fetch_add(1, Ordering::Relaxed);
        let until = now + LATENESS;
        *lease = Some(Lease { number, until });
        Some(number)
    }

    /// Extends the lease by what the task is about to do. Returns `false` if another task has taken over.
    fn renew(&self, number: u64, span: Duration) -> bool {
        let mut lease = self.lease.lock();
        let is_ours = lease.is_some_and(|lease| lease.number == number);
        if is_ours {
            let until = Clock::system().now() + span + LATENESS;
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
    let Some(runtime) = shared.prober.runtime() else {
        return;
    };
    if let Some(lease) = shared.prober.take() {
        let probing = Probing {
            shared: Arc::downgrade(shared),
            lease,
        };
        runtime.spawn(probing.run());
    }
}

/// A task that probes; dropped, also by a panic or with its runtime, it gives its lease back.
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
                // Another task has closed it.
                Some(shared) if !shared.breaker.is_open() => return,
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
            good_probes = if shared.probe().await {
                good_probes + 1
            } else {
                0
            };
            if good_probes == GOOD_PROBES {
                // First, so that a breaker that opens again at once finds nobody probing.
                shared.prober.give_back(self.lease);
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
const LATENESS: Duration = Duration::from_secs(1);
