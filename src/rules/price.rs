//! How the charges of a rule are settled.

use std::sync::Arc;

use super::completed::CompletedRequest;

/// How the charges of a rule are settled.
#[derive(Clone)]
pub(super) enum Price {
    /// The charge stays if the request counts, and is refunded otherwise.
    Counted(Condition),
    /// At what the request really cost.
    Settled(SettledCost),
}

/// Returns something about a request that has ended.
pub(super) type Condition = Arc<dyn Fn(&CompletedRequest<'_>) -> bool + Send + Sync>;
/// Returns what a request really cost.
pub(super) type SettledCost = Arc<dyn Fn(&CompletedRequest<'_>) -> u64 + Send + Sync>;
