//! Why a request may not go on.

use http::StatusCode;

use crate::{
    decision::Decision,
    error::Error,
    state::{Outcome, PolicyName, PolicyState},
};

use super::headers::{Terms, whole_seconds};

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
    /// The terms of the decision, when they are not the layer's.
    terms: Option<Box<[Terms]>>,
}

/// The reason of a [`Rejection`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
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
    /// The request does not tell whom to count for this policy.
    MissingKey {
        /// The policy whose key is missing.
        policy: PolicyName,
        /// What its extractor looks at.
        label: String,
    },
    /// Nobody could decide, and a policy says to refuse then.
    Unavailable,
}

impl Rejection {
    pub(super) fn denied(decision: Decision) -> Self {
        let limited = decision
            .narrowest()
            .filter(|_| decision.outcome() == Outcome::Deny);
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

    /// The same on terms that are not the layer's.
    pub(super) fn under(mut self, terms: Option<Box<[Terms]>>) -> Self {
        self.repr.terms = terms;
        self
    }

    pub(super) fn undecided(error: Error) -> Self {
        let mut rejection = Self::with(Reason::Unavailable, StatusCode::SERVICE_UNAVAILABLE, None);
        rejection.repr.error = Some(error);
        rejection
    }

    pub(super) fn forbidden(policy: Option<PolicyName>) -> Self {
        Self::with(Reason::Forbidden { policy }, StatusCode::FORBIDDEN, None)
    }

    pub(super) fn missing_key(policy: PolicyName, label: &str, status: StatusCode) -> Self {
        let label = label.to_owned();
        Self::with(Reason::MissingKey { policy, label }, status, None)
    }

    fn with(reason: Reason, status: StatusCode, decision: Option<Decision>) -> Self {
        let repr = Repr {
            reason,
            status,
            decision,
            error: None,
            terms: None,
        };
        Self {
            repr: Box::new(repr),
        }
    }

    pub(super) fn terms(&self) -> Option<&[Terms]> {
        self.repr.terms.as_deref()
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.repr.reason
    }

    /// The status that fits: 403 when it is not let in, 429 over a limit, 503 when nobody could decide, the extractor's
    /// choice without a key.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.repr.status
    }

    /// The decision, when one was made.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.repr.decision.as_ref()
    }

    /// Why the store could not decide, when it said so.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.repr.error.as_ref()
    }

    /// The policies whose limit the request is over, in the layer's order.
    pub fn violated(&self) -> impl Iterator<Item = &PolicyState> {
        let states = self.decision().map_or(&[][..], Decision::states);
        states
            .iter()
            .filter(|state| state.outcome() == Outcome::Deny)
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

    /// A sentence for the client.
    #[must_use]
    pub fn message(&self) -> String {
        match (&self.repr.reason, self.retry_after_secs()) {
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
                format!("the request cannot be counted: {label} is missing")
            }
            (Reason::Unavailable, _) => "the rate limit cannot be checked now".to_owned(),
        }
    }

    /// A word for programs: `forbidden`, `rate_limited`, `key_missing` or `unavailable`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self.repr.reason {
            Reason::Forbidden { .. } => "forbidden",
            Reason::Limited { .. } => "rate_limited",
            Reason::MissingKey { .. } => "key_missing",
            Reason::Unavailable => "unavailable",
        }
    }
}
