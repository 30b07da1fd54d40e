//! Background tasks of a store: one of each kind at a time, on a runtime that some caller has.

use std::{future::Future, sync::OnceLock, time::Duration};

use tokio::runtime::Handle;

use crate::{clock::Clock, sync::Mutex, task_lease::TaskLease};

/// Starts a task, unless one is running.
///
/// The task holds a [lease](TaskLease). If its runtime ends or is not driven, the next decision starts another task.
#[derive(Debug, Default)]
pub(super) struct BackgroundTask {
    lease: Mutex<TaskLease>,
    /// Runtime of the first decision. The call that starts the task may be on a thread without a runtime.
    runtime: OnceLock<Handle>,
}

impl BackgroundTask {
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

    /// Ends the lease, so that the next task starts at once.
    pub(super) fn release(&self, lease: u64) {
        self.lease.lock().release(lease);
    }
}

/// How late a task may be before another one takes over.
const TOLERANCE: Duration = Duration::from_secs(1);
