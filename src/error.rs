//! What can go wrong, said once for the whole crate.

use std::{borrow::Cow, error, fmt, sync::Arc};

/// A wrong configuration, or a store that could not decide.
///
/// Running into a limit is no error: it is a [`Decision`](crate::Decision).
#[derive(Clone)]
pub struct Error {
    repr: Arc<Repr>,
    is_unsent: bool,
}

struct Repr {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind; the message says what happened and, for a configuration, what to do.
    ///
    /// Stores of your own build their errors with it.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            repr: Arc::new(Repr {
                kind,
                message: message.into(),
                source: None,
            }),
            is_unsent: false,
        }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        Self {
            repr: Arc::new(Repr {
                kind: self.repr.kind,
                message: self.repr.message.clone(),
                source: Some(source.into()),
            }),
            is_unsent: self.is_unsent,
        }
    }

    /// The same error for something that was not sent because of it.
    #[cfg(feature = "redis")]
    pub(crate) fn unsent(mut self) -> Self {
        self.is_unsent = true;
        self
    }

    /// Whether what failed was surely not done.
    pub(crate) fn was_not_done(&self) -> bool {
        let is_refused = matches!(
            self.repr.kind,
            ErrorKind::Overloaded
                | ErrorKind::Unavailable
                | ErrorKind::Timeout(Phase::Connect | Phase::Queue)
        );
        is_refused || self.is_unsent
    }

    /// What went wrong, to match on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.repr.kind
    }

    /// Whether the same call may succeed later with nothing changed by hand.
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

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server could not be reached, or the connection broke.
    Connect,
    /// Two policies of one limiter bear one name, or one decision charges one policy and key twice.
    DuplicatePolicy,
    /// A value under our key that tollgate did not write.
    ForeignValue,
    /// A setting that cannot work: the message names it.
    InvalidConfig,
    /// A policy name, cost or burst that cannot work.
    InvalidPolicy,
    /// A quota of nothing, in no time, or beyond the documented limits.
    InvalidQuota,
    /// A server address that cannot be understood.
    InvalidUrl,
    /// A policy that nothing is keyed by.
    PolicyWithoutKey,
    /// A layer without any policy.
    NoPolicy,
    /// This process asks for more decisions than the server can make in time, so this one was not sent.
    Overloaded,
    /// A reply of the wrong shape.
    Protocol,
    /// The server refused the script for a reason that waiting does not cure.
    Script,
    /// No answer before the deadline, in this phase.
    Timeout(Phase),
    /// The store cannot serve now: the server refuses (read-only, loading, out of memory, busy, wrong password), the breaker
    /// is open, or a limit of this process is reached.
    Unavailable,
}

// === Phase ===

/// The part of a remote decision that a deadline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for a connection: pool, dial and handshake.
    Connect,
    /// Waiting to be sent; nothing was charged.
    Queue,
    /// Waiting for the reply; the charge may have been made.
    Reply,
}
