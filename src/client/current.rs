//! The settings that a layer applies to its next call: fixed, or replaced while the service runs.
//!
//! A call keeps the settings that it began with, also for its retries.

use std::sync::Arc;

#[cfg(feature = "reload")]
use crate::limiter::Replaceable;

use super::shared::Shared;

/// The settings of a layer and of all its services.
#[derive(Clone, Debug)]
pub(super) enum CurrentSettings {
    /// As they were built.
    Fixed(Arc<Shared>),
    /// Replaced while the service runs.
    #[cfg(feature = "reload")]
    Replaceable(Arc<Replaceable<Shared>>),
}

impl CurrentSettings {
    /// Returns the settings for the next call.
    pub fn load(&self) -> Arc<Shared> {
        match self {
            Self::Fixed(shared) => Arc::clone(shared),
            #[cfg(feature = "reload")]
            Self::Replaceable(replaceable) => Arc::clone(&replaceable.load()),
        }
    }
}
