//! `CallLimitLayer`: the Tower layer.
//!
//! # Why is `CallLimitLayer` a separate type?
//!
//! A rejection of `RateLimitLayer` is an HTTP response whatever the body, so that layer has no type parameters. For other
//! requests only you can define a rejection. So a closure makes it, and request, response and error are part of the layer's type.
//! All else is the same: policies, stores, queues and slots. Slots end with the response, because the layer cannot know what a
//! response does once it is ready. `hold_with` passes the `Hold` to a response that lives longer. `settle` is a setting of the
//! layer: a rule with the response's type would have three type parameters, which the compiler cannot infer.

use std::{fmt, sync::Arc};

use tower::Layer;

use crate::{diagnosis::Warning, limiter::RateLimiter, middleware::CloneService};

use super::{admission::CallAdmission, service::CallLimit};

/// Limits calls to a service. `R` is its request type, `T` its response, `E` its error.
///
/// Clones, and the services made from them, share their counts. See the [module docs](super).
pub struct CallLimitLayer<R, T, E> {
    pub(super) admission: Arc<CallAdmission<R, T, E>>,
}

impl<R, T, E> CallLimitLayer<R, T, E> {
    /// Returns the limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.admission.limiter
    }

    /// Returns the misconfigurations that the layer and its store have found so far; see
    /// [`diagnosis`](crate::diagnosis).
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.admission.warnings.warnings();
        warnings.extend(self.admission.limiter.warnings());
        warnings
    }
}

// The bound is needed to call the service. Here, the compiler names it where the service is given.
impl<S: CloneService, R, T, E> Layer<S> for CallLimitLayer<R, T, E> {
    type Service = CallLimit<S, R, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        CallLimit::new(inner, Arc::clone(&self.admission))
    }
}

// A derive would require `R`, `T` and `E` to be `Clone` and `Debug` too.
impl<R, T, E> Clone for CallLimitLayer<R, T, E> {
    fn clone(&self) -> Self {
        Self {
            admission: Arc::clone(&self.admission),
        }
    }
}

impl<R, T, E> fmt::Debug for CallLimitLayer<R, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLimitLayer")
            .field("rules", &self.admission.rules)
            .finish_non_exhaustive()
    }
}
