//! A server, as the guard in front of it sees it.

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::{
    charge::{Charge, Merge},
    decision::Decision,
    diagnosis::Warning,
    key::Key,
    store::StoreFuture,
};

/// The server that decides unless it is unavailable: a node of Redis, or a custom store.
pub(crate) trait Primary: Debug + Send + Sync {
    /// Decides without a guard.
    fn decide(self: Arc<Self>, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// Charges units that were admitted without the server, each merge once.
    fn merge(self: Arc<Self>, merge: &Merge) -> StoreFuture<()>;

    /// Checks that the server can decide.
    fn probe(self: Arc<Self>) -> StoreFuture<()>;

    /// Returns whether the server decides on a key at present. A node of a cluster decides on some of the keys only.
    fn serves(&self, key: &Key) -> bool;

    /// Returns the time within which every future completes, if the server's client keeps one.
    fn deadline(&self) -> Option<Duration>;

    /// Returns the address, for the health and log events.
    fn server(&self) -> Option<String>;

    /// Returns the misconfigurations found so far.
    fn warnings(&self) -> Vec<Warning>;
}
