//! The crate's lock.

use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};

/// A mutex that ignores poisoning.
///
/// Every critical section leaves its data valid at each step, so a panic in one thread does not have to stop the others.
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
