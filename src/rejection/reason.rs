//! Reason for a rejection, with its status, code and message.
//!
//! # Why does a 500 not name the missing key?
//!
//! A client cannot fix a server that was started without connect info, and the name would reveal how the client is counted. So
//! the body is "internal server error". The warning in the log names the extractor, and the way to fix it.

use std::{
    error::Error as StdError,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use http::{HeaderValue, StatusCode};

use crate::{
    clock::whole_seconds,
    decision::{Decision, Outcome, PolicyName, PolicyState},
    diagnosis::{ErrorChain, log},
    error::{Error, ErrorKind},
    extract::{AsyncKeyExtractor, KeyExtractor},
    priority::priority::Priority,
    request::{BodyFault, RequestHead},
    task::backoff::random,
};

use super::jitter::RetryAfterJitter;

/// The rejection of a request. It is in the extensions of the response made from it.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Boxed, since it is in `Result`s whose other variant is the common one.
    details: Box<Details>,
}

#[derive(Clone, Debug)]
struct Details {
    reason: Reason,
    status: StatusCode,
    decision: Option<Decision>,
    /// Wait of the client, not below the decision's. `None` if waiting does not help or the wait is unknown.
    wait: Option<Duration>,
    error: Option<Error>,
    /// Value for `WWW-Authenticate` if a key is missing.
    challenge: Option<HeaderValue>,
}

/// The reason for a [`Rejection`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The request has its key for this policy more than once, or in places that contradict each other.
    AmbiguousKey {
        /// The policy whose key is ambiguous.
        policy: PolicyName,
        /// The label of its extractor.
        label: String,
    },
    /// The client has no access, however rarely it calls.
    Forbidden {
        /// The policy under which the caller's tier is forbidden; `None` if it is on the layer's forbid list.
        policy: Option<PolicyName>,
    },
    /// The request is over the limit of this policy.
    Limited {
        /// The policy that denies the request, or the one with the longest wait if several do.
        policy: PolicyName,
    },
    /// The service has more requests than it can serve in time, and sheds this one. See [`overload`](crate::overload).
    Overloaded {
        /// The class of the request.
        priority: Priority,
    },
    /// The request has no key for this policy.
    MissingKey {
        /// The policy whose key is missing.
        policy: PolicyName,
        /// The label of its extractor.
        label: String,
    },
    /// The body of the request, which this policy needs, could not be read.
    UnreadableBody {
        /// The policy whose key or cost is in the body.
        policy: PolicyName,
        /// The reason.
        fault: BodyFault,
    },
    /// The store is unavailable and a policy's outage choice is to deny, or a key could not be looked up and its rule
    /// rejects requests without one.
    Unavailable,
}

impl Reason {
    /// Returns the name of the policy that rejects the request; `None` if no single policy does.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyName> {
        match self {
            Self::AmbiguousKey { policy, .. }
            | Self::Limited { policy }
            | Self::MissingKey { policy, .. }
            | Self::UnreadableBody { policy, .. } => Some(policy),
            Self::Forbidden { policy } => policy.as_ref(),
            Self::Overloaded { .. } | Self::Unavailable => None,
        }
    }
}

