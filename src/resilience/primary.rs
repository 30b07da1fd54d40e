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
    /// Returns the number of the server's present run, as far as is known.
    ///
    /// It rises after the guard has learnt that the server may have lost its states. So read it first, and then ask what the
    /// server may lack: what that depends on is decided in this run, or fails.
    fn run_number(&self) -> u64;

    /// Decides without a guard. A server that has replaced this run decides nothing.
    fn decide(self: Arc<Self>, charges: &[Charge<'_>], run_number: u64) -> StoreFuture<Decision>;

    /// Charges units that were admitted without the server, each merge once. A server that has replaced this run does not.
    fn merge(self: Arc<Self>, merge: &Merge, run_number: u64) -> StoreFuture<()>;

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
