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

#[cfg(feature = "reload")]
use std::sync::atomic::Ordering;
use std::{ops::Deref, sync::Arc};

#[cfg(feature = "reload")]
use arc_swap::Guard;

use crate::limiter::RateLimiter;

#[cfg(feature = "reload")]
use crate::limiter::Replaceable;

use super::admission::Admission;

/// The admission of a layer and of all its services.
#[derive(Clone, Debug)]
pub(crate) enum CurrentRules {
    /// As it was built.
    Fixed(Arc<Admission>),
    /// Replaced while the service runs.
    #[cfg(feature = "reload")]
    Replaceable(Arc<Replaceable<Admission>>),
}

impl CurrentRules {
    /// Returns the admission for the next request, which keeps it to its end. Takes no lock.
    #[inline]
    pub fn load(&self) -> Loaded<'_> {
        match self {
            Self::Fixed(admission) => Loaded::Fixed(admission),
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => Loaded::Guarded(replaceable.load()),
        }
    }

    /// Changes a setting of the current admission. No replacement happens meanwhile, so the change is not lost.
    pub fn change<T>(&self, change: impl FnOnce(&Admission) -> T) -> T {
        #[cfg(feature = "reload")]
        if let Self::Replaceable(replaceable) = self {
            return replaceable.change(change);
        }
        change(&self.load())
    }

    /// Returns the limiter, which is the same for all admissions.
    pub fn limiter(&self) -> &RateLimiter {
        match self {
            Self::Fixed(admission) => &admission.limiter,
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => {
                let limiter = replaceable.limiter();
                limiter.expect("build_replaceable() gives it that of the admission")
            }
        }
    }
}

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

#[cfg(feature = "reload")]
impl Admission {
    /// Takes over what was changed while the service ran under another admission: the mode of the layer, and the modes and
    /// rollouts of rules for which both have the same one written.
    pub(crate) fn take_over_settings(&self, old: &Self) {
        self.mode.set(old.mode.get());
        let has_logged = old.has_logged_failure.load(Ordering::Relaxed);
        self.has_logged_failure.store(has_logged, Ordering::Relaxed);
        let old_rules = || old.rules.iter().zip(&old.written_modes);
        for (rule, written) in self.rules.iter().zip(&self.written_modes) {
            let name = rule.policy().name();
            let same = old_rules().find(|(other, _)| other.policy().name() == name);
            if let Some((other, other_written)) = same
                && written == other_written
            {
                rule.mode.set(other.mode.get());
            }
        }
    }
}
