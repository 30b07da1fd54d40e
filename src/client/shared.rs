//! The settings of a layer, which its clones and services share.

use std::{fmt, sync::Arc, time::Duration};

use crate::{acquire::Priority, request::RequestHead};

use super::{budget::RetryBudget, reaction::Reaction, request::BodyCopies, retry::RetrySettings};

/// The settings of a layer, and the state of its keys.
pub(crate) struct Shared {
    pub(super) reaction: Reaction,
    pub(super) max_wait: Duration,
    pub(super) priority: Option<Arc<FindPriority>>,
    pub(super) retry: RetrySettings,
    pub(super) budget: Arc<RetryBudget>,
    pub(super) copies: BodyCopies,
}

/// Returns the class of a call.
pub(super) type FindPriority = dyn Fn(&RequestHead<'_>) -> Priority + Send + Sync;

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("rules", &self.reaction.rules)
            .field("max_wait", &self.max_wait)
            .field("max_pause", &self.reaction.max_pause)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
