//! Why a request may not go on.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderValue, StatusCode, request::Parts};

use crate::{
    clock::whole_seconds,
    decision::Decision,
    error::Error,
    error_chain::ErrorChain,
    extract::{AsyncKeyExtractor, KeyExtractor},
    log,
    state::{Outcome, PolicyName, PolicyState},
};

/// Why a request may not go on. It is in the extensions of the response made from it.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Boxed: it travels through `Result`s whose other side is the usual way.
    repr: Box<Repr>,
}

#[derive(Clone, Debug)]
struct Repr {
    reason: Reason,
    status: StatusCode,
    decision: Option<Decision>,
    error: Option<Error>,
    /// For a missing key: how a client may authenticate.
    challenge: Option<HeaderValue>,
}

/// The reason of a [`Rejection`].
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
    /// Not let in at all, however seldom it comes.
    Forbidden {
        /// The policy under which the caller's tier is denied; `None` when the request is on a deny list of the layer.
        policy: Option<PolicyName>,
    },
    /// Over the limit of this policy.
    Limited {
        /// The policy that denies, or the one with the longest wait when several do.
        policy: PolicyName,
    },
    /// The request has no key for this policy.
    MissingKey {
        /// The policy whose key is missing.
        policy: PolicyName,
        /// What its extractor looks at.
        label: String,
    },
    /// Nobody could decide, and a policy says to refuse then; or a key could not be looked up, and its rule says to reject.
    Unavailable,
}

impl Rejection {
    pub(crate) fn limited(decision: Decision) -> Self {
        let limited = decision
            .narrowest()
            .filter(|_| decision.outcome() == Outcome::Limited);
        let (reason, status) = match limited {
            Some(state) => (
                Reason::Limited {
                    policy: *state.policy(),
                },
                StatusCode::TOO_MANY_REQUESTS,
            ),
            None => (Reason::Unavailable, StatusCode::SERVICE_UNAVAILABLE),
        };
        Self::with(reason, status, Some(decision))
    }

    /// For a store that could not decide: `warned` says whether that was reported, with what follows from it.
    #[cold]
    pub(crate) fn undecided(error: Error, warned: &AtomicBool, consequence: &str) -> Self {
        if !warned.swap(true, Ordering::Relaxed) {
            let error = ErrorChain(&error);
            log::event!(
                WARN,
                "the store could not decide",
                error = error,
                effect = consequence
            );
        }
        let mut rejection = Self::unidentified();
        rejection.repr.error = Some(error);
        rejection
    }

    /// For a key that could not be looked up: that is no fault of the client's.
    pub(crate) fn unidentified() -> Self {
        Self::with(Reason::Unavailable, StatusCode::SERVICE_UNAVAILABLE, None)
    }

    pub(crate) fn forbidden(policy: Option<PolicyName>) -> Self {
        Self::with(Reason::Forbidden { policy }, StatusCode::FORBIDDEN, None)
    }

    pub(crate) fn missing_key(policy: PolicyName, lack: MissingKeyDetail<'_>) -> Self {
        let label = lack.label.to_owned();
        let mut rejection = Self::with(Reason::MissingKey { policy, label }, lack.status, None);
        rejection.repr.challenge = lack.challenge;
        rejection
    }

    /// For a key that is there more than once: 400, whatever the rule makes of an absent one.
    pub(crate) fn ambiguous_key(policy: PolicyName, label: &str) -> Self {
        let label = label.to_owned();
        let reason = Reason::AmbiguousKey { policy, label };
        Self::with(reason, StatusCode::BAD_REQUEST, None)
    }

    /// Adds the decision on the other policies.
    pub(crate) fn decided(mut self, decision: Decision) -> Self {
        self.repr.decision = Some(decision);
        self
    }

    fn with(reason: Reason, status: StatusCode, decision: Option<Decision>) -> Self {
        let repr = Repr {
            reason,
            status,
            decision,
            error: None,
            challenge: None,
        };
        Self {
            repr: Box::new(repr),
        }
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.repr.reason
    }