impl Rejection {
    /// Returns the rejection of the request that a decision is about: 429 if a policy is over its limit, otherwise 503. `None`
    /// if it is allowed.
    ///
    /// [`RateLimiter::enforce`](crate::RateLimiter::enforce) makes both, the decision and the rejection.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, RateLimiter, rejection::Rejection};
    ///
    /// async fn send(limiter: RateLimiter, messages: Policy) -> Result<(), Rejection> {
    ///     let decision = limiter.check(messages.charge(Key::new("ada"))).await?;
    ///     if let Some(rejection) = Rejection::of(&decision) {
    ///         println!("{}", rejection.message());
    ///         return Err(rejection);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn of(decision: &Decision) -> Option<Self> {
        (!decision.is_allowed()).then(|| Self::of_decision(decision.clone()))
    }

    /// For a decision that does not admit the request: 429 if a policy is over its limit, otherwise 503.
    pub(crate) fn of_decision(decision: Decision) -> Self {
        let limited = decision
            .denying()
            .filter(|_| decision.outcome() == Outcome::Limited);
        let rejection = match limited {
            Some(state) => {
                let policy = *state.policy();
                Self::new(Reason::Limited { policy }, StatusCode::TOO_MANY_REQUESTS)
            }
            None => Self::unavailable(),
        };
        rejection.with_decision(decision)
    }

    /// For a store that returned an error. Logs the first one, with its effect on requests.
    #[cold]
    pub(crate) fn store_failed(error: Error, has_logged: &AtomicBool, effect: &str) -> Self {
        if !has_logged.swap(true, Ordering::Relaxed) {
            let error = ErrorChain(&error);
            log::event!(
                WARN,
                "the store could not decide",
                error = error,
                effect = effect
            );
        }
        Self::of_error(error)
    }

    fn of_error(error: Error) -> Self {
        let mut rejection = Self::unavailable();
        rejection.details.error = Some(error);
        rejection
    }

    /// For a request that cannot be decided, through no fault of the client.
    pub(crate) fn unavailable() -> Self {
        Self::new(Reason::Unavailable, StatusCode::SERVICE_UNAVAILABLE)
    }

    /// For a request that is shed, whose client waits this long.
    pub(crate) fn overloaded(priority: Priority, wait: Duration) -> Self {
        let reason = Reason::Overloaded { priority };
        let mut rejection = Self::new(reason, StatusCode::SERVICE_UNAVAILABLE);
        rejection.details.wait = Some(wait);
        rejection
    }

    /// For a mistake of the service's own, which is in its log.
    #[cfg(feature = "axum")]
    pub(crate) fn internal() -> Self {
        Self::new(Reason::Unavailable, StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn forbidden(policy: Option<PolicyName>) -> Self {
        Self::new(Reason::Forbidden { policy }, StatusCode::FORBIDDEN)
    }

    pub(crate) fn missing_key(policy: PolicyName, detail: MissingKeyDetail<'_>) -> Self {
        let label = detail.label.to_owned();
        let mut rejection = Self::new(Reason::MissingKey { policy, label }, detail.status);
        rejection.details.challenge = detail.challenge;
        rejection
    }

    /// For a body that could not be read, whatever the rule does about a missing key.
    pub(crate) fn unreadable_body(policy: PolicyName, fault: BodyFault) -> Self {
        Self::new(Reason::UnreadableBody { policy, fault }, fault.status())
    }

    /// For a key that is in the request more than once: 400, whatever the rule does about a missing key.
    pub(crate) fn ambiguous_key(policy: PolicyName, label: &str) -> Self {
        let label = label.to_owned();
        let reason = Reason::AmbiguousKey { policy, label };
        Self::new(reason, StatusCode::BAD_REQUEST)
    }

    /// Adds the decision, which is about the other policies if a key is missing or ambiguous.
    pub(crate) fn with_decision(mut self, decision: Decision) -> Self {
        self.details.wait = decision.retry_after().map(|wait| match wait {
            // A slot may become free at any time.
            Duration::ZERO => SECOND,
            wait => wait,
        });
        self.details.decision = Some(decision);
        self
    }

    /// Adds a random part to the wait.
    pub(crate) fn spread_wait(&mut self, jitter: RetryAfterJitter) {
        if !jitter.is_none()
            && let Some(wait) = &mut self.details.wait
        {
            *wait = jitter.spread(*wait, random());
        }
    }

    fn new(reason: Reason, status: StatusCode) -> Self {
        Self {
            details: Box::new(Details {
                reason,
                status,
                decision: None,
                wait: None,
                error: None,
                challenge: None,
            }),
        }
    }

    /// The reason.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.details.reason
    }

    /// The status of the response: 429 if limited, 403 if forbidden, 503 if overloaded or unavailable (500 if the service's own code or settings are
    /// the reason), 400 for an ambiguous key, 413, 408 or 400 for an
    /// unreadable body, and the extractor's choice for a missing key.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.details.status
    }

    /// The decision, if one was made. If a key is missing or ambiguous, it is about the other policies, and allows the request.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.details.decision.as_ref()
    }

    /// The error that the store returned, if it returned one.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.details.error.as_ref()
    }

    /// The challenge of the extractor whose key is missing: how a client authenticates. A response of 401 carries it as
    /// `WWW-Authenticate`, unless it sets that header itself.
    #[must_use]
    pub fn challenge(&self) -> Option<&HeaderValue> {
        self.details.challenge.as_ref()
    }

    /// States of the policies whose limit the request is over, in the layer's order.
    pub fn violated(&self) -> impl Iterator<Item = &PolicyState> {
        let states = self.decision().map_or(&[][..], Decision::states);
        states
            .iter()
            .filter(|state| state.outcome() == Outcome::Limited)
    }

    /// Whole seconds to wait, rounded up and at least 1. `None` if waiting does not help or the wait is unknown.
    ///
    /// It is the number in `Retry-After`. With
    /// [`retry_after_jitter`](crate::builder::RateLimitLayerBuilder::retry_after_jitter), it may be more than the wait of the
    /// [decision](Self::decision), and never less.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.details.wait.map(whole_seconds)
    }

    /// Returns the wait to the microsecond.
    #[cfg(feature = "grpc")]
    pub(super) fn wait(&self) -> Option<Duration> {
        self.details.wait
    }

    /// A sentence for the client. It names the missing part of the request, and nothing of the server's configuration except the
    /// policy.
    #[must_use]
    pub fn message(&self) -> String {
        self.message_parts(&mut itoa::Buffer::new()).concat()
    }

    /// Returns the parts of the [message](Self::message). `digits` holds those of the wait.
    // In parts, so that a response copies them once, into its body.
    pub(super) fn message_parts<'a>(&'a self, digits: &'a mut itoa::Buffer) -> [&'a str; 5] {
        match &self.details.reason {
            Reason::AmbiguousKey { label, .. } => match client_label(label) {
                Some(label) => ["the request must contain ", label, " exactly once", "", ""],
                None => ["the request contains conflicting values", "", "", "", ""],
            },
            Reason::Forbidden { .. } => ["access denied", "", "", "", ""],
            Reason::Limited { policy } => match self.retry_after_secs() {
                Some(seconds) => [
                    "rate limit ",
                    policy.as_str(),
                    " exceeded, retry in ",
                    digits.format(seconds),
                    if seconds == 1 { " second" } else { " seconds" },
                ],
                None => [
                    "this request costs more than rate limit ",
                    policy.as_str(),
                    " ever allows",
                    "",
                    "",
                ],
            },
            _ if self.is_internal() => [INTERNAL_ERROR, "", "", "", ""],
            Reason::MissingKey { label, .. } => {
                let missing = client_label(label).unwrap_or("a required value");
                ["the request is missing ", missing, "", "", ""]
            }
            Reason::Overloaded { priority } => [
                "the service is overloaded for requests of class ",
                priority.name(),
                ", retry in ",
                digits.format(self.retry_after_secs().unwrap_or(1)),
                " s",
            ],
            Reason::UnreadableBody { fault, .. } => [fault.message(), "", "", "", ""],
            Reason::Unavailable => ["the service is temporarily unavailable", "", "", "", ""],
        }
    }

    /// The code for programs: `body_unreadable`, `forbidden`, `internal_error`, `key_ambiguous`, `key_missing`, `overloaded`, `rate_limited` or
    /// `unavailable`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self.details.reason {
            Reason::AmbiguousKey { .. } => "key_ambiguous",
            Reason::Forbidden { .. } => "forbidden",
            Reason::Limited { .. } => "rate_limited",
            _ if self.is_internal() => "internal_error",
            Reason::MissingKey { .. } => "key_missing",
            Reason::Overloaded { .. } => "overloaded",
            Reason::UnreadableBody { .. } => "body_unreadable",
            Reason::Unavailable => "unavailable",
        }
    }

    /// Whether the reason is the server's own configuration. The log has it.
    fn is_internal(&self) -> bool {
        let status = self.details.status;
        match self.details.reason {
            Reason::MissingKey { .. } | Reason::UnreadableBody { .. } => status.is_server_error(),
            Reason::Unavailable => status == StatusCode::INTERNAL_SERVER_ERROR,
            _ => false,
        }
    }
}

