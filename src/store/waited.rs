//! The time that a request has waited for earlier decisions of the same store.
//!
//! A request has one deadline at a store, however many layers decide on it. The thread passes the time to the store, beside
//! the charges: stores in between, also custom ones, need not forward it.
//!
//! ```text
//! layer ── after(20 ms) ──▶ RateLimiter ──▶ any store ──▶ so_far(): 20 of 50 ms are used up
//! ```

use std::{cell::Cell, future::Future, sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Timestamp},
    task::timer::timeout,
};

/// Identifies a store that limiters share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreId(usize);

impl StoreId {
    /// Returns the id of a store, which all handles on it have.
    pub fn of<S: ?Sized>(store: &Arc<S>) -> Self {
        Self(Arc::as_ptr(store).addr())
    }
}

/// Calls `decide` for a request that has waited this long.
pub(crate) fn after<T>(waited: Duration, decide: impl FnOnce() -> T) -> T {
    let _restored = WaitedReset(WAITED.replace(waited));
    decide()
}

/// Returns how long the request has waited that the store is being called for.
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

// === TimeLeft ===

/// The deadline of a request for which a store is called several times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLeft {
    /// How long the request had waited before.
    waited: Duration,
    began_at: Timestamp,
    /// `None` for a store without a deadline.
    deadline: Option<Duration>,
}

impl TimeLeft {
    /// Returns the deadline of the request for which a store is being called.
    pub fn of_request(deadline: Option<Duration>) -> Self {
        Self {
            waited: so_far(),
            began_at: now(),
            deadline,
        }
    }

    /// Returns the same for a future that is polled for the first time: nobody has waited before.
    pub fn restarted(self) -> Self {
        Self {
            began_at: now(),
            ..self
        }
    }

    /// Calls the store, which learns how long the request has waited.
    pub fn ask<T>(&self, decide: impl FnOnce() -> T) -> T {
        after(self.waited(), decide)
    }

    /// Awaits a future of the store, or returns `None` at the deadline.
    pub async fn limit<F: Future>(&self, future: F) -> Option<F::Output> {
        match self.left() {
            Some(left) => timeout(left, future).await,
            None => Some(future.await),
        }
    }

    /// Returns the time until the deadline; `None` for a store without one.
    pub fn left(&self) -> Option<Duration> {
        Some(self.deadline?.saturating_sub(self.waited()))
    }

    /// Returns how long the request has waited.
    fn waited(&self) -> Duration {
        self.waited + now().since(self.began_at)
    }
}

/// Returns the present time of this process' clock, by which deadlines are kept.
fn now() -> Timestamp {
    Clock::system().now()
}

// === WaitedReset ===

/// Sets the time back, also if the call panics.
struct WaitedReset(Duration);

impl Drop for WaitedReset {
    fn drop(&mut self) {
        WAITED.set(self.0);
    }
}

thread_local! {
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}
