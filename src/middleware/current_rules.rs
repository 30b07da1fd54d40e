//! The rules that a layer applies to its next request: fixed, or replaced while the service runs.
//!
//! ```text
//! layer, services ──> CurrentRules::Fixed ────────────────────> Admission
//!                 └─> CurrentRules::Replaceable ──> ArcSwap ──> Admission of version 1   kept by the requests that began under it
//!                                                └──────>  Admission of version 2   what the next request gets
//! ```
//!
//! # Why an `ArcSwap`?
//!
//! A read of it writes no memory that other cores read, unlike a `RwLock` or the counter of an `Arc`. A layer without a source
//! has its admission behind a branch, and without the feature `reload` there is no branch. A request through either kind of layer
//! took 401 to 414 ns, with 4 ns between them at most, which is less than the runs differ (minima of four runs, one thread, in
//! process). The limiter is the same under all admissions: it has the store, the slots in flight and the metrics.

use std::{ops::Deref, sync::Arc};

#[cfg(feature = "reload")]
use std::{any::Any, fmt, sync::OnceLock};

#[cfg(feature = "reload")]
use arc_swap::{ArcSwap, Guard};

use crate::limiter::RateLimiter;

#[cfg(feature = "reload")]
use crate::{error::Error, task::Mutex};

use super::admission::Admission;

/// The admission of a layer and of all its services.
#[derive(Clone, Debug)]
pub(crate) enum CurrentRules {
    /// As it was built.
    Fixed(Arc<Admission>),
    /// Replaced while the service runs.
    #[cfg(feature = "reload")]
    Replaceable(Arc<Replaceable>),
}

impl CurrentRules {
    /// Returns the admission for the next request, which keeps it to its end. Takes no lock.
    #[inline]
    pub fn load(&self) -> Loaded<'_> {
        match self {
            Self::Fixed(admission) => Loaded::Fixed(admission),
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => Loaded::Guarded(replaceable.admission.load()),
        }
    }

    /// Changes a setting of the current admission. No replacement happens meanwhile, so the change is not lost.
    pub fn change<T>(&self, change: impl FnOnce(&Admission) -> T) -> T {
        #[cfg(feature = "reload")]
        if let Self::Replaceable(replaceable) = self {
            let _unchanged = replaceable.replacing.lock();
            return change(&replaceable.admission.load());
        }
        change(&self.load())
    }

    /// Returns the limiter, which is the same for all admissions.
    pub fn limiter(&self) -> &RateLimiter {
        match self {
            Self::Fixed(admission) => &admission.limiter,
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => &replaceable.limiter,
        }
    }
}

// === Loaded ===

/// An admission that a request is about to use.
pub(crate) enum Loaded<'a> {
    Fixed(&'a Arc<Admission>),
    #[cfg(feature = "reload")]
    Guarded(Guard<Arc<Admission>>),
}

impl Deref for Loaded<'_> {
    type Target = Arc<Admission>;

    #[inline]
    fn deref(&self) -> &Arc<Admission> {
        match self {
            Self::Fixed(admission) => admission,
            #[cfg(feature = "reload")]
            Self::Guarded(admission) => admission,
        }
    }
}

// === Replaceable ===

/// An admission that is replaced as a whole.
#[cfg(feature = "reload")]
pub(crate) struct Replaceable {
    admission: ArcSwap<Admission>,
    limiter: RateLimiter,
    /// Held while the admission is replaced, or a setting in it is changed. No request takes it.
    replacing: Mutex<()>,
    /// Dropped with the last layer and service: ends what watches for new rules.
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
}

#[cfg(feature = "reload")]
impl Replaceable {
    /// Returns an admission that can be replaced.
    pub fn new(admission: Admission) -> Self {
        Self {
            limiter: admission.limiter.clone(),
            admission: ArcSwap::from_pointee(admission),
            replacing: Mutex::new(()),
            companion: OnceLock::new(),
        }
    }

    /// Replaces the admission by another one, which gets the settings that were changed while the service ran.
    ///
    /// # Errors
    ///
    /// That of `next`; the old admission stays.
    pub fn replace(
        &self,
        next: impl FnOnce(&Admission) -> Result<Admission, Error>,
    ) -> Result<(), Error> {
        let replaced;
        {
            let _alone = self.replacing.lock();
            let next = {
                let present = self.admission.load();
                let next = next(&present)?;
                next.take_over_settings(&present);
                next
            };
            replaced = self.admission.swap(Arc::new(next));
        }
        // After the lock is released: the last request under the old rules may have ended.
        drop(replaced);
        Ok(())
    }

    /// Calls `read` with the current admission.
    #[cfg(feature = "redis")]
    pub fn with<T>(&self, read: impl FnOnce(&Admission) -> T) -> T {
        read(&self.admission.load())
    }

    /// Returns the limiter, which is the same for all admissions.
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Keeps a value until the last layer and service is dropped. Only the first call has an effect.
    pub fn accompany(&self, companion: impl Any + Send + Sync) {
        let _ = self.companion.set(Box::new(companion));
    }
}

#[cfg(feature = "reload")]
impl fmt::Debug for Replaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.admission.load().fmt(f)
    }
}
