//! Background tasks of a store: one of each kind at a time.

use std::{future::Future, sync::OnceLock, time::Duration};

use tokio::runtime::Handle;

use crate::{
    clock::Clock,
    task::{LastingTask, Mutex, TaskLease, home},
};

/// Starts a task, unless one is running.
///
/// The task begins on the runtime of a caller, and goes [home](crate::task::home) when that ends: a runtime may last for a decision
/// only. The task holds a [lease](TaskLease). If its runtime is not driven, the next decision starts another task at home.
#[derive(Debug, Default)]
pub(super) struct BackgroundTask {
    state: Mutex<State>,
    /// Runtime of the first decision. The call that starts the task may be on a thread without a runtime.
    runtime: OnceLock<Handle>,
}

#[derive(Debug, Default)]
struct State {
    lease: TaskLease,
    /// The latest task.
    task: LastingTask,
    /// Whether it began at home.
    began_at_home: bool,
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
    pub(super) fn start<T>(&self, task: impl FnOnce(u64) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let now = Clock::system().now();
        let mut state = self.state.lock();
        if state.lease.is_held(now) {
            return;
        }
        // Not twice in a row: foreign code may block home, too.
        let begins_at_home = !state.task.is_finished() && !state.began_at_home;
        state.began_at_home = begins_at_home;
        let number = state.lease.take_over(now + TOLERANCE);
        // Without a thread for home, the task may be dropped at once, and then releases its lease.
        drop(state);
        let task = Box::pin(task(number));
        let current = Handle::try_current().ok();
        let started = match current.or_else(|| self.runtime.get().cloned()) {
            Some(runtime) if !begins_at_home => home::spawn_lasting_on(&runtime, task),
            _ => home::spawn_lasting_at_home(task),
        };
        let mut state = self.state.lock();
        if state.lease.belongs_to(number) {
            state.task = started;
        }
    }

    /// Extends the lease over the next step of its task. Returns `false` if another task has taken over.
    pub(super) fn renew(&self, lease: u64, span: Duration) -> bool {
        let until = Clock::system().now() + span + TOLERANCE;
        self.state.lock().lease.renew(lease, until)
    }

    /// Ends the lease, so that the next task starts at once.
    pub(super) fn release(&self, lease: u64) {
        self.state.lock().lease.release(lease);
    }
}

/// How late a task may be before another one takes over.
const TOLERANCE: Duration = Duration::from_secs(1);
