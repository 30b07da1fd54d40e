//! Which calls are retried, and when.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, Method, Response, StatusCode};

use crate::{
    error::Error,
    matching::{Match, Matcher},
    request::RequestHead,
    task::backoff::random,
};

use super::{
    by_type::ByType,
    observed::{Observed, Refusal},
};

/// The part of a failed call that its retry depends on.
///
/// | | the call | is retried |
/// |---|---|---|
/// | `Final` | may have arrived, or cannot succeed | no |
/// | `NotSent` | has not arrived | with any method |
/// | `Transient` | may have arrived, and may succeed later | if its request is safe to repeat |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallFailure {
    /// The call is not retried.
    Final,
    /// The request was not sent, such as after a refused connection. The call is retried, whatever its method is.
    NotSent,
    /// The request may have arrived, such as after a connection that was closed. The call is retried if it is safe.
    Transient,
}

/// The settings of retries.
#[derive(Clone, Default)]
pub(super) struct RetrySettings {
    pub max_retries: u32,
    /// Whether only safe requests are retried after a refusal.
    pub safe_only: bool,
    /// Requests that are safe besides those that always are.
    pub safe: Vec<Arc<dyn Matcher>>,
    pub errors: ByType,
}

/// Classifies the error of a client.
pub(super) type ClassifyError<E> = Box<dyn Fn(&E) -> CallFailure + Send + Sync>;

impl RetrySettings {
    /// Returns whether a request may be sent twice.
    pub fn is_safe(&self, head: &RequestHead<'_>) -> bool {
        is_idempotent(head.method)
            || head.headers.contains_key("idempotency-key")
            || self
                .safe
                .iter()
                .any(|matcher| matcher.matches(head) == Match::Exact)
    }

    /// Returns whether any failure can lead to a retry of such a request, after this many attempts.
    pub fn may_retry(&self, is_safe: bool, attempts: u32) -> bool {
        attempts < self.max_retries && (is_safe || !self.safe_only || !self.errors.is_empty())
    }

    /// Returns whether a call is retried after a failure.
    pub fn permits(&self, failure: CallFailure, is_safe: bool) -> bool {
        match failure {
            CallFailure::Final => false,
            CallFailure::NotSent => true,
            CallFailure::Transient => is_safe,
        }
    }

    /// Classifies an error of the client.
    pub fn of_error<E: 'static>(&self, error: &E) -> CallFailure {
        let classify = self.errors.get::<ClassifyError<E>>();
        classify.map_or(CallFailure::Final, |classify| classify(error))
    }

    /// Classifies a response. `None` if it is not a failure.
    pub fn of_response<R>(
        &self,
        response: &Response<R>,
        observed: &Observed,
    ) -> Option<CallFailure> {
        let is_exhausted = has_code(response.headers(), b"8") && observed.retry_after().is_none();
        let failure = match observed.refusal() {
            // Refused before any work was done. `RESOURCE_EXHAUSTED` may also be a reply that is too large, after the work.
            Some(Refusal::Limited) if !self.safe_only && !is_exhausted => CallFailure::NotSent,
            Some(_) => CallFailure::Transient,
            None if is_transient(response.status(), response.headers()) => CallFailure::Transient,
            None => return None,
        };
        let is_final = observed.must_not_retry();
        Some(if is_final {
            CallFailure::Final
        } else {
            failure
        })
    }

    pub fn validate(&self) -> Result<(), Error> {
        self.safe.iter().try_for_each(Matcher::validate)
    }
}

impl fmt::Debug for RetrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetrySettings")
            .field("max_retries", &self.max_retries)
            .field("safe_only", &self.safe_only)
            .finish_non_exhaustive()
    }
}

/// Returns the wait before a retry: the floor, and a random part that grows with the number of attempts.
///
/// Full jitter above the floor: if all callers came back at the end of `Retry-After`, the API would refuse most of them again.
pub(super) fn wait(floor: Duration, attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    let most = MAX_JITTER.min(MIN_JITTER * 2_u32.pow(doublings));
    let micros = u64::try_from(most.as_micros()).expect("at most 5 s");
    floor.saturating_add(Duration::from_micros(random() % (micros + 1)))
}

/// The methods of which RFC 9110, section 9.2.2, requires that a repetition has no further effect.
fn is_idempotent(method: &Method) -> bool {
    [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::PUT,
        Method::DELETE,
    ]
    .contains(method)
}

/// Whether a response that is not a refusal may be another one next time: 5xx, but for those that describe the server, and
/// `UNAVAILABLE` of gRPC.
pub(super) fn is_transient(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_lasting = [
        StatusCode::NOT_IMPLEMENTED,
        StatusCode::HTTP_VERSION_NOT_SUPPORTED,
    ];
    (status.is_server_error() && !is_lasting.contains(&status)) || has_code(headers, b"14")
}

/// Whether a response has this status of gRPC.
fn has_code(headers: &HeaderMap, code: &[u8]) -> bool {
    headers
        .get("grpc-status")
        .is_some_and(|status| status.as_bytes() == code)
}

const MIN_JITTER: Duration = Duration::from_millis(100);
const MAX_JITTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_the_floor_and_up_to_twice_as_much_each_time() {
        let floor = Duration::from_secs(3);
        for (attempts, most) in [
            (1, 100),
            (2, 200),
            (3, 400),
            (6, 3_200),
            (7, 5_000),
            (99, 5_000),
        ] {
            let waits: Vec<Duration> = (0..500).map(|_| wait(floor, attempts) - floor).collect();
            let most = Duration::from_millis(most);
            assert!(waits.iter().all(|wait| *wait <= most), "{attempts}");
            assert!(waits.iter().any(|wait| *wait > most * 9 / 10), "{attempts}");
            assert!(waits.iter().any(|wait| *wait < most / 10), "{attempts}");
        }
        assert_eq!(wait(Duration::MAX, 1), Duration::MAX);
    }
}