    /// The status that fits: 403 when it is not let in, 429 over a limit, 503 when nobody could decide or look a key up,
    /// 400 for an ambiguous key, the extractor's choice without a key.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.repr.status
    }

    /// The decision, when one was made. Where a key is missing or ambiguous it is about the other policies, and allows
    /// the request.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.repr.decision.as_ref()
    }

    /// Why the store could not decide, when it said so.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.repr.error.as_ref()
    }

    /// How a client may authenticate, by the extractor of a key that is missing. An answer of 401 gets it as
    /// `WWW-Authenticate`, unless it has one.
    #[must_use]
    pub fn challenge(&self) -> Option<&HeaderValue> {
        self.repr.challenge.as_ref()
    }

    /// The policies whose limit the request is over, in the layer's order.
    pub fn violated(&self) -> impl Iterator<Item = &PolicyState> {
        let states = self.decision().map_or(&[][..], Decision::states);
        states
            .iter()
            .filter(|state| state.outcome() == Outcome::Limited)
    }

    /// Whole seconds to wait, rounded up and at least 1, when it is known.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.repr
            .decision
            .as_ref()?
            .retry_after()
            .map(whole_seconds)
    }

    /// A sentence for the client. It names what the client sends, and nothing of the server's own misconfiguration.
    #[must_use]
    pub fn message(&self) -> String {
        match (&self.repr.reason, self.retry_after_secs()) {
            (Reason::MissingKey { .. }, _) if self.is_internal() => INTERNAL.to_owned(),
            (Reason::Forbidden { .. }, _) => "this request is not let in".to_owned(),
            (Reason::Limited { policy }, Some(1)) => {
                format!("rate limit {policy} exceeded, retry in 1 second")
            }
            (Reason::Limited { policy }, Some(seconds)) => {
                format!("rate limit {policy} exceeded, retry in {seconds} seconds")
            }
            (Reason::Limited { policy }, None) => {
                format!("this request costs more than rate limit {policy} ever allows")
            }
            (Reason::MissingKey { label, .. }, _) => {
                let what = spoken(label);
                format!("the request cannot be counted: {what} is missing")
            }
            (Reason::AmbiguousKey { label, .. }, _) => {
                let what = spoken(label);
                format!("the request is ambiguous: {what} must be there exactly once")
            }
            (Reason::Unavailable, _) => "the rate limit cannot be checked now".to_owned(),
        }
    }

    /// A word for programs: `forbidden`, `internal_error`, `rate_limited`, `key_ambiguous`, `key_missing` or `unavailable`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self.repr.reason {
            Reason::MissingKey { .. } if self.is_internal() => "internal_error",
            Reason::AmbiguousKey { .. } => "key_ambiguous",
            Reason::Forbidden { .. } => "forbidden",
            Reason::Limited { .. } => "rate_limited",
            Reason::MissingKey { .. } => "key_missing",
            Reason::Unavailable => "unavailable",
        }
    }

    /// Whether a key is missing through the server's own fault. The extractor is named in the log.
    fn is_internal(&self) -> bool {
        self.repr.status.is_server_error()
    }
}

// === MissingKeyDetail ===

/// A key that is not there, as its extractor sees it.
#[derive(Clone, Debug)]
pub(crate) struct MissingKeyDetail<'a> {
    pub(crate) label: &'a str,
    pub(super) status: StatusCode,
    pub(super) challenge: Option<HeaderValue>,
}

impl<'a> MissingKeyDetail<'a> {
    /// Of a key that this extractor did not find in a request.
    #[cold]
    pub(crate) fn of(extractor: &'a dyn KeyExtractor, parts: &Parts) -> Self {
        Self {
            label: extractor.missing_label(parts),
            status: extractor.missing_status(parts),
            challenge: extractor.challenge(parts),
        }
    }

    /// Of a key that this extractor looked up and did not find.
    #[cold]
    pub(crate) fn of_found(extractor: &'a dyn AsyncKeyExtractor) -> Self {
        Self {
            label: extractor.label(),
            status: extractor.missing_status(),
            challenge: extractor.challenge(),
        }
    }
}

impl Default for MissingKeyDetail<'_> {
    /// Of a key that no extractor looks for.
    fn default() -> Self {
        Self {
            label: "key",
            status: StatusCode::BAD_REQUEST,
            challenge: None,
        }
    }
}

/// The label as a client understands it.
fn spoken(label: &str) -> &str {
    let mut words = label.split("-or-").flat_map(|either| either.split('+'));
    match words.all(|word| UNSPOKEN.contains(&word)) {
        true => "its key",
        false => label,
    }
}

/// Labels that say how the program finds a key, and nothing of what a client sends.
const UNSPOKEN: [&str; 4] = ["closure", "extension", "key", "lookup"];
/// The sentence for a fault that a client can do nothing about.
pub(crate) const INTERNAL: &str = "internal server error";
