//! Errors of calls that go out.

use std::{error, fmt, time::Duration};

use http::StatusCode;

use crate::acquire::{AcquireError, AcquireErrorKind};

/// A call that got no turn, or the error of the client.
///
/// Errors of the client pass unchanged. `?` converts it if the client's error is an [`Error`](error::Error). Around a `buffer` of
/// Tower the client's error is a `Box<dyn Error>`, which is not: use [`into_boxed`](Self::into_boxed).
#[derive(Debug)]
#[non_exhaustive]
pub enum OutgoingError<E> {
    /// The client failed.
    Inner(E),
    /// The call got no turn.
    Limited(LimitedCall),
}

impl<E> OutgoingError<E> {
    /// Returns the client's error.
    #[must_use]
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Inner(error) => Some(error),
            Self::Limited(_) => None,
        }
    }

    /// Returns why the call got no turn. `None` for an error of the client.
    #[must_use]
    pub fn limited(&self) -> Option<&LimitedCall> {
        match self {
            Self::Inner(_) => None,
            Self::Limited(limited) => Some(limited),
        }
    }

    /// Converts the error, also if the client's is a `Box<dyn Error>`.
    #[must_use]
    pub fn into_boxed(self) -> Box<dyn error::Error + Send + Sync>
    where
        E: Into<Box<dyn error::Error + Send + Sync>>,
    {
        match self {
            Self::Inner(error) => error.into(),
            Self::Limited(limited) => limited.into(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for OutgoingError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inner(error) => error.fmt(f),
            Self::Limited(limited) => limited.fmt(f),
        }
    }
}

impl<E: error::Error> error::Error for OutgoingError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Inner(error) => error.source(),
            Self::Limited(limited) => limited.source(),
        }
    }
}

// === LimitedCall ===

/// A call that got no turn: before its first attempt, or before a retry.
#[derive(Debug)]
pub struct LimitedCall {
    pub(super) error: AcquireError,
    pub(super) attempts: u32,
    pub(super) last_status: Option<StatusCode>,
    pub(super) pause: Option<Duration>,
}

impl LimitedCall {
    /// Returns why there was no turn. It is also the [`source`](error::Error::source).
    #[must_use]
    pub fn kind(&self) -> AcquireErrorKind {
        self.error.kind()
    }

    /// Returns how long to wait before the call can have its turn. `None` if that is not known.
    ///
    /// While the API has asked for a longer pause than [`max_pause`](super::OutgoingLayerBuilder::max_pause), it is the time
    /// that the API asked for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.error.retry_after().max(self.pause)
    }

    /// Returns how often the request was sent.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the status of the last response. `None` if there was none.
    #[must_use]
    pub fn last_status(&self) -> Option<StatusCode> {
        self.last_status
    }

    /// Returns how long the API refuses calls from now on, as far as this process has seen. `None` if it does not.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        self.pause
    }
}

impl fmt::Display for LimitedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the call got no turn")?;
        match self.attempts {
            0 => {}
            1 => f.write_str(" after 1 attempt")?,
            attempts => write!(f, " after {attempts} attempts")?,
        }
        if let Some(status) = self.last_status {
            write!(f, ", last status {}", status.as_u16())?;
        }
        if let Some(pause) = self.pause {
            write!(f, ", refused for another {:.1} s", pause.as_secs_f64())?;
        }
        Ok(())
    }
}

impl error::Error for LimitedCall {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.error)
    }
}
