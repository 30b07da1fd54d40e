//! Reports of the calls to a server.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use crate::{clock::Timestamp, error::Error};

use super::guard::Guard;

/// Reports how the calls of a store to its server end, to the breaker in front of the store.
///
/// One call can carry many decisions. Give a clone to the custom store, and another one to
/// [`ResilientStoreBuilder::calls`](super::ResilientStoreBuilder::calls). The store must then report every call. A decision
/// that is shed ([`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded)) is not a call.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    guard: Arc<OnceLock<Weak<Guard>>>,
}

impl Calls {
    /// Creates reports without a breaker.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports a call with a reply from a server that was able to decide.
    ///
    /// `latency` is the time spent in the server and the network, without waits in this process. The caller must not hold a
    /// lock that a decision needs.
    pub fn replied(&self, latency: Duration) {
        self.replied_at(latency, None);
    }

    /// Reports a call that failed: there was no connection, no reply before the deadline, or the server cannot decide.
    pub fn failed(&self, error: &Error) {
        if let Some(guard) = self.guard() {
            guard.record_failure(error);
        }
    }

    /// As [`replied`](Self::replied). `decided_at` is the time of the server in a reply that came just now.
    pub(crate) fn replied_at(&self, latency: Duration, decided_at: Option<Timestamp>) {
        if let Some(guard) = self.guard() {
            if let Some(time) = decided_at {
                guard.server_clock.learn(time, latency);
            }
            guard.record_reply(latency, guard.clock.now());
        }
    }

    /// Reports that the server was restarted, or that another one took its place: it may have lost its states.
    pub(crate) fn replaced(&self) {
        if let Some(guard) = self.guard() {
            guard.server_replaced();
        }
    }

    /// Reports that the server has left the cluster: it decides nothing any more, so an outage of it has ended.
    pub(crate) fn retired(&self) {
        if let Some(guard) = self.guard() {
            guard.retire();
        }
    }

    /// Returns whether a breaker receives the reports.
    pub(crate) fn have_guard(&self) -> bool {
        self.guard.get().is_some()
    }

    /// Sets the guard that receives the reports. Only the first call has an effect.
    pub(super) fn report_to(&self, guard: &Arc<Guard>) {
        let _ = self.guard.set(Arc::downgrade(guard));
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        self.guard.get().and_then(Weak::upgrade)
    }
}
