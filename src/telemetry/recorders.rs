//! Recorders of the decisions of one limiter, besides metrics and events.

use std::{fmt, sync::Arc};

use crate::{charge::Charge, decision::Decision, error::Error};

#[cfg(feature = "top-keys")]
use crate::top_keys::TopKeys;

#[cfg(feature = "explain")]
use super::denials::RecentDenials;

/// Called with the charges and the result of each decision.
pub(super) type Hook = Arc<dyn Fn(&[Charge<'_>], &Result<Decision, Error>) + Send + Sync>;

/// The recorders of one limiter.
#[derive(Clone, Default)]
pub(crate) struct Recorders {
    /// Those of the user.
    hooks: Vec<Hook>,
    /// Keeps the last denial of each key.
    #[cfg(feature = "explain")]
    pub denials: Option<RecentDenials>,
    /// Counts denied requests by key.
    #[cfg(feature = "top-keys")]
    pub top_keys: Option<TopKeys>,
}

impl Recorders {
    /// Adds a hook.
    pub fn hook(
        &mut self,
        hook: impl Fn(&[Charge<'_>], &Result<Decision, Error>) + Send + Sync + 'static,
    ) {
        self.hooks.push(Arc::new(hook));
    }

    /// Keeps the last denial for this many pairs of policy and key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an impossible number.
    #[cfg(feature = "explain")]
    pub fn keeping_denials(mut self, pairs: Option<usize>) -> Result<Self, Error> {
        self.denials = pairs.map(RecentDenials::new).transpose()?;
        Ok(self)
    }

    /// Returns all that is called with each decision; `None` if nothing is.
    pub fn hooks(&self) -> Option<Arc<[Hook]>> {
        #[cfg_attr(
            not(any(feature = "explain", feature = "top-keys")),
            expect(unused_mut, reason = "these features add theirs")
        )]
        let mut hooks = self.hooks.clone();
        #[cfg(feature = "explain")]
        if let Some(denials) = self.denials.clone() {
            hooks.push(Arc::new(move |charges, result| {
                if let Ok(decision) = result {
                    denials.record(charges, decision);
                }
            }));
        }
        #[cfg(feature = "top-keys")]
        if let Some(top_keys) = self.top_keys.clone() {
            hooks.push(Arc::new(move |charges, result| {
                if let Ok(decision) = result {
                    top_keys.record_denied(charges, decision);
                }
            }));
        }
        (!hooks.is_empty()).then(|| hooks.into())
    }
}

impl fmt::Debug for Recorders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorders")
            .field("hooks", &self.hooks.len())
            .finish_non_exhaustive()
    }
}
