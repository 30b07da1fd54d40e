//! Settings that are replaced as a whole while the service runs.

use std::{any::Any, fmt, sync::Arc, sync::OnceLock};

use arc_swap::{ArcSwap, Guard};

use crate::{error::Error, task::Mutex};

use super::limiter::RateLimiter;

/// Settings of a layer that are replaced as a whole. The limiter, if it has one, stays the same.
pub(crate) struct Replaceable<T> {
    current: ArcSwap<T>,
    limiter: Option<RateLimiter>,
    /// Held while the settings are replaced, or one of them is changed. No request takes it.
    replacing: Mutex<()>,
    /// Dropped with the last layer and service: ends what watches for new rules.
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl<T> Replaceable<T> {
    pub fn new(current: T, limiter: impl Into<Option<RateLimiter>>) -> Self {
        Self {
            current: ArcSwap::from_pointee(current),
            limiter: limiter.into(),
            replacing: Mutex::new(()),
            companion: OnceLock::new(),
        }
    }

    /// Returns the current settings. Takes no lock.
    #[inline]
    pub fn load(&self) -> Guard<Arc<T>> {
        self.current.load()
    }

    /// Changes one of the current settings. No replacement happens meanwhile, so the change is not lost.
    pub fn change<R>(&self, change: impl FnOnce(&T) -> R) -> R {
        let _unchanged = self.replacing.lock();
        change(&self.load())
    }

    /// Replaces the settings.
    ///
    /// # Errors
    ///
    /// That of `next`. The old settings stay.
    pub fn replace(&self, next: impl FnOnce(&T) -> Result<T, Error>) -> Result<(), Error> {
        let replaced;
        {
            let _alone = self.replacing.lock();
            let next = next(&self.load())?;
            replaced = self.current.swap(Arc::new(next));
        }
        // After the lock is released: the last request under the old settings may have ended.
        drop(replaced);
        Ok(())
    }

    /// Returns the limiter.
    pub fn limiter(&self) -> Option<&RateLimiter> {
        self.limiter.as_ref()
    }

    /// Keeps a value until the last layer and service is dropped. Only the first call has an effect.
    pub fn accompany(&self, companion: impl Any + Send + Sync) {
        let _ = self.companion.set(Box::new(companion));
    }
}

impl<T: fmt::Debug> fmt::Debug for Replaceable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}
