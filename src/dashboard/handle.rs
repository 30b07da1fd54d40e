//! A dashboard, to mount and to close.

use std::{fmt, sync::Arc};

use axum::Router;

use super::{guard::ApiGuard, router, shared::SharedDashboard};

/// A web page and an API for operators. Clones show the same limiter.
///
/// See the [module docs](super) for its routes and its guards.
#[derive(Clone)]
pub struct Dashboard {
    shared: Arc<SharedDashboard>,
    guard: Arc<ApiGuard>,
}

impl Dashboard {
    pub(super) fn with(shared: Arc<SharedDashboard>, guard: ApiGuard) -> Self {
        Self {
            shared,
            guard: Arc::new(guard),
        }
    }

    /// Returns the routes, to be mounted anywhere: `app.nest_service("/ops/limits", dashboard.router::<()>())`.
    ///
    /// Mount them outside of the rate limit layer, so that operators are not limited. With axum's `nest`, the page is at the
    /// path itself only. With `nest_service` it is also there with a slash at its end.
    pub fn router<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        router::routes(Arc::clone(&self.shared), Arc::clone(&self.guard)).with_state(())
    }

    /// Ends the streams of all pages, and accepts no more.
    ///
    /// Call it when the server shuts down: a graceful shutdown waits for all responses, and a stream lasts up to ten
    /// minutes.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard")
            .field("title", &self.shared.title)
            .finish_non_exhaustive()
    }
}
