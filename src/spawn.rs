//! Work that nobody waits for.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::{runtime::Handle, task::AbortHandle};

/// Runs a future in the background of the caller's runtime. Outside of one it is dropped: `None`.
pub(crate) fn on_current(future: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
    let runtime = Handle::try_current().ok()?;
    Some(runtime.spawn(future).abort_handle())
}

/// Calls foreign code (a waker, an observer) on a thread that others need: a panic ends only this call.
pub(crate) fn shielded(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// Runs a future in the background of a runtime. If that has ended, the future is dropped: `None`.
pub(crate) fn on(
    runtime: &Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> Option<AbortHandle> {
    let task = runtime.spawn(future).abort_handle();
    (!task.is_finished()).then_some(task)
}