/// The error of a limiter that could not decide: 503, with the [error](Rejection::error).
///
/// So `?` passes errors of [`RateLimiter`](crate::RateLimiter) on in a handler. An error of the service's own making, such as a
/// policy that the limiter does not have, is 500, and the first one of the process is logged.
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        use ErrorKind::{InvalidConfig, InvalidPolicy, InvalidQuota};
        let is_mistake = matches!(error.kind(), InvalidConfig | InvalidPolicy | InvalidQuota);
        if is_mistake && !HAS_LOGGED_MISTAKE.swap(true, Ordering::Relaxed) {
            log::event!(
                ERROR,
                "a handler cannot ask the limiter",
                error = ErrorChain(&error),
                effect = "its requests get 500"
            );
        }
        let mut rejection = Self::of_error(error);
        if is_mistake {
            rejection.details.status = StatusCode::INTERNAL_SERVER_ERROR;
        }
        rejection
    }
}

static HAS_LOGGED_MISTAKE: AtomicBool = AtomicBool::new(false);

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let error = self.error()?;
        Some(error)
    }
}

// === MissingKeyDetail ===

/// Label, status and challenge of an extractor whose key is missing.
#[derive(Clone, Debug)]
pub(crate) struct MissingKeyDetail<'a> {
    pub label: &'a str,
    status: StatusCode,
    challenge: Option<HeaderValue>,
}

impl<'a> MissingKeyDetail<'a> {
    /// For a key that is not in the request.
    #[cold]
    pub fn of(extractor: &'a dyn KeyExtractor, head: &RequestHead<'_>) -> Self {
        Self {
            label: extractor.missing_label(head),
            status: extractor.missing_status(head),
            challenge: extractor.challenge(head),
        }
    }

    /// For a key that a lookup did not find.
    #[cold]
    pub fn of_lookup(extractor: &'a dyn AsyncKeyExtractor) -> Self {
        Self {
            label: extractor.label(),
            status: extractor.missing_status(),
            challenge: extractor.challenge(),
        }
    }
}

impl Default for MissingKeyDetail<'_> {
    /// For a key without an extractor.
    fn default() -> Self {
        Self {
            label: "key",
            status: StatusCode::BAD_REQUEST,
            challenge: None,
        }
    }
}

/// Returns the label if it names something that a client sends.
fn client_label(label: &str) -> Option<&str> {
    let mut names = label.split("-or-").flat_map(|either| either.split('+'));
    let is_internal = names.all(|name| INTERNAL_LABELS.contains(&name));
    (!is_internal).then_some(label)
}

/// The message for an error that the client cannot do anything about.
const INTERNAL_ERROR: &str = "internal server error";
/// Labels of keys that the program computes, and that do not name anything in the request.
const INTERNAL_LABELS: [&str; 4] = ["closure", "extension", "key", "lookup"];
const SECOND: Duration = Duration::from_secs(1);
