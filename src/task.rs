//! Work that nobody waits for.

use std::future::Future;

use tokio::{runtime::Handle, task::AbortHandle};

/// Runs a future in the background of the caller's runtime. Outside of one it is dropped: `None`.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
    let runtime = Handle::try_current().ok()?;
    Some(runtime.spawn(future).abort_handle())
}

/// Runs a future in the background of a runtime. If that has ended, the future is dropped: `None`.
pub(crate) fn spawn_on(
    runtime: &Handle,
    future: impl Future<Output = ()> + Send + 'static,
) -> Option<AbortHandle> {
    let task = runtime.spawn(future).abort_handle();
    (!task.is_finished()).then_some(task)
}
