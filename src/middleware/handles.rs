//! Handles that a layer puts into the extensions of each request, for its handler.

use std::sync::Arc;

use http::Extensions;

use crate::limiter::RateLimiter;

use super::{
    actual_cost::{ActualCost, SettledPolicies},
    request_hold::SharedHold,
};

/// The handles that a layer gives to handlers, also for requests that no rule counts, so that these can always extract
/// them.
///
/// A layer without any has none of this, and its requests pass one branch.
#[derive(Debug)]
pub(crate) struct Handles {
    /// The policies whose rules settle, for an [`ActualCost`]. `None` if there are none.
    pub settled: Option<Arc<SettledPolicies>>,
    /// Whether the layer has a concurrency policy, for a [`RequestHold`](super::RequestHold).
    pub has_slots: bool,
    /// The limiter, if it is shared.
    pub limiter: Option<SharedLimiter>,
}

impl Handles {
    /// Returns the handles; `None` if there are none.
    pub fn some(self) -> Option<Box<Self>> {
        let is_needed = self.settled.is_some() || self.has_slots || self.limiter.is_some();
        is_needed.then(|| Box::new(self))
    }

    pub(super) fn attach(&self, extensions: &mut Extensions) {
        if let Some(settled) = &self.settled {
            ActualCost::attach(extensions, settled);
        }
        if self.has_slots {
            SharedHold::attach(extensions);
        }
        if let Some(limiter) = &self.limiter {
            extensions.insert(limiter.clone());
        }
    }
}

/// A limiter in the extensions of requests. A clone of it counts one reference, where a limiter counts one for each of
/// its parts.
#[derive(Clone, Debug)]
pub(crate) struct SharedLimiter(Arc<RateLimiter>);

impl SharedLimiter {
    pub fn new(limiter: &RateLimiter) -> Self {
        Self(Arc::new(limiter.clone()))
    }
}

impl RateLimiter {
    /// Returns the limiter in a request's extensions; `None` if no layer around the handler
    /// [shares](crate::builder::RateLimitLayerBuilder::share_limiter) its limiter. If several do, the innermost layer
    /// counts.
    ///
    /// With axum, a `RateLimiter` is an extractor, also as `Option<RateLimiter>`.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<Self> {
        let SharedLimiter(limiter) = extensions.get()?;
        Some(Self::clone(limiter))
    }
}
