//! The crate's mutex.

use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};

/// A mutex that is not poisoned by a panic.
///
/// Every critical section of the crate leaves its data valid at each step, so the next thread may go on with them.
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
