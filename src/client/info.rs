//! How a call came to its response.

use std::time::Duration;

use crate::decision::Decision;

/// The attempts and waits of a call, in the extensions of its response.
///
/// # Examples
///
/// ```
/// use tollgate::client::OutgoingInfo;
///
/// fn log<B>(response: &http::Response<B>) {
///     if let Some(info) = response.extensions().get::<OutgoingInfo>() {
///         println!("{} attempts, waited {:?}", info.attempts(), info.waited());
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct OutgoingInfo {
    pub(super) attempts: u32,
    pub(super) waited: Duration,
    pub(super) decision: Option<Decision>,
}

impl OutgoingInfo {
    /// Returns how often the request was sent.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the time that the call waited for its turns, and before retries.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the decision that admitted the last attempt. `None` if no rule counted the call.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }
}
