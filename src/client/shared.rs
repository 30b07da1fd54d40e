//! The settings of a layer, which its clones and services share.

use std::{fmt, sync::Arc, time::Duration};

use crate::{acquire::Priority, request::RequestHead};

use super::{budget::RetryBudget, reaction::Reaction, request::BodyCopies, retry::RetrySettings};

/// The settings of a layer, and the state of its keys.
pub(super) struct Shared {
    pub reaction: Reaction,
    pub max_wait: Duration,
    pub priority: Option<Arc<FindPriority>>,
    pub retry: RetrySettings,
    pub budget: Arc<RetryBudget>,
    pub copies: BodyCopies,
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
