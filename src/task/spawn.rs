//! Work that takes long, and calls to foreign code.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::runtime::Handle;

#[cfg(feature = "reload")]
use crate::error::{Error, ErrorKind};

/// Spawns a future of foreign code on the caller's Tokio runtime, since its clients may be bound to that. Without a runtime,
/// drops the future.
pub(crate) fn on_current(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(future);
    }
}

/// Does work that takes long on a thread for that, so that the caller's Tokio runtime goes on. Without one, does it here.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if the runtime ends meanwhile, or the work panics.
#[cfg(feature = "reload")]
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let Ok(runtime) = Handle::try_current() else {
        return Ok(work());
    };
    runtime.spawn_blocking(work).await.map_err(|error| {
        let message = "the runtime has ended before the work was done";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

/// Calls foreign code, such as a waker or an observer, on a thread that others depend on. A panic ends only this call.
pub(crate) fn contain_panic(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}
