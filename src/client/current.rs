//! The settings that a layer applies to its next call: fixed, or replaced while the service runs.
//!
//! A call keeps the settings that it began with, also for its retries.

use std::sync::Arc;

#[cfg(feature = "reload")]
use std::{any::Any, fmt, sync::OnceLock};

#[cfg(feature = "reload")]
use crate::{error::Error, limiter::RateLimiter, task::Mutex};

use super::shared::Shared;

/// The settings of a layer and of all its services.
#[derive(Clone, Debug)]
pub(super) enum CurrentSettings {
    /// As they were built.
    Fixed(Arc<Shared>),
    /// Replaced while the service runs.
    #[cfg(feature = "reload")]
    Replaceable(Arc<ReplaceableSettings>),
}

impl CurrentSettings {
    /// Returns the settings for the next call.
    pub fn load(&self) -> Arc<Shared> {
        match self {
            Self::Fixed(shared) => Arc::clone(shared),
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => replaceable.load(),
        }
    }
}

/// Settings that are replaced as a whole.
#[cfg(feature = "reload")]
pub(crate) struct ReplaceableSettings {
    shared: Mutex<Arc<Shared>>,
    limiter: RateLimiter,
    /// Held while the settings are replaced. No call takes it.
    replacing: Mutex<()>,
    /// Dropped with the last layer and service: ends what watches for new rules.
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
}

#[cfg(feature = "reload")]
impl ReplaceableSettings {
    pub(super) fn new(shared: Shared) -> Self {
        Self {
            limiter: shared.reaction.limiter.clone(),
            shared: Mutex::new(Arc::new(shared)),
            replacing: Mutex::new(()),
            companion: OnceLock::new(),
        }
    }

    pub(super) fn load(&self) -> Arc<Shared> {
        Arc::clone(&self.shared.lock())
    }

    /// Replaces the settings.
    ///
    /// # Errors
    ///
    /// That of `next`. The old settings stay.
    pub(super) fn replace(
        &self,
        next: impl FnOnce(&Shared) -> Result<Shared, Error>,
    ) -> Result<(), Error> {
        let _alone = self.replacing.lock();
        let next = Arc::new(next(&self.load())?);
        let replaced = std::mem::replace(&mut *self.shared.lock(), next);
        // After the lock is released: the last call under the old settings may have ended.
        drop(replaced);
        Ok(())
    }

    /// Returns the limiter, which is the same under all settings.
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Keeps a value until the last layer and service is dropped. Only the first call has an effect.
    pub fn accompany(&self, companion: impl Any + Send + Sync) {
        let _ = self.companion.set(Box::new(companion));
    }
}

#[cfg(feature = "reload")]
impl fmt::Debug for ReplaceableSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}
