//! The error type of the crate.

use std::{borrow::Cow, error, fmt, sync::Arc};

/// An invalid configuration, or a store that could not decide.
///
/// A request over its limit is not an error: it is a [`Decision`](crate::Decision). Match on the [`kind`](Self::kind);
/// [`source`](error::Error::source) returns the cause. A clone shares its contents.
#[derive(Clone)]
pub struct Error {
    repr: Arc<Repr>,
    /// Whether the operation was certainly not executed, although the kind does not show it.
    was_not_executed: bool,
    /// The hash slot of a cluster that nobody decides on, while the server decides on others.
    slot: Option<u16>,
}

struct Repr {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error, for a custom [`Store`](crate::store::Store).
    ///
    /// The message describes what happened and, for a configuration error, what to do. By convention it is lower case
    /// without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            repr: Arc::new(Repr {
                kind,
                message: message.into(),
                source: None,
            }),
            was_not_executed: false,
            slot: None,
        }
    }

    /// Sets the cause. Replaces an earlier one.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        Self {
            repr: Arc::new(Repr {
                kind: self.repr.kind,
                message: self.repr.message.clone(),
                source: Some(source.into()),
            }),
            was_not_executed: self.was_not_executed,
            slot: self.slot,
        }
    }

    /// Notes that the failure is one of this hash slot only: the server may decide on others.
    #[cfg(feature = "redis")]
    pub(crate) fn with_slot(mut self, slot: u16) -> Self {
        self.slot = Some(slot);
        self
    }

    /// Returns the only hash slot that the failure concerns; `None` if it concerns the server or a key.
    #[cfg(feature = "redis")]
    pub(crate) fn slot(&self) -> Option<u16> {
        self.slot
    }

    /// Marks the failed operation as certainly not executed, because it was not sent.
    #[cfg(feature = "redis")]
    pub(crate) fn into_not_executed(mut self) -> Self {
        self.was_not_executed = true;
        self
    }

    /// Returns whether the failed operation was certainly not executed.
    pub(crate) fn was_not_executed(&self) -> bool {
        let was_rejected = matches!(
            self.repr.kind,
            ErrorKind::Overloaded
                | ErrorKind::Unavailable
                | ErrorKind::Timeout(Phase::Connect | Phase::Queue)
        );
        was_rejected || self.was_not_executed
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.repr.kind
    }

    /// Returns whether the same call may succeed later without a change of configuration.
    ///
    /// This depends on the kind alone. So a missing or wrong password, which is
    /// [`Unavailable`](ErrorKind::Unavailable), counts as transient, too.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.repr.kind,
            ErrorKind::Connect
                | ErrorKind::Overloaded
                | ErrorKind::Timeout(_)
                | ErrorKind::Unavailable
        )
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.repr.kind)
            .field("message", &self.repr.message)
            .field("source", &self.repr.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repr.message)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.repr.source.as_deref().map(|source| source as _)
    }
}

// === ErrorKind ===

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server could not be reached, or the connection broke.
    Connect,
    /// Two policies share a name, or a decision charges one policy and key twice.
    DuplicatePolicy,
    /// The key of a policy contains a value that tollgate did not write.
    ForeignValue,
    /// A setting is invalid; the message names it.
    InvalidConfig,
    /// The name, cost, unit or another setting of a policy is invalid.
    InvalidPolicy,
    /// The quota is zero, or outside of the limits of its algorithm.
    InvalidQuota,
    /// The address of a server cannot be parsed.
    InvalidUrl,
    /// A layer has no policy.
    NoPolicy,
    /// The decision would have come too late, and was not sent.
    ///
    /// More decisions wait than the server can make in time, or this process is too busy to ask for them in time. The message
    /// says which.
    Overloaded,
    /// A policy of a layer has no key.
    PolicyWithoutKey,
    /// The server sent a reply of an unexpected form.
    Protocol,
    /// The server rejected the script for a reason that does not go away with time.
    Script,
    /// The deadline passed in this phase.
    Timeout(Phase),
    /// The store does not decide now.
    ///
    /// The server rejects requests (read-only, loading, out of memory, busy, wrong password), the circuit breaker is
    /// open, or a limit of this process is reached.
    Unavailable,
}

// === Phase ===

/// The phase of a decision in Redis in which its deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for a connection: dial and handshake. Nothing was charged.
    Connect,
    /// Waiting to be sent. Nothing was charged.
    Queue,
    /// Waiting for the reply. The charge may have been made.
    Reply,
}
