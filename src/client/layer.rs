//! The layer around clients.

use std::fmt;

use tower::Layer;

use crate::{limiter::RateLimiter, middleware::CloneService};

use super::{current::CurrentSettings, service::Outgoing};

/// Makes the calls of an HTTP client wait for their turn, obey the API, and retry safely.
///
/// Clones share the counts, the pauses and the retry budgets. See the [module docs](super).
#[derive(Clone)]
pub struct OutgoingLayer {
    pub(super) limiter: RateLimiter,
    pub(super) settings: CurrentSettings,
}

impl OutgoingLayer {
    /// Returns the limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }
}

// The bound is needed to call the service. Here, the compiler names it where the client is given.
impl<S: CloneService> Layer<S> for OutgoingLayer {
    type Service = Outgoing<S>;

    fn layer(&self, client: S) -> Outgoing<S> {
        Outgoing::new(client, self.settings.clone())
    }
}

impl fmt::Debug for OutgoingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingLayer")
            .field("settings", &self.settings)
            .finish()
    }
}
