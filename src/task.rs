//! Work that nobody waits for.

use std::future::Future;

use tokio::runtime::Handle;

/// Runs a future in the background of the caller's runtime. Outside of one it is dropped.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(future);
    }
}
