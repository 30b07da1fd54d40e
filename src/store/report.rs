//! Reports on the calls that a store makes to its server.

use std::{fmt::Debug, time::Duration};

use crate::{clock::Timestamp, error::Error};

/// Receives a report on each call that a store makes to its server. One call can carry many decisions.
pub trait CallObserver: Debug + Send + Sync {
    /// Reports a call that ended. The store must not hold a lock that a decision needs.
    fn call_ended(&self, call: CallReport<'_>);
}

/// The result of one call to a server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CallReport<'a> {
    /// The server replied, and was able to decide.
    #[non_exhaustive]
    Replied {
        /// Time spent in the server and the network, without waits in this process.
        latency: Duration,
        /// The time by which the server decided, if it is in the reply and the reply came just now.
        decided_at: Option<Timestamp>,
    },
    /// The call failed.
    ///
    /// There was no connection, no reply before the deadline, or the reply was that the server cannot decide. A
    /// decision that is shed ([`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded)) is not a call.
    #[non_exhaustive]
    Failed {
        /// The cause.
        error: &'a Error,
    },
    /// The server was restarted, or another one took its place: it may have lost its states.
    ///
    /// The usage that it returned before is restored, one key at a time, before the next decision on the key.
    Replaced,
    /// The server has left the cluster: it decides nothing any more, so an outage of it has ended.
    Retired,
}

impl<'a> CallReport<'a> {
    /// Returns the report on a call that the server replied to within `latency`.
    #[must_use]
    pub fn replied(latency: Duration) -> Self {
        Self::Replied {
            latency,
            decided_at: None,
        }
    }

    /// Sets the time by which the server decided. Call it for a reply that came just now.
    ///
    /// Default: none. Decisions during an outage are made in this time, so that windows of all instances end together.
    #[must_use]
    pub fn decided_at(self, time: Timestamp) -> Self {
        match self {
            Self::Replied { latency, .. } => Self::Replied {
                latency,
                decided_at: Some(time),
            },
            Self::Failed { .. } | Self::Replaced | Self::Retired => self,
        }
    }

    /// Returns the report on a call that failed.
    #[must_use]
    pub fn failed(error: &'a Error) -> Self {
        Self::Failed { error }
    }
}
