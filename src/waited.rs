//! The time that a request has waited for earlier decisions of the same store.
//!
//! A request has one deadline at a store, however many layers decide on it. The thread passes the time to the store, beside
//! the charges: stores in between, also custom ones, need not forward it.
//!
//! ```text
//! layer ── after(20 ms) ──▶ RateLimiter ──▶ any store ──▶ so_far(): 20 of 50 ms are used up
//! ```

use std::{cell::Cell, sync::Arc, time::Duration};

/// Identifies a store that limiters share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreId(usize);

impl StoreId {
    /// Returns the id of a store, which all handles on it have.
    pub(crate) fn of<S: ?Sized>(store: &Arc<S>) -> Self {
        Self(Arc::as_ptr(store).addr())
    }
}

/// Calls `decide` for a request that has waited this long.
pub(crate) fn after<T>(waited: Duration, decide: impl FnOnce() -> T) -> T {
    let _restored = Restored(WAITED.replace(waited));
    decide()
}

/// Returns how long the request has waited that the store is being called for.
#[cfg(feature = "redis")]
#[inline]
pub(crate) fn so_far() -> Duration {
    WAITED.get()
}

/// Returns whether too little of this deadline is left for another call: less than half, as for a decision in a queue.
#[cfg(feature = "redis")]
#[inline]
pub(crate) fn is_too_long(deadline: Duration) -> bool {
    so_far() >= deadline / 2
}

/// Sets the time back, also if the call panics.
struct Restored(Duration);

impl Drop for Restored {
    fn drop(&mut self) {
        WAITED.set(self.0);
    }
}

thread_local! {
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}
