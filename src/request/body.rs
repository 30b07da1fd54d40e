//! The body of a request, as extractors see it.
//!
//! # Why is a body that cannot be read not an absent key?
//!
//! A rule may skip requests without a key. If a body that is too large, too slow or malformed had no key, a client could choose to
//! have none, by padding its login with a megabyte of spaces that the handler ignores. So the request is rejected, as one
//! whose key is ambiguous. `FromBody::unreadable_is_absent` chooses the other way, for bodies that are no business of the rule.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::StatusCode;

use super::head::RequestHead;

/// How much of a request body a rule reads, and for how long.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::extract::BodyLimits;
///
/// let limits = BodyLimits::default().bytes(1 << 20).within(Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    bytes: usize,
    within: Duration,
}

impl BodyLimits {
    /// Sets the most bytes of a body. A larger one gets 413.
    ///
    /// Default: 16 KiB. Until its handler reads it, a body takes up to twice its bytes.
    #[must_use]
    pub const fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the time in which a body must arrive, counted from when the layer begins to read it. A slower one gets 408.
    ///
    /// Default: 5 s.
    #[must_use]
    pub const fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    #[cfg(feature = "body")]
    pub(crate) const fn most_bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(feature = "body")]
    pub(crate) const fn time(&self) -> Duration {
        self.within
    }

    /// Returns limits that serve both; `None` if neither needs a body.
    pub(crate) fn larger(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (Some(first), Some(second)) = (one, other) else {
            return one.or(other);
        };
        Some(Self {
            bytes: first.bytes.max(second.bytes),
            within: first.within.max(second.within),
        })
    }
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self {
            bytes: 16 << 10,
            within: Duration::from_secs(5),
        }
    }
}

// === BodyFault ===

/// The reason why a request body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BodyFault {
    /// It ended before its end: 400.
    Incomplete,
    /// It is not of the format that the extractor reads: 400.
    Malformed,
    /// It is larger than the [limit](BodyLimits::bytes): 413.
    TooLarge,
    /// It did not arrive [in time](BodyLimits::within): 408.
    TooSlow,
    /// The layer cannot read bodies of this type: 500. Only axum's `Body` can be read and handed on.
    Unsupported,
}

impl BodyFault {
    /// Returns the status of the response.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Incomplete | Self::Malformed => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Unsupported => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns a sentence for the client.
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::Incomplete => "the request body is incomplete",
            Self::Malformed => "the request body is malformed",
            Self::TooLarge => "the request body is too large",
            Self::TooSlow => "the request body did not arrive in time",
            Self::Unsupported => "the service cannot read the request body",
        }
    }
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

// === BufferedBody ===

/// The body of a request that the layer has read, in its extensions.
#[derive(Clone, Debug)]
pub(crate) struct BufferedBody {
    read: Result<Bytes, BodyFault>,
    /// Time that it took to arrive.
    took: Duration,
}

impl BufferedBody {
    #[cfg(feature = "body")]
    pub fn new(read: Result<Bytes, BodyFault>, took: Duration) -> Self {
        Self { read, took }
    }
}

impl<'a> RequestHead<'a> {
    /// Returns the body of the request, as the layer has read it for this rule.
    ///
    /// Only for an extractor whose [`body_limits`](crate::extract::KeyExtractor::body_limits) returns these limits. The layer may have
    /// read more, for other rules.
    ///
    /// # Errors
    ///
    /// The reason why it could not be read within the limits.
    pub fn body(&self, limits: BodyLimits) -> Result<&'a Bytes, BodyFault> {
        let Some(BufferedBody { read, took }) = self.extensions.get() else {
            return Err(BodyFault::Unsupported);
        };
        match read {
            Ok(bytes) if bytes.len() > limits.bytes => Err(BodyFault::TooLarge),
            Ok(_) if *took > limits.within => Err(BodyFault::TooSlow),
            Ok(bytes) => Ok(bytes),
            Err(fault) => Err(*fault),
        }
    }
}
