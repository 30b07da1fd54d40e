//! Locks as the crate uses them.

use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};

/// A mutex that outlives a panic in another thread.
///
/// Every critical section here leaves what it guards valid at each step, so a poisoned lock tells nothing that its next
/// user must know.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(StdMutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(StdMutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
