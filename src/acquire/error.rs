//! The error of a caller that got no turn.

use std::{error::Error as StdError, fmt, time::Duration};

use crate::{
    decision::{Decision, PolicyName},
    error::Error,
};

/// The error of a caller that got no turn. Nothing is charged.
#[derive(Clone, Debug)]
pub struct AcquireError {
    kind: AcquireErrorKind,
    retry_after: Option<Duration>,
    waited: Duration,
    policy: Option<PolicyName>,
    source: Option<Error>,
}

/// The cause of an [`AcquireError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquireErrorKind {
    /// The key is blocked by an operator.
    Blocked,
    /// The store could not decide.
    Failed,
    /// The cost is more than the limit.
    CostAboveLimit,
    /// The turn would come later than the caller waits.
    TooLong,
}

impl AcquireError {
    pub(super) fn new(kind: AcquireErrorKind) -> Self {
        Self {
            kind,
            retry_after: None,
            waited: Duration::ZERO,
            policy: None,
            source: None,
        }
    }

    pub(super) fn too_long(retry_after: Option<Duration>, policy: Option<PolicyName>) -> Self {
        Self {
            // A caller that tries again at once would do so again and again.
            retry_after: retry_after.filter(|wait| !wait.is_zero()),
            policy,
            ..Self::new(AcquireErrorKind::TooLong)
        }
    }

    /// Returns the error of a call whose client was not ready before the end of its wait.
    #[cfg(feature = "client")]
    pub(crate) fn client_not_ready(waited: Duration) -> Self {
        Self::too_long(None, None).after(waited)
    }

    pub(super) fn never(policy: PolicyName) -> Self {
        Self {
            policy: Some(policy),
            ..Self::new(AcquireErrorKind::CostAboveLimit)
        }
    }

    pub(super) fn denied(decision: &Decision) -> Self {
        Self {
            retry_after: decision.retry_after(),
            policy: decision.denying().map(|state| *state.policy()),
            ..Self::new(AcquireErrorKind::Blocked)
        }
    }

    pub(super) fn failed(error: Error) -> Self {
        Self {
            source: Some(error),
            ..Self::new(AcquireErrorKind::Failed)
        }
    }

    pub(super) fn after(mut self, waited: Duration) -> Self {
        self.waited = waited;
        self
    }

    /// Returns the cause.
    #[must_use]
    pub fn kind(&self) -> AcquireErrorKind {
        self.kind
    }

    /// Returns how long the turn was away when the caller gave up, or for how long the key is blocked. `None` if that is not known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns how long the caller has waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the name of the policy that the caller waited for, if it is known.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_ref().map(PolicyName::as_str)
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.kind {
            AcquireErrorKind::Blocked => "the key is blocked",
            AcquireErrorKind::Failed => "the store did not decide",
            AcquireErrorKind::CostAboveLimit => "the cost is above the limit",
            AcquireErrorKind::TooLong => "the turn would come too late",
        };
        f.write_str(cause)?;
        if let Some(policy) = &self.policy {
            write!(f, ", policy {:?}", policy.as_str())?;
        }
        if !self.waited.is_zero() {
            write!(f, ", after {:.1?}", self.waited)?;
        }
        match self.retry_after {
            Some(retry_after) => write!(f, ": try again in {retry_after:.1?}"),
            None => Ok(()),
        }
    }
}

impl StdError for AcquireError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.source.as_ref()?;
        Some(source)
    }
}
